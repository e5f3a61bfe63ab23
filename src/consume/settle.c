/* SPDX-License-Identifier: Apache-2.0 */
/* What became of an item, written down in the open transaction.
 *
 * - Done: the claim is PROCESSED, its hold is released, the entry that it was replayed from is
 *   settled, all with the effect.
 * - Failed for now: the hold and the number of runs are committed before the delayed copy is sent
 *   (settle.c).
 * - Given up: the dead letter is committed before the ack. If it cannot be stored, nothing is
 *   acked.
 */
#include "base/error.h"
#include "base/uuid.h"
#include "consume/consumer.h"
#include "fault/plant.h"
#include "observe/log.h"

static semel_tx tx_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver->tx(consumer->store);
}

static struct semel_hold hold_of(const struct semel_item *item, enum semel_hold_state state)
{
	return (struct semel_hold){ .aggregate_type = item->key.type,
				    .aggregate_id = item->key.id,
				    .head_id = item->delivery->event.id,
				    .state = state };
}

/* Later ones wait while it is tried again. A total order is kept also where the dead are skipped.
 */
bool semel_item_holds_while_retried(const struct semel_consumer *consumer,
				    const struct semel_item *item)
{
	return (consumer->options.poison != SEMEL_POISON_SKIP ||
		consumer->options.order == SEMEL_ORDER_TOTAL) &&
	       semel_item_can_hold(item);
}

static bool holds_when_dead(const struct semel_consumer *consumer, const struct semel_item *item)
{
	return consumer->options.poison != SEMEL_POISON_SKIP && semel_item_can_hold(item);
}

/* ---- done ------------------------------------------------------------------------------------ */

/* Locked until the transaction's end: nobody parks behind it until this is decided. */
static semel_status read_hold(struct semel_consumer *consumer, const struct semel_item *item,
			      struct semel_arena *arena, struct semel_hold *hold_out,
			      semel_error *error)
{
	return consumer->store->driver->holds->get(tx_of(consumer), consumer->scope, &item->key,
						   arena, hold_out, error);
}

static semel_status release_hold(struct semel_consumer *consumer, const struct semel_item *item,
				 struct semel_arena *arena, semel_error *error)
{
	struct semel_hold found;
	semel_status status = read_hold(consumer, item, arena, &found, error);

	if (status != SEMEL_OK || found.state == SEMEL_HOLD_NONE ||
	    (SEMEL_PLANTED("skip-releases-nothing") &&
	     consumer->options.poison == SEMEL_POISON_SKIP))
		return status;
	found.head_id = item->delivery->event.id; /* what the next ones have waited for */
	return semel_hold_release(tx_of(consumer), consumer->scope, &found, SEMEL_BY_CONSUMER,
				  arena, error);
}

/* The item is what its key waits for from now on; unless it waits for another one, behind which the
 * item comes to stand when a copy of it arrives. */
static semel_status hold_for(struct semel_consumer *consumer, const struct semel_item *item,
			     const struct semel_hold *hold, struct semel_arena *arena,
			     semel_error *error)
{
	struct semel_hold found;
	semel_status status = read_hold(consumer, item, arena, &found, error);

	if (status != SEMEL_OK)
		return status;
	if (found.state != SEMEL_HOLD_NONE && !item->head && !item->entry_id.data &&
	    !semel_text_equal(found.head_id, hold->head_id))
		return SEMEL_OK;
	return semel_hold_move(tx_of(consumer), consumer->scope, &found, hold, SEMEL_BY_CONSUMER,
			       error);
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
			  &(struct semel_log_fields){
				  .message_id = semel_text_shown(item->claim.event_id),
				  .consumer = semel_text_shown(consumer->scope) });
	return status;
}

semel_status semel_settle_done(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = SEMEL_OK;

	if (item->state == SEMEL_ITEM_ADMITTED && item->claim.status == SEMEL_INBOX_CLAIMED &&
	    semel_consumer_claims(consumer))
		status = change_claim(consumer, item, SEMEL_INBOX_PROCESSED, NULL, error);
	if (status == SEMEL_OK && item->entry_id.data)
		status = driver->holds->parked_remove(tx_of(consumer), item->entry_id, error);
	if (status == SEMEL_OK && (item->head || item->entry_id.data))
		status = release_hold(consumer, item, arena, error);
	if (status == SEMEL_OK && (item->has_letter || item->replay > 0))
		status = driver->dead_letters->settle(tx_of(consumer), consumer->scope,
						      item->delivery->event.id, item->replay,
						      semel_now_ms(consumer->env), error);
	if (status == SEMEL_OK && item->state != SEMEL_ITEM_DUPLICATE)
		semel_item_move(item, SEMEL_ITEM_DONE);
	return status;
}

semel_status semel_settle_superseded(struct semel_consumer *consumer, struct semel_item *item,
				     struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = SEMEL_OK;

	semel_item_move(item, SEMEL_ITEM_SUPERSEDED);
	if (SEMEL_PLANTED("follower-left-parked"))
		return SEMEL_OK;
	if (item->entry_id.data)
		status = driver->holds->parked_remove(tx_of(consumer), item->entry_id, error);
	if (status == SEMEL_OK && (item->head || item->entry_id.data))
		status = release_hold(consumer, item, arena, error);
	return status;
}

/* ---- failed ---------------------------------------------------------------------------------- */

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
	return consumer->store->driver->dead_letters->add(tx_of(consumer), &entry, arena, error);
}

/* What the guard is to remember of an event that was given up. Same-tx leaves nothing. */
static semel_status fail_claim(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	if (!semel_consumer_claims(consumer) || semel_consumer_joins(consumer) ||
	    item->state != SEMEL_ITEM_ADMITTED)
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

semel_status semel_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = item->in_doubt ? close_doubt(consumer, item, error)
					     : fail_claim(consumer, item, error);

	if (status == SEMEL_OK)
		status = write_entry(consumer, item, arena, error);
	if (status == SEMEL_OK && item->entry_id.data)
		status = driver->holds->parked_remove(tx_of(consumer), item->entry_id, error);
	if (status == SEMEL_OK && holds_when_dead(consumer, item)) {
		struct semel_hold hold = hold_of(item, SEMEL_HOLD_DEAD);
		hold.attempts = item->replay;
		hold.blocks = consumer->options.poison == SEMEL_POISON_BLOCK;
		status = hold_for(consumer, item, &hold, arena, error);
	} else if (status == SEMEL_OK && (item->head || item->entry_id.data)) {
		status = release_hold(consumer, item, arena, error);
	}
	semel_item_move(item, SEMEL_ITEM_DEAD);
	return status;
}

/* The head of a whole topic stays in the store too: a copy of it would come to the end of a queue
 * in which everything waits for it. */
static semel_status store_head(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	if (consumer->options.order != SEMEL_ORDER_TOTAL || item->entry_id.data ||
	    !semel_item_can_hold(item))
		return SEMEL_OK;
	item->kept = true;
	return semel_item_park(consumer, item, item->delivery->event.id, error);
}

static semel_status settle_retrying(struct semel_consumer *consumer, struct semel_item *item,
				    struct semel_arena *arena, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (semel_consumer_claims(consumer) && !semel_consumer_joins(consumer))
		status = consumer->guard->driver->forget(consumer->guard, &item->claim, error);
	if (status == SEMEL_OK)
		status = store_head(consumer, item, error);
	if (status == SEMEL_OK &&
	    (item->entry_id.data || semel_item_holds_while_retried(consumer, item))) {
		/* A follower stays in the store, and its hold comes up again when it is due. */
		bool stored = item->entry_id.data || item->kept;
		struct semel_hold hold =
			hold_of(item, stored ? SEMEL_HOLD_RELEASED : SEMEL_HOLD_RETRY);
		hold.attempts = item->runs;
		hold.due_ms = semel_now_ms(consumer->env) + item->delay_ms;
		status = hold_for(consumer, item, &hold, arena, error);
	}
	semel_item_move(item, SEMEL_ITEM_RETRYING);
	return status;
}

semel_status semel_settle_failed(struct semel_consumer *consumer, struct semel_item *item,
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
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	if (next == SEMEL_RETRY_GIVE_UP || semel_consumer_runs_once(consumer))
		return semel_settle_dead(consumer, item, arena, error);
	if (next == SEMEL_RETRY_LATER || item->entry_id.data)
		return settle_retrying(consumer, item, arena, error);
	semel_item_move(item, SEMEL_ITEM_UNDECIDED);
	return SEMEL_OK;
}
