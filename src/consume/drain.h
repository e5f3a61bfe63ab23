/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of a subscription, as last looked at. */
#ifndef SEMEL_CONSUME_DRAIN_H
#define SEMEL_CONSUME_DRAIN_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_consumer;

struct semel_left {
	struct semel_backlog backlog;
	struct semel_hold_counts holds;
	int64_t looked_ms; /* steady */
	uint64_t failures; /* when looked */
};

/* To look costs calls to broker and store. Without it nothing is missed but the time of delayed
 * events, and those are made by failures, or by somebody else. */
bool semel_left_is_stale(const struct semel_consumer *consumer, const struct semel_left *left);
/* draining: all that is held is counted too. */
semel_status semel_left_look(struct semel_consumer *consumer, bool draining,
			     struct semel_left *left_out, semel_error *error);
bool semel_left_is_none(const struct semel_consumer *consumer, const struct semel_left *left);
/* How long an idle consumer may sleep. */
int64_t semel_left_sleep_ms(const struct semel_consumer *consumer, const struct semel_left *left);
/* NOT_FINISHED, saying what is left and why. */
semel_status semel_left_explain(const struct semel_consumer *consumer,
				const struct semel_left *left, semel_error *error);

#endif
