/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer counts for others to see: looked up once, then one addition each. */
#ifndef SEMEL_CONSUME_TALLY_H
#define SEMEL_CONSUME_TALLY_H

#include "observe/metrics.h"

struct semel_consumer;
struct semel_item;

struct semel_consumer_counters {
	struct semel_series *done, *duplicate, *retried, *dead, *parked;
	struct semel_series *redelivered, *skipped, *claimed, *found;
	struct semel_series *retry_handler, *retry_timeout, *retry_outage, *retry_in_progress;
	struct semel_series *unacked, *ack_time, *age, *breaker, *letters;
};

void semel_consumer_counters_open(struct semel_consumer_counters *counters, const char *scope);
/* Its state is committed and the broker knows. */
void semel_consumer_counters_settled(struct semel_consumer *consumer,
				     const struct semel_item *item);
/* It comes again later and costs nothing: somebody else is at work on it, or nobody can be. */
void semel_consumer_counters_deferred(struct semel_consumer *consumer,
				      const struct semel_item *item);
/* Committed, but the broker could not be told. */
void semel_consumer_counters_unacked(struct semel_consumer *consumer);
/* The spans of a delivery that was settled or put off, and of its claim. */
void semel_consumer_write_spans(struct semel_consumer *consumer, const struct semel_item *item);
/* The breaker's state, as it is now. */
void semel_consumer_counters_breaker(struct semel_consumer *consumer);

#endif
