/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/metrics.h"

#include "base/env.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX  2
#define VALUE_SIZE  96
#define BUCKETS_MAX 16

enum kind { COUNTER, SECONDS, GAUGE, HISTOGRAM }; /* SECONDS: a counter of microseconds */

static const char *const kind_names[] = { "counter", "counter", "gauge", "histogram" };

struct definition {
	const char *name, *help;
	enum kind kind;
	const char *labels[LABELS_MAX];
};

static const struct definition definitions[SEMEL_METRIC_COUNT] = {
	[SEMEL_METRIC_OUTBOX_UNPUBLISHED] = { "semel_outbox_unpublished",
					      "Committed events that the broker has not confirmed.",
					      GAUGE,
					      { 0 } },
	[SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE] = { "semel_outbox_unpublished_age_seconds",
						  "Age of the oldest unpublished event.",
						  GAUGE,
						  { 0 } },
	[SEMEL_METRIC_PUBLISH_ATTEMPTS] = { "semel_outbox_publish_attempts_total",
					    "Events sent to the broker, repeats included.",
					    COUNTER,
					    { 0 } },
	[SEMEL_METRIC_PUBLISHED] = { "semel_published_total",
				     "Events confirmed by the broker and marked.",
				     COUNTER,
				     { 0 } },
	[SEMEL_METRIC_PUBLISH_CONFIRM] = { "semel_publish_confirm_seconds",
					   "Time from sending an event to the broker's answer.",
					   HISTOGRAM,
					   { 0 } },
	[SEMEL_METRIC_PUBLISH_NACKED] = { "semel_publish_nacked_total",
					  "Events that the broker refused.",
					  COUNTER,
					  { 0 } },
	[SEMEL_METRIC_PUBLISH_RETURNED] = { "semel_publish_returned_total",
					    "Events that the broker could not route.",
					    COUNTER,
					    { 0 } },
	[SEMEL_METRIC_PARTITION_STALLED] = { "semel_partition_stalled",
					     "1 while a partition accepts no events and its events "
					     "wait.",
					     GAUGE,
					     { "topic", "partition" } },
	[SEMEL_METRIC_PUBLISH_OUTSTANDING] = { "semel_publish_outstanding",
					       "Events sent to the broker and not answered.",
					       GAUGE,
					       { 0 } },
	[SEMEL_METRIC_CONSUMED] = { "semel_consumed_total",
				    "Deliveries settled, by outcome.",
				    COUNTER,
				    { "scope", "outcome" } },
	[SEMEL_METRIC_CONSUME_ACK] = { "semel_consume_ack_seconds",
				       "Time from receiving a delivery to its acknowledgement.",
				       HISTOGRAM,
				       { 0 } },
	[SEMEL_METRIC_REDELIVERED] = { "semel_redelivered_total",
				       "Deliveries that the broker flagged as redelivered.",
				       COUNTER,
				       { "scope" } },
	[SEMEL_METRIC_DUPLICATES] = { "semel_duplicates_total",
				      "Deliveries skipped: the event was processed already.",
				      COUNTER,
				      { "scope" } },
	[SEMEL_METRIC_CLAIMS] = { "semel_claims_total",
				  "Attempts to claim an event in the inbox.",
				  COUNTER,
				  { "scope", "outcome" } },
	[SEMEL_METRIC_IDEMPOTENCY_CHECKS] = { "semel_idempotency_checks_total",
					      "Requests checked by their idempotency key.",
					      COUNTER,
					      { "result" } },
	[SEMEL_METRIC_RETRIES] = { "semel_retries_total",
				   "Retries scheduled.",
				   COUNTER,
				   { "scope", "reason" } },
	[SEMEL_METRIC_ACK_AFTER_COMMIT_FAILURES] = { "semel_ack_after_commit_failures_total",
						     "Deliveries whose ack failed after the "
						     "commit: they are redelivered and skipped as "
						     "duplicates.",
						     COUNTER,
						     { "scope" } },
	[SEMEL_METRIC_CONSUMER_LAG] = { "semel_consumer_lag",
					"Events at the broker that the subscription has not "
					"settled.",
					GAUGE,
					{ "scope", "topic" } },
	[SEMEL_METRIC_BREAKER_STATE] = { "semel_breaker_state",
					 "The subscription's circuit breaker: 0 closed, 1 "
					 "half-open, 2 open.",
					 GAUGE,
					 { "scope" } },
	[SEMEL_METRIC_DLQ_ADDED] = { "semel_dlq_entries_added_total",
				     "Dead letters written.",
				     COUNTER,
				     { 0 } },
	[SEMEL_METRIC_DLQ_REPLAYED] = { "semel_dlq_entries_replayed_total",
					"Dead letters replayed by an operator.",
					COUNTER,
					{ 0 } },
	[SEMEL_METRIC_DLQ_DISCARDED] = { "semel_dlq_entries_discarded_total",
					 "Dead letters discarded by an operator.",
					 COUNTER,
					 { 0 } },
	[SEMEL_METRIC_DLQ_PENDING] = { "semel_dlq_pending",
				       "Dead letters that wait for a decision.",
				       GAUGE,
				       { 0 } },
	[SEMEL_METRIC_EVENT_AGE] = { "semel_event_age_seconds",
				     "Time from an event's own timestamp to its effect.",
				     HISTOGRAM,
				     { "scope" } },
	[SEMEL_METRIC_SLOT_RETAINED] = { "semel_slot_retained_bytes",
					 "Write-ahead log that the database retains for the "
					 "replication slot.",
					 GAUGE,
					 { 0 } },
	[SEMEL_METRIC_LEASE_HELD] = { "semel_lease_held",
				      "1 while a relay owns the lane.",
				      GAUGE,
				      { "lane" } },
	[SEMEL_METRIC_UP] = { "semel_up",
			      "1 if this process reached the store or the broker (label part) at "
			      "the last attempt.",
			      GAUGE,
			      { "part" } },
	[SEMEL_METRIC_READY] = { "semel_ready", "1 when /readyz reports ready.", GAUGE, { 0 } },
	[SEMEL_METRIC_BUILD] = { "semel_build_info",
				 "1, labelled with the version.",
				 GAUGE,
				 { "version" } },
	[SEMEL_METRIC_STEP_TIME] = { "semel_step_seconds_total",
				     "Time that this process spent in each processing step.",
				     SECONDS,
				     { "step" } },
	[SEMEL_METRIC_OUTBOX_EVENTS] = { "semel_outbox_events",
					 "Unpublished events by state; failed ones are dead "
					 "letters.",
					 GAUGE,
					 { "state" } },
	[SEMEL_METRIC_LANES_UNHELD] = { "semel_lanes_unheld",
					"Lanes that no relay owns.",
					GAUGE,
					{ 0 } },
	[SEMEL_METRIC_LEASES_LOST] = { "semel_leases_lost_total",
				       "Lanes that this relay owned and lost to another relay.",
				       COUNTER,
				       { 0 } },
	[SEMEL_METRIC_HELD_EVENTS] = { "semel_held_events",
				       "Events of the subscription that are parked in the store.",
				       GAUGE,
				       { "scope", "state" } },
	[SEMEL_METRIC_PAUSED] = { "semel_subscription_paused",
				  "1 while the subscription is paused.",
				  GAUGE,
				  { "scope" } },
	[SEMEL_METRIC_STUCK] = { "semel_stuck",
				 "Stuck events: no consumer will process them (run: semel "
				 "repair).",
				 GAUGE,
				 { "scope" } },
	[SEMEL_METRIC_DLQ_PENDING_AGE] = { "semel_dlq_pending_age_seconds",
					   "Age of the oldest pending dead letter.",
					   GAUGE,
					   { 0 } },
	[SEMEL_METRIC_SPANS_DROPPED] = { "semel_spans_dropped_total",
					 "Spans that were dropped: the queue was full, or the "
					 "collector did not accept them.",
					 COUNTER,
					 { 0 } },
	[SEMEL_METRIC_LOG_OMITTED] = { "semel_log_lines_omitted_total",
				       "Log lines that were omitted because they repeat.",
				       COUNTER,
				       { 0 } },
};

/* Upper bounds in microseconds, and how they are written. */
static const struct {
	int64_t micros;
	const char *text;
} buckets[BUCKETS_MAX] = {
	{ 500, "0.0005" },  { 1000, "0.001" },  { 2500, "0.0025" },   { 5000, "0.005" },
	{ 10000, "0.01" },  { 25000, "0.025" }, { 50000, "0.05" },    { 100000, "0.1" },
	{ 250000, "0.25" }, { 500000, "0.5" },  { 1000000, "1" },     { 2500000, "2.5" },
	{ 10000000, "10" }, { 60000000, "60" }, { 600000000, "600" }, { 3600000000, "3600" },
};

struct semel_series {
	struct semel_series *next;
	char values[LABELS_MAX][VALUE_SIZE];
	_Atomic bool shown; /* false for a gauge that was cleared, until it is set again */
	_Atomic int64_t value;
	_Atomic uint64_t counts[BUCKETS_MAX + 1]; /* histogram: per bucket; value is the sum */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct semel_series *heads[SEMEL_METRIC_COUNT];
static uint32_t series_counts[SEMEL_METRIC_COUNT];
static struct semel_series nowhere; /* used if there is no memory for a series */

static bool has_values(const struct semel_series *series, const char *const *values)
{
	for (int i = 0; i < LABELS_MAX; i++)
		if (strncmp(series->values[i], values[i], VALUE_SIZE - 1) != 0)
			return false;
	return true;
}

static struct semel_series *find(enum semel_metric metric, const char *const *values)
{
	struct semel_series *series = heads[metric];

	while (series && !has_values(series, values))
		series = series->next;
	return series;
}

static struct semel_series *add(enum semel_metric metric, const char *const *values)
{
	struct semel_series *series = calloc(1, sizeof *series);

	if (!series)
		return &nowhere;
	for (int i = 0; i < LABELS_MAX; i++)
		snprintf(series->values[i], VALUE_SIZE, "%s", values[i]);
	atomic_store(&series->shown, definitions[metric].kind != GAUGE);
	series->next = heads[metric];
	heads[metric] = series;
	series_counts[metric]++;
	return series;
}

struct semel_series *semel_series(enum semel_metric metric, const char *first, const char *second)
{
	const char *values[LABELS_MAX] = { first ? first : "", second ? second : "" };

	pthread_mutex_lock(&mutex);
	struct semel_series *series = find(metric, values);
	if (!series && series_counts[metric] >= SEMEL_SERIES_MAX) {
		for (int i = 0; i < LABELS_MAX; i++)
			values[i] = definitions[metric].labels[i] ? "other" : "";
		series = find(metric, values);
	}
	if (!series)
		series = add(metric, values);
	pthread_mutex_unlock(&mutex);
	return series;
}

void semel_series_add(struct semel_series *series, uint64_t count)
{
	atomic_fetch_add_explicit(&series->value, (int64_t)count, memory_order_relaxed);
}

void semel_series_set(struct semel_series *series, int64_t value)
{
	atomic_store(&series->value, value);
	atomic_store(&series->shown, true);
}

void semel_series_observe(struct semel_series *series, int64_t micros)
{
	int bucket = 0;

	if (micros < 0)
		micros = 0;
	while (bucket < BUCKETS_MAX && micros > buckets[bucket].micros)
		bucket++;
	atomic_fetch_add_explicit(&series->counts[bucket], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&series->value, micros, memory_order_relaxed);
}

bool semel_metric_value(enum semel_metric metric, const char *first, const char *second,
			int64_t *value_out)
{
	const char *values[LABELS_MAX] = { first ? first : "", second ? second : "" };

	pthread_mutex_lock(&mutex);
	struct semel_series *series = find(metric, values);
	bool shown = series && atomic_load(&series->shown);
	if (shown)
		*value_out = atomic_load(&series->value);
	pthread_mutex_unlock(&mutex);
	return shown;
}

bool semel_metric_sum(enum semel_metric metric, const char *second, int64_t *sum_out)
{
	bool any = false;

	*sum_out = 0;
	pthread_mutex_lock(&mutex);
	for (struct semel_series *series = heads[metric]; series; series = series->next) {
		if (second && strcmp(series->values[1], second) != 0)
			continue;
		*sum_out += atomic_load(&series->value);
		any = any || atomic_load(&series->shown);
	}
	pthread_mutex_unlock(&mutex);
	return any;
}

void semel_metric_clear(enum semel_metric metric)
{
	pthread_mutex_lock(&mutex);
	for (struct semel_series *series = heads[metric]; series; series = series->next)
		atomic_store(&series->shown, false);
	pthread_mutex_unlock(&mutex);
}

/* ---- the text -------------------------------------------------------------------------------- */

static void render_value(struct semel_buffer *text, const char *value)
{
	for (; *value; value++) {
		if (*value == '\n')
			semel_buffer_string(text, "\\n");
		else if (*value == '"' || *value == '\\')
			semel_buffer_printf(text, "\\%c", *value);
		else
			semel_buffer_append(text, value, 1);
	}
}

/* Appends {scope="billing",le="0.1"}, or a blank if there are no labels. */
static void render_labels(struct semel_buffer *text, const struct definition *definition,
			  const struct semel_series *series, const char *bound)
{
	const char *before = "{";

	for (int i = 0; i < LABELS_MAX && definition->labels[i]; i++) {
		semel_buffer_printf(text, "%s%s=\"", before, definition->labels[i]);
		render_value(text, series->values[i]);
		semel_buffer_string(text, "\"");
		before = ",";
	}
	if (bound) {
		semel_buffer_printf(text, "%sle=\"%s\"", before, bound);
		before = ",";
	}
	semel_buffer_string(text, *before == ',' ? "} " : " ");
}

/* The value is in microseconds. */
static void render_seconds(struct semel_buffer *text, struct semel_series *series)
{
	int64_t micros = atomic_load(&series->value);

	semel_buffer_printf(text, "%" PRId64 ".%06" PRId64 "\n", micros / 1000000,
			    micros % 1000000);
}

static void render_histogram(struct semel_buffer *text, const struct definition *definition,
			     struct semel_series *series)
{
	uint64_t total = 0;

	for (int i = 0; i <= BUCKETS_MAX; i++) {
		total += atomic_load(&series->counts[i]);
		semel_buffer_printf(text, "%s_bucket", definition->name);
		render_labels(text, definition, series, i < BUCKETS_MAX ? buckets[i].text : "+Inf");
		semel_buffer_printf(text, "%" PRIu64 "\n", total);
	}
	semel_buffer_printf(text, "%s_sum", definition->name);
	render_labels(text, definition, series, NULL);
	render_seconds(text, series);
	semel_buffer_printf(text, "%s_count", definition->name);
	render_labels(text, definition, series, NULL);
	semel_buffer_printf(text, "%" PRIu64 "\n", total);
}

static void render_plain(struct semel_buffer *text, const struct definition *definition,
			 struct semel_series *series)
{
	semel_buffer_string(text, definition->name);
	render_labels(text, definition, series, NULL);
	if (definition->kind == SECONDS)
		render_seconds(text, series);
	else
		semel_buffer_printf(text, "%" PRId64 "\n", atomic_load(&series->value));
}

/* A counter without labels exists from the start, at zero: a rate needs two samples. */
static void make_sure(enum semel_metric metric)
{
	if (definitions[metric].kind == COUNTER && !definitions[metric].labels[0])
		(void)semel_series(metric, NULL, NULL);
}

static void render_metric(struct semel_buffer *text, enum semel_metric metric)
{
	const struct definition *definition = &definitions[metric];

	semel_buffer_printf(text, "# HELP %s %s\n# TYPE %s %s\n", definition->name,
			    definition->help, definition->name, kind_names[definition->kind]);
	pthread_mutex_lock(&mutex);
	for (struct semel_series *series = heads[metric]; series; series = series->next) {
		if (!atomic_load(&series->shown))
			continue;
		if (definition->kind == HISTOGRAM)
			render_histogram(text, definition, series);
		else
			render_plain(text, definition, series);
	}
	pthread_mutex_unlock(&mutex);
}

void semel_metrics_render(struct semel_buffer *text)
{
	for (int i = 0; i < SEMEL_METRIC_COUNT; i++) {
		make_sure((enum semel_metric)i);
		render_metric(text, (enum semel_metric)i);
	}
}

/* ---- the time of steps ------------------------------------------------------------------------
 */

static const char *const step_names[SEMEL_TIMED_COUNT] = {
	[SEMEL_TIMED_READ] = "read",       [SEMEL_TIMED_PUBLISH] = "publish",
	[SEMEL_TIMED_CONFIRM] = "confirm", [SEMEL_TIMED_MARK] = "mark",
	[SEMEL_TIMED_RECEIVE] = "receive", [SEMEL_TIMED_CLAIM] = "claim",
	[SEMEL_TIMED_EFFECT] = "effect",   [SEMEL_TIMED_COMMIT] = "commit",
	[SEMEL_TIMED_ACK] = "ack",
};

static _Atomic(struct semel_series *) step_totals[SEMEL_TIMED_COUNT];

int64_t semel_step_timer_begin(void)
{
	return semel_steady_us();
}

void semel_step_timer_end(enum semel_timed_step work, int64_t began_us)
{
	struct semel_series *series =
		atomic_load_explicit(&step_totals[work], memory_order_acquire);

	if (!series) {
		series = semel_series(SEMEL_METRIC_STEP_TIME, step_names[work], NULL);
		atomic_store_explicit(&step_totals[work], series, memory_order_release);
	}
	semel_series_add(series, (uint64_t)(semel_steady_us() - began_us));
}
