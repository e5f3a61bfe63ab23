/* SPDX-License-Identifier: Apache-2.0 */
/* What is remaining of a subscription, as last looked at. */
#ifndef SEMEL_CONSUME_DRAIN_H
#define SEMEL_CONSUME_DRAIN_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_consumer;

struct semel_remaining {
	struct semel_backlog backlog;
	struct semel_hold_counts holds;
	int64_t read_at_ms; /* steady */
	uint64_t failures;  /* when looked */
};

/* To look costs calls to broker and store. Without it nothing is missed but the time of delayed
 * events, and those are made by failures, or by somebody else. */
bool semel_remaining_is_outdated(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining);
/* draining: all that is held is counted too. */
semel_status semel_remaining_read(struct semel_consumer *consumer, bool draining,
				  struct semel_remaining *remaining_out, semel_error *error);
bool semel_remaining_is_none(const struct semel_consumer *consumer,
			     const struct semel_remaining *remaining);
/* How long an idle consumer may sleep. */
int64_t semel_remaining_sleep_ms(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining);
/* NOT_FINISHED, saying what is remaining and why. */
semel_status semel_remaining_explain(const struct semel_consumer *consumer,
				     const struct semel_remaining *remaining, semel_error *error);

#endif
