/* SPDX-License-Identifier: Apache-2.0 */
/* Positions in logs for which the broker keeps no offset of their readers (streams, and partitions
 * whose offsets are in the store). The broker reads the positions through the offset store; the
 * consumer notes what it fetched, writes its progress in the transaction of the effects, and
 * reports what was acknowledged.
 *
 * Threads: the consumer's. */
#ifndef SEMEL_CONSUME_POSITIONS_H
#define SEMEL_CONSUME_POSITIONS_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_consumer;
struct semel_item;
struct semel_positions;

/* NULL: out of memory. Lives as long as the consumer. */
struct semel_positions *semel_positions_new(struct semel_consumer *consumer);
void semel_positions_free(struct semel_positions *positions);
/* For semel_broker_set_offset_store. */
const struct semel_offset_store *semel_positions_offset_store(
	const struct semel_positions *positions);
/* The connections were closed: all positions are read again. lost: another reader has taken over,
 * perhaps because the lease was too short for the work; the next lease is longer. */
void semel_positions_forget(struct semel_positions *positions, bool lost);

/* Notes that these deliveries were fetched, in this order. */
semel_status semel_positions_note_fetched(struct semel_positions *positions,
					  const struct semel_delivery *deliveries, uint32_t count,
					  semel_error *error);
/* Call in the open transaction, before its commit: first begin, then include for each item, whose
 * state is final; then write, which stores how far everything will be settled. LEASE_LOST: another
 * reader has taken over, so the transaction must be rolled back. */
void semel_positions_begin(struct semel_positions *positions);
void semel_positions_include(struct semel_positions *positions, const struct semel_item *item);
semel_status semel_positions_write(struct semel_positions *positions, semel_error *error);
/* These deliveries are settled for good. */
void semel_positions_acknowledged(struct semel_positions *positions,
				  const struct semel_delivery *deliveries, uint32_t count);
/* Call often, between transactions: writes what was settled after its transaction, and renews
 * leases. */
semel_status semel_positions_renew(struct semel_positions *positions, semel_error *error);

#endif
