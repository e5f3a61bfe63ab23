/* SPDX-License-Identifier: Apache-2.0 */
/* - Done: the claim becomes PROCESSED, the hold is released, and the dead letter that the event was
 *   replayed from is settled, all together with the effect.
 * - To be retried: the hold and the number of runs are committed before the delayed copy is sent
 *   (acknowledge.c).
 * - Given up: the dead letter is committed before the ack. If it cannot be stored, nothing is
 *   acknowledged.
 */
#include "consume/settle.h"

#include "base/error.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "fault/plant.h"

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

/* ---- holds ----------------------------------------------------------------------------------- */

/* Total order is kept even where dead letters are skipped. */
bool semel_item_can_hold_in_retry(const struct semel_consumer *consumer,
				  const struct semel_item *item)
{
	const semel_consumer_options *options = &consumer->config.options;

	return (options->poison != SEMEL_POISON_SKIP || options->order == SEMEL_ORDER_TOTAL) &&
	       semel_item_can_hold(item);
}

static bool holds_when_dead(const struct semel_consumer *consumer, const struct semel_item *item)
{
	return consumer->config.options.poison != SEMEL_POISON_SKIP && semel_item_can_hold(item);
}

/* The hold stays locked until the end of the transaction: nothing is parked behind it until this is
 * decided. */
static semel_status read_hold(struct semel_consumer *consumer, const struct semel_item *item,
			      struct semel_arena *arena, struct semel_hold *hold_out,
			      semel_error *error)
{
	return consumer->store->driver->holds->get(tx_of(consumer), consumer->config.scope,
						   &item->key, arena, hold_out, error);
}

static semel_status release_hold(struct semel_consumer *consumer, const struct semel_item *item,
				 struct semel_arena *arena, semel_error *error)
{
	struct semel_hold found;

	if (!item->head && !item->entry_id.data)
		return SEMEL_OK;
	semel_status status = read_hold(consumer, item, arena, &found, error);
	if (status != SEMEL_OK || found.state == SEMEL_HOLD_NONE ||
	    (SEMEL_PLANTED("skip-releases-nothing") &&
	     consumer->config.options.poison == SEMEL_POISON_SKIP))
		return status;
	found.head_id = item->delivery->event.id; /* the event that the followers waited for */
	return semel_hold_release(tx_of(consumer), consumer->config.scope, &found,
				  SEMEL_BY_CONSUMER, arena, error);
}

/* From now on the key is held for the item, unless it is already held for another event; then the
 * item is parked behind that event when a copy of the item arrives. */
static semel_status put_hold(struct semel_consumer *consumer, const struct semel_item *item,
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
	return semel_hold_move(tx_of(consumer), consumer->config.scope, &found, hold,
			       SEMEL_BY_CONSUMER, error);
}

static semel_status remove_parked(struct semel_consumer *consumer, const struct semel_item *item,
				  semel_error *error)
{
	if (!item->entry_id.data)
		return SEMEL_OK;
	return consumer->store->driver->dead_letters->parked_remove(tx_of(consumer), item->entry_id,
								    error);
}

/* ---- done ------------------------------------------------------------------------------------ */

static semel_status finish_claim(struct semel_consumer *consumer, const struct semel_item *item,
				 semel_error *error)
{
	if (item->state != SEMEL_ITEM_ADMITTED || item->claim.status != SEMEL_INBOX_CLAIMED ||
	    !semel_consumer_has_claims(consumer))
		return SEMEL_OK;
	return semel_claims_finish(consumer, item, SEMEL_INBOX_PROCESSED, NULL, error);
}

static semel_status settle_letter(struct semel_consumer *consumer, const struct semel_item *item,
				  semel_error *error)
{
	if (!item->has_letter && item->replay == 0)
		return SEMEL_OK;
	return consumer->store->driver->dead_letters->settle(
		tx_of(consumer), consumer->config.scope, item->delivery->event.id, item->replay,
		semel_now_ms(consumer->env), error);
}

semel_status semel_settle_done(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error)
{
	semel_status status = finish_claim(consumer, item, error);

	if (status != SEMEL_OK)
		return status;
	status = remove_parked(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	status = release_hold(consumer, item, arena, error);
	if (status != SEMEL_OK)
		return status;
	status = settle_letter(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	if (item->state != SEMEL_ITEM_DUPLICATE)
		semel_item_move(item, SEMEL_ITEM_DONE);
	return SEMEL_OK;
}

semel_status semel_settle_superseded(struct semel_consumer *consumer, struct semel_item *item,
				     struct semel_arena *arena, semel_error *error)
{
	semel_item_move(item, SEMEL_ITEM_SUPERSEDED);
	if (SEMEL_PLANTED("follower-left-parked"))
		return SEMEL_OK;
	semel_status status = remove_parked(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	return release_hold(consumer, item, arena, error);
}

/* ---- dead letters ---------------------------------------------------------------------------- */

static semel_status write_entry(struct semel_consumer *consumer, struct semel_item *item,
				struct semel_arena *arena, semel_error *error)
{
	const struct semel_event *event = &item->delivery->event;
	char entry_id[SEMEL_UUID_SIZE];
	struct semel_dead_letter_row entry = semel_item_entry(consumer, item, entry_id);

	entry.reason = semel_text_of(item->reason && item->reason[0]
					     ? item->reason
					     : semel_status_sentence(item->status));
	entry.saga_id = semel_event_header(event, "sagaId", arena);
	entry.correlation_id = semel_event_header(event, "correlationId", arena);
	return consumer->store->driver->dead_letters->add(tx_of(consumer), &entry, arena, error);
}

/* Records in the guard that the event was given up. With same-tx no claim remains. */
static semel_status fail_claim(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	const semel_consumer_options *options = &consumer->config.options;

	if (item->in_doubt)
		return semel_claims_fail_in_doubt(consumer, item, error);
	if (!semel_consumer_has_claims(consumer) || semel_consumer_is_same_tx(consumer) ||
	    item->state != SEMEL_ITEM_ADMITTED)
		return SEMEL_OK;
	if (options->claim == SEMEL_CLAIM_SAME_TX && options->guarantee == SEMEL_EFFECTIVELY_ONCE)
		return semel_claims_forget(consumer, item, error);
	return semel_claims_finish(consumer, item, SEMEL_INBOX_FAILED,
				   semel_status_name(item->status), error);
}

static semel_status hold_or_release(struct semel_consumer *consumer, struct semel_item *item,
				    struct semel_arena *arena, semel_error *error)
{
	if (!holds_when_dead(consumer, item))
		return release_hold(consumer, item, arena, error);
	struct semel_hold hold = hold_of(item, SEMEL_HOLD_DEAD);
	hold.attempts = item->replay;
	hold.blocks = consumer->config.options.poison == SEMEL_POISON_BLOCK;
	return put_hold(consumer, item, &hold, arena, error);
}

semel_status semel_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error)
{
	semel_status status = fail_claim(consumer, item, error);

	if (status != SEMEL_OK)
		goto move;
	status = write_entry(consumer, item, arena, error);
	if (status != SEMEL_OK)
		goto move;
	status = remove_parked(consumer, item, error);
	if (status != SEMEL_OK)
		goto move;
	status = hold_or_release(consumer, item, arena, error);

move:
	semel_item_move(item, SEMEL_ITEM_DEAD);
	return status;
}

semel_status semel_settle_dead_alone(struct semel_consumer *consumer, struct semel_item *item,
				     semel_error *error)
{
	semel_status status = semel_consumer_begin(consumer, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_settle_dead(consumer, item, consumer->arena, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	return semel_consumer_commit(consumer, error);
}

/* ---- retries --------------------------------------------------------------------------------- */

/* The head of a whole topic also stays in the store: a copy of it would go to the end of a queue in
 * which every other event waits for it. */
static semel_status store_head(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	if (consumer->config.options.order != SEMEL_ORDER_TOTAL || item->entry_id.data ||
	    !semel_item_can_hold(item))
		return SEMEL_OK;
	item->stored = true;
	return semel_item_park(consumer, item, item->delivery->event.id, error);
}

/* A follower stays in the store, and its hold becomes due again after the delay. */
static semel_status hold_for_retry(struct semel_consumer *consumer, struct semel_item *item,
				   struct semel_arena *arena, semel_error *error)
{
	bool stored = item->entry_id.data || item->stored;

	if (!item->entry_id.data && !semel_item_can_hold_in_retry(consumer, item))
		return SEMEL_OK;
	struct semel_hold hold = hold_of(item, stored ? SEMEL_HOLD_RELEASED : SEMEL_HOLD_RETRY);
	hold.attempts = item->runs;
	hold.due_ms = semel_now_ms(consumer->env) + item->delay_ms;
	return put_hold(consumer, item, &hold, arena, error);
}

static semel_status settle_retrying(struct semel_consumer *consumer, struct semel_item *item,
				    struct semel_arena *arena, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (semel_consumer_has_claims(consumer) && !semel_consumer_is_same_tx(consumer))
		status = semel_claims_forget(consumer, item, error);
	if (status != SEMEL_OK)
		goto move;
	status = store_head(consumer, item, error);
	if (status != SEMEL_OK)
		goto move;
	status = hold_for_retry(consumer, item, arena, error);

move:
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
	if (next == SEMEL_RETRY_GIVE_UP || semel_consumer_is_at_most_once(consumer))
		return semel_settle_dead(consumer, item, arena, error);
	if (next == SEMEL_RETRY_LATER || item->entry_id.data)
		return settle_retrying(consumer, item, arena, error);
	semel_item_move(item, SEMEL_ITEM_UNDECIDED);
	return SEMEL_OK;
}
