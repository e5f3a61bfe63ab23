/* SPDX-License-Identifier: Apache-2.0 */
/* After a refusal a new producer sends again whatever is not answered, and finds the event at
 * fault.
 *
 * - It is a state of the driver, not a loop: each poll does a little of it and returns, so that the
 *   caller tends his leases meanwhile. What is offered during it waits in the queue.
 * - A refusal is about a batch. The batch is sent again in halves, each of them alone on its way,
 *   until one event is: then the answer is about this event. The others go in groups that grow.
 * - The order of the offers is kept: what was on its way goes back to the front of the queue.
 * - When every event of a refused batch was taken, the batch was too large, and none of them is:
 *   the next producer makes smaller ones.
 * - A partition that has stalled (stall.c) needs the same: a new producer, without its events.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdlib.h>

#define SETTLE_MS 2000  /* for answers to what is on its way, so that little is sent twice */
#define ANSWER_MS 30000 /* without any answer it is an outage */
#define GROWTH    4

/* ---- the queue ------------------------------------------------------------------------------- */

void semel_kafka_repair_queue(struct semel_kafka *kafka, struct semel_kafka_slot *slot)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	slot->state = SEMEL_KAFKA_QUEUED;
	slot->next = NULL;
	if (repair->last)
		repair->last->next = slot;
	else
		repair->first = slot;
	repair->last = slot;
}

static void queue_in_front(struct semel_kafka_repair *repair, struct semel_kafka_slot *slot)
{
	slot->state = SEMEL_KAFKA_QUEUED;
	slot->next = repair->first;
	repair->first = slot;
	if (!repair->last)
		repair->last = slot;
}

static struct semel_kafka_slot *take_first(struct semel_kafka_repair *repair)
{
	struct semel_kafka_slot *slot = repair->first;
	repair->first = slot->next;
	if (!repair->first)
		repair->last = NULL;
	slot->next = NULL;
	slot->state = SEMEL_KAFKA_SENT;
	return slot;
}

/* Those whose refused sibling is about to be reported: afterwards nobody would know. */
static void hold_siblings(struct semel_kafka *kafka)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	struct semel_kafka_slot *next, *slot = repair->first;
	if (kafka->window.refused == 0)
		return;
	repair->first = repair->last = NULL;
	for (; slot; slot = next) {
		next = slot->next;
		if (semel_kafka_is_held(&kafka->window, slot))
			semel_kafka_hold(&kafka->window, slot);
		else
			semel_kafka_repair_queue(kafka, slot);
	}
}

static int by_sequence(const void *left, const void *right)
{
	const struct semel_kafka_slot *const *a = left, *const *b = right;
	return (*a)->sequence < (*b)->sequence ? -1 : 1;
}

/* What is on its way comes back, in its order. suspects_out: among so many of the first is the one
 * at fault; 0: nobody was blamed. */
static semel_status take_back(struct semel_kafka *kafka, size_t *count_out, size_t *suspects_out,
			      semel_error *error)
{
	struct semel_kafka_window *window = &kafka->window;
	struct semel_kafka_slot **list = malloc((window->size + 1) * sizeof(list[0]));
	size_t count = 0;
	*count_out = *suspects_out = 0;
	if (!list)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory");
	for (uint32_t i = 0; i < window->size; i++)
		if (window->slots[i].state == SEMEL_KAFKA_SENT)
			list[count++] = &window->slots[i];
	qsort(list, count, sizeof(list[0]), by_sequence);
	for (size_t i = 0; i < count; i++)
		if (!semel_kafka_answer_stalled(kafka, list[i]))
			list[(*count_out)++] = list[i];
	for (size_t i = *count_out; i-- > 0;) {
		if (list[i]->blamed && *suspects_out == 0)
			*suspects_out = i + 1;
		list[i]->blamed = false;
		queue_in_front(&kafka->repair, list[i]);
	}
	free(list);
	return SEMEL_OK;
}

/* ---- a new producer -------------------------------------------------------------------------- */

static void begin(struct semel_kafka *kafka)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	int64_t now_ms = semel_steady_ms(kafka->env);
	if (repair->state == SEMEL_KAFKA_SOUND) {
		repair->group = SIZE_MAX;
		repair->suspects = repair->passed = 0;
		repair->refused_bytes = 0;
		repair->progress_ms = now_ms;
		kafka->window.too_large = false;
	}
	repair->end = kafka->window.sequence; /* up to here with care */
	repair->state = SEMEL_KAFKA_SETTLING;
	repair->until_ms = now_ms + SETTLE_MS;
}

/* Something is on its way that will be answered. One that tries a stalled partition may not be. */
static bool is_any_sent(const struct semel_kafka *kafka)
{
	const struct semel_kafka_window *window = &kafka->window;
	for (uint32_t i = 0; i < window->size; i++)
		if (window->slots[i].state == SEMEL_KAFKA_SENT &&
		    !semel_kafka_is_stalled(kafka, &window->slots[i]))
			return true;
	return false;
}

static bool is_settled(const struct semel_kafka *kafka)
{
	return kafka->library->outq_len(kafka->producer) == 0 || !is_any_sent(kafka) ||
	       semel_steady_ms(kafka->env) >= kafka->repair.until_ms;
}

/* The one at fault is found when it was alone on its way; what comes next may be right again. */
static void narrow(struct semel_kafka *kafka, size_t back, size_t suspects)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	size_t before = repair->suspects;
	bool found = kafka->careful && back == 0;
	if (found) {
		repair->suspects = 0;
		repair->group = repair->passed > 0 ? GROWTH * repair->passed : 1;
		repair->passed = 0;
	} else if (!repair->stalled) {
		repair->suspects = suspects > 0 ? suspects : back;
	}
	if (kafka->window.refused_bytes > 0)
		repair->refused_bytes = kafka->window.refused_bytes;
	kafka->window.refused_bytes = 0;
	kafka->careful = repair->stalled = false;
	if (found || repair->suspects != before)
		repair->progress_ms = semel_steady_ms(kafka->env);
}

static semel_status renew(struct semel_kafka *kafka, semel_error *error)
{
	size_t back = 0, suspects = 0;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	semel_status status = semel_kafka_producer_make(kafka, error);
	if (status == SEMEL_OK)
		status = take_back(kafka, &back, &suspects, error);
	if (status != SEMEL_OK)
		return status;
	narrow(kafka, back, suspects);
	semel_logf(SEMEL_LOG_DEBUG,
		   "kafka: a new producer sends %zu events again, %zu of them suspect", back,
		   kafka->repair.suspects);
	kafka->repair.state = SEMEL_KAFKA_RESENDING;
	kafka->repair.took = 0;
	return SEMEL_OK;
}

/* ---- sending again --------------------------------------------------------------------------- */

/* What was sent last is answered for. True: the batch was too large of which no event is. */
static bool note_group(struct semel_kafka *kafka)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	bool suspected = repair->suspects > 0;
	repair->passed += repair->took;
	if (suspected)
		repair->suspects -=
			repair->took < repair->suspects ? repair->took : repair->suspects;
	else if (repair->took > 0 && repair->group < SIZE_MAX / GROWTH)
		repair->group *= GROWTH;
	if (repair->took > 0)
		repair->progress_ms = semel_steady_ms(kafka->env);
	repair->took = 0;
	return suspected && repair->suspects == 0 && repair->refused_bytes > 0 &&
	       !kafka->window.too_large;
}

static size_t next_size(const struct semel_kafka_repair *repair)
{
	if (repair->suspects == 0)
		return repair->group;
	return repair->suspects > 1 ? repair->suspects / 2 : 1;
}

static semel_status send_group(struct semel_kafka *kafka, size_t size, semel_error *error)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	semel_status status = SEMEL_OK;
	while (repair->first && repair->took < size && !kafka->window.broken) {
		struct semel_kafka_slot *slot = take_first(repair);
		if (semel_kafka_is_held(&kafka->window, slot))
			semel_kafka_hold(&kafka->window, slot);
		else
			status = semel_kafka_send(kafka, slot, error);
		if (status != SEMEL_OK) {
			queue_in_front(repair, slot);
			break;
		}
		repair->took++;
	}
	return status == SEMEL_FULL ? SEMEL_OK : status;
}

/* Nobody is suspected any more, and what was offered before the refusal has been sent; or there was
 * none, and it was a partition that has stalled. */
static bool is_repaired(const struct semel_kafka_repair *repair)
{
	if (repair->suspects > 0)
		return false;
	return repair->group == SIZE_MAX || !repair->first || repair->first->sequence > repair->end;
}

static semel_status check_progress(const struct semel_kafka *kafka, semel_error *error)
{
	if (semel_steady_ms(kafka->env) - kafka->repair.progress_ms < ANSWER_MS)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE, "%s has not answered for an event in %d ms",
			       kafka->place, ANSWER_MS);
}

static semel_status resend(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	if (is_any_sent(kafka))
		return check_progress(kafka, error);
	if (note_group(kafka)) {
		kafka->window.refused_bytes = repair->refused_bytes;
		semel_kafka_shrink(kafka);
		kafka->window.refused_bytes = repair->refused_bytes = 0;
		repair->group = SIZE_MAX;
		begin(kafka);
		return renew(kafka, error);
	}
	bool repaired = is_repaired(repair);
	size_t size = repaired ? SIZE_MAX : next_size(repair);
	semel_status status = send_group(kafka, size, error);
	kafka->careful = repair->took == 1 && !repaired;
	if (status == SEMEL_OK && repaired && !repair->first)
		repair->state = SEMEL_KAFKA_SOUND;
	return status;
}

semel_status semel_kafka_repair_step(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_repair *repair = &kafka->repair;
	semel_status status = SEMEL_OK;
	if ((kafka->window.broken || repair->stalled) && repair->state != SEMEL_KAFKA_SETTLING)
		begin(kafka);
	if (repair->state == SEMEL_KAFKA_SETTLING && is_settled(kafka))
		status = renew(kafka, error);
	if (status == SEMEL_OK && repair->state == SEMEL_KAFKA_RESENDING)
		status = resend(kafka, error);
	hold_siblings(kafka);
	return status;
}
