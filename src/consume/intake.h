/* SPDX-License-Identifier: Apache-2.0 */
/* What may be fetched from the broker, how much, and when. */
#ifndef SEMEL_CONSUME_INTAKE_H
#define SEMEL_CONSUME_INTAKE_H

#include "broker/broker.h"

struct semel_consumer;
struct semel_item;

struct semel_intake {
	uint64_t settled, max;     /* deliveries; max 0: no limit */
	bool paused;               /* by an operator */
	int64_t check_pause_at_ms; /* steady: when that is read again */
	bool has_deferred; /* something was deferred: the broker has to deliver it again … */
	int64_t deferred_until_ms; /* … but not before this (steady) */
};

/* Something was deferred until then (steady). */
static inline void semel_intake_defer(struct semel_intake *intake, int64_t until_ms)
{
	intake->has_deferred = true;
	intake->deferred_until_ms = until_ms;
}

/* How many of wanted more deliveries may be fetched under max, with so many in flight. */
uint32_t semel_intake_cap(const struct semel_intake *intake, uint32_t wanted, uint32_t in_flight);
/* Reads from time to time whether an operator has paused the subscription. */
semel_status semel_intake_check_paused(struct semel_consumer *consumer, semel_error *error);
/* The next batch for a handler inside the transaction, as items of the consumer's arena. */
semel_status semel_intake_fetch_batch(struct semel_consumer *consumer,
				      struct semel_item **items_out, uint32_t *count_out,
				      semel_error *error);
/* At most max deliveries, in the arena; their positions are noted. *count_out is valid even after a
 * failure. */
semel_status semel_intake_fetch(struct semel_consumer *consumer, uint32_t max,
				struct semel_arena *arena, struct semel_delivery **deliveries_out,
				uint32_t *count_out, semel_error *error);

#endif
