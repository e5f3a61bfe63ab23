/* SPDX-License-Identifier: Apache-2.0 */
/* May this delivery run now, and is it ours to run?
 *
 * - An event that is behind a held one of its aggregate is parked, in the transaction that saw it.
 * - A dead letter decides first: a copy of an event that a person has to decide about, or has
 *   discarded, is stale; one whose run a person has authorised goes on, whatever its own number.
 * - The head of a hold passes: it is what the others wait for. A copy of it that is older than the
 *   hold (its consumer died between scheduling the retry and the ack) does not run; it is put back.
 * - A duplicate is skipped only when the claim proves that the event was processed.
 * - Claimed and not finished: its owner is at work (come back later) or died. A dead owner's claim
 * is taken over when the claim is to commit with the effect, and is in doubt when it is separate.
 * - A broken event waits for its turn like any other, and is given up then.
 * - Whatever is put off puts off the later ones of its key in the same batch.
 */
#include "base/error.h"
#include "base/uuid.h"
#include "consume/consumer.h"
#include "fault/plant.h"
#include "observe/span.h"
#include "observe/step_timer.h"

#include <string.h>

#define LATER_MS 200

/* ---- the order gate -------------------------------------------------------------------------- */

/* The head itself: is this copy the one that its hold is waiting for? */
static void admit_head(struct semel_consumer *consumer, struct semel_item *item,
		       const struct semel_hold *hold)
{
	item->head = true;
	if (hold->state == SEMEL_HOLD_RETRY && item->delivery->metadata.attempt < hold->attempts) {
		int64_t left_ms = hold->due_ms - semel_now_ms(consumer->env);
		item->runs = hold->attempts;
		item->delay_ms = left_ms > 0 ? left_ms : 0;
		semel_item_move(item, SEMEL_ITEM_RETRYING);
	}
	item->may_overtake = item->state == SEMEL_ITEM_UNDECIDED;
}

static semel_status park(struct semel_consumer *consumer, struct semel_item *item,
			 struct semel_text behind, semel_error *error)
{
	semel_item_move(item, SEMEL_ITEM_PARKED);
	return semel_item_park(consumer, item, behind, error);
}

/* Settled, or about to be in this transaction. */
static semel_status predecessor_seen(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t at, bool *seen_out, semel_error *error)
{
	struct semel_text previous = items[at].delivery->metadata.previous;

	*seen_out = true;
	if (!previous.data || items[at].delivery->metadata.replay > 0 || items[at].runs > 0)
		return SEMEL_OK;
	for (uint32_t i = 0; i < at; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED &&
		    semel_text_equal(items[i].delivery->event.id, previous))
			return SEMEL_OK;
	return consumer->guard->driver->is_settled(consumer->guard, consumer->scope, previous,
						   seen_out, error);
}

static semel_status wait_for_predecessor(struct semel_consumer *consumer, struct semel_item *item,
					 const struct semel_hold *found, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_hold hold = {
		.aggregate_type = item->key.type,
		.aggregate_id = item->key.id,
		.head_id = item->delivery->metadata.previous,
		.state = SEMEL_HOLD_GAP,
		.due_ms = semel_now_ms(consumer->env) + consumer->options.strict_wait_ms,
	};
	semel_status status = SEMEL_OK;

	if (found->state == SEMEL_HOLD_NONE)
		status = semel_hold_move(driver->tx(consumer->store), consumer->scope, found, &hold,
					 SEMEL_BY_CONSUMER, error);
	return status == SEMEL_OK ? park(consumer, item, hold.head_id, error) : status;
}

/* Lets the item stay OPEN, or gives it a state. */
static semel_status apply_order(struct semel_consumer *consumer, struct semel_item *items,
				uint32_t at, const struct semel_hold *hold, semel_error *error)
{
	struct semel_item *item = &items[at];
	bool seen = true;
	semel_status status = SEMEL_OK;

	if (consumer->options.order == SEMEL_ORDER_STRICT)
		status = predecessor_seen(consumer, items, at, &seen, error);
	if (status != SEMEL_OK)
		return status;
	if ((hold->state == SEMEL_HOLD_RETRY || hold->state == SEMEL_HOLD_DEAD) &&
	    semel_text_equal(hold->head_id, item->delivery->event.id)) {
		admit_head(consumer, item, hold);
		return SEMEL_OK;
	}
	if (hold->state == SEMEL_HOLD_NONE || hold->state == SEMEL_HOLD_GAP) {
		item->head = hold->state == SEMEL_HOLD_GAP; /* done, it lets the others go */
		return seen ? SEMEL_OK : wait_for_predecessor(consumer, item, hold, error);
	}
	if (consumer->options.order == SEMEL_ORDER_TOTAL) {
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	return park(consumer, item, hold->head_id, error);
}

/* ---- what the store says of it --------------------------------------------------------------- */

/* Holds and dead letters of the items that are open, in one statement. */
static semel_status read_states(struct semel_consumer *consumer, const struct semel_item *items,
				uint32_t count, struct semel_state_batch *batch, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_state_query *queries =
		semel_arena_alloc(batch->arena, count * sizeof *queries);

	batch->results = semel_arena_alloc(batch->arena, count * sizeof *batch->results);
	batch->queries = queries;
	batch->count = count;
	if (!queries || !batch->results)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
	for (uint32_t i = 0; i < count; i++)
		queries[i] = (struct semel_state_query){ .event_id = items[i].delivery->event.id,
							 .key = items[i].key };
	return driver->holds->states_read(driver->tx(consumer->store), consumer->scope, batch,
					  error);
}

/* A dead letter decides whether a copy may run at all, before the order of its key does. */
static semel_status apply_letter(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t at, const struct semel_state_result *answer,
				 struct semel_arena *arena, semel_error *error)
{
	struct semel_item *item = &items[at];
	enum semel_authority authority = semel_letter_authority(answer, item->replay);

	if (SEMEL_PLANTED("follower-left-parked") && authority == SEMEL_AUTHORITY_SUPERSEDED)
		authority = SEMEL_AUTHORITY_CLAIMS;
	if (SEMEL_PLANTED("no-claims-no-letters") && !semel_consumer_claims(consumer))
		authority = SEMEL_AUTHORITY_CLAIMS;
	if (authority == SEMEL_AUTHORITY_SUPERSEDED)
		return semel_settle_superseded(consumer, item, arena, error);
	if (authority == SEMEL_AUTHORITY_REPLAY) {
		item->has_letter = true;
		if (item->replay < answer->replay_count)
			item->replay = item->claim.replay = answer->replay_count;
	}
	if (item->entry_id.data || !semel_item_can_hold(item))
		return SEMEL_OK;
	return apply_order(consumer, items, at, &answer->hold, error);
}

/* ---- claims ---------------------------------------------------------------------------------- */

static semel_status take_over(struct semel_consumer *consumer, struct semel_item *item,
			      const struct semel_claim_result *answer, struct semel_arena *arena,
			      semel_error *error)
{
	bool failed = answer->found == SEMEL_FOUND_FAILED;
	enum semel_inbox_status from = failed ? SEMEL_INBOX_FAILED : SEMEL_INBOX_CLAIMED;
	struct semel_inbox_change change = { .from = from,
					     .from_owner = failed ? NULL : answer->owner,
					     .now_ms = semel_now_ms(consumer->env) };
	bool taken = false;
	semel_status status = consumer->guard->driver->change(consumer->guard, &item->claim,
							      &change, &taken, error);
	if (status != SEMEL_OK)
		return status;
	if (!taken && failed)
		return semel_settle_superseded(consumer, item, arena, error);
	semel_item_move(item, taken ? SEMEL_ITEM_ADMITTED : SEMEL_ITEM_DEFERRED);
	return SEMEL_OK;
}

static semel_status apply_claimed(struct semel_consumer *consumer, struct semel_item *item,
				  const struct semel_claim_result *answer,
				  struct semel_arena *arena, semel_error *error)
{
	bool abandoned = strcmp(answer->owner, consumer->owner) == 0
				 ? !semel_dispatch_has_call(consumer, item->claim.event_id)
				 : semel_owner_is_dead(answer->owner) ||
					   answer->lease_until_ms <= semel_now_ms(consumer->env);

	/* What becomes of a claim in a key conflict is decided with the conflict. */
	if (!abandoned || answer->key_conflict) {
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	/* At most once leaves none unfinished: it is of a time with another guarantee. */
	if (!semel_consumer_runs_once(consumer))
		return take_over(consumer, item, answer, arena, error);
	item->in_doubt = true;
	item->status = SEMEL_CONTRACT;
	item->reason = "in doubt: a consumer died after it had claimed the event; look whether the "
		       "effect happened, then replay or discard";
	return semel_settle_dead(consumer, item, arena, error);
}

static semel_status apply_answer(struct semel_consumer *consumer, struct semel_item *item,
				 const struct semel_claim_result *answer, struct semel_arena *arena,
				 semel_error *error)
{
	switch (answer->found) {
	case SEMEL_FOUND_NEW:
		semel_item_move(item, SEMEL_ITEM_ADMITTED);
		return SEMEL_OK;
	case SEMEL_FOUND_PROCESSED:
	case SEMEL_FOUND_KEY:
		semel_item_move(item, SEMEL_ITEM_DUPLICATE);
		return item->head || item->entry_id.data || item->has_letter
			       ? semel_settle_done(consumer, item, arena, error)
			       : SEMEL_OK;
	case SEMEL_FOUND_FAILED:
		return take_over(consumer, item, answer, arena, error);
	case SEMEL_FOUND_CLAIMED:
		return apply_claimed(consumer, item, answer, arena, error);
	}
	return semel_error_set(error, SEMEL_INTERNAL, "the guard gave an unknown answer");
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool any_later(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_DEFERRED)
			return true;
	return false;
}

/* A follower that was read in an earlier transaction may have been settled since. */
static semel_status check_still_parked(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool parked = true;
	semel_status status = SEMEL_OK;

	if (!semel_consumer_joins(consumer))
		status = driver->holds->parked_exists(driver->tx(consumer->store), item->entry_id,
						      &parked, error);
	if (!parked)
		semel_item_move(item, SEMEL_ITEM_DUPLICATE);
	return status;
}

/* A broken one waits its turn too, and never replaces the head. */
static semel_status give_up_broken(struct semel_consumer *consumer, struct semel_item *item,
				   struct semel_arena *arena, semel_error *error)
{
	item->status = item->broken;
	return semel_settle_dead(consumer, item, arena, error);
}

/* The states are looked up for the whole batch; once an item of it has put a hold, the rest are
 * looked up one by one. */
static semel_status check_states(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, struct semel_arena *arena, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_state_batch batch = { .arena = arena };
	bool any = false, changed = false;
	semel_status status = driver->holds->states_exist(driver->tx(consumer->store),
							  consumer->scope, &any, error);
	bool gated = any || consumer->options.order == SEMEL_ORDER_STRICT;

	if (status == SEMEL_OK && any)
		status = semel_order_check_mode(consumer, error);
	if (status == SEMEL_OK && gated)
		status = read_states(consumer, items, count, &batch, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		const struct semel_state_result *answer = gated ? &batch.results[i] : NULL;
		struct semel_state_batch one = { .arena = arena };
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		if (items[i].entry_id.data)
			status = check_still_parked(consumer, &items[i], error);
		if (status == SEMEL_OK && changed) {
			status = read_states(consumer, &items[i], 1, &one, error);
			answer = one.results;
		}
		if (status == SEMEL_OK && answer && items[i].state == SEMEL_ITEM_UNDECIDED)
			status = apply_letter(consumer, items, i, answer, arena, error);
		if (status == SEMEL_OK && items[i].state == SEMEL_ITEM_UNDECIDED &&
		    items[i].broken != SEMEL_OK)
			status = give_up_broken(consumer, &items[i], arena, error);
		changed = changed || items[i].state == SEMEL_ITEM_PARKED ||
			  items[i].state == SEMEL_ITEM_DEAD;
	}
	return status;
}

static void note_claim_times(struct semel_item *items, uint32_t count, int64_t began_ms,
			     int64_t ended_ms)
{
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		items[i].claim_began_ms = began_ms;
		items[i].claim_ended_ms = ended_ms;
	}
}

static semel_status claim_undecided(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, struct semel_arena *arena, semel_error *error)
{
	struct semel_inbox_claim *claims = semel_arena_alloc(arena, count * sizeof *claims);
	struct semel_claim_result *answers = semel_arena_alloc(arena, count * sizeof *answers);
	int64_t lease_until_ms = semel_now_ms(consumer->env) + SEMEL_CLAIM_LEASE_MS;
	uint32_t open = 0;

	if (!claims || !answers)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the claims");
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		if (items[i].claim.status == SEMEL_INBOX_CLAIMED)
			items[i].claim.lease_until_ms = lease_until_ms;
		claims[open] = items[i].claim;
		/* At most once: so that it can be told from another's, if it is to be returned. */
		if (!semel_consumer_joins(consumer))
			claims[open].owner = consumer->owner;
		open++;
	}
	if (open == 0)
		return SEMEL_OK;
	int64_t began_ms = semel_now_ms(consumer->env), began_us = semel_step_timer_begin();
	semel_status status = consumer->guard->driver->claim(consumer->guard, claims, open,
							     began_ms, answers, error);
	semel_step_timer_end(SEMEL_TIMED_CLAIM, began_us);
	if (semel_spans_enabled())
		note_claim_times(items, count, began_ms, semel_now_ms(consumer->env));
	bool later = any_later(items, count);
	for (uint32_t i = 0, at = 0; i < count && status == SEMEL_OK; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		status = apply_answer(consumer, &items[i], &answers[at++], arena, error);
		later = later || items[i].state == SEMEL_ITEM_DEFERRED;
		/* Claimed, but a sibling before it was put off: the claim is given back. */
		if (status == SEMEL_OK && later && items[i].state == SEMEL_ITEM_ADMITTED &&
		    semel_item_is_behind_deferred(items, i)) {
			semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
			status = consumer->guard->driver->forget(consumer->guard, &items[i].claim,
								 error);
		}
	}
	return status;
}

semel_status semel_admit(struct semel_consumer *consumer, struct semel_item *items, uint32_t count,
			 struct semel_arena *arena, semel_error *error)
{
	semel_status status = check_states(consumer, items, count, arena, error);

	if (status == SEMEL_OK && semel_consumer_claims(consumer))
		status = claim_undecided(consumer, items, count, arena, error);
	bool later = any_later(items, count);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED)
			semel_item_move(&items[i], later && semel_item_is_behind_deferred(items, i)
							   ? SEMEL_ITEM_DEFERRED
							   : SEMEL_ITEM_ADMITTED);
	consumer->has_deferred = consumer->has_deferred || later;
	if (later)
		consumer->pause_until_ms = semel_steady_ms(consumer->env) + LATER_MS;
	return status;
}
