/* SPDX-License-Identifier: Apache-2.0 */
/* What remains to be done for a subscription, as last read. */
#ifndef SEMEL_CONSUME_DRAIN_H
#define SEMEL_CONSUME_DRAIN_H

#include "broker/broker.h"
#include "store/store.h"

struct semel_consumer;

struct semel_remaining {
	struct semel_backlog backlog;
	struct semel_hold_counts holds;
	int64_t read_at_ms; /* steady */
	uint64_t failures;  /* when read */
};

/* Reading costs calls to broker and store. Without it only the time of delayed events is missed,
 * and those are made by failures here, or by another process. */
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
/* NOT_FINISHED, with what remains and why. */
semel_status semel_remaining_explain(const struct semel_consumer *consumer,
				     const struct semel_remaining *remaining, semel_error *error);

#endif
