/* SPDX-License-Identifier: Apache-2.0 */
/* After a refusal a new producer sends all unanswered events, and finds the faulty one.
 *
 * - This is a state of the driver, not a loop: each poll does a little of it and returns, so that
 *   the caller can renew its leases meanwhile. What is published during it waits in the queue.
 * - A refusal is about a batch. The batch is sent again in halves, one half in flight at a time,
 *   until a single event is in flight: then the answer is about this event. The others are sent in
 *   groups that grow.
 * - The order of publishing is kept: what was in flight goes back to the front of the queue.
 * - When every event of a refused batch was accepted, the batch was too large, though no event was:
 *   the next producer makes smaller ones.
 * - A stalled partition (stall.c) needs the same: a new producer, without its events.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>

#define DRAIN_MS  2000  /* for answers to events in flight, so that few are sent twice */
#define ANSWER_MS 30000 /* no answer within this time is an outage */
#define GROWTH    4

/* ---- the queue ------------------------------------------------------------------------------- */

void semel_kafka_resend_queue(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	inflight->state = SEMEL_KAFKA_QUEUED;
	inflight->next = NULL;
	if (resend->last)
		resend->last->next = inflight;
	else
		resend->first = inflight;
	resend->last = inflight;
}

static void queue_in_front(struct semel_kafka_resend *resend, struct semel_kafka_inflight *inflight)
{
	inflight->state = SEMEL_KAFKA_QUEUED;
	inflight->next = resend->first;
	resend->first = inflight;
	if (!resend->last)
		resend->last = inflight;
}

static struct semel_kafka_inflight *take_first(struct semel_kafka_resend *resend)
{
	struct semel_kafka_inflight *inflight = resend->first;
	resend->first = inflight->next;
	if (!resend->first)
		resend->last = NULL;
	inflight->next = NULL;
	inflight->state = SEMEL_KAFKA_SENT;
	return inflight;
}

/* Called before the refusal of an event is reported: afterwards it is no longer known which later
 * events of its aggregate to hold. */
static void hold_later_events(struct semel_kafka *kafka)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	struct semel_kafka_inflight *next, *inflight = resend->first;
	if (kafka->window.refused == 0)
		return;
	resend->first = resend->last = NULL;
	for (; inflight; inflight = next) {
		next = inflight->next;
		if (semel_kafka_is_held(&kafka->window, inflight))
			semel_kafka_hold(&kafka->window, inflight);
		else
			semel_kafka_resend_queue(kafka, inflight);
	}
}

static int by_sequence(const void *left, const void *right)
{
	const struct semel_kafka_inflight *const *a = left, *const *b = right;
	return (*a)->sequence < (*b)->sequence ? -1 : 1;
}

/* Puts the events in flight back to the front of the queue, in order. suspects_out: the faulty
 * event is among the first ones, up to this count; 0: unknown. */
static semel_status requeue_sent(struct semel_kafka *kafka, size_t *count_out, size_t *suspects_out,
				 semel_error *error)
{
	struct semel_kafka_window *window = &kafka->window;
	struct semel_kafka_inflight **list = malloc((window->size + 1) * sizeof(list[0]));
	size_t count = 0;
	*count_out = *suspects_out = 0;
	if (!list)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	for (uint32_t i = 0; i < window->size; i++)
		if (window->inflight[i].state == SEMEL_KAFKA_SENT)
			list[count++] = &window->inflight[i];
	qsort(list, count, sizeof(list[0]), by_sequence);
	for (size_t i = 0; i < count; i++)
		if (!semel_kafka_finish_stalled(kafka, list[i]))
			list[(*count_out)++] = list[i];
	for (size_t i = *count_out; i-- > 0;) {
		if (list[i]->suspected && *suspects_out == 0)
			*suspects_out = i + 1;
		list[i]->suspected = false;
		queue_in_front(&kafka->resend, list[i]);
	}
	free(list);
	return SEMEL_OK;
}

/* ---- a new producer -------------------------------------------------------------------------- */

static void start_draining(struct semel_kafka *kafka)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	int64_t now_ms = semel_steady_ms(kafka->env);
	if (resend->state == SEMEL_KAFKA_RESEND_IDLE) {
		resend->group = SIZE_MAX;
		resend->suspects = resend->accepted_count = 0;
		resend->refused_bytes = 0;
		resend->progress_ms = now_ms;
		kafka->window.too_large = false;
	}
	resend->end = kafka->window.sequence; /* suspects up to here */
	resend->state = SEMEL_KAFKA_RESEND_DRAINING;
	resend->until_ms = now_ms + DRAIN_MS;
}

/* Is something in flight that will be answered? A probe of a stalled partition may never be. */
static bool is_any_sent(const struct semel_kafka *kafka)
{
	const struct semel_kafka_window *window = &kafka->window;
	for (uint32_t i = 0; i < window->size; i++)
		if (window->inflight[i].state == SEMEL_KAFKA_SENT &&
		    !semel_kafka_is_stalled(kafka, &window->inflight[i]))
			return true;
	return false;
}

static bool is_drained(const struct semel_kafka *kafka)
{
	return kafka->library->outq_len(kafka->producer) == 0 || !is_any_sent(kafka) ||
	       semel_steady_ms(kafka->env) >= kafka->resend.until_ms;
}

/* If the faulty event was alone in flight, it is found; the next ones may be good. */
static void narrow_suspects(struct semel_kafka *kafka, size_t back, size_t suspects)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	size_t before = resend->suspects;
	bool found = kafka->isolating && back == 0;
	if (found) {
		resend->suspects = 0;
		resend->group = resend->accepted_count > 0 ? GROWTH * resend->accepted_count : 1;
		resend->accepted_count = 0;
	} else if (!resend->stalled) {
		resend->suspects = suspects > 0 ? suspects : back;
	}
	if (kafka->window.refused_bytes > 0)
		resend->refused_bytes = kafka->window.refused_bytes;
	kafka->window.refused_bytes = 0;
	kafka->isolating = resend->stalled = false;
	if (found || resend->suspects != before)
		resend->progress_ms = semel_steady_ms(kafka->env);
}

static semel_status replace_producer(struct semel_kafka *kafka, semel_error *error)
{
	size_t back = 0, suspects = 0;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	semel_status status = semel_kafka_producer_new(kafka, error);
	if (status != SEMEL_OK)
		return status;
	status = requeue_sent(kafka, &back, &suspects, error);
	if (status != SEMEL_OK)
		return status;
	narrow_suspects(kafka, back, suspects);
	char text[80];
	snprintf(text, sizeof(text), "%zu events, %zu of them suspects", back,
		 kafka->resend.suspects);
	semel_log(SEMEL_LOG_DEBUG, "resending unconfirmed events with a new producer",
		  &(struct semel_log_fields){ .error = text });
	kafka->resend.state = SEMEL_KAFKA_RESEND_SENDING;
	kafka->resend.sent_count = 0;
	return SEMEL_OK;
}

/* ---- sending again --------------------------------------------------------------------------- */

/* The last group is answered. True: a batch was too large though none of its events was. */
static bool record_group(struct semel_kafka *kafka)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	bool suspected = resend->suspects > 0;
	resend->accepted_count += resend->sent_count;
	if (suspected)
		resend->suspects -= resend->sent_count < resend->suspects ? resend->sent_count
									  : resend->suspects;
	else if (resend->sent_count > 0 && resend->group < SIZE_MAX / GROWTH)
		resend->group *= GROWTH;
	if (resend->sent_count > 0)
		resend->progress_ms = semel_steady_ms(kafka->env);
	resend->sent_count = 0;
	return suspected && resend->suspects == 0 && resend->refused_bytes > 0 &&
	       !kafka->window.too_large;
}

static size_t next_size(const struct semel_kafka_resend *resend)
{
	if (resend->suspects == 0)
		return resend->group;
	return resend->suspects > 1 ? resend->suspects / 2 : 1;
}

static semel_status send_group(struct semel_kafka *kafka, size_t size, semel_error *error)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	semel_status status = SEMEL_OK;
	while (resend->first && resend->sent_count < size && !kafka->window.broken) {
		struct semel_kafka_inflight *inflight = take_first(resend);
		if (semel_kafka_is_held(&kafka->window, inflight))
			semel_kafka_hold(&kafka->window, inflight);
		else
			status = semel_kafka_send(kafka, inflight, error);
		if (status != SEMEL_OK) {
			queue_in_front(resend, inflight);
			break;
		}
		resend->sent_count++;
	}
	return status == SEMEL_FULL ? SEMEL_OK : status;
}

/* There are no suspects left, and what was published before the refusal was sent; or there was no
 * refusal, but a stalled partition. */
static bool is_finished(const struct semel_kafka_resend *resend)
{
	if (resend->suspects > 0)
		return false;
	return resend->group == SIZE_MAX || !resend->first || resend->first->sequence > resend->end;
}

static semel_status check_progress(const struct semel_kafka *kafka, semel_error *error)
{
	if (semel_steady_ms(kafka->env) - kafka->resend.progress_ms < ANSWER_MS)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE, "%s has not answered any delivery for %d ms",
			       kafka->address, ANSWER_MS);
}

static semel_status send_next_group(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	if (is_any_sent(kafka))
		return check_progress(kafka, error);
	if (record_group(kafka)) {
		kafka->window.refused_bytes = resend->refused_bytes;
		semel_kafka_shrink_batches(kafka);
		kafka->window.refused_bytes = resend->refused_bytes = 0;
		resend->group = SIZE_MAX;
		start_draining(kafka);
		return replace_producer(kafka, error);
	}
	bool finished = is_finished(resend);
	size_t size = finished ? SIZE_MAX : next_size(resend);
	semel_status status = send_group(kafka, size, error);
	kafka->isolating = resend->sent_count == 1 && !finished;
	if (status == SEMEL_OK && finished && !resend->first)
		resend->state = SEMEL_KAFKA_RESEND_IDLE;
	return status;
}

static semel_status step(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_resend *resend = &kafka->resend;
	if ((kafka->window.broken || resend->stalled) &&
	    resend->state != SEMEL_KAFKA_RESEND_DRAINING)
		start_draining(kafka);
	if (resend->state == SEMEL_KAFKA_RESEND_DRAINING && is_drained(kafka)) {
		semel_status status = replace_producer(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	return resend->state == SEMEL_KAFKA_RESEND_SENDING ? send_next_group(kafka, error)
							   : SEMEL_OK;
}

semel_status semel_kafka_resend_step(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = step(kafka, error);
	hold_later_events(kafka);
	return status;
}
