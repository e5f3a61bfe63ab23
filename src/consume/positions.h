/* SPDX-License-Identifier: Apache-2.0 */
/* Where the consumer stands in logs that keep no reader for their readers (streams, and partitions
 * whose offsets are kept in the store). The broker asks the offset store; the consumer notes what
 * it fetched, writes how far it got in the transaction of the effects, and tells what was settled.
 * One thread, that of the consumer. */
#ifndef SEMEL_CONSUME_PLACE_H
#define SEMEL_CONSUME_PLACE_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_consumer;
struct semel_item;
struct semel_positions;

/* NULL: no memory. Lives as long as the consumer; what is read is forgotten by
 * semel_positions_forget. */
struct semel_positions *semel_positions_new(struct semel_consumer *consumer);
void semel_positions_free(struct semel_positions *positions);
/* For semel_broker_set_offset_store. */
const struct semel_offset_store *semel_places_offset_store(const struct semel_positions *positions);
/* Store and broker are gone: everything is asked for anew. lost: another reader had come, perhaps
 * because the lease was too short for the work; the next one is longer. */
void semel_positions_forget(struct semel_positions *positions, bool lost);

/* These were fetched, in this order. */
semel_status semel_positions_note_fetched(struct semel_positions *positions,
					  const struct semel_delivery *deliveries, uint32_t count,
					  semel_error *error);
/* In the open transaction, before its commit: first begin, then mark its items, whose fates are
 * known; then write how far everything will be settled. LEASE_LOST: another one reads now, so it
 * must be rolled back. */
void semel_positions_begin(struct semel_positions *positions);
void semel_positions_include(struct semel_positions *positions, const struct semel_item *item);
semel_status semel_positions_write(struct semel_positions *positions, semel_error *error);
/* They are settled for good. */
void semel_positions_acknowledged(struct semel_positions *positions,
				  const struct semel_delivery *deliveries, uint32_t count);
/* Between transactions, often: writes what was settled after its transaction, renews leases. */
semel_status semel_positions_renew(struct semel_positions *positions, semel_error *error);

#endif
