/* SPDX-License-Identifier: Apache-2.0 */
/* The window of unanswered events.
 *
 * - librdkafka numbers the records of a partition; the broker accepts them in this order or not at
 *   all. So several events of one aggregate may be in flight.
 * - When a broker refuses a batch, librdkafka accepts no more records (it must not leave a gap). It
 *   is unknown which event of the batch is at fault: a new producer sends everything unanswered
 *   again, until an answer is about a single event (resend.c).
 * - librdkafka still sends the batches that it had queued by then; the broker refuses them too,
 *   because it knows the producer: first_record.c makes sure of that.
 * - A batch may be too large though none of its events is; then smaller batches are made.
 * - While a refusal is not reported, later events of its aggregate are refused too, as HELD.
 * - An event that may have arrived and was not answered is sent again, with the same id.
 * - A broker accepts any number as the first of a producer that it does not know. A broker that is
 *   just becoming the leader may refuse a batch and accept the next one, from which librdkafka
 *   concludes that both arrived. Such a report has no offset, and is ignored. topics.c keeps this
 *   from happening on a new topic: it waits until the leaders have answered.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_MS 20 /* longest wait while the producer is replaced */

#define BATCH_BYTES  1000000 /* librdkafka's default */
#define BATCH_LEAST  1000
#define RECORD_BYTES 300 /* of a typical record, without its value */

/* ---- entries --------------------------------------------------------------------------------- */

bool semel_kafka_window_new(struct semel_kafka_window *window, uint32_t size)
{
	window->inflight = calloc(size, sizeof(window->inflight[0]));
	if (!window->inflight)
		return false;
	window->size = size;
	for (uint32_t i = size; i-- > 0;) {
		window->inflight[i].next = window->unused;
		window->unused = &window->inflight[i];
	}
	return true;
}

void semel_kafka_window_free(struct semel_kafka *kafka)
{
	struct semel_kafka_window *window = &kafka->window;
	for (uint32_t i = 0; i < window->size; i++) {
		free(window->inflight[i].reason);
		if (window->inflight[i].headers)
			kafka->library->headers_destroy(window->inflight[i].headers);
	}
	free(window->inflight);
}

void semel_kafka_finish(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight,
			semel_status status, const char *reason)
{
	inflight->state = SEMEL_KAFKA_ANSWERED;
	inflight->status = status;
	inflight->next = NULL;
	if (status != SEMEL_OK) {
		inflight->reason = strdup(reason);
		window->refused++;
		window->too_large = window->too_large || status == SEMEL_TOO_LARGE;
	}
	if (window->last_done)
		window->last_done->next = inflight;
	else
		window->done = inflight;
	window->last_done = inflight;
}

bool semel_kafka_is_held(const struct semel_kafka_window *window,
			 const struct semel_kafka_inflight *inflight)
{
	if (window->refused == 0)
		return false;
	for (const struct semel_kafka_inflight *done = window->done; done; done = done->next)
		if (done->status != SEMEL_OK &&
		    semel_event_has_same_aggregate(done->event, inflight->event))
			return true;
	return false;
}

void semel_kafka_hold(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight)
{
	semel_kafka_finish(window, inflight, SEMEL_HELD,
			   "an earlier event of its aggregate was refused");
}

/* ---- reports --------------------------------------------------------------------------------- */

/* What an error in a delivery report means for the event. OK: nothing, it may be sent again. */
static semel_status refusal_of(rd_kafka_resp_err_t err)
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

/* What is wrong with the topic concerns its other events too. */
static void refuse_topic(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_topic *topic =
		semel_kafka_topic_find(kafka, semel_text_string(inflight->event->topic));
	if (topic && inflight->status != SEMEL_TOO_LARGE)
		semel_kafka_topic_refuse(kafka, topic, inflight->status, inflight->reason);
}

static void handle_refusal(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			   rd_kafka_resp_err_t err)
{
	char reason[160];
	semel_status refusal = refusal_of(err);
	bool is_refused = refusal != SEMEL_OK;
	if (kafka->transaction.phase != SEMEL_KAFKA_TRANSACTION_READY)
		return; /* the transaction is being aborted */
	kafka->window.broken = true;
	if (is_refused)
		semel_kafka_end_stall(kafka, inflight);
	if (!kafka->isolating) { /* it is sent again, alone */
		inflight->suspected = is_refused;
		if (refusal == SEMEL_TOO_LARGE)
			kafka->window.refused_bytes +=
				RECORD_BYTES + inflight->event->payload.length;
		return;
	}
	if (!is_refused) {
		kafka->fatal_status = SEMEL_OUTAGE;
		snprintf(kafka->fatal_text, sizeof(kafka->fatal_text), "delivery failed: %s",
			 kafka->library->err2str(err));
		return;
	}
	snprintf(reason, sizeof(reason), "refused by Kafka: %s", kafka->library->err2str(err));
	if (kafka->transaction.name) {
		semel_kafka_transaction_refuse(kafka, inflight, refusal, reason);
		return;
	}
	semel_kafka_finish(&kafka->window, inflight, refusal, reason);
	if (inflight->reason)
		refuse_topic(kafka, inflight);
}

/* Saves the headers: the next event in this entry has most of them, too. */
static void save_headers(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			 const rd_kafka_message_t *report)
{
	rd_kafka_message_t *message = (rd_kafka_message_t *)(uintptr_t)report;
	if (inflight->template_number != 0 &&
	    kafka->library->message_detach_headers(message, &inflight->headers) !=
		    RD_KAFKA_RESP_ERR_NO_ERROR)
		inflight->headers = NULL;
}

static void handle_report(struct semel_kafka *kafka, const rd_kafka_message_t *report)
{
	struct semel_kafka_inflight *inflight = report->_private;
	if (report->_private == &kafka->requeue) {
		kafka->requeue.waiting = false;
		kafka->requeue.err = report->err;
		kafka->window.broken = kafka->window.broken || report->err;
	} else if (report->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
		   report->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) {
		return; /* purged by us */
	} else if (report->err) {
		handle_refusal(kafka, inflight, report->err);
	} else if (report->offset == RD_KAFKA_OFFSET_INVALID) {
		kafka->window.broken = true; /* librdkafka concluded it, see above */
	} else {
		kafka->down_since_ms = 0;
		save_headers(kafka, inflight, report);
		semel_kafka_partition_accepted(kafka, inflight, report->partition);
		if (kafka->transaction.name) {
			semel_kafka_transaction_accept(kafka, inflight);
			return;
		}
		inflight->took_us = kafka->library->message_latency(report);
		semel_kafka_finish(&kafka->window, inflight, SEMEL_OK, NULL);
	}
}

static void handle_event(struct semel_kafka *kafka, rd_kafka_event_t *event)
{
	const struct semel_kafka_library *library = kafka->library;
	const rd_kafka_message_t *report;
	if (library->event_type(event) == RD_KAFKA_EVENT_DR)
		while ((report = library->event_message_next(event)) != NULL)
			handle_report(kafka, report);
	else if (library->event_type(event) == RD_KAFKA_EVENT_ERROR)
		semel_kafka_handle_error(kafka, kafka->producer, event);
	library->event_destroy(event);
}

void semel_kafka_producer_serve(struct semel_kafka *kafka, int64_t wait_ms)
{
	rd_kafka_event_t *event = kafka->library->queue_poll(kafka->producer_queue, (int)wait_ms);
	kafka->window.polled_ms = semel_steady_ms(kafka->env);
	while (event) {
		handle_event(kafka, event);
		event = kafka->library->queue_poll(kafka->producer_queue, 0);
	}
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The headers of the entry's previous event, if they have the same template. */
static rd_kafka_headers_t *take_headers(struct semel_kafka *kafka,
					struct semel_kafka_inflight *inflight,
					uint64_t template_number)
{
	rd_kafka_headers_t *headers = inflight->headers;
	inflight->headers = NULL;
	if (headers && inflight->template_number != template_number) {
		kafka->library->headers_destroy(headers);
		headers = NULL;
	}
	inflight->template_number = template_number;
	return headers;
}

/* Sends the event unless it has to wait. OK also if it was finished or has to wait. */
static semel_status send_event(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			       semel_error *error)
{
	struct semel_kafka_outgoing outgoing = { .event = inflight->event,
						 .metadata = &inflight->metadata,
						 .opaque = inflight };
	struct semel_kafka_topic *topic = NULL;
	semel_status status = semel_kafka_topic_ensure(
		kafka, semel_text_string(inflight->event->topic), 0, &topic, error);
	if (status != SEMEL_OK)
		return status;
	rd_kafka_topic_t *handle = semel_kafka_topic_handle(kafka, topic);
	if (!handle || !semel_kafka_choose_partition(kafka, topic, inflight))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	if (semel_kafka_is_stalled(kafka, inflight) && !semel_kafka_can_probe(kafka, inflight)) {
		(void)semel_kafka_finish_stalled(kafka, inflight);
		return SEMEL_OK;
	}
	if (semel_kafka_is_behind_first(kafka, inflight)) {
		semel_kafka_wait_for_first(kafka, inflight);
		return SEMEL_OK;
	}
	outgoing.used =
		take_headers(kafka, inflight, semel_kafka_header_template_of(kafka, &outgoing));
	status = semel_kafka_produce(kafka, handle, &outgoing, error);
	if (status != SEMEL_OK)
		return status;
	semel_kafka_first_sent(kafka, inflight);
	return SEMEL_OK;
}

semel_status semel_kafka_send(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			      semel_error *error)
{
	semel_error why = { 0 };
	semel_status status = send_event(kafka, inflight, &why);
	if (status == SEMEL_OK || status == SEMEL_FULL)
		return status;
	if (!semel_outcome_is_about_event(status))
		return semel_error_set(error, status, "%s", why.text);
	if (kafka->transaction.name)
		semel_kafka_transaction_refuse(kafka, inflight, status, why.text);
	else
		semel_kafka_finish(&kafka->window, inflight, status, why.text);
	return SEMEL_OK;
}

semel_status semel_kafka_publish(struct semel_broker *broker, const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, void *token,
				 semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct semel_kafka_window *window = &kafka->window;
	struct semel_kafka_inflight *inflight = window->unused;
	if (kafka->lost)
		return semel_kafka_check_health(kafka, error);
	if (!inflight)
		return SEMEL_FULL;
	semel_status status = SEMEL_OK;
	window->unused = inflight->next;
	*inflight = (struct semel_kafka_inflight){
		.event = event,
		.metadata = *metadata,
		.token = token,
		.sequence = ++window->sequence,
		.headers = inflight->headers,
		.template_number = inflight->template_number,
		.partition = -1,
		.state = SEMEL_KAFKA_SENT,
	};
	if (metadata->transaction != 0 && metadata->transaction == kafka->transaction.refused) {
		semel_kafka_finish(window, inflight, kafka->transaction.refused_by,
				   "an earlier event of its transaction was refused");
		return SEMEL_OK;
	}
	if (semel_kafka_is_held(window, inflight)) {
		semel_kafka_hold(window, inflight);
		return SEMEL_OK;
	}
	if (kafka->transaction.name)
		return semel_kafka_transaction_offer(kafka, inflight, error);
	if (!window->broken && kafka->resend.state == SEMEL_KAFKA_RESEND_IDLE)
		status = semel_kafka_send(kafka, inflight, error);
	else
		semel_kafka_resend_queue(kafka, inflight);
	if (status != SEMEL_OK) {
		inflight->state = SEMEL_KAFKA_UNUSED;
		inflight->next = window->unused;
		window->unused = inflight;
	}
	return status;
}

/* ---- batches --------------------------------------------------------------------------------- */

void semel_kafka_shrink_batches(struct semel_kafka *kafka)
{
	uint64_t bytes = kafka->batch_bytes > 0 ? kafka->batch_bytes : BATCH_BYTES;
	if (bytes > kafka->window.refused_bytes)
		bytes = kafka->window.refused_bytes;
	kafka->batch_bytes = bytes / 2 > BATCH_LEAST ? bytes / 2 : BATCH_LEAST;
	char text[160];
	snprintf(text, sizeof(text), "%.100s: at most %" PRIu64 " bytes from now on",
		 kafka->address, kafka->batch_bytes);
	semel_log(SEMEL_LOG_INFO,
		  "batches exceed max.message.bytes of a topic, making smaller ones",
		  &(struct semel_log_fields){ .error = text });
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void report_outcomes(struct semel_kafka_window *window, semel_outcome_callback callback,
			    void *user)
{
	while (window->done) {
		struct semel_kafka_inflight *inflight = window->done;
		struct semel_publish_outcome outcome;
		outcome.token = inflight->token;
		outcome.status = inflight->status;
		outcome.took_us = inflight->took_us;
		outcome.reason[0] = '\0';
		if (inflight->status != SEMEL_OK) {
			snprintf(outcome.reason, sizeof(outcome.reason), "%s",
				 inflight->reason ? inflight->reason : "refused");
			window->refused--;
			free(inflight->reason);
			inflight->reason = NULL;
		}
		window->done = inflight->next;
		if (!window->done)
			window->last_done = NULL;
		inflight->state = SEMEL_KAFKA_UNUSED;
		inflight->next = window->unused;
		window->unused = inflight;
		callback(&outcome, user);
	}
}

/* Is there something to do or to report before waiting? */
static bool is_ready(const struct semel_kafka *kafka)
{
	bool draining = kafka->resend.state == SEMEL_KAFKA_RESEND_DRAINING ||
			kafka->transaction.phase != SEMEL_KAFKA_TRANSACTION_READY;
	return kafka->window.done || (kafka->window.broken && !draining) ||
	       semel_kafka_transaction_can_commit(kafka);
}

static semel_status step(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->window.waiting && !kafka->window.broken && !kafka->resend.stalled) {
		semel_status status = semel_kafka_send_waiting(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	return kafka->transaction.name ? semel_kafka_transaction_step(kafka, error)
				       : semel_kafka_resend_step(kafka, error);
}

semel_status semel_kafka_poll(struct semel_broker *broker, int64_t wait_ms,
			      semel_outcome_callback callback, void *user, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	if (kafka->lost)
		return semel_kafka_check_health(kafka, error);
	bool between = kafka->resend.state != SEMEL_KAFKA_RESEND_IDLE ||
		       kafka->transaction.phase != SEMEL_KAFKA_TRANSACTION_READY;
	if (between && wait_ms > SLICE_MS)
		wait_ms = SLICE_MS;
	semel_kafka_producer_serve(kafka, is_ready(kafka) ? 0 : wait_ms);
	if (kafka->window.polled_ms >= kafka->window.stall_check_ms)
		semel_kafka_check_stalls(kafka);
	semel_status status = step(kafka, error);
	report_outcomes(&kafka->window, callback, user);
	if (status != SEMEL_OK)
		return status;
	return semel_kafka_check_health(kafka, error);
}

/* A quota slows publishing down, but never stops it. */
const char *semel_kafka_blocked(struct semel_broker *broker)
{
	(void)broker;
	return NULL;
}
