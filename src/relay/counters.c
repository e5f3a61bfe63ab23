/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/counters.h"

#include "observe/metrics.h"
#include "observe/span.h"

void semel_relay_counters_open(struct semel_relay_counters *counters)
{
	*counters = (struct semel_relay_counters){
		.attempts = semel_series(SEMEL_METRIC_PUBLISH_ATTEMPTS, NULL, NULL),
		.done = semel_series(SEMEL_METRIC_PUBLISHED, NULL, NULL),
		.refused = semel_series(SEMEL_METRIC_PUBLISH_NACKED, NULL, NULL),
		.unroutable = semel_series(SEMEL_METRIC_PUBLISH_RETURNED, NULL, NULL),
		.letters = semel_series(SEMEL_METRIC_DLQ_ADDED, NULL, NULL),
		.outstanding = semel_series(SEMEL_METRIC_PUBLISH_OUTSTANDING, NULL, NULL),
		.confirm = semel_series(SEMEL_METRIC_PUBLISH_CONFIRM, NULL, NULL),
	};
}

void semel_relay_counters_add_outcome(struct semel_relay_counters *counters, semel_status outcome,
				      int64_t took_us)
{
	counters->offered++;
	counters->nacked += outcome == SEMEL_NACKED;
	counters->returned += outcome == SEMEL_UNROUTABLE;
	semel_series_observe(counters->confirm, took_us);
}

void semel_relay_counters_add_mark(struct semel_relay_counters *counters,
				   const struct semel_mark *mark)
{
	counters->published += mark->kind == SEMEL_MARK_PUBLISHED;
	counters->failed += mark->kind == SEMEL_MARK_FAILED;
}

void semel_relay_span(const struct semel_relay_inflight *inflight, semel_status outcome,
		      const struct semel_env *env)
{
	const struct semel_relay_batch *batch = inflight->batch;
	const struct semel_event *event = &batch->fetched.rows[inflight - batch->inflight].event;
	struct semel_text traceparent = semel_event_header(event, "traceparent", batch->arena);
	struct semel_span_context parent = semel_span_context_of(traceparent, event->id);
	struct semel_span span =
		semel_span_make("semel.relay.publish", SEMEL_SPAN_PRODUCER, &parent, env);

	span.began_ms -= semel_steady_ms(env) - batch->offered_at_ms;
	span.failure = outcome == SEMEL_OK ? NULL : semel_status_name(outcome);
	semel_span_text(&span, "event.id", event->id);
	semel_span_text(&span, "messaging.destination.name", event->topic);
	semel_span_end(&span);
}

static void add_to_series(struct semel_series *series, uint64_t *count)
{
	if (*count > 0)
		semel_series_add(series, *count);
	*count = 0;
}

void semel_relay_counters_report(struct semel_relay_counters *counters, uint32_t outstanding)
{
	add_to_series(counters->attempts, &counters->offered);
	add_to_series(counters->done, &counters->published);
	add_to_series(counters->refused, &counters->nacked);
	add_to_series(counters->unroutable, &counters->returned);
	add_to_series(counters->letters, &counters->failed);
	semel_series_set(counters->outstanding, outstanding);
}
