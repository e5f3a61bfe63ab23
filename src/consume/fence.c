/* SPDX-License-Identifier: Apache-2.0 */
/* Is the item still this consumer's? Asked in the transaction that runs or concludes it.
 *
 * A consumer that was stopped for long has lost its claims and its share, and does not know it.
 * - A claim that is not finished says whose it is. Asking for it also makes its lease longer.
 * - A follower that is not parked any more was settled by another one.
 * - Without claims an aggregate that waits for another event tells that time has moved on.
 */
#include "consume/consumer.h"

static semel_status has_claim(struct semel_consumer *consumer, const struct semel_item *item,
			      bool *ours_out, semel_error *error)
{
	int64_t now_ms = semel_now_ms(consumer->env);
	struct semel_inbox_claim claim = item->claim;
	struct semel_inbox_change same = { .from = SEMEL_INBOX_CLAIMED,
					   .from_owner = item->claim.owner,
					   .now_ms = now_ms };

	claim.lease_until_ms = now_ms + SEMEL_CLAIM_LEASE_MS;
	return consumer->guard->driver->change(consumer->guard, &claim, &same, ours_out, error);
}

static semel_status is_parked(struct semel_consumer *consumer, const struct semel_item *item,
			      bool *parked_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	return driver->holds->parked_exists(driver->tx(consumer->store), item->entry_id, parked_out,
					    error);
}

static semel_status is_not_overtaken(struct semel_consumer *consumer, const struct semel_item *item,
				     struct semel_arena *arena, bool *ours_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };
	semel_status status = driver->holds->get(driver->tx(consumer->store), consumer->scope,
						 &item->key, arena, &hold, error);

	*ours_out = hold.state == SEMEL_HOLD_NONE || hold.state == SEMEL_HOLD_GAP ||
		    semel_text_equal(hold.head_id, item->delivery->event.id);
	return status;
}

semel_status semel_claim_release(struct semel_consumer *consumer,
				 const struct semel_inbox_claim *claim, semel_error *error)
{
	struct semel_inbox_claim ours = *claim;
	struct semel_inbox_change reopen = { .from = SEMEL_INBOX_PROCESSED,
					     .from_owner = consumer->owner,
					     .now_ms = semel_now_ms(consumer->env) };
	bool taken = false;
	semel_status status = SEMEL_OK;

	if (!semel_consumer_claims(consumer))
		return SEMEL_OK;
	ours.owner = consumer->owner;
	ours.status = SEMEL_INBOX_CLAIMED;
	ours.lease_until_ms = reopen.now_ms;
	if (claim->status == SEMEL_INBOX_PROCESSED)
		status = consumer->guard->driver->change(consumer->guard, &ours, &reopen, &taken,
							 error);
	return status == SEMEL_OK ? consumer->guard->driver->forget(consumer->guard, &ours, error)
				  : status;
}

semel_status semel_fence_check(struct semel_consumer *consumer, const struct semel_item *item,
			       struct semel_arena *arena, bool *ours_out, semel_error *error)
{
	semel_status status = SEMEL_OK;

	*ours_out = true;
	if (semel_consumer_claims(consumer) && item->claim.status == SEMEL_INBOX_CLAIMED)
		status = has_claim(consumer, item, ours_out, error);
	if (status != SEMEL_OK || !*ours_out)
		return status;
	if (item->entry_id.data)
		return is_parked(consumer, item, ours_out, error);
	if (!semel_consumer_claims(consumer))
		return is_not_overtaken(consumer, item, arena, ours_out, error);
	return SEMEL_OK;
}
