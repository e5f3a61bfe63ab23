/* SPDX-License-Identifier: Apache-2.0 */
/* For those who look at a broker and read nothing: where the scopes of a store stand in logs whose
 * places it keeps. */
#ifndef SEMEL_PROOF_POSITION_READER_H
#define SEMEL_PROOF_POSITION_READER_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_position_reader {
	struct semel_offset_store offset_store;
	semel_store *store; /* whose scopes are looked at; may change from look to look */
};

/* The broker asks the position_reader from now on, which outlives it. */
void semel_position_reader_attach(struct semel_position_reader *position_reader,
				  struct semel_broker *broker, semel_store *store);

#endif
