/* SPDX-License-Identifier: Apache-2.0 */
/* The worker pool of a consumer, with handlers that count, wait for each other, or never end. */
#include "base/env.h"
#include "base/error.h"
#include "consume/workers.h"
#include "unit/consume/outside_support.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4 };

static atomic_int opened, closed, ran, interrupted;
static int open_limit;
static pthread_barrier_t meeting;

struct fake {
	struct semel_outside outside;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stop;
};

static semel_status fake_open_as(const struct semel_outside_kind *kind,
				 struct semel_outside **outside_out, semel_error *error)
{
	if (atomic_load(&opened) == open_limit)
		return semel_error_set(error, SEMEL_CONFIG, "no more");
	struct fake *fake = calloc(1, sizeof *fake);
	fake->outside.kind = kind;
	pthread_mutex_init(&fake->lock, NULL);
	pthread_cond_init(&fake->changed, NULL);
	atomic_fetch_add(&opened, 1);
	*outside_out = &fake->outside;
	return SEMEL_OK;
}

static void fake_close(struct semel_outside *outside)
{
	struct fake *fake = (struct fake *)outside;
	pthread_mutex_destroy(&fake->lock);
	pthread_cond_destroy(&fake->changed);
	free(fake);
	atomic_fetch_add(&closed, 1);
}

static void fake_interrupt(struct semel_outside *outside)
{
	struct fake *fake = (struct fake *)outside;
	pthread_mutex_lock(&fake->lock);
	fake->stop = true;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
	atomic_fetch_add(&interrupted, 1);
}

/* Returns the attempt in the outcome. */
static void count_run(struct semel_outside *outside, const struct semel_event *event,
		      uint32_t attempt, struct semel_outcome *outcome_out)
{
	(void)outside;
	(void)event;
	*outcome_out = (struct semel_outcome){ .status = SEMEL_OK, .retry_after_ms = attempt };
	atomic_fetch_add(&ran, 1);
}

static void run_at_barrier(struct semel_outside *outside, const struct semel_event *event,
			   uint32_t attempt, struct semel_outcome *outcome_out)
{
	count_run(outside, event, attempt, outcome_out);
	pthread_barrier_wait(&meeting);
}

static void endless_run(struct semel_outside *outside, const struct semel_event *event,
			uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct fake *fake = (struct fake *)outside;
	count_run(outside, event, attempt, outcome_out);
	pthread_mutex_lock(&fake->lock);
	while (!fake->stop)
		pthread_cond_wait(&fake->changed, &fake->lock);
	pthread_mutex_unlock(&fake->lock);
}

static const struct semel_outside_kind counting, meeting_kind, endless;

static semel_status open_counting(const struct semel_outside_options *options,
				  struct semel_outside **outside_out, semel_error *error)
{
	(void)options;
	return fake_open_as(&counting, outside_out, error);
}

static semel_status open_meeting(const struct semel_outside_options *options,
				 struct semel_outside **outside_out, semel_error *error)
{
	(void)options;
	return fake_open_as(&meeting_kind, outside_out, error);
}

static semel_status open_endless(const struct semel_outside_options *options,
				 struct semel_outside **outside_out, semel_error *error)
{
	(void)options;
	return fake_open_as(&endless, outside_out, error);
}

static const struct semel_outside_kind counting = {
	.name = "counting", .open = open_counting, .run = count_run, .close = fake_close
};
static const struct semel_outside_kind meeting_kind = {
	.name = "meeting", .open = open_meeting, .run = run_at_barrier, .close = fake_close
};
static const struct semel_outside_kind endless = { .name = "endless",
						   .open = open_endless,
						   .run = endless_run,
						   .interrupt = fake_interrupt,
						   .close = fake_close };

static int reset(void **state)
{
	(void)state;
	atomic_store(&opened, 0);
	atomic_store(&closed, 0);
	atomic_store(&ran, 0);
	atomic_store(&interrupted, 0);
	open_limit = -1;
	return 0;
}

static struct semel_worker_pool *start(const struct semel_outside_kind *kind, const char *target,
				       uint32_t count)
{
	const struct semel_outside_options options = { .target = target,
						       .timeout_ms = 20000,
						       .scope = "billing" };
	struct semel_worker_pool *pool = NULL;
	assert_int_equal(semel_workers_start(kind, &options, count, &pool, NULL), SEMEL_OK);
	return pool;
}

static struct semel_call *take_one(struct semel_worker_pool *pool)
{
	struct pollfd wait = { .fd = semel_worker_pool_fd(pool), .events = POLLIN };
	assert_int_equal(poll(&wait, 1, 20000), 1);
	struct semel_call *call = semel_workers_take(pool);
	assert_non_null(call);
	return call;
}

static void a_call_comes_back_with_its_outcome(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_call call = { .event = &event, .attempt = 7, .user = &event };
	struct semel_worker_pool *pool = start(&counting, NULL, WORKERS);
	assert_int_equal(atomic_load(&opened), WORKERS);
	assert_null(semel_workers_take(pool));
	assert_true(semel_workers_submit(pool, &call));
	struct semel_call *taken = take_one(pool);
	assert_ptr_equal(taken, &call);
	assert_ptr_equal(taken->user, &event);
	assert_int_equal(taken->outcome.retry_after_ms, 7);
	semel_worker_pool_free(pool);
	assert_int_equal(atomic_load(&closed), WORKERS);
}

static void calls_run_at_the_same_time(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_call calls[WORKERS] = { 0 };
	/* Each run waits for the others: they end only if all are running. */
	pthread_barrier_init(&meeting, NULL, WORKERS);
	struct semel_worker_pool *pool = start(&meeting_kind, NULL, WORKERS);
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < WORKERS; i++) {
			calls[i].event = &event;
			assert_true(semel_workers_submit(pool, &calls[i]));
		}
		for (int i = 0; i < WORKERS; i++)
			take_one(pool);
	}
	semel_worker_pool_free(pool);
	pthread_barrier_destroy(&meeting);
}

static void a_stop_interrupts_the_call_that_runs_and_does_not_start_the_next(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_call calls[2] = { { .event = &event }, { .event = &event } };
	struct semel_worker_pool *pool = start(&endless, NULL, 1);
	for (int i = 0; i < 2; i++)
		while (!semel_workers_submit(pool, &calls[i]))
			sched_yield();
	while (atomic_load(&ran) == 0)
		sched_yield();
	semel_worker_pool_stop(pool);
	assert_int_equal(atomic_load(&interrupted), 1);
	assert_int_equal(atomic_load(&ran), 1);
	assert_int_equal(atomic_load(&closed), 1);
	assert_ptr_equal(take_one(pool), &calls[0]);
	assert_ptr_equal(take_one(pool), &calls[1]);
	assert_true(calls[1].outcome.interrupted);
	assert_int_equal(calls[1].outcome.status, SEMEL_OUTAGE);
	semel_worker_pool_free(pool);
}

static void a_stop_ends_programs_that_would_run_for_long(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_call calls[2] = { { .event = &event }, { .event = &event } };
	static const struct semel_outside_kind *const kinds[] = { &semel_outside_exec,
								  &semel_outside_pipe };
	for (int i = 0; i < 2; i++) {
		struct semel_worker_pool *pool = start(kinds[i], "exec sleep 1000", WORKERS);
		assert_true(semel_workers_submit(pool, &calls[0]));
		assert_true(semel_workers_submit(pool, &calls[1]));
		int64_t before = semel_steady_ms(semel_env_system());
		semel_worker_pool_free(pool);
		assert_true(semel_steady_ms(semel_env_system()) - before < 15000);
	}
}

static void a_handler_that_cannot_be_opened_leaves_nothing_behind(void **state)
{
	(void)state;
	const struct semel_outside_options options = { .timeout_ms = 1000, .scope = "billing" };
	struct semel_worker_pool *pool = NULL;
	semel_error error;
	open_limit = 2;
	assert_int_equal(semel_workers_start(&counting, &options, WORKERS, &pool, &error),
			 SEMEL_CONFIG);
	assert_string_equal(error.text, "no more");
	assert_int_equal(atomic_load(&closed), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_call_comes_back_with_its_outcome, reset),
		cmocka_unit_test_setup(calls_run_at_the_same_time, reset),
		cmocka_unit_test_setup(
			a_stop_interrupts_the_call_that_runs_and_does_not_start_the_next, reset),
		cmocka_unit_test_setup(a_stop_ends_programs_that_would_run_for_long, reset),
		cmocka_unit_test_setup(a_handler_that_cannot_be_opened_leaves_nothing_behind,
				       reset),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
