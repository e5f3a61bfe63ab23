/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers inside the transaction.
 *
 * A batch is one transaction: claims, effects, commit; the acks go out only after it. If any effect
 * fails, nothing of it happened: the batch is done again with care, each item behind a savepoint,
 * so that only the guilty one rolls back and meets its retry policy. What is to be run again at
 * once waits for the next pass, and so do its siblings behind it.
 *
 * With a separate claim (or at-most-once) the claim is committed before the effect, one event at a
 * time, so that a crash leaves one event in doubt and not a batch of them. The ack comes last all
 * the same: the claim is what makes it once at most, and what comes again finds its followers.
 */
#include "base/error.h"
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "observe/log.h"
#include "observe/step_timer.h"

#include <string.h>

static const struct semel_store_driver *driver_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver;
}

/* ---- one run --------------------------------------------------------------------------------- */

static semel_status run_handler(struct semel_consumer *consumer, struct semel_item *item,
				semel_error *error)
{
	item->event = item->delivery->event;
	semel_status status = semel_upcasters_apply(consumer->upcasters, consumer->store,
						    &item->event, consumer->arena, error);
	if (status != SEMEL_OK)
		return status;
	if (consumer->kind == SEMEL_HANDLER_SQL)
		return driver_of(consumer)->inbox->effect_run(consumer->store, &item->event,
							      item->runs, error);
	semel_verdict verdict = semel_context_run(consumer, item, error);
	return verdict == SEMEL_DONE ? SEMEL_OK : error->status;
}

static semel_status run_item(struct semel_consumer *consumer, struct semel_item *item,
			     semel_error *error)
{
	item->runs++;
	int64_t began_us = semel_step_timer_begin();
	semel_status status = run_handler(consumer, item, error);
	semel_step_timer_end(SEMEL_TIMED_EFFECT, began_us);
	item->status = status;
	if (status == SEMEL_OK)
		status = item->status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_EFFECT, error);
	return status;
}

semel_status semel_batch_acknowledge(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t count, semel_error *error)
{
	struct semel_item **list = semel_arena_alloc(consumer->arena, count * sizeof(*list));
	if (!list)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
	for (uint32_t i = 0; i < count; i++)
		list[i] = &items[i];
	return semel_acknowledge(consumer, list, count, error);
}

semel_status semel_batch_commit(struct semel_consumer *consumer, semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = driver_of(consumer)->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	return status == SEMEL_OK ? semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error) : status;
}

/* Before the commit: how far the deliveries are settled by it. */
static semel_status write_positions(struct semel_consumer *consumer, const struct semel_item *items,
				    uint32_t count, semel_error *error)
{
	semel_status status = semel_items_check(items, count, error);
	if (status != SEMEL_OK)
		return status;
	semel_positions_begin(consumer->positions);
	for (uint32_t i = 0; i < count; i++)
		semel_positions_include(consumer->positions, &items[i]);
	return semel_positions_write(consumer->positions, error);
}

static void report(struct semel_consumer *consumer, const struct semel_item *item)
{
	semel_breaker_report(&consumer->breaker, item->status, item->reason,
			     semel_steady_ms(consumer->env), semel_random(consumer->env));
}

/* ---- the hopeful way: one transaction, no savepoints ------------------------------------------
 */

static semel_status admit_all(struct semel_consumer *consumer, struct semel_item *items,
			      uint32_t count, semel_error *error)
{
	semel_status status = semel_admit(consumer, items, count, consumer->arena, error);

	if (status == SEMEL_OK)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	if (status == SEMEL_OK && SEMEL_PLANTED("claim-outside-transaction")) {
		status = driver_of(consumer)->commit(consumer->store, error);
		if (status == SEMEL_OK)
			status = driver_of(consumer)->begin(consumer->store, error);
	}
	return status;
}

/* effect_failed_out: an effect failed; what it said is of no interest yet. */
static semel_status run_all(struct semel_consumer *consumer, struct semel_item *items,
			    uint32_t count, bool *effect_failed_out, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_ADMITTED)
			continue;
		semel_status status = run_item(consumer, &items[i], error);
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

/* A store may answer for an effect later, when it is asked for something else. */
bool semel_batch_is_verdict(semel_status status)
{
	return status == SEMEL_HANDLER_REJECT || status == SEMEL_HANDLER_RETRY;
}

static semel_status run_in_one_transaction(struct semel_consumer *consumer,
					   struct semel_item *items, uint32_t count,
					   bool *effect_failed_out, semel_error *error)
{
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;

	status = admit_all(consumer, items, count, error);
	if (status != SEMEL_OK)
		goto roll_back;
	status = run_all(consumer, items, count, effect_failed_out, error);
	if (status == SEMEL_OK)
		status = write_positions(consumer, items, count, error);
	if (status != SEMEL_OK)
		goto roll_back;
	if (SEMEL_PLANTED("ack-before-commit"))
		(void)semel_batch_acknowledge(consumer, items, count, error);
	status = semel_batch_commit(consumer, error);
	if (status == SEMEL_OK && any_done(items, count))
		semel_breaker_report(&consumer->breaker, SEMEL_OK, NULL,
				     semel_steady_ms(consumer->env), 0);
	*effect_failed_out = semel_batch_is_verdict(status);
	return status;

roll_back:
	driver_of(consumer)->rollback(consumer->store);
	*effect_failed_out = *effect_failed_out || semel_batch_is_verdict(status);
	return status;
}

/* ---- the careful way: a savepoint each ----------------------------------------------------------
 */

static bool waits_for_sibling(const struct semel_item *items, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED &&
		    semel_item_same_key(&items[i], &items[at]))
			return true;
	return false;
}

/* Behind one that was put off nothing of its key runs; but where a topic waits as a whole, the
 * event that it waits for may stand there. */
static semel_status is_behind_deferred(struct semel_consumer *consumer,
				       const struct semel_item *items, uint32_t at,
				       bool *behind_out, semel_error *error)
{
	const struct semel_item *item = &items[at];
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };

	*behind_out = semel_item_is_behind_deferred(items, at);
	if (!*behind_out || consumer->options.order != SEMEL_ORDER_TOTAL ||
	    !semel_item_can_hold(item) || SEMEL_PLANTED("head-behind-copies"))
		return SEMEL_OK;
	semel_status status = driver_of(consumer)->holds->get(
		driver_of(consumer)->tx(consumer->store), consumer->scope, &item->key,
		consumer->arena, &hold, error);
	if (status == SEMEL_OK)
		*behind_out = (hold.state != SEMEL_HOLD_RETRY && hold.state != SEMEL_HOLD_DEAD) ||
			      !semel_text_equal(hold.head_id, item->delivery->event.id);
	return status;
}

/* RAISE(ROLLBACK), OR ROLLBACK, or a COMMIT in a C handler: savepoint and claim are gone, and so is
 * all that others did in this transaction. */
static bool check_transaction(struct semel_consumer *consumer, struct semel_item *item,
			      const semel_error *said)
{
	const struct semel_store_driver *driver = driver_of(consumer);

	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE || /* it went with the store */
	    driver->in_transaction(driver->tx(consumer->store)))
		return false;
	item->ended_transaction = true;
	item->status = SEMEL_HANDLER_REJECT;
	item->reason = semel_arena_printf(consumer->arena,
					  "the handler ended the transaction that it runs in: %s",
					  said->text[0] ? said->text : "it must not commit");
	return true;
}

static semel_status settle_ended_transaction(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error)
{
	semel_status status = driver_of(consumer)->rollback_to(consumer->store, error);

	item->runs++;
	return status == SEMEL_OK ? semel_settle_dead(consumer, item, consumer->arena, error)
				  : status;
}

void semel_batch_commit_refused(struct semel_consumer *consumer, struct semel_item *item,
				const semel_error *error)
{
	static const char prefix[] = "cannot commit: ";
	const char *text = error->text;

	if (strncmp(text, prefix, sizeof prefix - 1) == 0)
		text += sizeof prefix - 1;
	item->refused = true;
	item->status = error->status;
	item->reason = semel_arena_printf(consumer->arena, "commit failed: %s", text);
}

static semel_status settle_refused_commit(struct semel_consumer *consumer, struct semel_item *item,
					  semel_error *error)
{
	semel_status status = driver_of(consumer)->rollback_to(consumer->store, error);

	item->runs++;
	item->refused = false;
	report(consumer, item);
	return status == SEMEL_OK ? semel_settle_failed(consumer, item, 0, consumer->arena, error)
				  : status;
}

/* The claim is made behind the savepoint too: a failed effect leaves none. */
static semel_status attempt(struct semel_consumer *consumer, struct semel_item *item,
			    semel_error *error)
{
	semel_error said = { .status = SEMEL_OK };
	semel_status status = semel_admit(consumer, item, 1, consumer->arena, error);
	if (status != SEMEL_OK || item->state != SEMEL_ITEM_ADMITTED)
		return status;
	if (item->ended_transaction)
		return settle_ended_transaction(consumer, item, error);
	if (item->refused)
		return settle_refused_commit(consumer, item, error);
	bool done = run_item(consumer, item, &said) == SEMEL_OK;
	if (check_transaction(consumer, item, &said))
		return semel_error_set(error, SEMEL_NO_TRANSACTION, "%s", item->reason);
	report(consumer, item);
	if (done)
		return semel_settle_done(consumer, item, consumer->arena, error);
	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE)
		return semel_error_set(error, item->status, "%s", said.text);
	item->reason = semel_arena_printf(consumer->arena, "%s", said.text);
	status = driver_of(consumer)->rollback_to(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	return semel_settle_failed(consumer, item, 0, consumer->arena, error);
}

static semel_status attempt_behind_savepoint(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error)
{
	semel_status status = driver_of(consumer)->savepoint(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = attempt(consumer, item, error);
	return status == SEMEL_OK ? driver_of(consumer)->release(consumer->store, error) : status;
}

/* In the open transaction. */
semel_status semel_batch_run_each(struct semel_consumer *consumer, struct semel_item *items,
				  uint32_t count, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		bool behind = false;
		if (items[i].state != SEMEL_ITEM_UNDECIDED || waits_for_sibling(items, i))
			continue;
		status = is_behind_deferred(consumer, items, i, &behind, error);
		if (behind)
			semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
		else if (status == SEMEL_OK)
			status = attempt_behind_savepoint(consumer, &items[i], error);
	}
	return status;
}

/* Nothing of the pass happened: everybody is where they were, but the doomed one is known. */
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

/* alone_out: the store has refused to commit what they did together, and nothing of it happened; of
 * a single one its refusal is known now. */
static semel_status run_pass(struct semel_consumer *consumer, struct semel_item *items,
			     uint32_t count, bool *alone_out, semel_error *error)
{
	struct semel_item *before = semel_arena_alloc(consumer->arena, count * sizeof *before);
	if (!before)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
	memcpy(before, items, count * sizeof *before);
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;

	status = semel_batch_run_each(consumer, items, count, error);
	if (status == SEMEL_OK && count == 1)
		status = semel_crash_recovery_after_run(consumer, items, error);
	if (status == SEMEL_OK)
		status = write_positions(consumer, items, count, error);
	if (status == SEMEL_OK)
		status = semel_batch_commit(consumer, error);
	else
		driver_of(consumer)->rollback(consumer->store);
	*alone_out = semel_batch_is_verdict(status);
	if (status != SEMEL_NO_TRANSACTION && !*alone_out)
		return status;
	restore_items(items, before, count);
	if (*alone_out && count == 1)
		semel_batch_commit_refused(consumer, items, error);
	return SEMEL_OK;
}

/* Each in a transaction of its own, in their order. */
static semel_status run_alone(struct semel_consumer *consumer, struct semel_item *items,
			      uint32_t count, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		bool refused = false, behind = false;
		if (semel_wake_is_notified(consumer->wake))
			return SEMEL_OK;
		if (items[i].state != SEMEL_ITEM_UNDECIDED || waits_for_sibling(items, i))
			continue;
		status = is_behind_deferred(consumer, items, i, &behind, error);
		if (behind) {
			semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
			continue;
		}
		if (status == SEMEL_OK)
			status = semel_crash_recovery_before_run(consumer, &items[i], error);
		if (status == SEMEL_OK)
			status = run_pass(consumer, &items[i], 1, &refused, error);
		if (status == SEMEL_OK && refused)
			status = run_pass(consumer, &items[i], 1, &refused, error);
		if (status == SEMEL_OK)
			status = semel_batch_acknowledge(consumer, &items[i], 1, error);
	}
	return status;
}

/* What is left to run again; delay_ms_out: when. */
static uint32_t still_open(const struct semel_item *items, uint32_t count, int64_t *delay_ms_out)
{
	uint32_t open = 0;

	*delay_ms_out = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (items[i].state != SEMEL_ITEM_UNDECIDED)
			continue;
		open++;
		if (items[i].delay_ms > *delay_ms_out)
			*delay_ms_out = items[i].delay_ms;
	}
	return open;
}

/* Settled in an earlier pass: not again. What was put off stays, and holds back its siblings. */
static void forget_settled(struct semel_item *items, uint32_t *count)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < *count; i++)
		if (items[i].state == SEMEL_ITEM_UNDECIDED || items[i].state == SEMEL_ITEM_DEFERRED)
			items[kept++] = items[i];
	*count = kept;
}

static semel_status run_with_savepoints(struct semel_consumer *consumer, struct semel_item *items,
					uint32_t count, semel_error *error)
{
	bool alone = consumer->recovery.on;
	int64_t delay_ms;

	while (still_open(items, count, &delay_ms) > 0) {
		if (delay_ms > 0)
			semel_wake_sleep(consumer->wake, delay_ms);
		if (semel_wake_is_notified(consumer->wake))
			return SEMEL_OK; /* not acked: they come again */
		semel_status status = SEMEL_OK;
		if (alone)
			status = run_alone(consumer, items, count, error);
		else
			status = run_pass(consumer, items, count, &alone, error);
		if (status == SEMEL_OK && !alone)
			status = semel_batch_acknowledge(consumer, items, count, error);
		if (status != SEMEL_OK)
			return status;
		forget_settled(items, &count);
	}
	return SEMEL_OK;
}

/* ---- claim first -------------------------------------------------------------------------------
 */

static semel_status claim_first(struct semel_consumer *consumer, struct semel_item *item,
				semel_error *error)
{
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_admit(consumer, item, 1, consumer->arena, error);
	if (status == SEMEL_OK)
		status = write_positions(consumer, item, 1, error);
	if (status != SEMEL_OK) {
		driver_of(consumer)->rollback(consumer->store);
		return status;
	}
	status = driver_of(consumer)->commit(consumer->store, error);
	if (status == SEMEL_OK)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	if (semel_status_class(status) == SEMEL_CLASS_OUTAGE && item->state == SEMEL_ITEM_ADMITTED)
		semel_unfinished_claim_note(consumer, item, false);
	return status;
}

/* Its own transaction is gone; the dead letter gets a new one. */
semel_status semel_batch_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
				     semel_error *error)
{
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_settle_dead(consumer, item, consumer->arena, error);
	if (status == SEMEL_OK)
		return semel_batch_commit(consumer, error);
	driver_of(consumer)->rollback(consumer->store);
	return status;
}

/* Another consumer has taken it over: it comes again, and the claim tells. */
static void put_off(struct semel_consumer *consumer, struct semel_item *item)
{
	semel_item_move(item, SEMEL_ITEM_DEFERRED);
	consumer->has_deferred = true;
}

/* item is as it was when its run ended. doubt_out: nobody knows whether it was committed, and the
 * claim does not tell. */
static semel_status commit_claimed(struct semel_consumer *consumer, struct semel_item *item,
				   const struct semel_item *ended, bool *doubt_out,
				   semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = driver_of(consumer)->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	*doubt_out = status == SEMEL_OUTAGE && item->claim.status == SEMEL_INBOX_PROCESSED;
	if (semel_batch_is_verdict(status)) {
		*item = *ended;
		semel_batch_commit_refused(consumer, item, error);
		return semel_batch_settle_dead(consumer, item, error);
	}
	return status == SEMEL_OK ? semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error) : status;
}

static semel_status run_claimed(struct semel_consumer *consumer, struct semel_item *item,
				bool *doubt_out, semel_error *error)
{
	semel_error said = { .status = SEMEL_OK };
	bool ours = true;
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_fence_check(consumer, item, consumer->arena, &ours, error);
	if (status == SEMEL_OK && ours)
		status = driver_of(consumer)->savepoint(consumer->store, error);
	if (status != SEMEL_OK || !ours) {
		put_off(consumer, item);
		goto roll_back;
	}
	bool done = run_item(consumer, item, &said) == SEMEL_OK;
	if (check_transaction(consumer, item, &said))
		return semel_batch_settle_dead(consumer, item, error);
	report(consumer, item);
	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE) {
		driver_of(consumer)->rollback(consumer->store);
		return semel_error_set(error, item->status, "%s", said.text);
	}
	struct semel_item ended = *item;
	if (!done) {
		item->reason = semel_arena_printf(consumer->arena, "%s", said.text);
		status = driver_of(consumer)->rollback_to(consumer->store, error);
	}
	if (status == SEMEL_OK)
		status = done ? semel_settle_done(consumer, item, consumer->arena, error)
			      : semel_settle_dead(consumer, item, consumer->arena, error);
	if (status == SEMEL_OK)
		status = driver_of(consumer)->release(consumer->store, error);
	if (status == SEMEL_OK)
		status = write_positions(consumer, item, 1, error);
	if (status == SEMEL_OK)
		return commit_claimed(consumer, item, &ended, doubt_out, error);

roll_back:
	driver_of(consumer)->rollback(consumer->store);
	return status;
}

static semel_status run_and_finish(struct semel_consumer *consumer, struct semel_item *item,
				   semel_error *error)
{
	struct semel_item claimed = *item;
	bool doubt = false;
	semel_status status = SEMEL_OK;

	if (item->state == SEMEL_ITEM_ADMITTED) {
		status = run_claimed(consumer, item, &doubt, error);
		/* Nobody's failure, and its effect was rolled back for certain: it may run again.
		 */
		if (semel_status_class(status) == SEMEL_CLASS_OUTAGE)
			semel_unfinished_claim_note(consumer, &claimed, doubt);
	}
	return status == SEMEL_OK ? semel_batch_acknowledge(consumer, item, 1, error) : status;
}

semel_status semel_batch_one_by_one(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		bool behind = false;
		if (semel_wake_is_notified(consumer->wake))
			break;
		status = is_behind_deferred(consumer, items, i, &behind, error);
		if (behind) {
			semel_item_move(&items[i], SEMEL_ITEM_DEFERRED);
			continue;
		}
		if (status == SEMEL_OK)
			status = claim_first(consumer, &items[i], error);
		if (status == SEMEL_OK)
			status = run_and_finish(consumer, &items[i], error);
	}
	return status;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static void reset(struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		semel_item_reset(&items[i]);
		items[i].head = false;
		items[i].delay_ms = 0;
		items[i].runs = items[i].delivery->metadata.attempt;
	}
}

/* What is given up holds its siblings, so each has to be looked at after the one before it. */
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

	if (!semel_consumer_joins(consumer))
		return semel_batch_one_by_one(consumer, items, count, error);
	if (any_broken(items, count) || consumer->recovery.on)
		return run_with_savepoints(consumer, items, count, error);
	semel_status status = run_in_one_transaction(consumer, items, count, &effect_failed, error);
	if (status == SEMEL_OK)
		return semel_batch_acknowledge(consumer, items, count, error);
	if (!effect_failed)
		return status;
	reset(items, count);
	return run_with_savepoints(consumer, items, count, error);
}
