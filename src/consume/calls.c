/* SPDX-License-Identifier: Apache-2.0 */
/* - A call continues while the store or the broker is unreachable; its outcome waits until it can
 *   be committed.
 * - Meanwhile its claim is renewed, so that no other consumer takes it over.
 */
#include "consume/calls.h"

#include "consume/claims.h"
#include "observe/log.h"

#include <assert.h>

#define RENEW_MS         10000
#define RECHECK_MOVED_MS 200

/* ---- ended calls ----------------------------------------------------------------------------- */

/* Reports once per call what the outcome says about the dependency. */
static void report_outcome(struct semel_consumer *consumer, struct semel_calls *calls,
			   struct semel_task *task)
{
	struct semel_outcome *outcome = &task->call.outcome;

	if (calls->probe == task)
		calls->probe = NULL;
	if (outcome->is_over)
		semel_consumer_stop(consumer);
	if (outcome->is_over || outcome->interrupted)
		return;
	semel_class class = semel_status_class(outcome->status);
	if (outcome->timed_out) {
		outcome->status =
			semel_timeouts_count(&calls->timeouts, task->id_hash, task->call_number,
					     consumer->handler.outside->is_program)
				? SEMEL_HANDLER_RETRY
				: SEMEL_OUTAGE;
	} else if (class == SEMEL_CLASS_OK || class == SEMEL_CLASS_REJECT) {
		semel_timeouts_answered(&calls->timeouts, task->call_number);
		semel_timeouts_forget(&calls->timeouts, task->id_hash);
	}
	semel_breaker_report(&consumer->breaker, outcome->status, outcome->reason,
			     semel_steady_ms(consumer->env), semel_random(consumer->env));
}

void semel_calls_collect(struct semel_consumer *consumer, struct semel_calls *calls)
{
	struct semel_call *call;

	while ((call = semel_workers_take(calls->pool)) != NULL) {
		struct semel_task *task = call->user;
		task->state = SEMEL_TASK_ENDED;
		calls->running--;
		report_outcome(consumer, calls, task);
	}
}

bool semel_calls_has_timed_out(const struct semel_calls *calls, const struct semel_task *task)
{
	return semel_timeouts_has(&calls->timeouts, task->id_hash);
}

/* ---- settling -------------------------------------------------------------------------------- */

/* A call without an answer is in doubt if only one run is allowed. */
static void set_in_doubt(const struct semel_consumer *consumer, struct semel_task *task)
{
	const struct semel_outcome *outcome = &task->call.outcome;

	task->item.timed_out = outcome->timed_out;
	if ((!outcome->timed_out && !outcome->interrupted) ||
	    !semel_consumer_is_at_most_once(consumer))
		return;
	task->item.status = SEMEL_HANDLER_REJECT;
	task->item.reason =
		outcome->interrupted
			? "in doubt: the consumer stopped before the handler answered; find out "
			  "whether the effect happened, then replay or discard"
			: "in doubt: the handler did not answer in time; find out whether the "
			  "effect happened, then replay or discard";
}

semel_status semel_calls_settle_failed(struct semel_consumer *consumer, struct semel_task *task,
				       int64_t retry_after_ms, semel_error *error)
{
	struct semel_item *item = &task->item;
	semel_status status =
		semel_settle_failed(consumer, item, retry_after_ms, consumer->arena, error);

	if (status != SEMEL_OK)
		return status;
	/* The item will run again here: forget its claim; the next call makes a new one. */
	if (semel_consumer_has_claims(consumer) && !semel_item_is_settled(item)) {
		status = semel_claims_forget(consumer, item, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (item->state == SEMEL_ITEM_DEFERRED && item->timed_out)
		item->delay_ms =
			semel_backoff_ms(consumer->retry.delayed, 1, semel_random(consumer->env));
	task->not_before_ms = semel_steady_ms(consumer->env) + item->delay_ms;
	return SEMEL_OK;
}

/* Another consumer has taken the event over, and the outcome of that consumer counts. A delivery is
 * redelivered, and its claim then shows the outcome; a follower stays in the store until it is
 * settled. */
static void leave_to_other_consumer(const struct semel_consumer *consumer, struct semel_task *task)
{
	struct semel_item *item = &task->item;

	semel_log(
		SEMEL_LOG_WARN, "event was taken over by another consumer",
		&(struct semel_log_fields){ .message_id = semel_text_shown(item->claim.event_id),
					    .consumer = semel_text_shown(consumer->config.scope) });
	semel_item_move(item, item->entry_id.data ? SEMEL_ITEM_DUPLICATE : SEMEL_ITEM_DEFERRED);
	task->not_before_ms = semel_steady_ms(consumer->env) + RECHECK_MOVED_MS;
}

static semel_status settle_failure(struct semel_consumer *consumer, struct semel_task *task,
				   semel_error *error)
{
	const struct semel_outcome *outcome = &task->call.outcome;

	task->item.status = outcome->status;
	task->item.reason = outcome->reason;
	set_in_doubt(consumer, task);
	return semel_calls_settle_failed(consumer, task, outcome->retry_after_ms, error);
}

semel_status semel_calls_settle(struct semel_consumer *consumer, struct semel_task *task,
				semel_error *error)
{
	struct semel_item *item = &task->item;
	bool owned = true;

	if (task->state == SEMEL_TASK_COMMIT_UNKNOWN) {
		semel_item_reset(item);
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return semel_claims_release(consumer, &item->claim, error);
	}
	semel_status status =
		semel_claims_check_owned(consumer, item, consumer->arena, &owned, error);
	if (status != SEMEL_OK)
		return status;
	if (!owned) {
		leave_to_other_consumer(consumer, task);
		return SEMEL_OK;
	}
	if (task->call.outcome.status != SEMEL_OK)
		return settle_failure(consumer, task, error);
	return semel_settle_done(consumer, item, consumer->arena, error);
}

/* ---- starting -------------------------------------------------------------------------------- */

static void start(const struct semel_consumer *consumer, struct semel_calls *calls,
		  struct semel_task *task)
{
	if (consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN)
		calls->probe = task;
	task->item.runs++;
	task->call = (struct semel_call){ .event = &task->item.event,
					  .attempt = task->item.runs,
					  .user = task };
	task->state = SEMEL_TASK_RUNNING;
	task->call_number = semel_timeouts_begin(&calls->timeouts);
	calls->running++;
	bool accepted = semel_workers_submit(calls->pool, &task->call);
	assert(accepted); /* no more calls run than there are workers */
	(void)accepted;
}

void semel_calls_start(struct semel_consumer *consumer, struct semel_calls *calls,
		       const struct semel_task_list *starting)
{
	int64_t deferred_until_ms = consumer->intake.deferred_until_ms;

	for (uint32_t i = 0; i < starting->count; i++) {
		struct semel_task *task = starting->tasks[i];
		if (task->item.state == SEMEL_ITEM_ADMITTED)
			start(consumer, calls, task);
		else if (task->item.state == SEMEL_ITEM_DEFERRED &&
			 task->not_before_ms < deferred_until_ms)
			task->not_before_ms = deferred_until_ms;
	}
}

semel_status semel_calls_renew_claims(struct semel_consumer *consumer, struct semel_calls *calls,
				      semel_error *error)
{
	int64_t now_ms = semel_steady_ms(consumer->env);

	if (now_ms < calls->renew_at_ms || semel_dispatch_call_count(consumer) == 0)
		return SEMEL_OK;
	semel_status status = semel_claims_renew(consumer, error);
	if (status != SEMEL_OK)
		return status;
	calls->renew_at_ms = now_ms + RENEW_MS;
	return SEMEL_OK;
}
