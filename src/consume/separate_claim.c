/* SPDX-License-Identifier: Apache-2.0 */
/* The claim is committed before the effect (separate claims, at most once), one event at a time, so
 * that a crash leaves one event in doubt and not a whole batch. The ack still comes last: the claim
 * alone ensures at most one run, and a redelivered copy still releases the followers of its event.
 *
 * An outage between the two commits leaves the claim of an event that did not run. It is remembered
 * here until the store answers again; there is one at most, since such events run one by one.
 * - The effect is known to be rolled back: the claim is released, and the event runs again.
 * - It is unknown whether the effect was committed: a claim that is finished together with the
 *   effect shows it. With at most once the claim is finished before the effect, and the event
 *   becomes a dead letter in doubt.
 */
#include "base/error.h"
#include "consume/batch.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "consume/task_table.h"
#include "fault/failpoint.h"
#include "observe/log.h"

#include <stdlib.h>

#define ARENA_BLOCK 4096

static const struct semel_store_driver *driver_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver;
}

/* ---- the unfinished claim -------------------------------------------------------------------- */

struct semel_unfinished_claim {
	struct semel_arena *arena;
	struct semel_delivery delivery;
	struct semel_text entry_id;
	bool head, in_doubt;
};

void semel_unfinished_claim_free(struct semel_unfinished_claim *claim)
{
	if (!claim)
		return;
	semel_arena_free(claim->arena);
	free(claim);
}

/* NULL: out of memory. */
static struct semel_unfinished_claim *copy_unfinished(const struct semel_item *item, bool in_doubt)
{
	struct semel_unfinished_claim *claim = calloc(1, sizeof *claim);

	if (!claim)
		return NULL;
	claim->head = item->head;
	claim->in_doubt = in_doubt;
	claim->arena = semel_arena_new(ARENA_BLOCK);
	if (!claim->arena || !semel_delivery_copy(claim->arena, item->delivery, &claim->delivery)) {
		semel_unfinished_claim_free(claim);
		return NULL;
	}
	if (!item->entry_id.data)
		return claim;
	claim->entry_id =
		semel_arena_text(claim->arena, item->entry_id.data, item->entry_id.length);
	if (!claim->entry_id.data) {
		semel_unfinished_claim_free(claim);
		return NULL;
	}
	return claim;
}

static void note_unfinished(struct semel_consumer *consumer, const struct semel_item *item,
			    bool in_doubt)
{
	struct semel_unfinished_claim *claim = copy_unfinished(item, in_doubt);

	if (!claim) {
		semel_log(SEMEL_LOG_ERROR, "out of memory for an unfinished claim",
			  &(struct semel_log_fields){
				  .message_id = semel_text_shown(item->delivery->event.id),
				  .consumer = semel_text_shown(consumer->config.scope) });
		return;
	}
	semel_unfinished_claim_free(consumer->unfinished);
	consumer->unfinished = claim;
}

/* Releases the claim, or makes its event a dead letter. In the open transaction. */
static semel_status write_resolution(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_unfinished_claim *claim = consumer->unfinished;
	struct semel_item *item = semel_items_new(consumer, &claim->delivery, 1, consumer->arena);

	if (!item)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an item");
	if (!claim->in_doubt)
		return semel_claims_release(consumer, &item->claim, error);
	item->entry_id = claim->entry_id;
	item->head = claim->head;
	item->runs++;
	item->status = SEMEL_HANDLER_REJECT;
	item->reason =
		"in doubt: the store became unreachable while the effect was committed; find "
		"out whether the effect happened, then replay or discard";
	semel_item_move(item, SEMEL_ITEM_ADMITTED);
	return semel_settle_dead(consumer, item, consumer->arena, error);
}

semel_status semel_unfinished_claim_resolve(struct semel_consumer *consumer, semel_error *error)
{
	if (!consumer->unfinished)
		return SEMEL_OK;
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = write_resolution(consumer, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	status = driver_of(consumer)->commit(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	semel_unfinished_claim_free(consumer->unfinished);
	consumer->unfinished = NULL;
	return SEMEL_OK;
}

/* ---- the claim ------------------------------------------------------------------------------- */

static semel_status write_claim(struct semel_consumer *consumer, struct semel_item *item,
				semel_error *error)
{
	semel_status status = semel_admit(consumer, item, 1, consumer->arena, error);

	if (status != SEMEL_OK)
		return status;
	return semel_batch_write_positions(consumer, item, 1, error);
}

static semel_status commit_with_failpoint(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = driver_of(consumer)->commit(consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
}

static semel_status commit_claim(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error)
{
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = write_claim(consumer, item, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	status = commit_with_failpoint(consumer, error);
	if (semel_status_class(status) == SEMEL_CLASS_OUTAGE && item->state == SEMEL_ITEM_ADMITTED)
		note_unfinished(consumer, item, false);
	return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* ended: the item as it was when its run ended. *in_doubt_out: it is unknown whether the effect was
 * committed, and the claim does not show it. */
static semel_status commit_run(struct semel_consumer *consumer, struct semel_item *item,
			       const struct semel_item *ended, bool *in_doubt_out,
			       semel_error *error)
{
	semel_status status = semel_consumer_commit_metered(consumer, error);

	*in_doubt_out = status == SEMEL_OUTAGE && item->claim.status == SEMEL_INBOX_PROCESSED;
	if (semel_batch_is_verdict(status)) {
		*item = *ended;
		semel_batch_commit_refused(consumer, item, error);
		return semel_settle_dead_alone(consumer, item, error);
	}
	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
}

/* Another consumer has taken the event over: it is redelivered, and its claim then shows the
 * outcome. */
static void defer(struct semel_consumer *consumer, struct semel_item *item)
{
	semel_item_move(item, SEMEL_ITEM_DEFERRED);
	consumer->intake.has_deferred = true;
}

static semel_status settle_run(struct semel_consumer *consumer, struct semel_item *item, bool done,
			       const semel_error *handler_error, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (!done) {
		item->reason = semel_arena_printf(consumer->arena, "%s", handler_error->text);
		status = driver_of(consumer)->rollback_to(consumer->store, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = done ? semel_settle_done(consumer, item, consumer->arena, error)
		      : semel_settle_dead(consumer, item, consumer->arena, error);
	if (status != SEMEL_OK)
		return status;
	status = driver_of(consumer)->release(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	return semel_batch_write_positions(consumer, item, 1, error);
}

/* *owned_out false: the item belongs to another consumer now. */
static semel_status begin_run(struct semel_consumer *consumer, const struct semel_item *item,
			      bool *owned_out, semel_error *error)
{
	semel_status status =
		semel_claims_check_owned(consumer, item, consumer->arena, owned_out, error);

	if (status != SEMEL_OK || !*owned_out)
		return status;
	return driver_of(consumer)->savepoint(consumer->store, error);
}

static semel_status run_claimed(struct semel_consumer *consumer, struct semel_item *item,
				bool *in_doubt_out, semel_error *error)
{
	semel_error handler_error = { .status = SEMEL_OK };
	bool owned = true;
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = begin_run(consumer, item, &owned, error);
	if (status != SEMEL_OK || !owned) {
		defer(consumer, item);
		goto roll_back;
	}
	bool done = semel_handler_run(consumer, item, &handler_error) == SEMEL_OK;
	if (semel_batch_has_ended_transaction(consumer, item, &handler_error))
		return semel_settle_dead_alone(consumer, item, error);
	semel_batch_report_to_breaker(consumer, item);
	if (semel_status_class(item->status) == SEMEL_CLASS_OUTAGE) {
		status = semel_error_set(error, item->status, "%s", handler_error.text);
		goto roll_back;
	}
	struct semel_item ended = *item;
	status = settle_run(consumer, item, done, &handler_error, error);
	if (status != SEMEL_OK)
		goto roll_back;
	return commit_run(consumer, item, &ended, in_doubt_out, error);

roll_back:
	semel_consumer_rollback(consumer);
	return status;
}

static semel_status run_and_acknowledge(struct semel_consumer *consumer, struct semel_item *item,
					semel_error *error)
{
	struct semel_item claimed = *item;
	bool in_doubt = false;

	if (item->state == SEMEL_ITEM_ADMITTED) {
		semel_status status = run_claimed(consumer, item, &in_doubt, error);
		/* An outage costs no attempt: either the effect is known to be rolled back, or the
		 * event is in doubt. */
		if (semel_status_class(status) == SEMEL_CLASS_OUTAGE)
			note_unfinished(consumer, &claimed, in_doubt);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_acknowledge_all(consumer, item, 1, error);
}

static semel_status claim_and_run(struct semel_consumer *consumer, struct semel_item *item,
				  semel_error *error)
{
	if (semel_wake_is_notified(consumer->wake))
		return SEMEL_OK;
	semel_status status = commit_claim(consumer, item, error);
	if (status != SEMEL_OK)
		return status;
	return run_and_acknowledge(consumer, item, error);
}

semel_status semel_batch_claim_first(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t count, semel_error *error)
{
	return semel_batch_run_in_order(consumer, items, count, claim_and_run, error);
}
