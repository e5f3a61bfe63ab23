/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/tally.h"

#include "observe/metrics.h"
#include "observe/span.h"

void semel_relay_tally_open(struct semel_relay_tally *tally)
{
	*tally = (struct semel_relay_tally){
		.attempts = semel_series(SEMEL_METRIC_PUBLISH_ATTEMPTS, NULL, NULL),
		.done = semel_series(SEMEL_METRIC_PUBLISHED, NULL, NULL),
		.refused = semel_series(SEMEL_METRIC_PUBLISH_NACKED, NULL, NULL),
		.unroutable = semel_series(SEMEL_METRIC_PUBLISH_RETURNED, NULL, NULL),
		.letters = semel_series(SEMEL_METRIC_DLQ_ADDED, NULL, NULL),
		.outstanding = semel_series(SEMEL_METRIC_PUBLISH_OUTSTANDING, NULL, NULL),
		.confirm = semel_series(SEMEL_METRIC_PUBLISH_CONFIRM, NULL, NULL),
	};
}

void semel_relay_tally_answer(struct semel_relay_tally *tally, semel_status answer, int64_t took_us)
{
	tally->offered++;
	tally->nacked += answer == SEMEL_NACKED;
	tally->returned += answer == SEMEL_UNROUTABLE;
	semel_series_time(tally->confirm, took_us);
}

void semel_relay_tally_mark(struct semel_relay_tally *tally, const struct semel_mark *mark)
{
	tally->published += mark->kind == SEMEL_MARK_PUBLISHED;
	tally->failed += mark->kind == SEMEL_MARK_FAILED;
}

void semel_relay_span(const struct semel_flight *flight, semel_status answer,
		      const struct semel_env *env)
{
	const struct semel_load *load = flight->load;
	const struct semel_event *event = &load->batch.rows[flight - load->flights].event;
	struct semel_text traceparent = semel_event_header(event, "traceparent", load->arena);
	struct semel_span_context parent = semel_span_context_of(traceparent, event->id);
	struct semel_span span =
		semel_span_make("semel.relay.publish", SEMEL_SPAN_PRODUCER, &parent, env);

	span.began_ms -= semel_steady_ms(env) - load->offered_at_ms;
	span.failure = answer == SEMEL_OK ? NULL : semel_status_name(answer);
	semel_span_text(&span, "event.id", event->id);
	semel_span_text(&span, "messaging.destination.name", event->topic);
	semel_span_end(&span);
}

static void tell(struct semel_series *series, uint64_t *count)
{
	if (*count > 0)
		semel_series_add(series, *count);
	*count = 0;
}

void semel_relay_tally_tell(struct semel_relay_tally *tally, uint32_t outstanding)
{
	tell(tally->attempts, &tally->offered);
	tell(tally->done, &tally->published);
	tell(tally->refused, &tally->nacked);
	tell(tally->unroutable, &tally->returned);
	tell(tally->letters, &tally->failed);
	semel_series_set(tally->outstanding, outstanding);
}
