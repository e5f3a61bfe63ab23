/* SPDX-License-Identifier: Apache-2.0 */
/* What became of an item, written down in the open transaction; and after its commit, told to the
 * broker.
 *
 * - Done: the claim is PROCESSED, its hold is released, the entry that it was replayed from is
 *   settled, all with the effect.
 * - Failed for now: the hold and the number of runs are committed first, then the delayed copy is
 *   confirmed by the broker, then the original is acked. A crash between any two repeats a step and
 *   loses nothing.
 * - Given up: the dead letter is committed before the ack. If it cannot be stored, nothing is
 * acked.
 */
#include "base/error.h"
#include "base/failpoint.h"
#include "base/uuid.h"
#include "consume/consumer.h"
#include "observe/log.h"
#include "observe/meter.h"
#include "observe/span.h"

#include <stdio.h>

#define BLOCKED_MS 1000

static semel_tx tx_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver->tx(consumer->store);
}

static struct semel_hold hold_of(const struct semel_item *item, enum semel_hold_state state)
{
	return (struct semel_hold){ .aggregate_type = item->key_type,
				    .aggregate_id = item->key_id,
				    .head_id = item->delivery->event.id,
				    .state = state };
}

static bool can_hold(const struct semel_item *item)
{
	return !semel_text_is_blank(item->delivery->event.id) && !semel_text_is_blank(item->key_id);
}

/* Later ones wait while it is tried again. A total order is kept also where the dead are skipped.
 */
static bool holds_while_tried(const struct semel_consumer *consumer, const struct semel_item *item)
{
	return (consumer->options.poison != SEMEL_POISON_SKIP ||
		consumer->options.order == SEMEL_ORDER_TOTAL) &&
	       can_hold(item);
}

static bool holds_when_dead(const struct semel_consumer *consumer, const struct semel_item *item)
{
	return consumer->options.poison != SEMEL_POISON_SKIP && can_hold(item);
}

/* ---- done ------------------------------------------------------------------------------------ */

/* The followers may go; without any, the hold goes itself. */
static semel_status release_hold(struct semel_consumer *consumer, const struct semel_item *item,
				 struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_hold hold = hold_of(item, SEMEL_HOLD_RELEASED), found;
	struct semel_event key = { .aggregate_type = item->key_type, .aggregate_id = item->key_id };
	struct semel_dead_entry first = { .status = SEMEL_DEAD_PENDING };
	/* Locked before the look behind it: nobody parks there until this is decided. */
	semel_status status =
		driver->hold_get(tx_of(consumer), consumer->scope, &key, arena, &found, error);
	if (status == SEMEL_OK)
		status = driver->parked_first(tx_of(consumer), consumer->scope, &hold, arena,
					      &first, error);
	if (status != SEMEL_OK)
		return status;
	if (first.entry_id.data)
		return driver->hold_put(tx_of(consumer), consumer->scope, &hold, error);
	return driver->hold_remove(tx_of(consumer), consumer->scope, &hold, error);
}

static semel_status change_claim(struct semel_consumer *consumer, struct semel_item *item,
				 enum semel_inbox_status to, const char *error_code,
				 semel_error *error)
{
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change change = { .from = item->claim.status,
					     .from_owner = item->claim.owner,
					     .error_code = error_code,
					     .now_ms = semel_now_ms(consumer->env) };
	bool taken = false;

	claim.status = to;
	semel_status status =
		consumer->guard->driver->change(consumer->guard, &claim, &change, &taken, error);
	if (status == SEMEL_OK && !taken)
		semel_log(SEMEL_LOG_WARN, "the claim has moved to another consumer meanwhile",
			  &(struct semel_log_fields){ .message_id = item->claim.event_id.data,
						      .consumer = consumer->scope.data });
	return status;
}

semel_status semel_conclude_done(struct semel_consumer *consumer, struct semel_item *item,
				 struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	uint32_t replay = item->delivery->passage.replay;
	semel_status status = SEMEL_OK;

	if (item->fate == SEMEL_FATE_GO && item->claim.status == SEMEL_INBOX_CLAIMED &&
	    semel_consumer_claims(consumer))
		status = change_claim(consumer, item, SEMEL_INBOX_PROCESSED, NULL, error);
	if (status == SEMEL_OK && item->entry_id.data)
		status = driver->parked_remove(tx_of(consumer), item->entry_id, error);
	if (status == SEMEL_OK && (item->head || item->entry_id.data))
		status = release_hold(consumer, item, arena, error);
	if (status == SEMEL_OK && replay > 0)
		status = driver->dead_settle(tx_of(consumer), consumer->scope,
					     item->delivery->event.id, replay, error);
	if (status == SEMEL_OK && item->fate != SEMEL_FATE_DUPLICATE)
		item->fate = SEMEL_FATE_DONE;
	return status;
}

/* ---- failed ---------------------------------------------------------------------------------- */

struct semel_dead_entry semel_item_entry(const struct semel_consumer *consumer,
					 const struct semel_item *item,
					 char entry_id_out[SEMEL_UUID_SIZE])
{
	semel_uuid_make(consumer->env, entry_id_out);
	return (struct semel_dead_entry){
		.entry_id = semel_text_of(entry_id_out),
		.event = item->delivery->event,
		.scope = consumer->scope,
		.failed_at_ms = semel_now_ms(consumer->env),
		.partition = item->delivery->partition,
		.offset = item->delivery->offset,
		.attempts = item->runs,
		.replay_count = item->delivery->passage.replay,
		.status = SEMEL_DEAD_PENDING,
	};
}

static semel_status write_entry(struct semel_consumer *consumer, struct semel_item *item,
				struct semel_arena *arena, semel_error *error)
{
	const struct semel_event *event = &item->delivery->event;
	char entry_id[SEMEL_UUID_SIZE];
	struct semel_dead_entry entry = semel_item_entry(consumer, item, entry_id);

	entry.reason = semel_text_of(item->reason && item->reason[0]
					     ? item->reason
					     : semel_status_sentence(item->status));
	entry.saga_id = semel_event_header(event, "sagaId", arena);
	entry.correlation_id = semel_event_header(event, "correlationId", arena);
	return consumer->store->driver->dead_add(tx_of(consumer), &entry, arena, error);
}

/* What the guard is to remember of an event that was given up. Same-tx leaves nothing. */
static semel_status fail_claim(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	if (!semel_consumer_claims(consumer) || semel_consumer_joins(consumer) ||
	    item->fate != SEMEL_FATE_GO)
		return SEMEL_OK;
	if (consumer->options.claim == SEMEL_CLAIM_SAME_TX &&
	    consumer->options.guarantee == SEMEL_EFFECTIVELY_ONCE)
		return consumer->guard->driver->forget(consumer->guard, &item->claim, error);
	return change_claim(consumer, item, SEMEL_INBOX_FAILED, semel_status_name(item->status),
			    error);
}

/* In doubt: the claim of the dead owner becomes FAILED, so that only a replay can take it. */
static semel_status close_doubt(struct semel_consumer *consumer, struct semel_item *item,
				semel_error *error)
{
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change change = { .from = SEMEL_INBOX_CLAIMED,
					     .error_code = "in-doubt",
					     .now_ms = semel_now_ms(consumer->env) };
	bool taken = false;

	claim.status = SEMEL_INBOX_FAILED;
	return consumer->guard->driver->change(consumer->guard, &claim, &change, &taken, error);
}

semel_status semel_conclude_dead(struct semel_consumer *consumer, struct semel_item *item,
				 struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = item->in_doubt ? close_doubt(consumer, item, error)
					     : fail_claim(consumer, item, error);

	if (status == SEMEL_OK)
		status = write_entry(consumer, item, arena, error);
	if (status == SEMEL_OK && item->entry_id.data)
		status = driver->parked_remove(tx_of(consumer), item->entry_id, error);
	if (status == SEMEL_OK && holds_when_dead(consumer, item)) {
		struct semel_hold hold = hold_of(item, SEMEL_HOLD_DEAD);
		hold.attempts = item->delivery->passage.replay;
		hold.blocks = consumer->options.poison == SEMEL_POISON_BLOCK;
		status = driver->hold_put(tx_of(consumer), consumer->scope, &hold, error);
	} else if (status == SEMEL_OK && (item->head || item->entry_id.data)) {
		status = release_hold(consumer, item, arena, error);
	}
	item->fate = SEMEL_FATE_DEAD;
	return status;
}

/* The head of a whole topic stays in the store too: a copy of it would come to the end of a queue
 * in which everything waits for it. */
static semel_status keep_head(struct semel_consumer *consumer, struct semel_item *item,
			      semel_error *error)
{
	if (consumer->options.order != SEMEL_ORDER_TOTAL || item->entry_id.data || !can_hold(item))
		return SEMEL_OK;
	item->kept = true;
	return semel_item_park(consumer, item, item->delivery->event.id, error);
}

static semel_status conclude_later(struct semel_consumer *consumer, struct semel_item *item,
				   semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = SEMEL_OK;

	if (semel_consumer_claims(consumer) && !semel_consumer_joins(consumer))
		status = consumer->guard->driver->forget(consumer->guard, &item->claim, error);
	if (status == SEMEL_OK)
		status = keep_head(consumer, item, error);
	if (status == SEMEL_OK && (item->entry_id.data || holds_while_tried(consumer, item))) {
		/* A follower stays in the store, and its hold comes up again when it is due. */
		bool stored = item->entry_id.data || item->kept;
		struct semel_hold hold =
			hold_of(item, stored ? SEMEL_HOLD_RELEASED : SEMEL_HOLD_RETRY);
		hold.attempts = item->runs;
		hold.due_ms = semel_now_ms(consumer->env) + item->delay_ms;
		status = driver->hold_put(tx_of(consumer), consumer->scope, &hold, error);
	}
	item->fate = SEMEL_FATE_RETRY;
	return status;
}

/* A separate claim allows one run: whatever went wrong, it is not repeated without a person. */
bool semel_consumer_runs_once(const struct semel_consumer *consumer)
{
	return consumer->options.guarantee == SEMEL_AT_MOST_ONCE ||
	       (consumer->options.claim == SEMEL_CLAIM_SEPARATE && semel_consumer_claims(consumer));
}

semel_status semel_conclude_failed(struct semel_consumer *consumer, struct semel_item *item,
				   int64_t retry_after_ms, struct semel_arena *arena,
				   semel_error *error)
{
	struct semel_attempt attempt = { .number = item->runs,
					 .status = item->status,
					 .retry_after_ms = retry_after_ms };
	enum semel_retry next = semel_retry_next(&consumer->retry, &attempt,
						 semel_random(consumer->env), &item->delay_ms);

	if (next == SEMEL_RETRY_FREE) {
		item->runs--;
		item->fate = SEMEL_FATE_LATER;
		return SEMEL_OK;
	}
	if (next == SEMEL_RETRY_GIVE_UP || semel_consumer_runs_once(consumer))
		return semel_conclude_dead(consumer, item, arena, error);
	if (next == SEMEL_RETRY_LATER || item->entry_id.data)
		return conclude_later(consumer, item, error);
	item->fate = SEMEL_FATE_OPEN;
	return SEMEL_OK;
}

/* ---- after the commit ------------------------------------------------------------------------ */

static semel_status send_copy(struct semel_consumer *consumer, const struct semel_item *item,
			      semel_error *error)
{
	struct semel_passage passage = item->delivery->passage;

	passage.attempt = item->runs;
	semel_status status = consumer->broker->driver->requeue(
		consumer->broker, consumer->scope.data, &item->delivery->event, &passage,
		item->delay_ms, error);
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
	item->head = item->head || holds_while_tried(consumer, item); /* by its first transaction */
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_conclude_dead(consumer, item, consumer->arena, error);
	if (status == SEMEL_OK)
		return driver->commit(consumer->store, error);
	driver->rollback(consumer->store);
	return status;
}

static semel_status put_back(struct semel_consumer *consumer, struct semel_item *item,
			     semel_error *error)
{
	semel_status status = send_copy(consumer, item, error);

	return semel_status_class(status) == SEMEL_CLASS_REJECT
		       ? give_up_copy(consumer, item, error)
		       : status;
}

/* The broker takes nothing for now: the original stays where it is, and comes again. Its attempt is
 * counted already, in its hold. */
static bool is_put_off(struct semel_consumer *consumer, struct semel_item *item,
		       semel_status status)
{
	if (status != SEMEL_BUSY || !consumer->broker->driver->blocked(consumer->broker))
		return false;
	item->fate = SEMEL_FATE_LATER;
	consumer->put_off = true;
	consumer->pause_until_ms = semel_steady_ms(consumer->env) + BLOCKED_MS;
	return true;
}

struct saying {
	enum semel_log_level level;
	const char *message, *dedup, *decision;
};

static const struct saying sayings[] = {
	[SEMEL_FATE_LATER] = { SEMEL_LOG_DEBUG, "not now, comes again", "in-progress", "retry" },
	[SEMEL_FATE_DONE] = { SEMEL_LOG_DEBUG, "done", "claimed", "ack" },
	[SEMEL_FATE_DUPLICATE] = { SEMEL_LOG_INFO, "duplicate, skipped", "duplicate",
				   "ack_duplicate" },
	[SEMEL_FATE_DROPPED] = { SEMEL_LOG_INFO, "stale copy of a dead letter, skipped",
				 "duplicate", "ack_duplicate" },
	[SEMEL_FATE_RETRY] = { SEMEL_LOG_WARN, "failed for now, comes again", "claimed", "retry" },
	[SEMEL_FATE_DEAD] = { SEMEL_LOG_WARN, "given up, dead letter", "claimed", "dead-letter" },
	[SEMEL_FATE_PARKED] = { SEMEL_LOG_INFO, "parked behind an earlier event", NULL, "park" },
};

static void say(const struct semel_consumer *consumer, const struct semel_item *item)
{
	const struct saying *saying = &sayings[item->fate];
	const struct semel_delivery *delivery = item->delivery;
	bool exchanges = consumer->broker->driver->has_exchanges;
	bool tagged = exchanges && !delivery->kept;
	char queue[512];

	if (!semel_log_enabled(saying->level))
		return;
	struct semel_text correlation =
		semel_event_header(&delivery->event, "correlationId", consumer->arena);
	snprintf(queue, sizeof queue, "%s.%s", consumer->scope.data,
		 delivery->event.topic.data ? delivery->event.topic.data : "");
	semel_log(saying->level, saying->message,
		  &(struct semel_log_fields){
			  .message_id = delivery->event.id.data,
			  .correlation_id = correlation.data,
			  .exchange = exchanges ? delivery->event.topic.data : NULL,
			  .topic = delivery->event.topic.data,
			  .routing_key = delivery->event.routing_key.data,
			  .queue = queue,
			  .consumer = consumer->scope.data,
			  .dedup_status = saying->dedup,
			  .ack_decision = saying->decision,
			  .error = item->fate == SEMEL_FATE_DONE ? NULL : item->reason,
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

	counts->done += item->fate == SEMEL_FATE_DONE;
	counts->duplicate += item->fate == SEMEL_FATE_DUPLICATE || item->fate == SEMEL_FATE_DROPPED;
	counts->retried += item->fate == SEMEL_FATE_RETRY;
	counts->dead += item->fate == SEMEL_FATE_DEAD;
	counts->parked += item->fate == SEMEL_FATE_PARKED;
	counts->redelivered += item->delivery->redelivered;
	consumer->settled++;
	semel_tally_settled(consumer, item);
}

/* Where the broker has a place for those who watch it. The dead letter is in the store, so one that
 * does not take the copy is no reason to stop; only when it is away the event is not acked either.
 */
static semel_status bury(struct semel_consumer *consumer, const struct semel_item *item,
			 semel_error *error)
{
	const struct semel_burial burial = {
		.scope = consumer->scope.data,
		.delivery = item->delivery,
		.reason = item->reason && item->reason[0] ? item->reason
							  : semel_status_sentence(item->status),
		.attempts = item->runs,
		.failed_at_ms = semel_now_ms(consumer->env),
	};

	if (item->fate != SEMEL_FATE_DEAD || !consumer->broker->driver->bury)
		return SEMEL_OK;
	semel_status status = consumer->broker->driver->bury(consumer->broker, &burial, error);
	if (status == SEMEL_OK ||
	    (semel_status_class(status) == SEMEL_CLASS_OUTAGE && status != SEMEL_BUSY))
		return status;
	semel_log(SEMEL_LOG_WARN, "a dead letter has no copy at the broker",
		  &(struct semel_log_fields){ .message_id = item->delivery->event.id.data,
					      .consumer = consumer->scope.data,
					      .error = error->text });
	return SEMEL_OK;
}

static bool is_settled(const struct semel_item *item)
{
	return item->fate >= SEMEL_FATE_DONE;
}

semel_status semel_settle(struct semel_consumer *consumer, struct semel_item *const *items,
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
		if (items[i]->fate == SEMEL_FATE_RETRY && !items[i]->entry_id.data &&
		    !items[i]->kept)
			status = put_back(consumer, items[i], error);
		if (status == SEMEL_OK)
			status = bury(consumer, items[i], error);
		if (is_put_off(consumer, items[i], status))
			status = SEMEL_OK;
		else if (!items[i]->entry_id.data)
			acks[ack_count++] = *items[i]->delivery;
	}
	if (status == SEMEL_OK && ack_count > 0) {
		int64_t began_us = semel_meter_begin();
		status = consumer->broker->driver->ack(consumer->broker, acks, ack_count, error);
		semel_meter_end(SEMEL_WORK_ACK, began_us);
	}
	if (status == SEMEL_OK) {
		semel_places_settle(consumer->places, acks, ack_count);
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_ACK, error);
	}
	if (status != SEMEL_OK) {
		semel_tally_unacked(consumer);
		semel_log(SEMEL_LOG_WARN, "committed, but not acked; duplicates will be skipped",
			  &(struct semel_log_fields){ .consumer = consumer->scope.data,
						      .error = error->text });
		return status;
	}
	for (uint32_t i = 0; i < item_count; i++) {
		/* Else a worker has it: it comes here again when its handler has ended. */
		bool is_over = is_settled(items[i]) || items[i]->fate == SEMEL_FATE_LATER;
		if (is_over)
			say(consumer, items[i]);
		if (is_over && semel_spans_wanted())
			semel_tally_spans(consumer, items[i]);
		if (is_settled(items[i]))
			count(consumer, items[i]);
		else if (items[i]->fate == SEMEL_FATE_LATER)
			semel_tally_put_off(consumer, items[i]);
	}
	return SEMEL_OK;
}
