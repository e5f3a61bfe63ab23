/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of this process, in Prometheus terms. One table (metrics.c) defines all of them.
 *
 * - Counters and histograms belong to the process that did the work. Gauges are set from the store
 *   when they are requested, and are the same in every process.
 * - A series (a metric with its label values) is created once and lives as long as the process; to
 *   add to it is one atomic operation.
 * - The number of series is bounded: beyond SEMEL_SERIES_MAX of a metric, everything is counted
 *   under "other".
 * Any thread may call these functions.
 */
#ifndef SEMEL_OBSERVE_METRICS_H
#define SEMEL_OBSERVE_METRICS_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_SERIES_MAX 200

enum semel_metric {
	SEMEL_METRIC_OUTBOX_UNPUBLISHED,
	SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE,
	SEMEL_METRIC_PUBLISH_ATTEMPTS,
	SEMEL_METRIC_PUBLISHED,
	SEMEL_METRIC_PUBLISH_CONFIRM,
	SEMEL_METRIC_PUBLISH_NACKED,
	SEMEL_METRIC_PUBLISH_RETURNED,
	SEMEL_METRIC_PUBLISH_OUTSTANDING,
	SEMEL_METRIC_PARTITION_STALLED,
	SEMEL_METRIC_CONSUMED,
	SEMEL_METRIC_CONSUME_ACK,
	SEMEL_METRIC_REDELIVERED,
	SEMEL_METRIC_DUPLICATES,
	SEMEL_METRIC_CLAIMS,
	SEMEL_METRIC_IDEMPOTENCY_CHECKS,
	SEMEL_METRIC_RETRIES,
	SEMEL_METRIC_ACK_AFTER_COMMIT_FAILURES,
	SEMEL_METRIC_CONSUMER_LAG,
	SEMEL_METRIC_BREAKER_STATE,
	SEMEL_METRIC_DLQ_ADDED,
	SEMEL_METRIC_DLQ_REPLAYED,
	SEMEL_METRIC_DLQ_DISCARDED,
	SEMEL_METRIC_DLQ_PENDING,
	SEMEL_METRIC_EVENT_AGE,
	SEMEL_METRIC_SLOT_RETAINED,
	SEMEL_METRIC_LEASE_HELD,
	SEMEL_METRIC_UP,
	SEMEL_METRIC_READY,
	SEMEL_METRIC_BUILD,
	SEMEL_METRIC_STEP_TIME,
	SEMEL_METRIC_OUTBOX_EVENTS,
	SEMEL_METRIC_LANES_UNHELD,
	SEMEL_METRIC_LEASES_LOST,
	SEMEL_METRIC_HELD_EVENTS,
	SEMEL_METRIC_PAUSED,
	SEMEL_METRIC_STUCK,
	SEMEL_METRIC_DLQ_PENDING_AGE,
	SEMEL_METRIC_SPANS_DROPPED,
	SEMEL_METRIC_LOG_OMITTED,
	SEMEL_METRIC_COUNT
};

struct semel_series;

/* The series with these label values, in the order of the table; NULL for labels that the metric
 * does not have. The result is never NULL. */
struct semel_series *semel_series(enum semel_metric metric, const char *first, const char *second);

void semel_series_add(struct semel_series *series, uint64_t count);
void semel_series_set(struct semel_series *series, int64_t value);
/* Adds a time to a histogram, or to a counter of seconds. A time below zero (clocks differ) counts
 * as zero. */
void semel_series_observe(struct semel_series *series, int64_t micros);

/* The current value of a series. False: there is no such series, or it is not shown. */
bool semel_metric_value(enum semel_metric metric, const char *first, const char *second,
			int64_t *value_out);
/* The sum of the series with this second label (NULL: any). False: there are none. */
bool semel_metric_sum(enum semel_metric metric, const char *second, int64_t *sum_out);

/* Removes a gauge's series, so that what no longer exists is not reported. */
void semel_metric_clear(enum semel_metric metric);

/* Appends all metrics in the text format; every name is declared, even without samples. */
void semel_metrics_render(struct semel_buffer *text);

/* The time of each step of delivery, measured for a whole batch and summed up in
 * semel_step_seconds_total. The cost is two reads of a clock and one addition. */
enum semel_timed_step {
	SEMEL_TIMED_READ,    /* relay: rows from the outbox or the change stream */
	SEMEL_TIMED_PUBLISH, /* relay: sending them, and waiting for a free place in the window */
	SEMEL_TIMED_CONFIRM, /* relay: receiving outcomes */
	SEMEL_TIMED_MARK,    /* relay: marking what was confirmed */
	SEMEL_TIMED_RECEIVE, /* consumer: taking deliveries */
	SEMEL_TIMED_CLAIM,   /* consumer: claims in the inbox */
	SEMEL_TIMED_EFFECT,  /* consumer: handlers, of all workers together */
	SEMEL_TIMED_COMMIT,  /* consumer: commits */
	SEMEL_TIMED_ACK,     /* consumer: acks */
	SEMEL_TIMED_COUNT
};

int64_t semel_step_timer_begin(void);
void semel_step_timer_end(enum semel_timed_step work, int64_t began_us);

#endif
