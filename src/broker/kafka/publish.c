/* SPDX-License-Identifier: Apache-2.0 */
/* The window of events that the cluster has not answered for.
 *
 * - librdkafka numbers the records of a partition; the broker takes them in this order or not at
 *   all. So many events of one aggregate may be on their way.
 * - When a broker refuses a batch, librdkafka takes no more from us (it may not leave a gap).
 *   Nobody knows yet which event of the batch was at fault: a new producer sends everything
 *   unanswered again, until an answer is about one event (repair.c).
 * - What librdkafka had gathered by then it still sends; the broker refuses it too, because it
 *   knows the producer: introduce.c sees to that.
 * - A batch may be too large of which no event is; smaller ones are made then.
 * - While a refusal is not reported, later ones of its aggregate are refused too, as HELD.
 * - What may have arrived and was not answered is sent twice, with the same id.
 * - A broker takes any number as the first of a producer that it does not know. One that is only
 *   just becoming a leader may so refuse a batch and take the one behind it, from which librdkafka
 *   concludes that both are there. Such a report has no offset, and is none for us. That this does
 *   not happen on a new topic, topics.c sees to: its leaders have answered before.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_MS 20 /* of a repair */

#define BATCH_BYTES  1000000 /* librdkafka's, unless it is told otherwise */
#define BATCH_LEAST  1000
#define RECORD_BYTES 300 /* of a usual record, beside its value */

/* ---- slots ----------------------------------------------------------------------------------- */

bool semel_kafka_window_make(struct semel_kafka_window *window, uint32_t size)
{
	window->slots = calloc(size, sizeof(window->slots[0]));
	if (!window->slots)
		return false;
	window->size = size;
	for (uint32_t i = size; i-- > 0;) {
		window->slots[i].next = window->unused;
		window->unused = &window->slots[i];
	}
	return true;
}

void semel_kafka_window_free(struct semel_kafka *kafka)
{
	struct semel_kafka_window *window = &kafka->window;
	for (uint32_t i = 0; i < window->size; i++) {
		free(window->slots[i].reason);
		if (window->slots[i].headers)
			kafka->library->headers_destroy(window->slots[i].headers);
	}
	free(window->slots);
}

void semel_kafka_answer(struct semel_kafka_window *window, struct semel_kafka_slot *slot,
			semel_status status, const char *reason)
{
	slot->state = SEMEL_KAFKA_ANSWERED;
	slot->status = status;
	slot->next = NULL;
	if (status != SEMEL_OK) {
		slot->reason = strdup(reason);
		window->refused++;
		window->too_large = window->too_large || status == SEMEL_TOO_LARGE;
	}
	if (window->last_done)
		window->last_done->next = slot;
	else
		window->done = slot;
	window->last_done = slot;
}

bool semel_kafka_is_held(const struct semel_kafka_window *window,
			 const struct semel_kafka_slot *slot)
{
	if (window->refused == 0)
		return false;
	for (const struct semel_kafka_slot *done = window->done; done; done = done->next)
		if (done->status != SEMEL_OK && semel_event_is_sibling(done->event, slot->event))
			return true;
	return false;
}

void semel_kafka_hold(struct semel_kafka_window *window, struct semel_kafka_slot *slot)
{
	semel_kafka_answer(window, slot, SEMEL_HELD,
			   "waits behind an earlier event of its aggregate");
}

/* ---- hearing --------------------------------------------------------------------------------- */

semel_status semel_kafka_refusal_of(rd_kafka_resp_err_t err)
{
	switch (err) {
	case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
		return SEMEL_TOO_LARGE;
	case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
	case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
	case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
		return SEMEL_UNROUTABLE;
	case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
	case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
	case RD_KAFKA_RESP_ERR_INVALID_MSG:
	case RD_KAFKA_RESP_ERR_INVALID_RECORD:
	case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
		return SEMEL_NACKED;
	case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		return SEMEL_INVALID;
	default:
		return SEMEL_OK;
	}
}

/* What is wrong with the topic is wrong for its other events too. */
static void refuse_topic(struct semel_kafka *kafka, const struct semel_kafka_slot *slot)
{
	struct semel_kafka_topic *topic =
		semel_kafka_topic_find(kafka, semel_text_string(slot->event->topic));
	if (topic && slot->status != SEMEL_TOO_LARGE)
		semel_kafka_topic_refuse(kafka, topic, slot->status, slot->reason);
}

static void hear_refusal(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			 rd_kafka_resp_err_t err)
{
	char reason[160];
	semel_status refusal = semel_kafka_refusal_of(err);
	if (kafka->bundle.phase != SEMEL_KAFKA_BUNDLE_READY)
		return; /* it is given up already */
	kafka->window.broken = true;
	if (refusal != SEMEL_OK)
		semel_kafka_unstall(kafka, slot);
	if (!kafka->careful) { /* it is sent again, by itself */
		slot->blamed = refusal != SEMEL_OK;
		if (refusal == SEMEL_TOO_LARGE)
			kafka->window.refused_bytes += RECORD_BYTES + slot->event->payload.length;
		return;
	}
	if (refusal == SEMEL_OK) {
		kafka->trouble = SEMEL_OUTAGE;
		snprintf(kafka->trouble_text, sizeof(kafka->trouble_text), "an event failed: %s",
			 kafka->library->err2str(err));
		return;
	}
	snprintf(reason, sizeof(reason), "Kafka refused it: %s", kafka->library->err2str(err));
	if (kafka->bundle.name) {
		semel_kafka_bundle_refuse(kafka, slot, refusal, reason);
		return;
	}
	semel_kafka_answer(&kafka->window, slot, refusal, reason);
	if (slot->reason)
		refuse_topic(kafka, slot);
}

/* The next event of this slot has most of them in common with this one. */
static void keep_headers(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			 const rd_kafka_message_t *report)
{
	rd_kafka_message_t *message = (rd_kafka_message_t *)(uintptr_t)report;
	if (slot->kind != 0 && kafka->library->message_detach_headers(message, &slot->headers) !=
				       RD_KAFKA_RESP_ERR_NO_ERROR)
		slot->headers = NULL;
}

static void hear_report(struct semel_kafka *kafka, const rd_kafka_message_t *report)
{
	struct semel_kafka_slot *slot = report->_private;
	if (report->_private == &kafka->requeue) {
		kafka->requeue.waiting = false;
		kafka->requeue.err = report->err;
		kafka->window.broken = kafka->window.broken || report->err;
	} else if (report->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
		   report->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) {
		return; /* by us */
	} else if (report->err) {
		hear_refusal(kafka, slot, report->err);
	} else if (report->offset == RD_KAFKA_OFFSET_INVALID) {
		kafka->window.broken = true; /* believed, not told */
	} else {
		kafka->down_since_ms = 0;
		keep_headers(kafka, slot, report);
		semel_kafka_introduced(kafka, slot, report->partition);
		if (kafka->bundle.name) {
			semel_kafka_bundle_take(kafka, slot);
			return;
		}
		slot->took_us = kafka->library->message_latency(report);
		semel_kafka_answer(&kafka->window, slot, SEMEL_OK, NULL);
	}
}

static void hear(struct semel_kafka *kafka, rd_kafka_event_t *event)
{
	const struct semel_kafka_library *library = kafka->library;
	const rd_kafka_message_t *report;
	if (library->event_type(event) == RD_KAFKA_EVENT_DR)
		while ((report = library->event_message_next(event)) != NULL)
			hear_report(kafka, report);
	else if (library->event_type(event) == RD_KAFKA_EVENT_ERROR)
		semel_kafka_hear_error(kafka, kafka->producer, event);
	library->event_destroy(event);
}

void semel_kafka_producer_serve(struct semel_kafka *kafka, int64_t wait_ms)
{
	rd_kafka_event_t *event = kafka->library->queue_poll(kafka->producer_queue, (int)wait_ms);
	kafka->window.heard_ms = semel_steady_ms(kafka->env);
	while (event) {
		hear(kafka, event);
		event = kafka->library->queue_poll(kafka->producer_queue, 0);
	}
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Those of the event before it in this slot, if they fit its kind. */
static rd_kafka_headers_t *take_headers(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
					uint64_t kind)
{
	rd_kafka_headers_t *headers = slot->headers;
	slot->headers = NULL;
	if (headers && slot->kind != kind) {
		kafka->library->headers_destroy(headers);
		headers = NULL;
	}
	slot->kind = kind;
	return headers;
}

static semel_status post(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			 rd_kafka_topic_t *handle, semel_error *error)
{
	struct semel_kafka_post post = { .event = slot->event,
					 .metadata = &slot->metadata,
					 .opaque = slot };
	post.used = take_headers(kafka, slot, semel_kafka_kind_of(kafka, &post));
	semel_status status = semel_kafka_post(kafka, handle, &post, error);
	if (status == SEMEL_OK)
		semel_kafka_introduce(kafka, slot);
	return status;
}

semel_status semel_kafka_send(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			      semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	semel_error why = { 0 };
	semel_status status = semel_kafka_topic_need(kafka, semel_text_string(slot->event->topic),
						     0, &topic, &why);
	rd_kafka_topic_t *handle =
		status == SEMEL_OK ? semel_kafka_topic_handle(kafka, topic) : NULL;
	if (status == SEMEL_OK && (!handle || !semel_kafka_reckon(kafka, topic, slot)))
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a topic");
	if (status == SEMEL_OK && semel_kafka_is_stalled(kafka, slot) &&
	    !semel_kafka_may_try(kafka, slot)) {
		(void)semel_kafka_answer_stalled(kafka, slot);
		return SEMEL_OK;
	}
	if (status == SEMEL_OK && semel_kafka_must_wait(kafka, slot)) {
		semel_kafka_line_up(kafka, slot);
		return SEMEL_OK;
	}
	if (status == SEMEL_OK)
		status = post(kafka, slot, handle, &why);
	if (status == SEMEL_OK || status == SEMEL_FULL)
		return status;
	if (!semel_status_is_about_event(status))
		return semel_error_set(error, status, "%s", why.text);
	if (kafka->bundle.name)
		semel_kafka_bundle_refuse(kafka, slot, status, why.text);
	else
		semel_kafka_answer(&kafka->window, slot, status, why.text);
	return SEMEL_OK;
}

semel_status semel_kafka_publish(struct semel_broker *broker, const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, void *token,
				 semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct semel_kafka_window *window = &kafka->window;
	struct semel_kafka_slot *slot = window->unused;
	if (kafka->lost)
		return semel_kafka_health(kafka, error);
	if (!slot)
		return SEMEL_FULL;
	semel_status status = SEMEL_OK;
	window->unused = slot->next;
	*slot = (struct semel_kafka_slot){
		.event = event,
		.metadata = *metadata,
		.token = token,
		.sequence = ++window->sequence,
		.headers = slot->headers,
		.kind = slot->kind,
		.partition = -1,
		.state = SEMEL_KAFKA_SENT,
	};
	if (metadata->transaction != 0 && metadata->transaction == kafka->bundle.refused) {
		semel_kafka_answer(window, slot, kafka->bundle.refused_by,
				   "an earlier event of its transaction was refused");
		return SEMEL_OK;
	}
	if (semel_kafka_is_held(window, slot)) {
		semel_kafka_hold(window, slot);
		return SEMEL_OK;
	}
	if (kafka->bundle.name)
		return semel_kafka_bundle_offer(kafka, slot, error);
	if (!window->broken && kafka->repair.state == SEMEL_KAFKA_SOUND)
		status = semel_kafka_send(kafka, slot, error);
	else
		semel_kafka_repair_queue(kafka, slot);
	if (status != SEMEL_OK) {
		slot->state = SEMEL_KAFKA_UNUSED;
		slot->next = window->unused;
		window->unused = slot;
	}
	return status;
}

/* ---- batches -----------------------------------------------------------------------------------
 */

void semel_kafka_shrink(struct semel_kafka *kafka)
{
	uint64_t bytes = kafka->batch_bytes > 0 ? kafka->batch_bytes : BATCH_BYTES;
	if (bytes > kafka->window.refused_bytes)
		bytes = kafka->window.refused_bytes;
	kafka->batch_bytes = bytes / 2 > BATCH_LEAST ? bytes / 2 : BATCH_LEAST;
	semel_logf(SEMEL_LOG_INFO,
		   "%s refuses batches that are larger than max.message.bytes of a topic: from now "
		   "on they have at most %" PRIu64 " bytes",
		   kafka->place, kafka->batch_bytes);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void report(struct semel_kafka_window *window, semel_outcome_callback seen, void *user)
{
	while (window->done) {
		struct semel_kafka_slot *slot = window->done;
		struct semel_publish_outcome outcome;
		outcome.token = slot->token;
		outcome.status = slot->status;
		outcome.took_us = slot->took_us;
		outcome.reason[0] = '\0';
		if (slot->status != SEMEL_OK) {
			snprintf(outcome.reason, sizeof(outcome.reason), "%s",
				 slot->reason ? slot->reason : "refused");
			window->refused--;
			free(slot->reason);
			slot->reason = NULL;
		}
		window->done = slot->next;
		if (!window->done)
			window->last_done = NULL;
		slot->state = SEMEL_KAFKA_UNUSED;
		slot->next = window->unused;
		window->unused = slot;
		seen(&outcome, user);
	}
}

semel_status semel_kafka_poll(struct semel_broker *broker, int64_t wait_ms,
			      semel_outcome_callback seen, void *user, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	semel_status status = SEMEL_OK;
	if (kafka->lost)
		return semel_kafka_health(kafka, error);
	bool settling = kafka->repair.state == SEMEL_KAFKA_SETTLING ||
			kafka->bundle.phase != SEMEL_KAFKA_BUNDLE_READY;
	bool ready = kafka->window.done || (kafka->window.broken && !settling) ||
		     semel_kafka_bundle_is_whole(kafka);
	if (wait_ms > SLICE_MS && (kafka->repair.state != SEMEL_KAFKA_SOUND ||
				   kafka->bundle.phase != SEMEL_KAFKA_BUNDLE_READY))
		wait_ms = SLICE_MS;
	semel_kafka_producer_serve(kafka, ready ? 0 : wait_ms);
	if (kafka->window.heard_ms >= kafka->window.look_ms)
		semel_kafka_stall_look(kafka);
	if (kafka->window.waiting && !kafka->window.broken && !kafka->repair.stalled)
		status = semel_kafka_send_waiting(kafka, error);
	if (status == SEMEL_OK)
		status = kafka->bundle.name ? semel_kafka_bundle_step(kafka, error)
					    : semel_kafka_repair_step(kafka, error);
	report(&kafka->window, seen, user);
	return status == SEMEL_OK ? semel_kafka_health(kafka, error) : status;
}

/* Quotas slow us down; they never stop us. */
const char *semel_kafka_blocked(struct semel_broker *broker)
{
	(void)broker;
	return NULL;
}
