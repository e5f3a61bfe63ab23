/* SPDX-License-Identifier: Apache-2.0 */
/* May this delivery run now, and is it ours to run?
 *
 * - A dead letter decides first: a copy of an event that awaits an operator's decision, or was
 *   discarded, is superseded; a copy whose run an operator has authorised may run, whatever its own
 *   replay number.
 * - Then the order of its key decides, then the claim.
 * - A duplicate is skipped only when the claim proves that the event was processed.
 * - When a claim is not finished, its owner is running the event (the copy is deferred) or has
 *   died. A dead owner's claim is taken over if the claim commits with the effect; if the claim is
 *   separate, the event is in doubt.
 * - A broken event waits for its turn like any other event, and becomes a dead letter then.
 * - A deferred item defers the later items of its key in the same batch.
 *
 * The order:
 * - An event that comes after a held event of its key is parked, in the transaction that read the
 *   hold.
 * - The head of a hold may run: the others wait for it. A copy of the head that is older than the
 *   hold (its consumer died between scheduling the retry and the ack) does not run; it is sent back
 *   for the rest of the delay.
 * - In strict order an event whose predecessor is not settled is parked behind a gap, for a bounded
 *   time.
 * - In total order a hold is stored under the key of its topic, otherwise under that of its
 *   aggregate. A consumer reads holds of one kind of key only, and would let events pass that are
 *   held under the other kind. So after a change of the order it does not start until the holds of
 *   the other kind are gone.
 */
#include "base/error.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "fault/plant.h"

#include <string.h>

#define DEFERRED_MS 200

/* ---- the order of its key -------------------------------------------------------------------- */

/* Is this copy of the head the one that its hold waits for? */
static void admit_head(struct semel_consumer *consumer, struct semel_item *item,
		       const struct semel_hold *hold)
{
	item->head = true;
	if (hold->state == SEMEL_HOLD_RETRY && item->delivery->metadata.attempt < hold->attempts) {
		int64_t remaining_ms = hold->due_ms - semel_now_ms(consumer->env);
		item->runs = hold->attempts;
		item->delay_ms = remaining_ms > 0 ? remaining_ms : 0;
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

/* The predecessor is settled, or will be settled by this transaction. */
static semel_status is_predecessor_settled(struct semel_consumer *consumer,
					   const struct semel_item *items, uint32_t at,
					   bool *settled_out, semel_error *error)
{
	struct semel_text previous = items[at].delivery->metadata.previous;

	*settled_out = true;
	if (!previous.data || items[at].delivery->metadata.replay > 0 || items[at].runs > 0)
		return SEMEL_OK;
	for (uint32_t i = 0; i < at; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED &&
		    semel_text_equal(items[i].delivery->event.id, previous))
			return SEMEL_OK;
	return semel_claims_is_settled(consumer, previous, settled_out, error);
}

static semel_status wait_for_predecessor(struct semel_consumer *consumer, struct semel_item *item,
					 const struct semel_hold *found, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_hold gap = {
		.aggregate_type = item->key.type,
		.aggregate_id = item->key.id,
		.head_id = item->delivery->metadata.previous,
		.state = SEMEL_HOLD_GAP,
		.due_ms = semel_now_ms(consumer->env) + consumer->config.options.strict_wait_ms,
	};

	if (found->state == SEMEL_HOLD_NONE) {
		semel_status status =
			semel_hold_move(driver->tx(consumer->store), consumer->config.scope, found,
					&gap, SEMEL_BY_CONSUMER, error);
		if (status != SEMEL_OK)
			return status;
	}
	return park(consumer, item, gap.head_id, error);
}

/* The item stays UNDECIDED (it may run), or is deferred, parked or sent back. hold: the hold of its
 * key, as just read. */
static semel_status apply_order(struct semel_consumer *consumer, struct semel_item *items,
				uint32_t at, const struct semel_hold *hold, semel_error *error)
{
	struct semel_item *item = &items[at];
	bool settled = true;

	if (consumer->config.options.order == SEMEL_ORDER_STRICT) {
		semel_status status = is_predecessor_settled(consumer, items, at, &settled, error);
		if (status != SEMEL_OK)
			return status;
	}
	if ((hold->state == SEMEL_HOLD_RETRY || hold->state == SEMEL_HOLD_DEAD) &&
	    semel_text_equal(hold->head_id, item->delivery->event.id)) {
		admit_head(consumer, item, hold);
		return SEMEL_OK;
	}
	if (hold->state == SEMEL_HOLD_NONE || hold->state == SEMEL_HOLD_GAP) {
		item->head = hold->state == SEMEL_HOLD_GAP; /* once done, it releases the others */
		return settled ? SEMEL_OK : wait_for_predecessor(consumer, item, hold, error);
	}
	if (consumer->config.options.order == SEMEL_ORDER_TOTAL) {
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	return park(consumer, item, hold->head_id, error);
}

semel_status semel_order_check_mode(struct semel_consumer *consumer, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	const char *scope = semel_text_shown(consumer->config.scope);
	bool total = consumer->config.options.order == SEMEL_ORDER_TOTAL, other = false;
	semel_status status = driver->holds->has_other_kind(
		driver->tx(consumer->store), consumer->config.scope, total, &other, error);

	if (status != SEMEL_OK || !other || SEMEL_PLANTED("order-changed-unchecked"))
		return status;
	return semel_error_set(
		error, SEMEL_CONFIG,
		"scope %s has holds on %s from its earlier order (run semel consume --scope %s "
		"--order %s --drain, and replay or discard its dead letters: semel dlq list "
		"--scope %s)",
		scope, total ? "single aggregates" : "a whole topic", scope,
		total ? "aggregate" : "total", scope);
}

/* ---- states in the store --------------------------------------------------------------------- */

/* Reads the holds and dead letters of the items, in one statement. */
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
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch");
	for (uint32_t i = 0; i < count; i++)
		queries[i] = (struct semel_state_query){ .event_id = items[i].delivery->event.id,
							 .key = items[i].key };
	return driver->holds->states_read(driver->tx(consumer->store), consumer->config.scope,
					  batch, error);
}

/* A dead letter decides whether a copy may run at all, before the order of its key does. */
static semel_status apply_state(struct semel_consumer *consumer, struct semel_item *items,
				uint32_t at, const struct semel_state_result *found,
				struct semel_arena *arena, semel_error *error)
{
	struct semel_item *item = &items[at];
	enum semel_authority authority = semel_letter_authority(found, item->replay);

	if (SEMEL_PLANTED("follower-left-parked") && authority == SEMEL_AUTHORITY_SUPERSEDED)
		authority = SEMEL_AUTHORITY_CLAIMS;
	if (SEMEL_PLANTED("no-claims-no-letters") && !semel_consumer_has_claims(consumer))
		authority = SEMEL_AUTHORITY_CLAIMS;
	if (authority == SEMEL_AUTHORITY_SUPERSEDED)
		return semel_settle_superseded(consumer, item, arena, error);
	if (authority == SEMEL_AUTHORITY_REPLAY) {
		item->has_letter = true;
		if (item->replay < found->replay_count)
			item->replay = item->claim.replay = found->replay_count;
	}
	if (item->entry_id.data || !semel_item_can_hold(item))
		return SEMEL_OK;
	return apply_order(consumer, items, at, &found->hold, error);
}

/* A follower that was read in an earlier transaction may have been settled since. */
static semel_status check_still_parked(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool parked = true;

	if (semel_consumer_is_same_tx(consumer))
		return SEMEL_OK;
	semel_status status = driver->dead_letters->parked_exists(driver->tx(consumer->store),
								  item->entry_id, &parked, error);
	if (!parked)
		semel_item_move(item, SEMEL_ITEM_DUPLICATE);
	return status;
}

/* A broken event also waits its turn, and never replaces the head. */
static semel_status settle_broken(struct semel_consumer *consumer, struct semel_item *item,
				  struct semel_arena *arena, semel_error *error)
{
	item->status = item->broken;
	return semel_settle_dead(consumer, item, arena, error);
}

/* The states of a batch, read once. */
struct state_check {
	struct semel_state_batch batch;
	bool needed;  /* the scope has holds or dead letters, or the order is strict */
	bool changed; /* an item of the batch has written a hold: the rest are read one by one */
};

static semel_status check_item(struct semel_consumer *consumer, struct semel_item *items,
			       uint32_t at, struct state_check *check, semel_error *error)
{
	struct semel_arena *arena = check->batch.arena;
	struct semel_item *item = &items[at];
	semel_status status = SEMEL_OK;

	if (item->entry_id.data) {
		status = check_still_parked(consumer, item, error);
		if (status != SEMEL_OK || item->state != SEMEL_ITEM_UNDECIDED)
			return status;
	}
	if (check->needed || check->changed) {
		struct semel_state_batch one = { .arena = arena };
		const struct semel_state_result *found =
			check->changed ? NULL : &check->batch.results[at];
		if (check->changed) {
			status = read_states(consumer, item, 1, &one, error);
			if (status != SEMEL_OK)
				return status;
			found = one.results;
		}
		status = apply_state(consumer, items, at, found, arena, error);
		if (status != SEMEL_OK || item->state != SEMEL_ITEM_UNDECIDED)
			return status;
	}
	return item->broken != SEMEL_OK ? settle_broken(consumer, item, arena, error) : SEMEL_OK;
}

static semel_status begin_check(struct semel_consumer *consumer, const struct semel_item *items,
				uint32_t count, struct state_check *check, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool any = false;
	semel_status status = driver->holds->states_exist(driver->tx(consumer->store),
							  consumer->config.scope, &any, error);

	if (status != SEMEL_OK)
		return status;
	if (any) {
		status = semel_order_check_mode(consumer, error);
		if (status != SEMEL_OK)
			return status;
	}
	check->needed = any || consumer->config.options.order == SEMEL_ORDER_STRICT;
	return check->needed ? read_states(consumer, items, count, &check->batch, error) : SEMEL_OK;
}

static semel_status check_states(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, struct semel_arena *arena, semel_error *error)
{
	struct state_check check = { .batch.arena = arena };
	semel_status status = begin_check(consumer, items, count, &check, error);

	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		status = check_item(consumer, items, i, &check, error);
		if (status != SEMEL_OK)
			return status;
		check.changed = check.changed || items[i].state == SEMEL_ITEM_PARKED ||
				items[i].state == SEMEL_ITEM_DEAD;
	}
	return SEMEL_OK;
}

/* ---- claims ---------------------------------------------------------------------------------- */

static semel_status take_over(struct semel_consumer *consumer, struct semel_item *item,
			      const struct semel_claim_result *found, struct semel_arena *arena,
			      semel_error *error)
{
	bool taken = false;
	semel_status status = semel_claims_take_over(consumer, item, found, &taken, error);

	if (status != SEMEL_OK)
		return status;
	if (!taken && found->found == SEMEL_FOUND_FAILED)
		return semel_settle_superseded(consumer, item, arena, error);
	semel_item_move(item, taken ? SEMEL_ITEM_ADMITTED : SEMEL_ITEM_DEFERRED);
	return SEMEL_OK;
}

static bool is_abandoned(const struct semel_consumer *consumer, const struct semel_item *item,
			 const struct semel_claim_result *found)
{
	/* Our own call may run beyond the lease, while no store can be reached to renew it. */
	if (strcmp(found->owner, consumer->owner) == 0)
		return !semel_dispatch_has_call(consumer, item->claim.event_id);
	return semel_owner_is_gone(found->owner, found->lease_until_ms,
				   semel_now_ms(consumer->env));
}

static semel_status apply_claimed(struct semel_consumer *consumer, struct semel_item *item,
				  const struct semel_claim_result *found, struct semel_arena *arena,
				  semel_error *error)
{
	/* In a key conflict the claim is another event's, and is decided with that event. */
	if (found->key_conflict || !is_abandoned(consumer, item, found)) {
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	/* At most once leaves no unfinished claims: this one was made under another guarantee. */
	if (!semel_consumer_is_at_most_once(consumer))
		return take_over(consumer, item, found, arena, error);
	item->in_doubt = true;
	item->status = SEMEL_CONTRACT;
	item->reason = "in doubt: a consumer died after it had claimed the event; find out whether "
		       "the effect happened, then replay or discard";
	return semel_settle_dead(consumer, item, arena, error);
}

static semel_status apply_claim(struct semel_consumer *consumer, struct semel_item *item,
				const struct semel_claim_result *found, struct semel_arena *arena,
				semel_error *error)
{
	switch (found->found) {
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
		return take_over(consumer, item, found, arena, error);
	case SEMEL_FOUND_CLAIMED:
		return apply_claimed(consumer, item, found, arena, error);
	}
	return semel_error_set(error, SEMEL_INTERNAL, "the guard returned an unknown result");
}

static semel_status claim_undecided(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, struct semel_arena *arena, semel_error *error)
{
	struct semel_claim_result *found = NULL;
	bool deferred = semel_items_have_deferred(items, count);
	semel_status status = semel_claims_new(consumer, items, count, arena, &found, error);

	if (status != SEMEL_OK || !found)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		status = apply_claim(consumer, &items[i], found++, arena, error);
		if (status != SEMEL_OK)
			return status;
		deferred = deferred || items[i].state == SEMEL_ITEM_DEFERRED;
		if (!deferred || items[i].state != SEMEL_ITEM_ADMITTED ||
		    !semel_item_is_behind_deferred(items, i))
			continue;
		/* Claimed, but an earlier item of its key was deferred. */
		semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
		status = semel_claims_forget(consumer, &items[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Without claims: every item that is still undecided may run, unless an earlier item of its key was
 * deferred. */
static void admit_undecided(struct semel_item *items, uint32_t count)
{
	bool deferred = semel_items_have_deferred(items, count);

	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED)
			semel_item_move(&items[i],
					deferred && semel_item_is_behind_deferred(items, i)
						? SEMEL_ITEM_DEFERRED
						: SEMEL_ITEM_ADMITTED);
}

static semel_status decide(struct semel_consumer *consumer, struct semel_item *items,
			   uint32_t count, struct semel_arena *arena, semel_error *error)
{
	semel_status status = check_states(consumer, items, count, arena, error);

	if (status != SEMEL_OK)
		return status;
	if (semel_consumer_has_claims(consumer))
		return claim_undecided(consumer, items, count, arena, error);
	admit_undecided(items, count);
	return SEMEL_OK;
}

semel_status semel_admit(struct semel_consumer *consumer, struct semel_item *items, uint32_t count,
			 struct semel_arena *arena, semel_error *error)
{
	semel_status status = decide(consumer, items, count, arena, error);

	if (semel_items_have_deferred(items, count))
		semel_intake_defer(&consumer->intake, semel_steady_ms(consumer->env) + DEFERRED_MS);
	return status;
}
