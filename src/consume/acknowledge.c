/* SPDX-License-Identifier: Apache-2.0 */
/* After the commit: delayed copies first, then the acks, then counts and logs.
 *
 * - The delayed copy of an item that failed for now is confirmed by the broker before the original
 *   is acked. A crash between any two steps repeats one and loses nothing.
 * - An item whose copy the broker will never take is given up.
 */
#include "base/error.h"
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "observe/log.h"
#include "observe/span.h"
#include "observe/step_timer.h"

#include <stdio.h>

#define BLOCKED_MS 1000

static semel_status send_copy(struct semel_consumer *consumer, const struct semel_item *item,
			      semel_error *error)
{
	struct semel_publish_metadata metadata = item->delivery->metadata;

	metadata.attempt = item->runs;
	metadata.replay = item->replay;
	semel_status status = consumer->broker->driver->requeue(
		consumer->broker, semel_text_string(consumer->scope), &item->delivery->event,
		&metadata, item->delay_ms, error);
	return status == SEMEL_OK ? semel_failpoint(SEMEL_FP_CONSUME_AFTER_REQUEUE, error) : status;
}

/* The broker will never take its copy (headers that have grown beyond a frame): it cannot be tried
 * again later, so it is given up. */
static semel_status give_up_copy(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	item->reason = semel_arena_printf(consumer->arena, "%s (and it cannot be put back: %s)",
					  item->reason ? item->reason : "failed", error->text);
	item->head = item->head ||
		     semel_item_holds_while_retried(consumer, item); /* by its first transaction */
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_settle_dead(consumer, item, consumer->arena, error);
	if (status == SEMEL_OK)
		return driver->commit(consumer->store, error);
	driver->rollback(consumer->store);
	return status;
}

static semel_status send_copy_or_give_up(struct semel_consumer *consumer, struct semel_item *item,
					 semel_error *error)
{
	semel_status status = send_copy(consumer, item, error);

	return semel_status_class(status) == SEMEL_CLASS_REJECT
		       ? give_up_copy(consumer, item, error)
		       : status;
}

/* The broker takes nothing for now: the original stays where it is, and comes again. Its attempt is
 * counted already, in its hold. */
static bool defer_if_blocked(struct semel_consumer *consumer, struct semel_item *item,
			     semel_status status)
{
	if (status != SEMEL_BUSY || !consumer->broker->driver->blocked(consumer->broker))
		return false;
	semel_item_move(item, SEMEL_ITEM_DEFERRED);
	consumer->has_deferred = true;
	consumer->pause_until_ms = semel_steady_ms(consumer->env) + BLOCKED_MS;
	return true;
}

struct log_row {
	enum semel_log_level level;
	const char *message, *dedup, *decision;
};

static const struct log_row log_rows[] = {
	[SEMEL_ITEM_DEFERRED] = { SEMEL_LOG_DEBUG, "not now, comes again", "in-progress", "retry" },
	[SEMEL_ITEM_DONE] = { SEMEL_LOG_DEBUG, "done", "claimed", "ack" },
	[SEMEL_ITEM_DUPLICATE] = { SEMEL_LOG_INFO, "duplicate, skipped", "duplicate",
				   "ack_duplicate" },
	[SEMEL_ITEM_SUPERSEDED] = { SEMEL_LOG_INFO, "stale copy of a dead letter, skipped",
				    "duplicate", "ack_duplicate" },
	[SEMEL_ITEM_RETRYING] = { SEMEL_LOG_WARN, "failed for now, comes again", "claimed",
				  "retry" },
	[SEMEL_ITEM_DEAD] = { SEMEL_LOG_WARN, "given up, dead letter", "claimed", "dead-letter" },
	[SEMEL_ITEM_PARKED] = { SEMEL_LOG_INFO, "parked behind an earlier event", NULL, "park" },
};

static void say(const struct semel_consumer *consumer, const struct semel_item *item)
{
	const struct log_row *log_row = &log_rows[item->state];
	const struct semel_delivery *delivery = item->delivery;
	bool exchanges = consumer->broker->driver->has_exchanges;
	bool tagged = exchanges && !delivery->offset_in_store;
	char queue[512];

	if (!semel_log_enabled(log_row->level))
		return;
	struct semel_text correlation =
		semel_event_header(&delivery->event, "correlationId", consumer->arena);
	snprintf(queue, sizeof queue, "%s.%s", semel_text_shown(consumer->scope),
		 semel_text_shown_or(delivery->event.topic, ""));
	semel_log(log_row->level, log_row->message,
		  &(struct semel_log_fields){
			  .message_id = semel_text_shown(delivery->event.id),
			  .correlation_id = semel_text_shown(correlation),
			  .exchange = exchanges ? semel_text_shown(delivery->event.topic) : NULL,
			  .topic = semel_text_shown(delivery->event.topic),
			  .routing_key = semel_text_shown(delivery->event.routing_key),
			  .queue = queue,
			  .consumer = semel_text_shown(consumer->scope),
			  .dedup_status = log_row->dedup,
			  .ack_decision = log_row->decision,
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
	consumer->settled++;
	semel_consumer_counters_settled(consumer, item);
}

/* Where the broker has a place for those who watch it. The dead letter is in the store, so one that
 * does not take the copy is no reason to stop; only when it is away the event is not acked either.
 */
static semel_status bury(struct semel_consumer *consumer, const struct semel_item *item,
			 semel_error *error)
{
	const struct semel_dead_letter_copy letter = {
		.scope = semel_text_string(consumer->scope),
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
	semel_log(SEMEL_LOG_WARN, "a dead letter has no copy at the broker",
		  &(struct semel_log_fields){ .message_id =
						      semel_text_shown(item->delivery->event.id),
					      .consumer = semel_text_shown(consumer->scope),
					      .error = error->text });
	return SEMEL_OK;
}

static bool is_settled(const struct semel_item *item)
{
	return item->state >= SEMEL_ITEM_DONE;
}

semel_status semel_acknowledge(struct semel_consumer *consumer, struct semel_item *const *items,
			       uint32_t item_count, semel_error *error)
{
	struct semel_arena *arena = consumer->arena;
	struct semel_delivery *acks = semel_arena_alloc(arena, item_count * sizeof *acks + 1);
	semel_status status = SEMEL_OK;
	uint32_t ack_count = 0;

	if (!acks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the acks");
	for (uint32_t i = 0; i < item_count && status == SEMEL_OK; i++) {
		if (!is_settled(items[i]))
			continue;
		if (items[i]->state == SEMEL_ITEM_RETRYING && !items[i]->entry_id.data &&
		    !items[i]->kept)
			status = send_copy_or_give_up(consumer, items[i], error);
		if (status == SEMEL_OK)
			status = bury(consumer, items[i], error);
		if (defer_if_blocked(consumer, items[i], status))
			status = SEMEL_OK;
		else if (!items[i]->entry_id.data && !items[i]->detached)
			acks[ack_count++] = *items[i]->delivery;
	}
	if (status == SEMEL_OK && ack_count > 0) {
		int64_t began_us = semel_step_timer_begin();
		status = consumer->broker->driver->ack(consumer->broker, acks, ack_count, error);
		semel_step_timer_end(SEMEL_TIMED_ACK, began_us);
	}
	if (status == SEMEL_OK) {
		semel_positions_acknowledged(consumer->positions, acks, ack_count);
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_ACK, error);
	}
	if (status != SEMEL_OK) {
		semel_consumer_counters_unacked(consumer);
		semel_log(SEMEL_LOG_WARN, "committed, but not acked; duplicates will be skipped",
			  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope),
						      .error = error->text });
		return status;
	}
	for (uint32_t i = 0; i < item_count; i++) {
		/* Else a worker has it: it comes here again when its handler has ended. */
		bool is_over = is_settled(items[i]) || items[i]->state == SEMEL_ITEM_DEFERRED;
		if (is_over)
			say(consumer, items[i]);
		if (is_over && semel_spans_enabled())
			semel_consumer_write_spans(consumer, items[i]);
		if (is_settled(items[i]))
			count(consumer, items[i]);
		else if (items[i]->state == SEMEL_ITEM_DEFERRED)
			semel_consumer_counters_deferred(consumer, items[i]);
	}
	return SEMEL_OK;
}
