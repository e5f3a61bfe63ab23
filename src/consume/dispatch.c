/* SPDX-License-Identifier: Apache-2.0 */
/* - A claim is committed before the call and finished after it, both by this thread.
 * - At most one call per ordering key runs, so order is kept at any concurrency; a slow call delays
 *   its own key and no other.
 * - One step is one transaction: it settles the calls that ended and admits those that start. If it
 *   fails, every task is as it was before, and the next step repeats it.
 * - After an outage the event of a running call is redelivered over the new connection. The new
 *   delivery takes the place of the old one, or finds the claim processed.
 */
#include "consume/dispatch.h"

#include "base/error.h"
#include "consume/calls.h"
#include "fault/failpoint.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define TASKS_MIN      64
#define TASKS_PER_CALL 16
#define FETCH_MIN      16
#define FETCH_PER_CALL 4
#define TASK_BYTES_MAX ((size_t)16 * 1024 * 1024) /* in flight; one fetch may exceed it */
#define ARENA_BLOCK    (16 * 1024)

struct semel_dispatch {
	struct semel_calls calls;
	struct semel_task_table table;
	struct semel_arena *fetched; /* of one fetch; the table has copies */
	int64_t fetch_at_ms;         /* steady: no fetch before this, after a rewind */
};

static semel_status start(struct semel_consumer *consumer, struct semel_dispatch *dispatch,
			  semel_error *error)
{
	const struct semel_consumer_handler *handler = &consumer->handler;
	uint32_t concurrency = consumer->config.options.concurrency;
	uint32_t capacity = concurrency * TASKS_PER_CALL;
	struct semel_outside_options options = {
		.target = handler->target,
		.timeout_ms = consumer->config.options.timeout_ms,
		.scope = semel_text_string(consumer->config.scope),
		.passed = (const char *const *)handler->passed,
	};

	dispatch->fetched = semel_arena_new(ARENA_BLOCK);
	if (!dispatch->fetched ||
	    !semel_task_table_init(&dispatch->table, capacity > TASKS_MIN ? capacity : TASKS_MIN))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for deliveries");
	semel_status status = semel_workers_start(handler->outside, &options, concurrency,
						  &dispatch->calls.pool, error);
	if (status != SEMEL_OK)
		return status;
	semel_wake_watch_fd(consumer->wake, semel_worker_pool_fd(dispatch->calls.pool));
	return SEMEL_OK;
}

/* Opens everything or nothing, so that it can be called again after an outage. */
semel_status semel_dispatch_open(struct semel_consumer *consumer, semel_error *error)
{
	consumer->dispatch = calloc(1, sizeof *consumer->dispatch);
	if (!consumer->dispatch)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the handlers");
	semel_status status = start(consumer, consumer->dispatch, error);
	if (status != SEMEL_OK)
		semel_dispatch_close(consumer);
	return status;
}

void semel_dispatch_close(struct semel_consumer *consumer)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	if (!dispatch)
		return;
	if (dispatch->calls.pool)
		semel_wake_unwatch_fd(consumer->wake, semel_worker_pool_fd(dispatch->calls.pool));
	semel_worker_pool_free(dispatch->calls.pool);
	semel_task_table_clear(&dispatch->table);
	semel_arena_free(dispatch->fetched);
	free(dispatch);
	consumer->dispatch = NULL;
}

/* ---- queries --------------------------------------------------------------------------------- */

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
	struct pollfd ended = { .fd = semel_worker_pool_fd(consumer->dispatch->calls.pool),
				.events = POLLIN };

	poll(&ended, 1, (int)wait_ms);
}

void semel_dispatch_interrupt(const struct semel_consumer *consumer)
{
	if (consumer->dispatch)
		semel_worker_pool_interrupt(consumer->dispatch->calls.pool);
}

/* ---- which tasks may start ------------------------------------------------------------------- */

/* In total order the whole topic waits for its head, which the broker delivers in its place in the
 * order. So once the running calls have ended, everything that was fetched is delivered again;
 * until then nothing new is started. */
static bool is_rewinding(const struct semel_consumer *consumer)
{
	return consumer->config.options.order == SEMEL_ORDER_TOTAL && consumer->intake.has_deferred;
}

/* In total order the topic waits for its head, and only the head is delivered again as a retry or a
 * replay. */
static bool may_overtake(const struct semel_consumer *consumer, const struct semel_task *task)
{
	const struct semel_publish_metadata *metadata = &task->delivery.metadata;

	return consumer->config.options.order == SEMEL_ORDER_TOTAL &&
	       (metadata->replay > 0 || metadata->attempt > 0);
}

/* A task waits for every older task of its key; one that may overtake waits only for running calls
 * of its key. */
static bool key_waits(const struct semel_consumer *consumer, const struct semel_task *task)
{
	bool overtaking = may_overtake(consumer, task);
	bool older = true;

	for (const struct semel_task *other = consumer->dispatch->table.first; other;
	     other = other->next) {
		if (other == task)
			older = false;
		else if ((overtaking ? other->state != SEMEL_TASK_WAITING : older) &&
			 semel_task_has_same_key(other, task))
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

static bool key_is_chosen(const struct semel_task_list *list, const struct semel_task *task)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (semel_task_has_same_key(list->tasks[i], task))
			return true;
	return false;
}

/* Which tasks one pass over the table considers. probing: leaves out tasks that timed out. */
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
		    !(pass.probing && semel_calls_has_timed_out(&dispatch->calls, task)) &&
		    !key_is_chosen(list, task) && may_start(consumer, task))
			list->tasks[list->count++] = task;
}

/* Adds the tasks that may start now. */
static void choose_tasks(struct semel_consumer *consumer, struct semel_task_list *starting)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	uint32_t limit = consumer->config.options.concurrency - dispatch->calls.running;

	if (consumer->intake.paused)
		limit = 0;
	limit = semel_breaker_allow(&consumer->breaker, limit, semel_steady_ms(consumer->env));
	bool probing = consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN;
	if (probing && dispatch->calls.probe)
		limit = 0;
	choose_from(consumer, (struct pass){ .overtaking = true, .probing = probing }, starting,
		    limit);
	choose_from(consumer, (struct pass){ .probing = probing }, starting, limit);
	if (!probing)
		return;
	choose_from(consumer, (struct pass){ .overtaking = true }, starting, limit);
	choose_from(consumer, (struct pass){ .overtaking = false }, starting, limit);
}

/* ---- connections ----------------------------------------------------------------------------- */

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
	dispatch->calls.renew_at_ms = 0; /* renew at once: the leases may have run out */
}

/* A redelivered copy of an event whose call runs or has ended takes the place of the old delivery:
 * that call settles it. */
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

/* The broker did not carry out the request: only a new connection restores a known state. */
static semel_status as_outage(semel_status status, semel_error *error)
{
	if (status != SEMEL_BUSY)
		return status;
	char text[SEMEL_ERROR_TEXT_MAX];
	memcpy(text, error->text, sizeof text);
	return semel_error_set(error, SEMEL_OUTAGE, "%s", text);
}

static semel_status rewind_broker(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	if (!is_rewinding(consumer) || semel_dispatch_call_count(consumer) > 0)
		return SEMEL_OK;
	while (dispatch->table.first)
		semel_task_table_remove(&dispatch->table, dispatch->table.first);
	dispatch->fetch_at_ms = consumer->intake.deferred_until_ms;
	consumer->intake.has_deferred = false;
	return as_outage(consumer->broker->driver->rewind(consumer->broker, error), error);
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* Is a new delivery needed as a probe? A half-open breaker is tried with an event that has not
 * timed out, if there is one. */
static bool wants_probe(const struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;

	if (dispatch->calls.probe)
		return false;
	for (const struct semel_task *task = dispatch->table.first; task; task = task->next)
		if (!semel_calls_has_timed_out(&dispatch->calls, task) && may_start(consumer, task))
			return false;
	return true;
}

/* Fetches whole pieces only: a fetch of a few deliveries is not worth its cost. */
static uint32_t piece_size(const struct semel_consumer *consumer)
{
	uint32_t piece = consumer->config.options.concurrency * FETCH_PER_CALL;
	uint32_t free_count = consumer->dispatch->table.capacity - consumer->dispatch->table.count;

	if (piece < FETCH_MIN)
		piece = FETCH_MIN;
	return free_count < piece ? 0 : piece;
}

/* How many more deliveries may be fetched. */
static uint32_t wanted_deliveries(struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;
	int64_t now_ms = semel_steady_ms(consumer->env);
	uint32_t wanted = piece_size(consumer);

	if (dispatch->table.bytes >= TASK_BYTES_MAX || consumer->intake.paused ||
	    is_rewinding(consumer) || now_ms < dispatch->fetch_at_ms)
		wanted = 0;
	wanted = semel_breaker_allow(&consumer->breaker, wanted, now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_HALF_OPEN && !wants_probe(consumer))
		wanted = 0;
	return semel_intake_cap(&consumer->intake, wanted, dispatch->table.count);
}

static semel_status fetch_deliveries(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_delivery *deliveries = NULL;
	uint32_t count = 0;

	semel_arena_reset(dispatch->fetched);
	semel_status status = semel_intake_fetch(consumer, wanted_deliveries(consumer),
						 dispatch->fetched, &deliveries, &count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < count; i++)
		if (!reattach(&dispatch->table, &deliveries[i]) &&
		    !semel_task_table_add(&dispatch->table, consumer, &deliveries[i],
					  (struct semel_text){ 0 }))
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a delivery");
	return SEMEL_OK;
}

/* Adds followers whose head is settled; those whose key already has a task are read in a later
 * step. In the open transaction. */
static semel_status read_followers(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct semel_task_table *table = &dispatch->table;
	struct semel_item *items = NULL;
	uint32_t count = 0;

	uint32_t max = semel_breaker_allow(&consumer->breaker, table->capacity - table->count,
					   semel_steady_ms(consumer->env));
	if (max == 0 || consumer->intake.paused || table->bytes >= TASK_BYTES_MAX)
		return SEMEL_OK;
	semel_arena_reset(dispatch->fetched);
	semel_status status =
		semel_followers_read(consumer, max, dispatch->fetched, &items, &count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < count; i++)
		if (!semel_task_table_has_key(table, &items[i]) &&
		    !semel_task_table_add(table, consumer, items[i].delivery, items[i].entry_id))
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a follower");
	return SEMEL_OK;
}

/* ---- the transaction ------------------------------------------------------------------------- */

/* What one step does. */
struct step {
	struct semel_task_list ended, starting;
	bool holds; /* the scope has holds: followers may be ready */
};

static semel_status settle_failed_upcast(struct semel_consumer *consumer, struct semel_task *task,
					 const semel_error *upcast_error, semel_error *error)
{
	struct semel_item *item = &task->item;
	semel_status status = consumer->store->driver->rollback_to(consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	item->event = task->delivery.event;
	item->runs++;
	item->reason = semel_arena_printf(consumer->arena, "%s", upcast_error->text);
	return semel_calls_settle_failed(consumer, task, 0, error);
}

/* Brings the event to its current version for the call, with a savepoint: on some stores an
 * expression that fails aborts the whole transaction. */
static semel_status upcast(struct semel_consumer *consumer, struct semel_task *task,
			   semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_item *item = &task->item;
	semel_error upcast_error = { .status = SEMEL_OK };

	if (task->upcast || !semel_upcasters_has_step(consumer->handler.upcasters, &item->event))
		return SEMEL_OK;
	semel_status status = driver->savepoint(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	item->status = semel_upcasters_apply(consumer->handler.upcasters, consumer->store,
					     &item->event, task->arena, &upcast_error);
	if (item->status != SEMEL_OK)
		return settle_failed_upcast(consumer, task, &upcast_error, error);
	task->upcast = true;
	return driver->release(consumer->store, error);
}

static semel_status admit(struct semel_consumer *consumer, struct semel_task *task,
			  semel_error *error)
{
	semel_item_reset(&task->item);
	semel_status status = semel_admit(consumer, &task->item, 1, consumer->arena, error);
	if (status != SEMEL_OK || task->item.state != SEMEL_ITEM_ADMITTED)
		return status;
	return upcast(consumer, task, error);
}

static semel_status include_positions(struct semel_consumer *consumer,
				      const struct semel_task_list *list, semel_error *error)
{
	for (uint32_t i = 0; i < list->count; i++) {
		semel_status status = semel_items_check(&list->tasks[i]->item, 1, error);
		if (status != SEMEL_OK)
			return status;
		semel_positions_include(consumer->positions, &list->tasks[i]->item);
	}
	return SEMEL_OK;
}

/* Writes how far the deliveries are settled by this transaction. */
static semel_status write_positions(struct semel_consumer *consumer, const struct step *step,
				    semel_error *error)
{
	semel_positions_begin(consumer->positions);
	semel_status status = include_positions(consumer, &step->ended, error);
	if (status != SEMEL_OK)
		return status;
	status = include_positions(consumer, &step->starting, error);
	if (status != SEMEL_OK)
		return status;
	return semel_positions_write(consumer->positions, error);
}

static semel_status write_step(struct semel_consumer *consumer, const struct step *step,
			       semel_error *error)
{
	for (uint32_t i = 0; i < step->ended.count; i++) {
		semel_status status = semel_calls_settle(consumer, step->ended.tasks[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < step->starting.count; i++) {
		semel_status status = admit(consumer, step->starting.tasks[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	if (step->holds) {
		semel_status status = read_followers(consumer, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (step->ended.count > 0) {
		semel_status status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_EFFECT, error);
		if (status != SEMEL_OK)
			return status;
	}
	return write_positions(consumer, step, error);
}

static semel_status commit(struct semel_consumer *consumer, const struct step *step,
			   semel_error *error)
{
	semel_status status = semel_consumer_commit_metered(consumer, error);

	if (status != SEMEL_OK)
		return status;
	if (step->ended.count > 0) {
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (step->starting.count > 0)
		return semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	return SEMEL_OK;
}

static void save_items(const struct semel_task_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		list->tasks[i]->before = list->tasks[i]->item;
}

static void restore_items(const struct semel_task_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		list->tasks[i]->item = list->tasks[i]->before;
}

/* It is unknown whether the transaction was committed, or it was committed and a later step failed.
 * The tasks that did not start may have claims, which are released when the store answers again. */
static void note_commit_unknown(const struct semel_task_list *starting)
{
	for (uint32_t i = 0; i < starting->count; i++)
		if (starting->tasks[i]->item.state == SEMEL_ITEM_ADMITTED)
			starting->tasks[i]->state = SEMEL_TASK_COMMIT_UNKNOWN;
}

static semel_status run_transaction(struct semel_consumer *consumer, const struct step *step,
				    semel_error *error)
{
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;

	save_items(&step->ended);
	save_items(&step->starting);
	status = write_step(consumer, step, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		goto restore;
	}
	status = commit(consumer, step, error);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	note_commit_unknown(&step->starting);
	status = as_outage(status, error);

restore:
	restore_items(&step->ended);
	restore_items(&step->starting);
	return status;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Settled tasks leave the table, even if the broker has not accepted the ack: the event is then
 * redelivered, and the store shows that it is settled. */
static void remove_settled(struct semel_consumer *consumer, const struct semel_task_list *list)
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct semel_task *task = list->tasks[i];
		if (task->state == SEMEL_TASK_RUNNING)
			continue;
		task->state = SEMEL_TASK_WAITING;
		if (semel_item_is_settled(&task->item) || task->item.detached)
			semel_task_table_remove(&consumer->dispatch->table, task);
	}
}

static semel_status acknowledge(struct semel_consumer *consumer, const struct semel_task_list *list,
				semel_error *error)
{
	struct semel_item **items =
		semel_arena_alloc(consumer->arena, (list->count + 1) * sizeof(*items));
	semel_status status = SEMEL_INTERNAL;

	if (!items) {
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for the acks");
	} else {
		for (uint32_t i = 0; i < list->count; i++)
			items[i] = &list->tasks[i]->item;
		status = semel_acknowledge(consumer, items, list->count, error);
	}
	remove_settled(consumer, list);
	return as_outage(status, error);
}

/* Acknowledges both lists, even if the first fails; the first error counts. */
static semel_status acknowledge_step(struct semel_consumer *consumer, const struct step *step,
				     semel_error *error)
{
	semel_error second = { .status = SEMEL_OK };
	semel_status ended = acknowledge(consumer, &step->ended, error);
	semel_status starting =
		acknowledge(consumer, &step->starting, ended == SEMEL_OK ? error : &second);

	return ended != SEMEL_OK ? ended : starting;
}

/* Is the consumer stopping, so that nothing new is started? */
static bool is_ending(const struct semel_consumer *consumer)
{
	return consumer->loop.ending || semel_wake_is_notified(consumer->wake);
}

static semel_status fetch(struct semel_consumer *consumer, struct step *step, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = semel_calls_renew_claims(consumer, &consumer->dispatch->calls, error);

	if (status != SEMEL_OK)
		return status;
	if (is_ending(consumer))
		return SEMEL_OK;
	status = fetch_deliveries(consumer, error);
	if (status != SEMEL_OK || is_ending(consumer))
		return status;
	return driver->holds->has_any(driver->tx(consumer->store), consumer->config.scope,
				      &step->holds, error);
}

/* Adds the tasks whose calls have ended and are not settled. */
static void collect_ended(struct semel_consumer *consumer, struct semel_task_list *ended)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	semel_calls_collect(consumer, &dispatch->calls);
	for (struct semel_task *task = dispatch->table.first; task; task = task->next)
		if (task->state == SEMEL_TASK_ENDED || task->state == SEMEL_TASK_COMMIT_UNKNOWN)
			ended->tasks[ended->count++] = task;
}

/* tasks NULL: out of memory. */
static struct semel_task_list make_list(struct semel_consumer *consumer)
{
	size_t size = consumer->dispatch->table.capacity * sizeof(struct semel_task *);

	return (struct semel_task_list){ .tasks = semel_arena_alloc(consumer->arena, size) };
}

semel_status semel_dispatch_step(struct semel_consumer *consumer, bool *busy_out,
				 semel_error *error)
{
	struct step step = { .ended = make_list(consumer), .starting = make_list(consumer) };

	*busy_out = false;
	if (!step.ended.tasks || !step.starting.tasks)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a step");
	semel_status status = fetch(consumer, &step, error);
	if (status != SEMEL_OK)
		return status;
	collect_ended(consumer, &step.ended);
	if (!is_ending(consumer) && !is_rewinding(consumer))
		choose_tasks(consumer, &step.starting);
	if (step.ended.count == 0 && step.starting.count == 0 && !step.holds)
		return SEMEL_OK;
	status = run_transaction(consumer, &step, error);
	if (status != SEMEL_OK)
		return status;
	semel_calls_start(consumer, &consumer->dispatch->calls, &step.starting);
	*busy_out = step.ended.count > 0 || step.starting.count > 0;
	status = acknowledge_step(consumer, &step, error);
	if (status != SEMEL_OK)
		return status;
	return rewind_broker(consumer, error);
}
