/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/claims.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "observe/span.h"

#define CLAIM_LEASE_MS 30000

/* ---- making ---------------------------------------------------------------------------------- */

static uint32_t collect_undecided(const struct semel_consumer *consumer, struct semel_item *items,
				  uint32_t count, struct semel_inbox_claim *claims_out)
{
	int64_t lease_until_ms = semel_now_ms(consumer->env) + CLAIM_LEASE_MS;
	uint32_t undecided = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		if (items[i].claim.status == SEMEL_INBOX_CLAIMED)
			items[i].claim.lease_until_ms = lease_until_ms;
		claims_out[undecided] = items[i].claim;
		/* At most once: the owner distinguishes this claim from another consumer's when it
		 * is released. */
		if (!semel_consumer_is_same_tx(consumer))
			claims_out[undecided].owner = consumer->owner;
		undecided++;
	}
	return undecided;
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

semel_status semel_claims_new(struct semel_consumer *consumer, struct semel_item *items,
			      uint32_t count, struct semel_arena *arena,
			      struct semel_claim_result **results_out, semel_error *error)
{
	struct semel_guard *guard = consumer->guard;
	struct semel_inbox_claim *claims = semel_arena_alloc(arena, count * sizeof *claims);
	struct semel_claim_result *results = semel_arena_alloc(arena, count * sizeof *results);

	*results_out = NULL;
	if (!claims || !results)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the claims");
	uint32_t undecided = collect_undecided(consumer, items, count, claims);
	if (undecided == 0)
		return SEMEL_OK;
	int64_t began_ms = semel_now_ms(consumer->env), began_us = semel_step_timer_begin();
	semel_status status =
		guard->driver->claim(guard, claims, undecided, began_ms, results, error);
	semel_step_timer_end(SEMEL_TIMED_CLAIM, began_us);
	if (semel_spans_are_enabled())
		note_claim_times(items, count, began_ms, semel_now_ms(consumer->env));
	*results_out = results;
	return status;
}

semel_status semel_claims_take_over(struct semel_consumer *consumer, const struct semel_item *item,
				    const struct semel_claim_result *found, bool *taken_out,
				    semel_error *error)
{
	bool failed = found->found == SEMEL_FOUND_FAILED;
	struct semel_inbox_change change = { .from = failed ? SEMEL_INBOX_FAILED
							    : SEMEL_INBOX_CLAIMED,
					     .from_owner = failed ? NULL : found->owner,
					     .now_ms = semel_now_ms(consumer->env) };

	return consumer->guard->driver->change(consumer->guard, &item->claim, &change, taken_out,
					       error);
}

/* ---- finishing ------------------------------------------------------------------------------- */

semel_status semel_claims_finish(struct semel_consumer *consumer, const struct semel_item *item,
				 enum semel_inbox_status to, const char *error_code,
				 semel_error *error)
{
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change change = { .from = item->claim.status,
					     .from_owner = item->claim.owner,
					     .error_code = error_code,
					     .now_ms = semel_now_ms(consumer->env) };
	bool changed = false;

	claim.status = to;
	semel_status status =
		consumer->guard->driver->change(consumer->guard, &claim, &change, &changed, error);
	if (status != SEMEL_OK || changed)
		return status;
	semel_log(
		SEMEL_LOG_WARN, "claim was taken over by another consumer",
		&(struct semel_log_fields){ .message_id = semel_text_shown(item->claim.event_id),
					    .consumer = semel_text_shown(consumer->config.scope) });
	return SEMEL_OK;
}

semel_status semel_claims_fail_in_doubt(struct semel_consumer *consumer,
					const struct semel_item *item, semel_error *error)
{
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change change = { .from = SEMEL_INBOX_CLAIMED,
					     .error_code = "in-doubt",
					     .now_ms = semel_now_ms(consumer->env) };
	bool changed = false;

	claim.status = SEMEL_INBOX_FAILED;
	return consumer->guard->driver->change(consumer->guard, &claim, &change, &changed, error);
}

semel_status semel_claims_forget(struct semel_consumer *consumer, const struct semel_item *item,
				 semel_error *error)
{
	return consumer->guard->driver->forget(consumer->guard, &item->claim, error);
}

/* A claim that counts as processed is made unfinished first, because forget removes only an
 * unfinished claim on behalf of its owner. */
semel_status semel_claims_release(struct semel_consumer *consumer,
				  const struct semel_inbox_claim *claim, semel_error *error)
{
	struct semel_guard *guard = consumer->guard;
	struct semel_inbox_claim own = *claim;
	struct semel_inbox_change reopen = { .from = SEMEL_INBOX_PROCESSED,
					     .from_owner = consumer->owner,
					     .now_ms = semel_now_ms(consumer->env) };
	bool changed = false;

	if (!semel_consumer_has_claims(consumer))
		return SEMEL_OK;
	own.owner = consumer->owner;
	own.status = SEMEL_INBOX_CLAIMED;
	own.lease_until_ms = reopen.now_ms;
	if (claim->status == SEMEL_INBOX_PROCESSED) {
		semel_status status = guard->driver->change(guard, &own, &reopen, &changed, error);
		if (status != SEMEL_OK)
			return status;
	}
	return guard->driver->forget(guard, &own, error);
}

semel_status semel_claims_is_settled(struct semel_consumer *consumer, struct semel_text event_id,
				     bool *settled_out, semel_error *error)
{
	return consumer->guard->driver->is_settled(consumer->guard, consumer->config.scope,
						   event_id, settled_out, error);
}

/* ---- owning ---------------------------------------------------------------------------------- */

static semel_status has_claim(struct semel_consumer *consumer, const struct semel_item *item,
			      bool *owned_out, semel_error *error)
{
	int64_t now_ms = semel_now_ms(consumer->env);
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change same = { .from = SEMEL_INBOX_CLAIMED,
					   .from_owner = item->claim.owner,
					   .now_ms = now_ms };

	claim.lease_until_ms = now_ms + CLAIM_LEASE_MS;
	return consumer->guard->driver->change(consumer->guard, &claim, &same, owned_out, error);
}

static semel_status is_parked(struct semel_consumer *consumer, const struct semel_item *item,
			      bool *parked_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	return driver->dead_letters->parked_exists(driver->tx(consumer->store), item->entry_id,
						   parked_out, error);
}

static semel_status is_not_overtaken(struct semel_consumer *consumer, const struct semel_item *item,
				     struct semel_arena *arena, bool *owned_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };
	semel_status status =
		driver->holds->get(driver->tx(consumer->store), consumer->config.scope, &item->key,
				   arena, &hold, error);

	*owned_out = hold.state == SEMEL_HOLD_NONE || hold.state == SEMEL_HOLD_GAP ||
		     semel_text_equal(hold.head_id, item->delivery->event.id);
	return status;
}

semel_status semel_claims_check_owned(struct semel_consumer *consumer,
				      const struct semel_item *item, struct semel_arena *arena,
				      bool *owned_out, semel_error *error)
{
	bool claims = semel_consumer_has_claims(consumer);

	*owned_out = true;
	if (claims && item->claim.status == SEMEL_INBOX_CLAIMED) {
		semel_status status = has_claim(consumer, item, owned_out, error);
		if (status != SEMEL_OK || !*owned_out)
			return status;
	}
	if (item->entry_id.data)
		return is_parked(consumer, item, owned_out, error);
	if (!claims)
		return is_not_overtaken(consumer, item, arena, owned_out, error);
	return SEMEL_OK;
}

semel_status semel_claims_renew(struct semel_consumer *consumer, semel_error *error)
{
	return consumer->guard->driver->renew(consumer->guard, consumer->owner,
					      semel_now_ms(consumer->env) + CLAIM_LEASE_MS, error);
}

void semel_claims_expire(struct semel_consumer *consumer)
{
	if (!consumer->guard || !semel_consumer_has_claims(consumer) ||
	    semel_consumer_is_same_tx(consumer))
		return;
	(void)consumer->guard->driver->renew(consumer->guard, consumer->owner,
					     semel_now_ms(consumer->env), NULL);
}
