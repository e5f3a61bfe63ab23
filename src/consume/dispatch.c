/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers outside the transaction, several at a time.
 *
 * Invariants:
 * - A claim is committed before the call, and finished after it, both by this thread.
 * - At most one call per ordering key is under way, so order holds whatever the concurrency.
 * - One turn is one transaction: it concludes the calls that ended and admits those that start.
 * - Deliveries at hand are bounded by a few loads; a slow call holds back its own key, not the
 * rest.
 */
#include "base/error.h"
#include "base/failpoint.h"
#include "consume/consumer.h"
#include "consume/workers.h"
#include "observe/log.h"
#include "observe/meter.h"

#include <poll.h>
#include <stdlib.h>

#define LOADS_MAX   4
#define RENEW_MS    10000
#define MOVED_MS    200
#define ARENA_BLOCK (16 * 1024)

/* One item at hand: waiting (FATE_OPEN or LATER), at work (job submitted), or ended. */
struct task {
	struct semel_item item;
	struct semel_job job;
	struct load *load;
	uint64_t turn; /* when it was taken, among all */
	bool at_work, concluding, ended;
	int64_t not_before_ms; /* steady */
};

/* Deliveries that were fetched together; their memory is one arena. */
struct load {
	struct semel_arena *arena;
	struct task *tasks;
	uint32_t count, left; /* left: not settled; 0: the load is free */
};

struct semel_dispatch {
	struct semel_workers *workers;
	struct load loads[LOADS_MAX];
	uint32_t load_size;
	uint32_t at_work, at_hand;
	uint64_t turns;
	int64_t renew_at_ms; /* steady */
	int64_t take_at_ms;  /* steady: after a giving back */
};

semel_status semel_dispatch_open(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_outside_options options = { .target = consumer->target,
						 .timeout_ms = consumer->options.timeout_ms,
						 .scope = consumer->scope.data };
	struct semel_dispatch *dispatch = calloc(1, sizeof *dispatch);
	if (!dispatch)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the handlers");

	consumer->dispatch = dispatch;
	dispatch->load_size = consumer->options.concurrency * 4;
	if (dispatch->load_size < 16)
		dispatch->load_size = 16;
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		dispatch->loads[i].arena = semel_arena_new(ARENA_BLOCK);
		dispatch->loads[i].tasks =
			calloc(dispatch->load_size, sizeof *dispatch->loads[i].tasks);
		if (!dispatch->loads[i].arena || !dispatch->loads[i].tasks)
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for deliveries");
	}
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
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		semel_arena_free(dispatch->loads[i].arena);
		free(dispatch->loads[i].tasks);
	}
	free(dispatch);
	consumer->dispatch = NULL;
}

uint32_t semel_dispatch_load(const struct semel_consumer *consumer)
{
	return consumer->dispatch ? consumer->dispatch->at_hand : 0;
}

uint32_t semel_dispatch_at_work(const struct semel_consumer *consumer)
{
	return consumer->dispatch ? consumer->dispatch->at_work : 0;
}

int64_t semel_dispatch_next_ms(const struct semel_consumer *consumer)
{
	const struct semel_dispatch *dispatch = consumer->dispatch;
	int64_t now_ms = semel_steady_ms(consumer->env), next_ms = 0;

	for (uint32_t i = 0; dispatch && i < LOADS_MAX; i++) {
		const struct load *load = &dispatch->loads[i];
		for (uint32_t j = 0; load->left > 0 && j < load->count; j++) {
			const struct task *task = &load->tasks[j];
			if (!task->ended && task->not_before_ms > now_ms &&
			    (next_ms == 0 || task->not_before_ms < next_ms))
				next_ms = task->not_before_ms;
		}
	}
	return next_ms;
}

void semel_dispatch_wait(const struct semel_consumer *consumer, int64_t wait_ms)
{
	struct pollfd ended = { .fd = semel_workers_fd(consumer->dispatch->workers),
				.events = POLLIN };

	poll(&ended, 1, (int)wait_ms);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static struct load *free_load(struct semel_dispatch *dispatch)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++)
		if (dispatch->loads[i].left == 0)
			return &dispatch->loads[i];
	return NULL;
}

static void fill_load(struct semel_dispatch *dispatch, struct load *load,
		      const struct semel_item *items, uint32_t count)
{
	load->count = load->left = count;
	dispatch->at_hand += count;
	for (uint32_t i = 0; i < count; i++)
		load->tasks[i] =
			(struct task){ .item = items[i], .load = load, .turn = dispatch->turns++ };
}

/* A topic that waits as a whole: its head comes by the broker, and in its place. So what is at hand
 * goes back there, once the calls under way have ended; nothing new is begun until then. */
static bool is_giving_back(const struct semel_consumer *consumer)
{
	return consumer->options.order == SEMEL_ORDER_TOTAL && consumer->put_off;
}

static semel_status give_back(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;

	if (!is_giving_back(consumer) || dispatch->at_work > 0)
		return SEMEL_OK;
	for (uint32_t i = 0; i < LOADS_MAX; i++)
		dispatch->loads[i].left = 0;
	dispatch->at_hand = 0;
	dispatch->take_at_ms = consumer->pause_until_ms;
	consumer->put_off = false;
	return consumer->broker->driver->rewind(consumer->broker, error);
}

static semel_status take_deliveries(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct load *load = free_load(dispatch);
	uint32_t wanted = load && dispatch->at_hand < dispatch->load_size ? dispatch->load_size : 0;
	struct semel_arena *arena = load ? load->arena : consumer->arena;
	struct semel_item *items = NULL;
	uint32_t count = 0;

	if (consumer->paused || is_giving_back(consumer) ||
	    semel_steady_ms(consumer->env) < dispatch->take_at_ms)
		wanted = 0;
	wanted = semel_breaker_allow(&consumer->breaker, wanted, semel_steady_ms(consumer->env));
	wanted = semel_consumer_room(consumer, wanted, dispatch->at_hand);
	if (load)
		semel_arena_reset(arena);
	semel_status status = semel_consumer_take(consumer, wanted, arena, &items, &count, error);
	if (status == SEMEL_OK && count > 0)
		fill_load(dispatch, load, items, count);
	return status;
}

static bool key_at_hand(const struct semel_dispatch *dispatch, const struct semel_item *item)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++)
		for (uint32_t j = 0; dispatch->loads[i].left > 0 && j < dispatch->loads[i].count;
		     j++)
			if (!dispatch->loads[i].tasks[j].ended &&
			    semel_item_same_key(&dispatch->loads[i].tasks[j].item, item))
				return true;
	return false;
}

/* Followers whose head is settled; those whose key is at hand come with a later turn. In the open
 * transaction. */
static semel_status take_released(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	struct load *load = free_load(dispatch);
	struct semel_item *items = NULL;
	uint32_t count = 0, kept = 0;

	uint32_t max = semel_breaker_allow(&consumer->breaker, dispatch->load_size,
					   semel_steady_ms(consumer->env));
	if (!load || max == 0 || consumer->paused)
		return SEMEL_OK;
	semel_arena_reset(load->arena);
	semel_status status =
		semel_followers_read(consumer, max, load->arena, &items, &count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < count; i++)
		if (!key_at_hand(dispatch, &items[i]))
			items[kept++] = items[i];
	fill_load(dispatch, load, items, kept);
	return SEMEL_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct choice {
	struct task **tasks;
	uint32_t count;
};

static bool key_chosen(const struct choice *choice, const struct semel_item *item)
{
	for (uint32_t i = 0; i < choice->count; i++)
		if (semel_item_same_key(&choice->tasks[i]->item, item))
			return true;
	return false;
}

/* An older task of the same key is not done, so this one must wait; one that leads waits only for
 * what is under way. */
static bool key_waits(const struct semel_dispatch *dispatch, const struct task *task, bool leading)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		const struct load *load = &dispatch->loads[i];
		for (uint32_t j = 0; load->left > 0 && j < load->count; j++)
			if (!load->tasks[j].ended &&
			    (leading ? load->tasks[j].at_work || load->tasks[j].concluding
				     : load->tasks[j].turn < task->turn) &&
			    semel_item_same_key(&load->tasks[j].item, &task->item))
				return true;
	}
	return false;
}

/* A topic waits for its head, and nothing but the head comes a second time. */
static bool leads(const struct semel_consumer *consumer, const struct task *task)
{
	const struct semel_passage *passage = &task->item.delivery->passage;

	return consumer->options.order == SEMEL_ORDER_TOTAL &&
	       (passage->replay > 0 || passage->attempt > 0);
}

static bool may_start(const struct semel_consumer *consumer, const struct choice *choice,
		      const struct task *task)
{
	return !task->at_work && !task->concluding && !task->ended &&
	       task->not_before_ms <= semel_steady_ms(consumer->env) &&
	       !key_waits(consumer->dispatch, task, leads(consumer, task)) &&
	       !key_chosen(choice, &task->item);
}

static void choose_from(struct semel_consumer *consumer, bool leading, struct choice *choice,
			uint32_t slots)
{
	for (uint32_t i = 0; i < LOADS_MAX; i++) {
		struct load *load = &consumer->dispatch->loads[i];
		for (uint32_t j = 0; load->left > 0 && j < load->count; j++)
			if (choice->count < slots && leads(consumer, &load->tasks[j]) == leading &&
			    may_start(consumer, choice, &load->tasks[j]))
				choice->tasks[choice->count++] = &load->tasks[j];
	}
}

static void choose(struct semel_consumer *consumer, struct choice *choice)
{
	uint32_t slots = consumer->options.concurrency - consumer->dispatch->at_work;

	if (consumer->paused)
		slots = 0;
	slots = semel_breaker_allow(&consumer->breaker, slots, semel_steady_ms(consumer->env));
	choose_from(consumer, true, choice, slots);
	choose_from(consumer, false, choice, slots);
}

/* ---- concluding ------------------------------------------------------------------------------ */

/* A time-out where one run is all: nobody knows whether it happened. */
static void doubt_timeouts(const struct semel_consumer *consumer, struct task *task)
{
	task->item.timed_out = task->job.outcome.timed_out;
	if (!task->job.outcome.timed_out || task->job.outcome.status != SEMEL_OUTAGE ||
	    !semel_consumer_runs_once(consumer))
		return;
	task->item.status = SEMEL_HANDLER_REJECT;
	task->item.reason = "in doubt: the handler did not answer in time; look whether the effect "
			    "happened, then replay or discard";
}

static semel_status conclude_failed(struct semel_consumer *consumer, struct task *task,
				    int64_t retry_after_ms, semel_error *error)
{
	struct semel_item *item = &task->item;
	semel_status status =
		semel_conclude_failed(consumer, item, retry_after_ms, task->load->arena, error);

	/* Once more here: the claim is given back, and made anew when the call starts. */
	if (status == SEMEL_OK && semel_consumer_claims(consumer) &&
	    (item->fate == SEMEL_FATE_OPEN || item->fate == SEMEL_FATE_LATER))
		status = consumer->guard->driver->forget(consumer->guard, &item->claim, error);
	task->not_before_ms = semel_steady_ms(consumer->env) + item->delay_ms;
	return status;
}

/* It has moved to another consumer, whose answer counts. A delivery comes again, and the claim
 * tells then; a follower is kept in the store. */
static void leave_to_other(const struct semel_consumer *consumer, struct task *task)
{
	struct semel_item *item = &task->item;

	semel_log(SEMEL_LOG_WARN, "the event has moved to another consumer meanwhile",
		  &(struct semel_log_fields){ .message_id = item->claim.event_id.data,
					      .consumer = consumer->scope.data });
	semel_item_move(item, item->entry_id.data ? SEMEL_FATE_DUPLICATE : SEMEL_FATE_LATER);
	task->not_before_ms = semel_steady_ms(consumer->env) + MOVED_MS;
}

static semel_status conclude(struct semel_consumer *consumer, struct task *task, semel_error *error)
{
	struct semel_outcome *outcome = &task->job.outcome;
	struct semel_item *item = &task->item;
	bool ours = true;
	semel_status status = semel_still_ours(consumer, item, task->load->arena, &ours, error);

	if (status != SEMEL_OK)
		return status;
	if (!ours) {
		leave_to_other(consumer, task);
		return SEMEL_OK;
	}
	if (outcome->is_over)
		semel_consumer_stop(consumer);
	else
		semel_breaker_report(&consumer->breaker, outcome->status, outcome->reason,
				     semel_steady_ms(consumer->env), semel_random(consumer->env));
	if (outcome->status == SEMEL_OK)
		return semel_conclude_done(consumer, item, task->load->arena, error);
	item->status = outcome->status;
	item->reason = semel_arena_printf(task->load->arena, "%s", outcome->reason);
	doubt_timeouts(consumer, task);
	return conclude_failed(consumer, task, outcome->retry_after_ms, error);
}

static void take_ended(struct semel_consumer *consumer, struct choice *ended)
{
	struct semel_job *job;

	while (ended->count < consumer->options.concurrency &&
	       (job = semel_workers_take(consumer->dispatch->workers)) != NULL) {
		struct task *task = job->user;
		task->at_work = false;
		task->concluding = true;
		consumer->dispatch->at_work--;
		ended->tasks[ended->count++] = task;
	}
}

/* ---- one turn -------------------------------------------------------------------------------- */

/* The current version of the event, for the call. Behind a savepoint: there are stores on which an
 * expression that fails dooms the transaction of everybody. */
static semel_status upcast(struct semel_consumer *consumer, struct task *task, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_item *item = &task->item;
	semel_error said = { .status = SEMEL_OK };

	item->event = item->delivery->event;
	if (!semel_upcasters_change(consumer->upcasters, &item->event))
		return SEMEL_OK;
	semel_status status = driver->savepoint(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	item->status = semel_upcasters_apply(consumer->upcasters, consumer->store, &item->event,
					     task->load->arena, &said);
	if (item->status == SEMEL_OK)
		return driver->release(consumer->store, error);
	status = driver->rollback_to(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	item->runs++;
	item->reason = semel_arena_printf(task->load->arena, "%s", said.text);
	return conclude_failed(consumer, task, 0, error);
}

static semel_status admit_tasks(struct semel_consumer *consumer, const struct choice *starting,
				semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < starting->count && status == SEMEL_OK; i++) {
		struct task *task = starting->tasks[i];
		semel_item_reset(&task->item);
		status = semel_admit(consumer, &task->item, 1, task->load->arena, error);
		if (status == SEMEL_OK && task->item.fate == SEMEL_FATE_GO)
			status = upcast(consumer, task, error);
	}
	return status;
}

/* How far the deliveries are settled by this transaction. */
static semel_status write_places(struct semel_consumer *consumer, const struct choice *ended,
				 const struct choice *starting, semel_error *error)
{
	semel_status status = SEMEL_OK;

	semel_places_begin(consumer->places);
	for (uint32_t i = 0; i < ended->count && status == SEMEL_OK; i++) {
		status = semel_items_check(&ended->tasks[i]->item, 1, error);
		semel_places_mark(consumer->places, &ended->tasks[i]->item);
	}
	for (uint32_t i = 0; i < starting->count && status == SEMEL_OK; i++) {
		status = semel_items_check(&starting->tasks[i]->item, 1, error);
		semel_places_mark(consumer->places, &starting->tasks[i]->item);
	}
	return status == SEMEL_OK ? semel_places_write(consumer->places, error) : status;
}

static semel_status transact(struct semel_consumer *consumer, const struct choice *ended,
			     const struct choice *starting, bool released, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < ended->count && status == SEMEL_OK; i++)
		status = conclude(consumer, ended->tasks[i], error);
	if (status == SEMEL_OK)
		status = admit_tasks(consumer, starting, error);
	if (status == SEMEL_OK && released)
		status = take_released(consumer, error);
	if (status == SEMEL_OK && ended->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_EFFECT, error);
	if (status == SEMEL_OK)
		status = write_places(consumer, ended, starting, error);
	if (status != SEMEL_OK) {
		driver->rollback(consumer->store);
		return status;
	}
	int64_t began_us = semel_meter_begin();
	status = driver->commit(consumer->store, error);
	semel_meter_end(SEMEL_WORK_COMMIT, began_us);
	if (status == SEMEL_OK && ended->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
	if (status == SEMEL_OK && starting->count > 0)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, error);
	return status;
}

static semel_status settle(struct semel_consumer *consumer, const struct choice *choice,
			   semel_error *error)
{
	struct semel_item **items =
		semel_arena_alloc(consumer->arena, (choice->count + 1) * sizeof(*items));
	if (!items)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the acks");
	for (uint32_t i = 0; i < choice->count; i++)
		items[i] = &choice->tasks[i]->item;
	semel_status status = semel_settle(consumer, items, choice->count, error);
	for (uint32_t i = 0; i < choice->count && status == SEMEL_OK; i++) {
		struct task *task = choice->tasks[i];
		task->concluding = false;
		if (task->item.fate < SEMEL_FATE_DONE)
			continue;
		task->ended = true;
		task->load->left--;
		consumer->dispatch->at_hand--;
	}
	return status;
}

static void start(struct semel_consumer *consumer, const struct choice *starting)
{
	for (uint32_t i = 0; i < starting->count; i++) {
		struct task *task = starting->tasks[i];
		if (task->item.fate == SEMEL_FATE_LATER &&
		    task->not_before_ms < consumer->pause_until_ms)
			task->not_before_ms = consumer->pause_until_ms;
		if (task->item.fate != SEMEL_FATE_GO)
			continue;
		task->item.runs++;
		task->job = (struct semel_job){ .event = &task->item.event,
						.attempt = task->item.runs,
						.user = task };
		task->at_work = true;
		consumer->dispatch->at_work++;
		semel_workers_submit(consumer->dispatch->workers, &task->job);
	}
}

/* So that nobody takes the calls under way for abandoned ones. */
static semel_status renew_claims(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_dispatch *dispatch = consumer->dispatch;
	int64_t steady_ms = semel_steady_ms(consumer->env);

	if (dispatch->at_work == 0 || steady_ms < dispatch->renew_at_ms)
		return SEMEL_OK;
	dispatch->renew_at_ms = steady_ms + RENEW_MS;
	return consumer->guard->driver->renew(consumer->guard, consumer->owner,
					      semel_now_ms(consumer->env) + SEMEL_CLAIM_LEASE_MS,
					      error);
}

static struct choice make_choice(struct semel_consumer *consumer)
{
	return (struct choice){ .tasks = semel_arena_alloc(consumer->arena,
							   consumer->options.concurrency *
								   sizeof(struct task *)) };
}

semel_status semel_dispatch_turn(struct semel_consumer *consumer, bool *busy_out,
				 semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	struct choice ended = make_choice(consumer), starting = make_choice(consumer);
	bool holds = false;

	*busy_out = false;
	if (!ended.tasks || !starting.tasks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a turn");
	semel_status status = renew_claims(consumer, error);
	if (status == SEMEL_OK && !semel_wake_rung(consumer->wake))
		status = take_deliveries(consumer, error);
	if (status == SEMEL_OK)
		status = driver->hold_any(driver->tx(consumer->store), consumer->scope, &holds,
					  error);
	if (status != SEMEL_OK)
		return status;
	take_ended(consumer, &ended);
	if (!semel_wake_rung(consumer->wake) && !is_giving_back(consumer))
		choose(consumer, &starting);
	if (ended.count == 0 && starting.count == 0 && !holds)
		return SEMEL_OK;
	status = transact(consumer, &ended, &starting, holds, error);
	if (status == SEMEL_OK)
		status = settle(consumer, &ended, error);
	if (status == SEMEL_OK)
		status = settle(consumer, &starting, error);
	*busy_out = ended.count > 0 || starting.count > 0;
	if (status != SEMEL_OK)
		return status;
	start(consumer, &starting);
	return give_back(consumer, error);
}
