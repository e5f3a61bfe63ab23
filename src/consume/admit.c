/* SPDX-License-Identifier: Apache-2.0 */
/* May this delivery run now, and is it ours to run?
 *
 * - A dead letter decides first: a copy of an event that awaits an operator's decision, or was
 *   discarded, is superseded; one whose run an operator has authorised goes on, whatever its own
 *   replay number.
 * - Then the order of its key decides (order.c), then the claim.
 * - A duplicate is skipped only when the claim proves that the event was processed.
 * - Claimed and not finished: its owner is running it (the copy is deferred) or died. A dead
 * owner's claim is taken over when the claim is to commit with the effect, and is in doubt when it
 * is separate.
 * - A broken event waits for its turn like any other, and becomes a dead letter then.
 * - A deferred item defers the later ones of its key in the same batch.
 */
#include "base/error.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "consume/order.h"
#include "fault/plant.h"

#include <string.h>

#define DEFERRED_MS 200

/* ---- what the store has about it ------------------------------------------------------------- */

/* Holds and dead letters of the items, in one statement. */
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
	if (SEMEL_PLANTED("no-claims-no-letters") && !semel_consumer_claims(consumer))
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
	return semel_order_apply(consumer, items, at, &found->hold, error);
}

/* A follower that was read in an earlier transaction may have been settled since. */
static semel_status check_still_parked(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool parked = true;

	if (semel_consumer_joins(consumer))
		return SEMEL_OK;
	semel_status status = driver->holds->parked_exists(driver->tx(consumer->store),
							   item->entry_id, &parked, error);
	if (!parked)
		semel_item_move(item, SEMEL_ITEM_DUPLICATE);
	return status;
}

/* A broken event waits its turn too, and never replaces the head. */
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
	bool changed; /* an item of the batch has put a hold: the rest are read one by one */
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
	if (strcmp(found->owner, consumer->owner) == 0)
		return !semel_dispatch_has_call(consumer, item->claim.event_id);
	return semel_owner_is_dead(found->owner) ||
	       found->lease_until_ms <= semel_now_ms(consumer->env);
}

static semel_status apply_claimed(struct semel_consumer *consumer, struct semel_item *item,
				  const struct semel_claim_result *found, struct semel_arena *arena,
				  semel_error *error)
{
	/* A claim in a key conflict is decided with the event that it belongs to. */
	if (found->key_conflict || !is_abandoned(consumer, item, found)) {
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return SEMEL_OK;
	}
	/* At most once leaves none unfinished: it was made under another guarantee. */
	if (!semel_consumer_runs_once(consumer))
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

static bool any_deferred(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_DEFERRED)
			return true;
	return false;
}

static semel_status claim_undecided(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, struct semel_arena *arena, semel_error *error)
{
	struct semel_claim_result *found = NULL;
	bool deferred = any_deferred(items, count);
	semel_status status = semel_claims_make(consumer, items, count, arena, &found, error);

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
		/* Claimed, but a sibling before it was deferred. */
		semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
		status = semel_claims_forget(consumer, &items[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Without claims: what nothing else decided may run, but not behind a deferred sibling. */
static void admit_undecided(struct semel_item *items, uint32_t count, bool deferred)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED)
			semel_item_move(&items[i],
					deferred && semel_item_is_behind_deferred(items, i)
						? SEMEL_ITEM_DEFERRED
						: SEMEL_ITEM_ADMITTED);
}

semel_status semel_admit(struct semel_consumer *consumer, struct semel_item *items, uint32_t count,
			 struct semel_arena *arena, semel_error *error)
{
	semel_status status = check_states(consumer, items, count, arena, error);

	if (status == SEMEL_OK && semel_consumer_claims(consumer))
		status = claim_undecided(consumer, items, count, arena, error);
	bool deferred = any_deferred(items, count);
	if (status == SEMEL_OK)
		admit_undecided(items, count, deferred);
	if (deferred)
		semel_intake_defer(&consumer->intake, semel_steady_ms(consumer->env) + DEFERRED_MS);
	return status;
}
