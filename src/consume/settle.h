/* SPDX-License-Identifier: Apache-2.0 */
/* The outcome of an item: recorded in the open transaction, so that the delivery can be
 * acknowledged after its commit. */
#ifndef SEMEL_CONSUME_SETTLE_H
#define SEMEL_CONSUME_SETTLE_H

#include "base/arena.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_item;

/* Do later events of the item's key wait while it is retried? */
bool semel_item_can_hold_in_retry(const struct semel_consumer *consumer,
				  const struct semel_item *item);
/* The item was processed, now or earlier. */
semel_status semel_settle_done(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error);
/* The run ended with item->status. The item becomes a retry or a dead letter, or UNDECIDED with
 * delay_ms if it is to run again at once. */
semel_status semel_settle_failed(struct semel_consumer *consumer, struct semel_item *item,
				 int64_t retry_after_ms, struct semel_arena *arena,
				 semel_error *error);
/* The item does not run: it is removed from the parked events, and those behind it are released. */
semel_status semel_settle_superseded(struct semel_consumer *consumer, struct semel_item *item,
				     struct semel_arena *arena, semel_error *error);
/* The item becomes a dead letter, whatever the retry policy says. */
semel_status semel_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error);
/* The same in a transaction of its own. */
semel_status semel_settle_dead_alone(struct semel_consumer *consumer, struct semel_item *item,
				     semel_error *error);

/* After the commit: delayed copies first, then the acks, then counts and logs. Items that are not
 * settled are left alone. (acknowledge.c) */
semel_status semel_acknowledge(struct semel_consumer *consumer, struct semel_item *const *items,
			       uint32_t count, semel_error *error);
/* The same for an array of items. */
semel_status semel_acknowledge_all(struct semel_consumer *consumer, struct semel_item *items,
				   uint32_t count, semel_error *error);

#endif
