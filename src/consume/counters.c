/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/counters.h"

#include "base/time.h"
#include "consume/consumer.h"
#include "observe/span.h"

#include <stdio.h>

void semel_consumer_counters_open(struct semel_consumer_counters *counters, const char *scope)
{
	*counters = (struct semel_consumer_counters){
		.done = semel_series(SEMEL_METRIC_CONSUMED, scope, "done"),
		.duplicate = semel_series(SEMEL_METRIC_CONSUMED, scope, "duplicate"),
		.retried = semel_series(SEMEL_METRIC_CONSUMED, scope, "retried"),
		.dead = semel_series(SEMEL_METRIC_CONSUMED, scope, "dead"),
		.parked = semel_series(SEMEL_METRIC_CONSUMED, scope, "parked"),
		.redelivered = semel_series(SEMEL_METRIC_REDELIVERED, scope, NULL),
		.skipped = semel_series(SEMEL_METRIC_DUPLICATES, scope, NULL),
		.claimed = semel_series(SEMEL_METRIC_CLAIMS, scope, "claimed"),
		.found = semel_series(SEMEL_METRIC_CLAIMS, scope, "duplicate"),
		.retry_handler = semel_series(SEMEL_METRIC_RETRIES, scope, "handler"),
		.retry_timeout = semel_series(SEMEL_METRIC_RETRIES, scope, "timeout"),
		.retry_outage = semel_series(SEMEL_METRIC_RETRIES, scope, "outage"),
		.retry_in_progress = semel_series(SEMEL_METRIC_RETRIES, scope, "in-progress"),
		.unacked = semel_series(SEMEL_METRIC_ACK_AFTER_COMMIT_FAILURES, scope, NULL),
		.ack_time = semel_series(SEMEL_METRIC_CONSUME_ACK, NULL, NULL),
		.age = semel_series(SEMEL_METRIC_EVENT_AGE, scope, NULL),
		.breaker = semel_series(SEMEL_METRIC_BREAKER_STATE, scope, NULL),
		.letters = semel_series(SEMEL_METRIC_DLQ_ADDED, NULL, NULL),
	};
	semel_series_set(counters->breaker, SEMEL_BREAKER_CLOSED);
}

static struct semel_series *retry_reason(const struct semel_consumer_counters *counters,
					 const struct semel_item *item)
{
	if (item->timed_out)
		return counters->retry_timeout;
	return semel_status_class(item->status) == SEMEL_CLASS_OUTAGE ? counters->retry_outage
								      : counters->retry_handler;
}

static void count_state(const struct semel_consumer *consumer, const struct semel_item *item)
{
	const struct semel_consumer_counters *counters = &consumer->counters;

	switch (item->state) {
	case SEMEL_ITEM_DONE:
		semel_series_add(counters->done, 1);
		if (semel_consumer_has_claims(consumer))
			semel_series_add(counters->claimed, 1);
		semel_series_observe(counters->age,
				     (semel_now_ms(consumer->env) - item->delivery->event.time_ms) *
					     1000);
		break;
	case SEMEL_ITEM_DUPLICATE:
	case SEMEL_ITEM_SUPERSEDED:
		semel_series_add(counters->duplicate, 1);
		semel_series_add(counters->skipped, 1);
		semel_series_add(counters->found, 1);
		break;
	case SEMEL_ITEM_RETRYING:
		semel_series_add(counters->retried, 1);
		semel_series_add(retry_reason(counters, item), 1);
		break;
	case SEMEL_ITEM_DEAD:
		semel_series_add(counters->dead, 1);
		semel_series_add(counters->letters, 1);
		break;
	case SEMEL_ITEM_PARKED:
		semel_series_add(counters->parked, 1);
		break;
	default:
		break;
	}
}

void semel_consumer_counters_settled(struct semel_consumer *consumer, const struct semel_item *item)
{
	count_state(consumer, item);
	semel_series_add(consumer->counters.redelivered, item->delivery->redelivered);
	semel_series_observe(consumer->counters.ack_time,
			     (semel_steady_ms(consumer->env) - item->received_ms) * 1000);
}

void semel_consumer_counters_deferred(struct semel_consumer *consumer,
				      const struct semel_item *item)
{
	bool ran = semel_status_class(item->status) == SEMEL_CLASS_OUTAGE;

	semel_series_add(ran ? retry_reason(&consumer->counters, item)
			     : consumer->counters.retry_in_progress,
			 1);
}

void semel_consumer_counters_unacked(struct semel_consumer *consumer)
{
	semel_series_add(consumer->counters.unacked, 1);
}

void semel_consumer_counters_breaker(struct semel_consumer *consumer)
{
	semel_series_set(consumer->counters.breaker, consumer->breaker.state);
}

static const char *outcome_of(const struct semel_item *item)
{
	switch (item->state) {
	case SEMEL_ITEM_DUPLICATE:
	case SEMEL_ITEM_SUPERSEDED:
		return "duplicate";
	case SEMEL_ITEM_DEFERRED:
		return "in-progress";
	default:
		return "claimed";
	}
}

static void add_attributes(struct semel_span *span, const struct semel_consumer *consumer,
			   const struct semel_delivery *delivery)
{
	semel_span_text(span, "consumer.scope_id", consumer->config.scope);
	semel_span_text(span, "event.id", delivery->event.id);
	semel_span_text(span, "messaging.destination.name", delivery->event.topic);
	semel_span_number(span, "messaging.kafka.partition", delivery->partition);
	semel_span_number(span, "messaging.kafka.offset", delivery->offset);
}

static void claim_span(const struct semel_consumer *consumer, const struct semel_item *item,
		       const struct semel_span *around)
{
	struct semel_span_context parent = semel_span_as_parent(around);
	struct semel_span span = semel_span_make("semel.dedup.try_claim", SEMEL_SPAN_INTERNAL,
						 &parent, consumer->env);
	char day[SEMEL_TIME_SIZE];

	span.began_ms = item->claim_began_ms;
	span.ended_ms = item->claim_ended_ms;
	add_attributes(&span, consumer, item->delivery);
	semel_time_format(semel_time_week_start(item->delivery->event.time_ms), day);
	day[10] = '\0'; /* the date only */
	semel_span_text(&span, "event.week_start", semel_text_of(day));
	semel_span_text(&span, "dedup.outcome", semel_text_of(outcome_of(item)));
	semel_span_end(&span);
}

void semel_consumer_write_spans(struct semel_consumer *consumer, const struct semel_item *item)
{
	const struct semel_event *event = &item->delivery->event;
	struct semel_span_context parent = semel_span_context_of(
		semel_event_header(event, "traceparent", consumer->arena), event->id);
	struct semel_span span =
		semel_span_make("semel.consume", SEMEL_SPAN_CONSUMER, &parent, consumer->env);

	span.began_ms -= semel_steady_ms(consumer->env) - item->received_ms;
	if (item->state == SEMEL_ITEM_DEAD || item->state == SEMEL_ITEM_RETRYING)
		span.failure = semel_status_name(item->status);
	add_attributes(&span, consumer, item->delivery);
	semel_span_number(&span, "messaging.delivery_attempt", item->runs);
	semel_span_end(&span);
	if (item->claim_began_ms > 0)
		claim_span(consumer, item, &span);
}
