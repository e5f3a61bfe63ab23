/* SPDX-License-Identifier: Apache-2.0 */
/* Which tasks may start. At most one call per ordering key runs, so order holds whatever the
 * concurrency; a slow call holds back its own key, not the rest. */
#include "consume/consumer.h"
#include "consume/dispatch_parts.h"

#define FETCH_MIN      16
#define FETCH_PER_CALL 4

bool semel_schedule_is_rewinding(const struct semel_consumer *consumer)
{
	return consumer->config.options.order == SEMEL_ORDER_TOTAL && consumer->intake.has_deferred;
}

/* ---- one task -------------------------------------------------------------------------------- */

/* A topic waits for its head, and nothing but the head comes a second time. */
static bool may_overtake(const struct semel_consumer *consumer, const struct semel_task *task)
{
	const struct semel_publish_metadata *metadata = &task->delivery.metadata;

	return consumer->config.options.order == SEMEL_ORDER_TOTAL &&
	       (metadata->replay > 0 || metadata->attempt > 0);
}

/* An older task of the same key is not done, so this one must wait; one that may overtake waits
 * only for calls that run. */
static bool key_waits(const struct semel_consumer *consumer, const struct semel_task *task)
{
	bool overtaking = may_overtake(consumer, task);
	bool older = true;

	for (const struct semel_task *other = consumer->dispatch->table.first; other;
	     other = other->next) {
		if (other == task)
			older = false;
		else if ((overtaking ? other->state != SEMEL_TASK_WAITING : older) &&
			 semel_task_same_key(other, task))
			return true;
		if (!older && !overtaking)
			return false;
	}
	return false;
}

static bool may_start(const struct semel_consumer *consumer, const struct semel_task *task)
{
	return task->state == SEMEL_TASK_WAITING &&
	       task->not_before_ms <= semel_steady_ms(consumer->env) && !key_waits(consumer, task);
}

static bool has_timed_out(const struct semel_dispatch *dispatch, const struct semel_task *task)
{
	return semel_timeouts_has(&dispatch->timeouts, task->id_hash);
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* A half-open breaker is tried with an event that has not timed out, if there is one. */
static bool wants_probe(const struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;

	if (dispatch->probe)
		return false;
	for (const struct semel_task *task = dispatch->table.first; task; task = task->next)
		if (!has_timed_out(dispatch, task) && may_start(consumer, task))
			return false;
	return true;
}

/* Whole pieces: a fetch for a few is not worth its cost. */
static uint32_t piece_size(const struct semel_consumer *consumer)
{
	uint32_t piece = consumer->config.options.concurrency * FETCH_PER_CALL;
	uint32_t room = consumer->dispatch->table.capacity - consumer->dispatch->table.count;

	if (piece < FETCH_MIN)
		piece = FETCH_MIN;
	return room < piece ? 0 : piece;
}

uint32_t semel_schedule_wanted(struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;
	int64_t now_ms = semel_steady_ms(consumer->env);
	uint32_t wanted = piece_size(consumer);

	if (dispatch->table.bytes >= SEMEL_TASK_BYTES_MAX || consumer->intake.paused ||
	    semel_schedule_is_rewinding(consumer) || now_ms < dispatch->fetch_at_ms)
		wanted = 0;
	wanted = semel_breaker_allow(&consumer->breaker, wanted, now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN && !wants_probe(consumer))
		wanted = 0;
	return semel_intake_cap(&consumer->intake, wanted, dispatch->table.count);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool key_is_chosen(const struct semel_task_list *list, const struct semel_task *task)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (semel_task_same_key(list->tasks[i], task))
			return true;
	return false;
}

/* Which tasks one pass over the table considers. probing: not those that timed out. */
struct pass {
	bool overtaking, probing;
};

static void choose_from(struct semel_consumer *consumer, struct pass pass,
			struct semel_task_list *list, uint32_t limit)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	for (struct semel_task *task = dispatch->table.first; task && list->count < limit;
	     task = task->next)
		if (task->state == SEMEL_TASK_WAITING &&
		    may_overtake(consumer, task) == pass.overtaking &&
		    !(pass.probing && has_timed_out(dispatch, task)) &&
		    !key_is_chosen(list, task) && may_start(consumer, task))
			list->tasks[list->count++] = task;
}

void semel_schedule_choose(struct semel_consumer *consumer, struct semel_task_list *starting)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	uint32_t limit = consumer->config.options.concurrency - dispatch->running;

	if (consumer->intake.paused)
		limit = 0;
	limit = semel_breaker_allow(&consumer->breaker, limit, semel_steady_ms(consumer->env));
	bool probing = consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN;
	if (probing && dispatch->probe)
		limit = 0;
	choose_from(consumer, (struct pass){ .overtaking = true, .probing = probing }, starting,
		    limit);
	choose_from(consumer, (struct pass){ .probing = probing }, starting, limit);
	if (!probing)
		return;
	choose_from(consumer, (struct pass){ .overtaking = true }, starting, limit);
	choose_from(consumer, (struct pass){ .overtaking = false }, starting, limit);
}
