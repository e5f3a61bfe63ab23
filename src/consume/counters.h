/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics and spans of a consumer. Series are resolved once; then each count is one addition.
 */
#ifndef SEMEL_CONSUME_COUNTERS_H
#define SEMEL_CONSUME_COUNTERS_H

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
/* The item is settled and acknowledged. */
void semel_consumer_counters_settled(struct semel_consumer *consumer,
				     const struct semel_item *item);
/* The item is delivered again later and costs no attempt: another consumer runs it, or an outage
 * prevents its run. */
void semel_consumer_counters_deferred(struct semel_consumer *consumer,
				      const struct semel_item *item);
/* A transaction was committed, but its deliveries were not acknowledged. */
void semel_consumer_counters_unacked(struct semel_consumer *consumer);
/* The spans of a delivery that was settled or deferred, and of its claim. */
void semel_consumer_write_spans(struct semel_consumer *consumer, const struct semel_item *item);
/* The breaker's state, as it is now. */
void semel_consumer_counters_breaker(struct semel_consumer *consumer);

#endif
