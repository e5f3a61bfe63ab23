/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers outside the transaction, several at a time.
 *
 * Invariants:
 * - A claim is committed before the call, and finished after it, both by this thread.
 * - At most one call per ordering key is under way, so order holds whatever the concurrency.
 * - One turn is one transaction: it concludes the calls that ended and admits those that start. If
 *   it fails, every task is as it was, and the next turn does it again.
 * - A call goes on while the store or the broker is away, and its outcome is kept until it can be
 *   committed. Its delivery comes again over the new connection and takes the place of the old one,
 *   or finds the claim processed.
 * - A slow call holds back its own key, not the rest.
 */
#include "base/error.h"
#include "consume/consumer.h"
#include "consume/task_table.h"
#include "consume/timeouts.h"
#include "consume/workers.h"
#include "fault/failpoint.h"
#include "observe/log.h"
#include "observe/step_timer.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define TASKS_MIN        64
#define TASKS_PER_CALL   16
#define FETCH_MIN        16
#define FETCH_PER_CALL   4
#define TASK_BYTES_MAX   ((size_t)16 * 1024 * 1024) /* one fetch may exceed it */
#define RENEW_MS         10000
#define RECHECK_MOVED_MS 200
#define ARENA_BLOCK      (16 * 1024)

struct semel_dispatch {
	struct semel_workers *workers;
	struct semel_task_table table;
	struct semel_arena *fetched; /* of one fetch; the table has copies */
	struct semel_timeouts timeouts;
	const struct semel_task *probe; /* of a half-open breaker; NULL: none is at work */
	uint32_t running_count;
	int64_t renew_at_ms; /* steady */
	int64_t fetch_at_ms; /* steady: after a giving back */
};

semel_status semel_dispatch_open(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_outside_options options = { .target = consumer->target,
						 .timeout_ms = consumer->options.timeout_ms,
						 .scope = semel_text_string(consumer->scope),
						 .passed = (const char *const *)consumer->passed };
	uint32_t capacity = consumer->options.concurrency * TASKS_PER_CALL;
	struct semel_dispatch *dispatch = calloc(1, sizeof *dispatch);
	if (!dispatch)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the handlers");

	consumer->dispatch = dispatch;
	dispatch->fetched = semel_arena_new(ARENA_BLOCK);
	if (!dispatch->fetched ||
	    !semel_task_table_init(&dispatch->table, capacity > TASKS_MIN ? capacity : TASKS_MIN))
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for deliveries");
	semel_status status =
		semel_workers_start(consumer->outside, &options, consumer->options.concurrency,
				    &dispatch->workers, error);
	if (status == SEMEL_OK)
		semel_wake_watch_fd(consumer->wake, semel_workers_fd(dispatch->workers));
	return status;
}

void semel_dispatch_close(struct semel_consumer *consumer)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	if (!dispatch)
		return;
	if (dispatch->workers)
		semel_wake_unwatch_fd(consumer->wake, semel_workers_fd(dispatch->workers));
	semel_workers_stop(dispatch->workers);
	semel_task_table_clear(&dispatch->table);
	semel_arena_free(dispatch->fetched);
	free(dispatch);
	consumer->dispatch = NULL;
}

uint32_t semel_dispatch_task_count(const struct semel_consumer *consumer)
{
	return consumer->dispatch ? consumer->dispatch->table.count : 0;
}

uint32_t semel_dispatch_call_count(const struct semel_consumer *consumer)
{
	uint32_t count = 0;

	if (!consumer->dispatch)
		return 0;
	for (const struct semel_task *task = consumer->dispatch->table.first; task;
	     task = task->next)
		count += task->state != SEMEL_TASK_WAITING;
	return count;
}

bool semel_dispatch_has_call(const struct semel_consumer *consumer, struct semel_text event_id)
{
	return consumer->dispatch &&
	       semel_task_table_has_call(&consumer->dispatch->table, event_id);
}

int64_t semel_dispatch_next_ms(const struct semel_consumer *consumer)
{
	int64_t now_ms = semel_steady_ms(consumer->env), next_ms = 0;

	if (!consumer->dispatch)
		return 0;
	for (const struct semel_task *task = consumer->dispatch->table.first; task;
	     task = task->next)
		if (task->state == SEMEL_TASK_WAITING && task->not_before_ms > now_ms &&
		    (next_ms == 0 || task->not_before_ms < next_ms))
			next_ms = task->not_before_ms;
	return next_ms;
}

void semel_dispatch_wait(const struct semel_consumer *consumer, int64_t wait_ms)
{
	struct pollfd ended = { .fd = semel_workers_fd(consumer->dispatch->workers),
				.events = POLLIN };

	poll(&ended, 1, (int)wait_ms);
}

void semel_dispatch_interrupt(const struct semel_consumer *consumer)
{
	if (consumer->dispatch)
		semel_workers_interrupt(consumer->dispatch->workers);
}

/* ---- taking ---------------------------------------------------------------------------------- */

void semel_dispatch_detach(struct semel_consumer *consumer)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_task *next = NULL;

	if (!dispatch)
		return;
	for (struct semel_task *task = dispatch->table.first; task; task = next) {
		next = task->next;
		if (task->state == SEMEL_TASK_WAITING)
			semel_task_table_remove(&dispatch->table, task);
		else
			task->item.detached = !task->item.entry_id.data;
	}
	dispatch->renew_at_ms = 0; /* at once: the leases may have run out */
}

/* The copy of an event whose call is in flight: it is settled by that call. */
static bool reattach(struct semel_task_table *table, const struct semel_delivery *delivery)
{
	struct semel_task *task = semel_task_table_find_detached(table, delivery);

	if (!task)
		return false;
	task->item.detached = false;
	task->delivery.partition = delivery->partition;
	task->delivery.offset = delivery->offset;
	task->delivery.redelivered = delivery->redelivered;
	task->delivery.offset_in_store = delivery->offset_in_store;
	task->delivery.tag = delivery->tag;
	return true;
}

/* A topic that waits as a whole: its head comes by the broker, and in its place. So what is at hand
 * goes back there, once the calls under way have ended; nothing new is begun until then. */
static bool is_rewinding(const struct semel_consumer *consumer)
{
	return consumer->options.order == SEMEL_ORDER_TOTAL && consumer->has_deferred;
}

/* The broker has not done what it was told: only a new connection makes it certain. */
static semel_status start_over(semel_status status, semel_error *error)
{
	if (status != SEMEL_BUSY)
		return status;
	char said[SEMEL_ERROR_TEXT_MAX];
	memcpy(said, error->text, sizeof said);
	return semel_error_set(error, SEMEL_OUTAGE, "%s", said);
}

static semel_status rewind_broker(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	if (!is_rewinding(consumer) || semel_dispatch_call_count(consumer) > 0)
		return SEMEL_OK;
	while (dispatch->table.first)
		semel_task_table_remove(&dispatch->table, dispatch->table.first);
	dispatch->fetch_at_ms = consumer->pause_until_ms;
	consumer->has_deferred = false;
	return start_over(consumer->broker->driver->rewind(consumer->broker, error), error);
}

static bool may_start(const struct semel_consumer *consumer, const struct semel_task *task);

static bool is_suspect(const struct semel_dispatch *dispatch, const struct semel_task *task)
{
	return semel_timeouts_has(&dispatch->timeouts, task->id_hash);
}

/* A half-open breaker is tried with an event that has not timed out, if there is one. */
static bool wants_probe(const struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;

	if (dispatch->probe)
		return false;
	for (const struct semel_task *task = dispatch->table.first; task; task = task->next)
		if (!is_suspect(dispatch, task) && may_start(consumer, task))
			return false;
	return true;
}

static uint32_t wanted_deliveries(struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;
	const struct semel_task_table *table = &dispatch->table;
	int64_t now_ms = semel_steady_ms(consumer->env);
	uint32_t room = table->capacity - table->count;
	uint32_t piece = consumer->options.concurrency * FETCH_PER_CALL;

	if (piece < FETCH_MIN)
		piece = FETCH_MIN;
	room = room < piece ? 0 : piece;
	if (table->bytes >= TASK_BYTES_MAX || consumer->paused || is_rewinding(consumer) ||
	    now_ms < dispatch->fetch_at_ms)
		room = 0;
	room = semel_breaker_allow(&consumer->breaker, room, now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN && !wants_probe(consumer))
		room = 0;
	return semel_consumer_cap(consumer, room, table->count);
}

static semel_status fetch_deliveries(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_delivery *deliveries = NULL;
	uint32_t count = 0;

	semel_arena_reset(dispatch->fetched);
	semel_status status = semel_consumer_fetch(consumer, wanted_deliveries(consumer),
						   dispatch->fetched, &deliveries, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		if (!reattach(&dispatch->table, &deliveries[i]) &&
		    !semel_task_table_add(&dispatch->table, consumer, &deliveries[i],
					  (struct semel_text){ 0 }))
			status = semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
	return status;
}

/* Followers whose head is settled; those whose key is at hand come with a later turn. In the open
 * transaction. */
static semel_status take_released(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_task_table *table = &dispatch->table;
	struct semel_item *items = NULL;
	uint32_t count = 0;

	uint32_t max = semel_breaker_allow(&consumer->breaker, table->capacity - table->count,
					   semel_steady_ms(consumer->env));
	if (max == 0 || consumer->paused || table->bytes >= TASK_BYTES_MAX)
		return SEMEL_OK;
	semel_arena_reset(dispatch->fetched);
	semel_status status =
		semel_followers_read(consumer, max, dispatch->fetched, &items, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		if (!semel_task_table_has_key(table, &items[i]) &&
		    !semel_task_table_add(table, consumer, items[i].delivery, items[i].entry_id))
			status = semel_error_set(error, SEMEL_INTERNAL, "no memory for a follower");
	return status;
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct task_list {
	struct semel_task **tasks;
	uint32_t count;
};

static bool key_chosen(const struct task_list *task_list, const struct semel_task *task)
{
	for (uint32_t i = 0; i < task_list->count; i++)
		if (semel_task_same_key(task_list->tasks[i], task))
			return true;
	return false;
}

/* A topic waits for its head, and nothing but the head comes a second time. */
static bool may_overtake(const struct semel_consumer *consumer, const struct semel_task *task)
{
	const struct semel_publish_metadata *metadata = &task->delivery.metadata;

	return consumer->options.order == SEMEL_ORDER_TOTAL &&
	       (metadata->replay > 0 || metadata->attempt > 0);
}

/* An older task of the same key is not done, so this one must wait; one that leads waits only for
 * what is under way. */
static bool key_waits(const struct semel_consumer *consumer, const struct semel_task *task)
{
	bool leading = may_overtake(consumer, task);
	bool older = true;

	for (const struct semel_task *other = consumer->dispatch->table.first; other;
	     other = other->next) {
		if (other == task)
			older = false;
		else if ((leading ? other->state != SEMEL_TASK_WAITING : older) &&
			 semel_task_same_key(other, task))
			return true;
		if (!older && !leading)
			return false;
	}
	return false;
}

static bool may_start(const struct semel_consumer *consumer, const struct semel_task *task)
{
	return task->state == SEMEL_TASK_WAITING &&
	       task->not_before_ms <= semel_steady_ms(consumer->env) && !key_waits(consumer, task);
}

/* Which ones are looked at in one go. probing: not those that timed out. */
struct pass {
	bool leading, probing;
};

static void choose_from(struct semel_consumer *consumer, struct pass pass,
			struct task_list *task_list, uint32_t limit)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	for (struct semel_task *task = dispatch->table.first; task && task_list->count < limit;
	     task = task->next)
		if (task->state == SEMEL_TASK_WAITING &&
		    may_overtake(consumer, task) == pass.leading &&
		    !(pass.probing && is_suspect(dispatch, task)) && !key_chosen(task_list, task) &&
		    may_start(consumer, task))
			task_list->tasks[task_list->count++] = task;
}

static void choose(struct semel_consumer *consumer, struct task_list *task_list)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	uint32_t limit = consumer->options.concurrency - dispatch->running_count;

	if (consumer->paused)
		limit = 0;
	limit = semel_breaker_allow(&consumer->breaker, limit, semel_steady_ms(consumer->env));
	bool probing = consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN;
	if (probing && dispatch->probe)
		limit = 0;
	choose_from(consumer, (struct pass){ .leading = true, .probing = probing }, task_list,
		    limit);
	choose_from(consumer, (struct pass){ .probing = probing }, task_list, limit);
	if (!probing)
		return;
	choose_from(consumer, (struct pass){ .leading = true }, task_list, limit);
	choose_from(consumer, (struct pass){ .leading = false }, task_list, limit);
}

/* ---- concluding ------------------------------------------------------------------------------ */

/* What the outcome says about the dependency; once for each call. */
static void report_outcome(struct semel_consumer *consumer, struct semel_task *task)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_outcome *outcome = &task->job.outcome;

	if (dispatch->probe == task)
		dispatch->probe = NULL;
	if (outcome->is_over)
		semel_consumer_stop(consumer);
	if (outcome->is_over || outcome->interrupted)
		return;
	semel_class class = semel_status_class(outcome->status);
	if (outcome->timed_out) {
		outcome->status = semel_timeouts_count(&dispatch->timeouts, task->id_hash,
						       task->call, consumer->outside->is_program)
					  ? SEMEL_HANDLER_RETRY
					  : SEMEL_OUTAGE;
	} else if (class == SEMEL_CLASS_OK || class == SEMEL_CLASS_REJECT) {
		semel_timeouts_answered(&dispatch->timeouts, task->call);
		semel_timeouts_forget(&dispatch->timeouts, task->id_hash);
	}
	semel_breaker_report(&consumer->breaker, outcome->status, outcome->reason,
			     semel_steady_ms(consumer->env), semel_random(consumer->env));
}

/* A call that was not answered where one run is all: nobody knows whether it happened. */
static void set_in_doubt(const struct semel_consumer *consumer, struct semel_task *task)
{
	const struct semel_outcome *outcome = &task->job.outcome;

	task->item.timed_out = outcome->timed_out;
	if ((!outcome->timed_out && !outcome->interrupted) || !semel_consumer_runs_once(consumer))
		return;
	task->item.status = SEMEL_HANDLER_REJECT;
	task->item.reason =
		outcome->interrupted
			? "in doubt: the consumer stopped before the handler answered; look "
			  "whether "
			  "the effect happened, then replay or discard"
			: "in doubt: the handler did not answer in time; look whether the effect "
			  "happened, then replay or discard";
}

static semel_status settle_failed_call(struct semel_consumer *consumer, struct semel_task *task,
				       int64_t retry_after_ms, semel_error *error)
{
	struct semel_item *item = &task->item;
	semel_status status =
		semel_settle_failed(consumer, item, retry_after_ms, consumer->arena, error);

	/* Once more here: the claim is given back, and made anew when the call starts. */
	if (status == SEMEL_OK && semel_consumer_claims(consumer) &&
	    (item->state == SEMEL_ITEM_UNDECIDED || item->state == SEMEL_ITEM_DEFERRED))
		status = consumer->guard->driver->forget(consumer->guard, &item->claim, error);
	if (item->state == SEMEL_ITEM_DEFERRED && item->timed_out)
		item->delay_ms =
			semel_backoff_ms(consumer->retry.delayed, 1, semel_random(consumer->env));
	task->not_before_ms = semel_steady_ms(consumer->env) + item->delay_ms;
	return status;
}

/* It has moved to another consumer, whose answer counts. A delivery comes again, and the claim
 * tells then; a follower is kept in the store. */
static void leave_to_other_consumer(const struct semel_consumer *consumer, struct semel_task *task)
{
	struct semel_item *item = &task->item;

	semel_log(SEMEL_LOG_WARN, "the event has moved to another consumer meanwhile",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(item->claim.event_id),
					      .consumer = semel_text_shown(consumer->scope) });
	semel_item_move(item, item->entry_id.data ? SEMEL_ITEM_DUPLICATE : SEMEL_ITEM_DEFERRED);
	task->not_before_ms = semel_steady_ms(consumer->env) + RECHECK_MOVED_MS;
}

static semel_status conclude(struct semel_consumer *consumer, struct semel_task *task,
			     semel_error *error)
{
	const struct semel_outcome *outcome = &task->job.outcome;
	struct semel_item *item = &task->item;
	bool ours = true;

	if (task->state == SEMEL_TASK_COMMIT_UNKNOWN) {
		semel_item_reset(item);
		semel_item_move(item, SEMEL_ITEM_DEFERRED);
		return semel_claim_release(consumer, &item->claim, error);
	}
	semel_status status = semel_fence_check(consumer, item, consumer->arena, &ours, error);
	if (status != SEMEL_OK)
		return status;
	if (!ours) {
		leave_to_other_consumer(consumer, task);
		return SEMEL_OK;
	}
	if (outcome->status == SEMEL_OK)
		return semel_settle_done(consumer, item, consumer->arena, error);
	item->status = outcome->status;
	item->reason = outcome->reason;
	set_in_doubt(consumer, task);
	return settle_failed_call(consumer, task, outcome->retry_after_ms, error);
}

static void collect_ended(struct semel_consumer *consumer, struct task_list *ended)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_job *job;

	while ((job = semel_workers_take(dispatch->workers)) != NULL) {
		struct semel_task *task = job->user;
		task->state = SEMEL_TASK_ENDED;
		dispatch->running_count--;
		report_outcome(consumer, task);
	}
	for (struct semel_task *task = dispatch->table.first; task; task = task->next)
		if (task->state == SEMEL_TASK_ENDED || task->state == SEMEL_TASK_COMMIT_UNKNOWN)
			ended->tasks[ended->count++] = task;
}

/* ---- one turn -------------------------------------------------------------------------------- */

/* The current version of the event, for the call. Behind a savepoint: there are stores on which an
 * expression that fails dooms the transaction of everybody. */
static semel_status upcast(struct semel_consumer *consumer, struct semel_task *task,
			   semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_item *item = &task->item;
	semel_error said = { .status = SEMEL_OK };

	if (task->upcast || !semel_upcasters_have_step(consumer->upcasters, &item->event))
		return SEMEL_OK;
	semel_status status = driver->savepoint(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	item->status = semel_upcasters_apply(consumer->upcasters, consumer->store, &item->event,
					     task->arena, &said);
	if (item->status == SEMEL_OK) {
		task->upcast = true;
		return driver->release(consumer->store, error);
	}
	status = driver->rollback_to(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	item->event = task->delivery.event;
	item->runs++;
	item->reason = semel_arena_printf(consumer->arena, "%s", said.text);
	return settle_failed_call(consumer, task, 0, error);
}

static semel_status admit_tasks(struct semel_consumer *consumer, const struct task_list *starting,
				semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < starting->count && status == SEMEL_OK; i++) {
		struct semel_task *task = starting->tasks[i];
		semel_item_reset(&task->item);
		status = semel_admit(consumer, &task->item, 1, consumer->arena, error);
		if (status == SEMEL_OK && task->item.state == SEMEL_ITEM_ADMITTED)
			status = upcast(consumer, task, error);
	}
	return status;
}

/* How far the deliveries are settled by this transaction. */
static semel_status write_positions(struct semel_consumer *consumer, const struct task_list *ended,
				    const struct task_list *starting, semel_error *error)
{
	semel_status status = SEMEL_OK;

	semel_positions_begin(consumer->positions);
	for (uint32_t i = 0; i < ended->count && status == SEMEL_OK; i++) {
		status = semel_items_check(&ended->tasks[i]->item, 1, error);
		semel_positions_include(consumer->positions, &ended->tasks[i]->item);
	}
	for (uint32_t i = 0; i < starting->count && status == SEMEL_OK; i++) {
		status = semel_items_check(&starting->tasks[i]->item, 1, error);
		semel_positions_include(consumer->positions, &starting->tasks[i]->item);
	}
	return status == SEMEL_OK ? semel_positions_write(consumer->positions, error) : status;
}

static semel_status write_all(struct semel_consumer *consumer, const struct task_list *ended,
			      const struct task_list *starting, bool released, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < ended->count && status == SEMEL_OK; i++)
		status = conclude(consumer, ended->tasks[i], error);
	if (status == SEMEL_OK)
		status = admit_tasks(consumer, starting, error);
	if (status == SEMEL_OK && released)
		status = take_released(consumer, error);
	if (status == SEMEL_OK && ended->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_EFFECT, error);
	return status == SEMEL_OK ? write_positions(consumer, ended, starting, error) : status;
}

static void remember(const struct task_list *task_list)
{
	for (uint32_t i = 0; i < task_list->count; i++)
		task_list->tasks[i]->before = task_list->tasks[i]->item;
}

static void restore_items(const struct task_list *task_list)
{
	for (uint32_t i = 0; i < task_list->count; i++)
		task_list->tasks[i]->item = task_list->tasks[i]->before;
}

/* Nobody knows whether it was committed, or it was and the way behind it is closed: those that did
 * not start have perhaps a claim, which is given back when the store answers again. */
static void note_commit_unknown(const struct task_list *starting)
{
	for (uint32_t i = 0; i < starting->count; i++)
		if (starting->tasks[i]->item.state == SEMEL_ITEM_ADMITTED)
			starting->tasks[i]->state = SEMEL_TASK_COMMIT_UNKNOWN;
}

static semel_status commit(struct semel_consumer *consumer, const struct task_list *ended,
			   const struct task_list *starting, semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = consumer->store->driver->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	if (status == SEMEL_OK && ended->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
	if (status == SEMEL_OK && starting->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	return status;
}

static semel_status transact(struct semel_consumer *consumer, const struct task_list *ended,
			     const struct task_list *starting, bool released, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;

	remember(ended);
	remember(starting);
	status = write_all(consumer, ended, starting, released, error);
	if (status != SEMEL_OK) {
		driver->rollback(consumer->store);
	} else {
		status = commit(consumer, ended, starting, error);
		if (status != SEMEL_OK) {
			note_commit_unknown(starting);
			status = start_over(status, error);
		}
	}
	if (status != SEMEL_OK) {
		restore_items(ended);
		restore_items(starting);
	}
	return status;
}

/* What is durable leaves the table, also when the broker was not told: it comes again, and the
 * store knows it. */
static void remove_settled(struct semel_consumer *consumer, const struct task_list *task_list)
{
	struct semel_task_table *table = &consumer->dispatch->table;

	for (uint32_t i = 0; i < task_list->count; i++) {
		struct semel_task *task = task_list->tasks[i];
		if (task->state == SEMEL_TASK_RUNNING)
			continue;
		task->state = SEMEL_TASK_WAITING;
		if (task->item.state >= SEMEL_ITEM_DONE || task->item.detached)
			semel_task_table_remove(table, task);
	}
}

static semel_status settle(struct semel_consumer *consumer, const struct task_list *task_list,
			   semel_error *error)
{
	struct semel_item **items =
		semel_arena_alloc(consumer->arena, (task_list->count + 1) * sizeof(*items));
	semel_status status = SEMEL_INTERNAL;

	if (!items) {
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory for the acks");
	} else {
		for (uint32_t i = 0; i < task_list->count; i++)
			items[i] = &task_list->tasks[i]->item;
		status = semel_acknowledge(consumer, items, task_list->count, error);
	}
	remove_settled(consumer, task_list);
	return start_over(status, error);
}

static void start(struct semel_consumer *consumer, const struct task_list *starting)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	for (uint32_t i = 0; i < starting->count; i++) {
		struct semel_task *task = starting->tasks[i];
		if (task->item.state == SEMEL_ITEM_DEFERRED &&
		    task->not_before_ms < consumer->pause_until_ms)
			task->not_before_ms = consumer->pause_until_ms;
		if (task->item.state != SEMEL_ITEM_ADMITTED)
			continue;
		if (consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN)
			dispatch->probe = task;
		task->item.runs++;
		task->job = (struct semel_job){ .event = &task->item.event,
						.attempt = task->item.runs,
						.user = task };
		task->state = SEMEL_TASK_RUNNING;
		task->call = semel_timeouts_begin(&dispatch->timeouts);
		dispatch->running_count++;
		semel_workers_submit(dispatch->workers, &task->job);
	}
}

/* So that nobody takes the calls under way for abandoned ones. */
static semel_status renew_claims(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	int64_t steady_ms = semel_steady_ms(consumer->env);

	if (steady_ms < dispatch->renew_at_ms || semel_dispatch_call_count(consumer) == 0)
		return SEMEL_OK;
	semel_status status = consumer->guard->driver->renew(
		consumer->guard, consumer->owner,
		semel_now_ms(consumer->env) + SEMEL_CLAIM_LEASE_MS, error);
	if (status == SEMEL_OK)
		dispatch->renew_at_ms = steady_ms + RENEW_MS;
	return status;
}

static struct task_list make_task_list(struct semel_consumer *consumer)
{
	size_t count = consumer->dispatch->table.capacity;

	return (struct task_list){ .tasks = semel_arena_alloc(
					   consumer->arena, count * sizeof(struct semel_task *)) };
}

/* Is it told to stop, so that nothing new is begun? */
static bool is_ending(const struct semel_consumer *consumer)
{
	return consumer->ending || semel_wake_is_notified(consumer->wake);
}

semel_status semel_dispatch_step(struct semel_consumer *consumer, bool *busy_out,
				 semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct task_list ended = make_task_list(consumer), starting = make_task_list(consumer);
	bool holds = false;

	*busy_out = false;
	if (!ended.tasks || !starting.tasks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a turn");
	semel_status status = renew_claims(consumer, error);
	if (status == SEMEL_OK && !is_ending(consumer))
		status = fetch_deliveries(consumer, error);
	if (status == SEMEL_OK && !is_ending(consumer))
		status = driver->holds->has_any(driver->tx(consumer->store), consumer->scope,
						&holds, error);
	if (status != SEMEL_OK)
		return status;
	collect_ended(consumer, &ended);
	if (!is_ending(consumer) && !is_rewinding(consumer))
		choose(consumer, &starting);
	if (ended.count == 0 && starting.count == 0 && !holds)
		return SEMEL_OK;
	status = transact(consumer, &ended, &starting, holds, error);
	if (status != SEMEL_OK)
		return status;
	start(consumer, &starting);
	*busy_out = ended.count > 0 || starting.count > 0;
	status = settle(consumer, &ended, error);
	semel_error second = { .status = SEMEL_OK };
	semel_status other = settle(consumer, &starting, status == SEMEL_OK ? error : &second);
	if (status == SEMEL_OK)
		status = other;
	return status == SEMEL_OK ? rewind_broker(consumer, error) : status;
}
