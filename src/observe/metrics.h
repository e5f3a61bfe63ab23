/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of this process, in the words of Prometheus. One table (metrics.c) names them all.
 *
 * - Counters and histograms belong to the process that did the work. Gauges are set from the store
 *   when they are asked for, and are the same everywhere.
 * - A series (a metric with its label values) is created once and lives as long as the process;
 *   to count on it is one atomic addition.
 * - Labels are bounded: past SEMEL_SERIES_MAX of a metric everything is counted under "other".
 * Any thread.
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
 * does not have. Never NULL. */
struct semel_series *semel_series(enum semel_metric metric, const char *first, const char *second);

void semel_series_add(struct semel_series *series, uint64_t count);
void semel_series_set(struct semel_series *series, int64_t value);
/* A time into a histogram, or onto a counter of seconds; below zero (clocks differ) counts as zero.
 */
void semel_series_observe(struct semel_series *series, int64_t micros);

/* What a series shows now. False: it is not there, or not shown. */
bool semel_metric_value(enum semel_metric metric, const char *first, const char *second,
			int64_t *value_out);
/* The sum of the series with this second label (NULL: any). False: there are none. */
bool semel_metric_sum(enum semel_metric metric, const char *second, int64_t *sum_out);

/* Removes a gauge's series, so that what no longer exists is not reported. */
void semel_metric_clear(enum semel_metric metric);

/* The text format, every name declared, also those without samples. */
void semel_metrics_render(struct semel_buffer *text);

/* The time that each step of an event's way takes, measured for a whole batch and summed up in
 * semel_step_seconds_total: two reads of a clock and one addition. */
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
