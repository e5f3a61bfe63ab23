/* SPDX-License-Identifier: Apache-2.0 */
/* Positions of the scopes of a store in logs whose offsets it keeps, for a broker connection that
 * only inspects backlogs. It acquires no partition and changes nothing. */
#ifndef SEMEL_PROOF_POSITION_READER_H
#define SEMEL_PROOF_POSITION_READER_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_position_reader {
	struct semel_offset_store offset_store;
	semel_store *store; /* whose scopes are inspected; may change between calls */
};

/* The broker gets its positions from the reader from now on; the reader outlives it. */
void semel_position_reader_attach(struct semel_position_reader *position_reader,
				  struct semel_broker *broker, semel_store *store);

#endif
