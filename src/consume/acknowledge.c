/* SPDX-License-Identifier: Apache-2.0 */
/* After the commit: delayed copies first, then the acks, then counts and logs.
 *
 * - When an item is to be retried, the broker confirms its delayed copy before the original is
 *   acked. A crash between any two steps repeats a step and loses nothing.
 * - An item whose copy the broker will never accept becomes a dead letter.
 */
#include "base/error.h"
#include "consume/consumer.h"
#include "consume/settle.h"
#include "fault/failpoint.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "observe/span.h"

#include <stdio.h>

#define BLOCKED_MS 1000

/* ---- copies ---------------------------------------------------------------------------------- */

static semel_status send_copy(struct semel_consumer *consumer, const struct semel_item *item,
			      semel_error *error)
{
	struct semel_publish_metadata metadata = item->delivery->metadata;

	metadata.attempt = item->runs;
	metadata.replay = item->replay;
	semel_status status = consumer->broker->driver->requeue(
		consumer->broker, semel_text_string(consumer->config.scope), &item->delivery->event,
		&metadata, item->delay_ms, error);
	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_REQUEUE, error);
}

/* The broker will never accept the item's copy (its headers have grown beyond a frame), so the item
 * cannot be retried later: it becomes a dead letter. */
static semel_status give_up_copy(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error)
{
	item->reason = semel_arena_printf(consumer->arena, "%s (and it cannot be requeued: %s)",
					  item->reason ? item->reason : "failed", error->text);
	/* The first transaction made the item the head of its key. */
	item->head = item->head || semel_item_can_hold_in_retry(consumer, item);
	return semel_settle_dead_alone(consumer, item, error);
}

static semel_status send_copy_or_give_up(struct semel_consumer *consumer, struct semel_item *item,
					 semel_error *error)
{
	if (item->state != SEMEL_ITEM_RETRYING || item->entry_id.data || item->stored)
		return SEMEL_OK;
	semel_status status = send_copy(consumer, item, error);
	if (semel_status_class(status) == SEMEL_CLASS_REJECT)
		return give_up_copy(consumer, item, error);
	return status;
}

/* Sends a copy where the broker has a queue for dead letters. The dead letter itself is in the
 * store, so a broker that refuses the copy does not stop the consumer; only when the broker is
 * unreachable, the event is not acked either. */
static semel_status publish_dead_letter(struct semel_consumer *consumer,
					const struct semel_item *item, semel_error *error)
{
	const struct semel_dead_letter_copy letter = {
		.scope = semel_text_string(consumer->config.scope),
		.delivery = item->delivery,
		.reason = item->reason && item->reason[0] ? item->reason
							  : semel_status_sentence(item->status),
		.attempts = item->runs,
		.failed_at_ms = semel_now_ms(consumer->env),
	};

	if (item->state != SEMEL_ITEM_DEAD || !consumer->broker->driver->publish_dead_letter)
		return SEMEL_OK;
	semel_status status =
		consumer->broker->driver->publish_dead_letter(consumer->broker, &letter, error);
	if (status == SEMEL_OK ||
	    (semel_status_class(status) == SEMEL_CLASS_OUTAGE && status != SEMEL_BUSY))
		return status;
	semel_log(SEMEL_LOG_WARN, "cannot publish a copy of the dead letter",
		  &(struct semel_log_fields){ .message_id =
						      semel_text_shown(item->delivery->event.id),
					      .consumer = semel_text_shown(consumer->config.scope),
					      .error = error->text });
	return SEMEL_OK;
}

/* The broker accepts nothing for now: the original stays at the broker and is delivered again. Its
 * attempt is already counted, in its hold. */
static bool defer_if_blocked(struct semel_consumer *consumer, struct semel_item *item,
			     semel_status status)
{
	if (status != SEMEL_BUSY || !consumer->broker->driver->blocked(consumer->broker))
		return false;
	semel_item_move(item, SEMEL_ITEM_DEFERRED);
	semel_intake_defer(&consumer->intake, semel_steady_ms(consumer->env) + BLOCKED_MS);
	return true;
}

/* ---- logs and counts ------------------------------------------------------------------------- */

struct log_row {
	enum semel_log_level level;
	const char *message, *dedup, *decision;
};

static const struct log_row log_rows[] = {
	[SEMEL_ITEM_DEFERRED] = { SEMEL_LOG_DEBUG, "event deferred", "in-progress", "retry" },
	[SEMEL_ITEM_DONE] = { SEMEL_LOG_DEBUG, "event processed", "claimed", "ack" },
	[SEMEL_ITEM_DUPLICATE] = { SEMEL_LOG_INFO, "duplicate skipped", "duplicate",
				   "ack_duplicate" },
	[SEMEL_ITEM_SUPERSEDED] = { SEMEL_LOG_INFO, "copy of a dead letter skipped", "duplicate",
				    "ack_duplicate" },
	[SEMEL_ITEM_RETRYING] = { SEMEL_LOG_WARN, "event failed, retrying", "claimed", "retry" },
	[SEMEL_ITEM_DEAD] = { SEMEL_LOG_WARN, "event became a dead letter", "claimed",
			      "dead-letter" },
	[SEMEL_ITEM_PARKED] = { SEMEL_LOG_INFO, "event parked behind an earlier one", NULL,
				"park" },
};

static void log_item(const struct semel_consumer *consumer, const struct semel_item *item)
{
	const struct log_row *row = &log_rows[item->state];
	const struct semel_delivery *delivery = item->delivery;
	bool exchanges = consumer->broker->driver->has_exchanges;
	bool tagged = exchanges && !delivery->offset_in_store;
	const char *scope = semel_text_shown(consumer->config.scope);
	char queue[512];

	if (!semel_log_is_enabled(row->level))
		return;
	struct semel_text correlation =
		semel_event_header(&delivery->event, "correlationId", consumer->arena);
	snprintf(queue, sizeof queue, "%s.%s", scope,
		 semel_text_shown_or(delivery->event.topic, ""));
	semel_log(row->level, row->message,
		  &(struct semel_log_fields){
			  .message_id = semel_text_shown(delivery->event.id),
			  .correlation_id = semel_text_shown(correlation),
			  .exchange = exchanges ? semel_text_shown(delivery->event.topic) : NULL,
			  .topic = semel_text_shown(delivery->event.topic),
			  .routing_key = semel_text_shown(delivery->event.routing_key),
			  .queue = queue,
			  .consumer = scope,
			  .dedup_status = row->dedup,
			  .ack_decision = row->decision,
			  .error = item->state == SEMEL_ITEM_DONE ? NULL : item->reason,
			  .partition = delivery->partition,
			  .offset = delivery->offset,
			  .has_position = !tagged,
			  .delivery_tag = tagged ? delivery->offset : 0,
			  .redelivered = delivery->redelivered,
			  .attempt = item->runs });
}

static void count(struct semel_consumer *consumer, const struct semel_item *item)
{
	semel_consumer_counts *counts = &consumer->counts;

	counts->done += item->state == SEMEL_ITEM_DONE;
	counts->duplicate +=
		item->state == SEMEL_ITEM_DUPLICATE || item->state == SEMEL_ITEM_SUPERSEDED;
	counts->retried += item->state == SEMEL_ITEM_RETRYING;
	counts->dead += item->state == SEMEL_ITEM_DEAD;
	counts->parked += item->state == SEMEL_ITEM_PARKED;
	counts->redelivered += item->delivery->redelivered;
	consumer->intake.settled++;
	semel_consumer_counters_settled(consumer, item);
}

/* An admitted item is with a worker; it is reported when its handler has ended. */
static void report(struct semel_consumer *consumer, const struct semel_item *item)
{
	bool settled = semel_item_is_settled(item);

	if (!settled && item->state != SEMEL_ITEM_DEFERRED)
		return;
	log_item(consumer, item);
	if (semel_spans_are_enabled())
		semel_consumer_write_spans(consumer, item);
	if (settled)
		count(consumer, item);
	else
		semel_consumer_counters_deferred(consumer, item);
}

/* ---- all together ---------------------------------------------------------------------------- */

struct acks {
	struct semel_delivery *deliveries;
	uint32_t count;
};

static semel_status send_copies(struct semel_consumer *consumer, struct semel_item *item,
				semel_error *error)
{
	semel_status status = send_copy_or_give_up(consumer, item, error);

	if (status != SEMEL_OK)
		return status;
	return publish_dead_letter(consumer, item, error);
}

static semel_status prepare_ack(struct semel_consumer *consumer, struct semel_item *item,
				struct acks *acks, semel_error *error)
{
	semel_status status = send_copies(consumer, item, error);

	if (defer_if_blocked(consumer, item, status))
		return SEMEL_OK;
	if (!item->entry_id.data && !item->detached)
		acks->deliveries[acks->count++] = *item->delivery;
	return status;
}

static semel_status send_acks(struct semel_consumer *consumer, const struct acks *acks,
			      semel_error *error)
{
	if (acks->count > 0) {
		int64_t began_us = semel_step_timer_begin();
		semel_status status = consumer->broker->driver->ack(
			consumer->broker, acks->deliveries, acks->count, error);
		semel_step_timer_end(SEMEL_TIMED_ACK, began_us);
		if (status != SEMEL_OK)
			return status;
	}
	semel_positions_acknowledged(consumer->positions, acks->deliveries, acks->count);
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_ACK, error);
}

static semel_status send_all(struct semel_consumer *consumer, struct semel_item *const *items,
			     uint32_t count, struct acks *acks, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (!semel_item_is_settled(items[i]))
			continue;
		semel_status status = prepare_ack(consumer, items[i], acks, error);
		if (status != SEMEL_OK)
			return status;
	}
	return send_acks(consumer, acks, error);
}

semel_status semel_acknowledge(struct semel_consumer *consumer, struct semel_item *const *items,
			       uint32_t item_count, semel_error *error)
{
	struct acks acks = { .deliveries = semel_arena_alloc(
				     consumer->arena, item_count * sizeof *acks.deliveries + 1) };

	if (!acks.deliveries)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the acks");
	semel_status status = send_all(consumer, items, item_count, &acks, error);
	if (status != SEMEL_OK) {
		semel_consumer_counters_unacked(consumer);
		semel_log(SEMEL_LOG_WARN,
			  "cannot acknowledge committed deliveries, they will be redelivered",
			  &(struct semel_log_fields){
				  .consumer = semel_text_shown(consumer->config.scope),
				  .error = error->text });
		return status;
	}
	for (uint32_t i = 0; i < item_count; i++)
		report(consumer, items[i]);
	return SEMEL_OK;
}

semel_status semel_acknowledge_all(struct semel_consumer *consumer, struct semel_item *items,
				   uint32_t count, semel_error *error)
{
	struct semel_item **list = semel_arena_alloc(consumer->arena, count * sizeof(*list));

	if (!list)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch");
	for (uint32_t i = 0; i < count; i++)
		list[i] = &items[i];
	return semel_acknowledge(consumer, list, count, error);
}
