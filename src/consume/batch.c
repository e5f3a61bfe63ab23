/* SPDX-License-Identifier: Apache-2.0 */
/* A batch is one transaction: claims, effects, commit; the acks are sent only after it. If an
 * effect fails, the transaction is rolled back and the batch runs again, with a savepoint for each
 * item, so that only the failed item rolls back and its retry policy applies. An item that is to
 * run again at once waits for the next pass, and so do the later items of its key.
 */
#include "consume/batch.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "fault/plant.h"

#include <string.h>

static const struct semel_store_driver *driver_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver;
}

semel_status semel_batch_write_positions(struct semel_consumer *consumer,
					 const struct semel_item *items, uint32_t count,
					 semel_error *error)
{
	semel_status status = semel_items_check(items, count, error);
	if (status != SEMEL_OK)
		return status;
	semel_positions_begin(consumer->positions);
	for (uint32_t i = 0; i < count; i++)
		semel_positions_include(consumer->positions, &items[i]);
	return semel_positions_write(consumer->positions, error);
}

void semel_batch_report_to_breaker(struct semel_consumer *consumer, const struct semel_item *item)
{
	semel_breaker_report(&consumer->breaker, item->status, item->reason,
			     semel_steady_ms(consumer->env), semel_random(consumer->env));
}

/* A store may report a refused effect later, from another call. */
bool semel_batch_is_verdict(semel_status status)
{
	return status == SEMEL_HANDLER_REJECT || status == SEMEL_HANDLER_RETRY;
}

/* ---- one transaction, no savepoints ---------------------------------------------------------- */

static semel_status admit_all(struct semel_consumer *consumer, struct semel_item *items,
			      uint32_t count, semel_error *error)
{
	semel_status status = semel_admit(consumer, items, count, consumer->arena, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	if (status != SEMEL_OK || !SEMEL_PLANTED("claim-outside-transaction"))
		return status;
	status = driver_of(consumer)->commit(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	return semel_consumer_begin(consumer, error);
}

/* *effect_failed_out: an effect failed; its error is not used, because the batch runs again. */
static semel_status run_admitted(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, bool *effect_failed_out, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_ADMITTED)
			continue;
		semel_status status = semel_handler_run(consumer, &items[i], error);
		if (status != SEMEL_OK) {
			*effect_failed_out = semel_status_class(status) != SEMEL_CLASS_OUTAGE;
			return status;
		}
		status = semel_settle_done(consumer, &items[i], consumer->arena, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static bool any_done(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_DONE)
			return true;
	return false;
}

static semel_status run_in_one_transaction(struct semel_consumer *consumer,
					   struct semel_item *items, uint32_t count,
					   bool *effect_failed_out, semel_error *error)
{
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;

	status = admit_all(consumer, items, count, error);
	if (status != SEMEL_OK)
		goto roll_back;
	status = run_admitted(consumer, items, count, effect_failed_out, error);
	if (status != SEMEL_OK)
		goto roll_back;
	status = semel_batch_write_positions(consumer, items, count, error);
	if (status != SEMEL_OK)
		goto roll_back;
	if (SEMEL_PLANTED("ack-before-commit"))
		(void)semel_acknowledge_all(consumer, items, count, error);
	status = semel_consumer_commit(consumer, error);
	*effect_failed_out = semel_batch_is_verdict(status);
	if (status != SEMEL_OK)
		return status;
	if (any_done(items, count))
		semel_breaker_report(&consumer->breaker, SEMEL_OK, NULL,
				     semel_steady_ms(consumer->env), 0);
	return SEMEL_OK;

roll_back:
	semel_consumer_rollback(consumer);
	*effect_failed_out = *effect_failed_out || semel_batch_is_verdict(status);
	return status;
}

/* ---- a savepoint for each -------------------------------------------------------------------- */

static bool waits_for_same_key(const struct semel_item *items, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED &&
		    semel_item_has_same_key(&items[i], &items[at]))
			return true;
	return false;
}

static semel_status is_behind(struct semel_consumer *consumer, const struct semel_item *items,
			      uint32_t at, bool *behind_out, semel_error *error)
{
	const struct semel_item *item = &items[at];
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };

	*behind_out = semel_item_is_behind_deferred(items, at);
	if (!*behind_out || consumer->config.options.order != SEMEL_ORDER_TOTAL ||
	    !semel_item_can_hold(item) || SEMEL_PLANTED("head-behind-copies"))
		return SEMEL_OK;
	semel_status status = driver_of(consumer)->holds->get(
		driver_of(consumer)->tx(consumer->store), consumer->config.scope, &item->key,
		consumer->arena, &hold, error);
	if (status != SEMEL_OK)
		return status;
	*behind_out = (hold.state != SEMEL_HOLD_RETRY && hold.state != SEMEL_HOLD_DEAD) ||
		      !semel_text_equal(hold.head_id, item->delivery->event.id);
	return SEMEL_OK;
}

static semel_status may_run(struct semel_consumer *consumer, struct semel_item *items, uint32_t at,
			    bool *may_out, semel_error *error)
{
	bool behind = false;

	*may_out = false;
	if (items[at].state != SEMEL_ITEM_UNDECIDED || waits_for_same_key(items, at))
		return SEMEL_OK;
	semel_status status = is_behind(consumer, items, at, &behind, error);
	if (behind)
		semel_item_move(&items[at], SEMEL_ITEM_DEFERRED);
	*may_out = !behind;
	return status;
}

semel_status semel_batch_run_in_order(struct semel_consumer *consumer, struct semel_item *items,
				      uint32_t count, semel_run_item run, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		bool may = false;
		semel_status status = may_run(consumer, items, i, &may, error);
		if (status != SEMEL_OK)
			return status;
		if (!may)
			continue;
		status = run(consumer, &items[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

bool semel_batch_has_ended_transaction(struct semel_consumer *consumer, struct semel_item *item,
				       const semel_error *handler_error)
{
	const struct semel_store_driver *driver = driver_of(consumer);

	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE || /* the store is gone */
	    driver->in_transaction(driver->tx(consumer->store)))
		return false;
	item->ended_transaction = true;
	item->status = SEMEL_HANDLER_REJECT;
	item->reason = semel_arena_printf(
		consumer->arena, "the handler ended the transaction that it runs in: %s",
		handler_error->text[0] ? handler_error->text : "it must not commit or roll back");
	return true;
}

static semel_status settle_ended_transaction(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error)
{
	semel_status status = driver_of(consumer)->rollback_to(consumer->store, error);

	item->runs++;
	if (status != SEMEL_OK)
		return status;
	return semel_settle_dead(consumer, item, consumer->arena, error);
}

void semel_batch_commit_refused(struct semel_consumer *consumer, struct semel_item *item,
				const semel_error *error)
{
	static const char prefix[] = "cannot commit: ";
	const char *text = error->text;

	if (strncmp(text, prefix, sizeof prefix - 1) == 0)
		text += sizeof prefix - 1;
	item->skip_run = true;
	item->status = error->status;
	item->reason = semel_arena_printf(consumer->arena, "commit failed: %s", text);
}

static semel_status settle_skipped_run(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error)
{
	semel_status status = driver_of(consumer)->rollback_to(consumer->store, error);

	item->runs++;
	item->skip_run = false;
	semel_batch_report_to_breaker(consumer, item);
	if (status != SEMEL_OK)
		return status;
	return semel_settle_failed(consumer, item, 0, consumer->arena, error);
}

/* The claim is made after the savepoint, so a failed effect leaves no claim. */
static semel_status run_one(struct semel_consumer *consumer, struct semel_item *item,
			    semel_error *error)
{
	semel_error handler_error = { .status = SEMEL_OK };
	semel_status status = semel_admit(consumer, item, 1, consumer->arena, error);
	if (status != SEMEL_OK || item->state != SEMEL_ITEM_ADMITTED)
		return status;
	if (item->ended_transaction)
		return settle_ended_transaction(consumer, item, error);
	if (item->skip_run)
		return settle_skipped_run(consumer, item, error);
	bool done = semel_handler_run(consumer, item, &handler_error) == SEMEL_OK;
	if (semel_batch_has_ended_transaction(consumer, item, &handler_error))
		return semel_error_set(error, SEMEL_NO_TRANSACTION, "%s", item->reason);
	semel_batch_report_to_breaker(consumer, item);
	if (done)
		return semel_settle_done(consumer, item, consumer->arena, error);
	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE)
		return semel_error_set(error, item->status, "%s", handler_error.text);
	item->reason = semel_arena_printf(consumer->arena, "%s", handler_error.text);
	status = driver_of(consumer)->rollback_to(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	return semel_settle_failed(consumer, item, 0, consumer->arena, error);
}

semel_status semel_batch_run_one(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error)
{
	semel_status status = driver_of(consumer)->savepoint(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = run_one(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	return driver_of(consumer)->release(consumer->store, error);
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* The pass was rolled back: every item is as it was before the pass, except that an item that ended
 * the transaction keeps that result. */
static void restore_items(struct semel_item *items, const struct semel_item *before, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct semel_item now = items[i];
		items[i] = before[i];
		if (now.ended_transaction) {
			items[i].ended_transaction = true;
			items[i].status = now.status;
			items[i].reason = now.reason;
		}
	}
}

static semel_status run_transaction(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, semel_error *error)
{
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;

	status = semel_batch_run_in_order(consumer, items, count, semel_batch_run_one, error);
	if (status != SEMEL_OK)
		goto roll_back;
	if (count == 1) {
		status = semel_crash_recovery_after_run(consumer, items, error);
		if (status != SEMEL_OK)
			goto roll_back;
	}
	status = semel_batch_write_positions(consumer, items, count, error);
	if (status != SEMEL_OK)
		goto roll_back;
	return semel_consumer_commit(consumer, error);

roll_back:
	semel_consumer_rollback(consumer);
	return status;
}

/* *alone_out: the store refused to commit what the items did together, and the pass was rolled
 * back. If there is only one item, the refusal is recorded as the result of its run. */
static semel_status run_pass(struct semel_consumer *consumer, struct semel_item *items,
			     uint32_t count, bool *alone_out, semel_error *error)
{
	struct semel_item *before = semel_arena_alloc(consumer->arena, count * sizeof *before);
	if (!before)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch");
	memcpy(before, items, count * sizeof *before);
	semel_status status = run_transaction(consumer, items, count, error);
	*alone_out = semel_batch_is_verdict(status);
	if (status != SEMEL_NO_TRANSACTION && !*alone_out)
		return status;
	restore_items(items, before, count);
	if (*alone_out && count == 1)
		semel_batch_commit_refused(consumer, items, error);
	return SEMEL_OK;
}

/* Runs the item in a transaction of its own. */
static semel_status run_alone(struct semel_consumer *consumer, struct semel_item *item,
			      semel_error *error)
{
	bool refused = false;

	if (semel_wake_is_notified(consumer->wake))
		return SEMEL_OK;
	semel_status status = semel_crash_recovery_before_run(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	status = run_pass(consumer, item, 1, &refused, error);
	if (status != SEMEL_OK)
		return status;
	if (refused) {
		status = run_pass(consumer, item, 1, &refused, error);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_acknowledge_all(consumer, item, 1, error);
}

/* How many items are to run again; *delay_ms_out: after which delay. */
static uint32_t count_undecided(const struct semel_item *items, uint32_t count,
				int64_t *delay_ms_out)
{
	uint32_t undecided = 0;

	*delay_ms_out = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		undecided++;
		if (items[i].delay_ms > *delay_ms_out)
			*delay_ms_out = items[i].delay_ms;
	}
	return undecided;
}

/* Removes the items that an earlier pass settled. Deferred items stay, and defer the later items of
 * their key. */
static void drop_settled(struct semel_item *items, uint32_t *count)
{
	uint32_t remaining = 0;

	for (uint32_t i = 0; i < *count; i++)
		if (!semel_item_is_settled(&items[i]) && items[i].state != SEMEL_ITEM_ADMITTED)
			items[remaining++] = items[i];
	*count = remaining;
}

static semel_status run_with_savepoints(struct semel_consumer *consumer, struct semel_item *items,
					uint32_t count, semel_error *error)
{
	bool alone = consumer->recovery.active;
	int64_t delay_ms;

	while (count_undecided(items, count, &delay_ms) > 0) {
		if (delay_ms > 0)
			semel_wake_sleep(consumer->wake, delay_ms);
		if (semel_wake_is_notified(consumer->wake))
			return SEMEL_OK; /* not acked: they are redelivered */
		semel_status status =
			alone ? semel_batch_run_in_order(consumer, items, count, run_alone, error)
			      : run_pass(consumer, items, count, &alone, error);
		if (status != SEMEL_OK)
			return status;
		if (!alone) {
			status = semel_acknowledge_all(consumer, items, count, error);
			if (status != SEMEL_OK)
				return status;
		}
		drop_settled(items, &count);
	}
	return SEMEL_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static void reset_items(struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		semel_item_reset(&items[i]);
		items[i].head = false;
		items[i].delay_ms = 0;
		items[i].runs = items[i].delivery->metadata.attempt;
	}
}

/* A broken event becomes a dead letter, which holds the later events of its key: each item must be
 * checked after the one before it. */
static bool any_broken(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].broken != SEMEL_OK)
			return true;
	return false;
}

semel_status semel_batch_process(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, semel_error *error)
{
	bool effect_failed = false;

	if (!semel_consumer_is_same_tx(consumer))
		return semel_batch_claim_first(consumer, items, count, error);
	if (any_broken(items, count) || consumer->recovery.active)
		return run_with_savepoints(consumer, items, count, error);
	semel_status status = run_in_one_transaction(consumer, items, count, &effect_failed, error);
	if (effect_failed) {
		reset_items(items, count);
		return run_with_savepoints(consumer, items, count, error);
	}
	if (status != SEMEL_OK)
		return status;
	return semel_acknowledge_all(consumer, items, count, error);
}
