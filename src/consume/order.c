/* SPDX-License-Identifier: Apache-2.0 */
/* - An event behind a held one of its key is parked, in the transaction that saw it.
 * - The head of a hold passes: it is what the others wait for. A copy of it that is older than the
 *   hold (its consumer died between scheduling the retry and the ack) does not run; it is sent back
 *   for the rest of the delay.
 * - In strict order an event whose predecessor is not settled is parked behind a gap, for a bounded
 *   time.
 * - What total order holds is stored under the key of its topic, everything else under that of its
 *   aggregate. A consumer that reads holds of one kind of key only would let events pass those held
 *   under the other. So after a change of the order it does not start before those are gone.
 */
#include "consume/order.h"

#include "base/error.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "fault/plant.h"

/* The head itself: is this copy the one that its hold is waiting for? */
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

/* Settled, or about to be in this transaction. */
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

semel_status semel_order_apply(struct semel_consumer *consumer, struct semel_item *items,
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
		item->head = hold->state == SEMEL_HOLD_GAP; /* done, it releases the others */
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
		"%s still holds %s from consuming with another order (consume with --order %s "
		"until "
		"a drain ends, replay or discard what semel dlq list --scope %s shows, then change "
		"the order)",
		scope, total ? "single aggregates" : "a whole topic", total ? "aggregate" : "total",
		scope);
}
