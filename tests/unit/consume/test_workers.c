/* SPDX-License-Identifier: Apache-2.0 */
/* The crew with handlers of the test's own, which count and wait as they are told. */
#include "base/env.h"
#include "base/error.h"
#include "consume/workers.h"
#include "unit/consume/outside_support.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { CREW = 4, AGGREGATES = 13, JOBS = 2000 };

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

/* Tells the order of the runs in the outcome. */
static void count_run(struct semel_outside *outside, const struct semel_event *event,
		      uint32_t attempt, struct semel_outcome *outcome_out)
{
	(void)outside;
	(void)event;
	*outcome_out = (struct semel_outcome){ .status = SEMEL_OK, .retry_after_ms = attempt };
	atomic_fetch_add(&ran, 1);
}

static void meet_run(struct semel_outside *outside, const struct semel_event *event,
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
	.name = "meeting", .open = open_meeting, .run = meet_run, .close = fake_close
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

static struct semel_workers *start(const struct semel_outside_kind *kind, const char *target,
				   uint32_t count)
{
	const struct semel_outside_options options = { .target = target,
						       .timeout_ms = 20000,
						       .scope = "billing" };
	struct semel_workers *workers = NULL;
	assert_int_equal(semel_workers_start(kind, &options, count, &workers, NULL), SEMEL_OK);
	return workers;
}

static bool readable(struct semel_workers *workers, int wait_ms)
{
	struct pollfd wait = { .fd = semel_workers_fd(workers), .events = POLLIN };
	return poll(&wait, 1, wait_ms) == 1;
}

static struct semel_job *take_one(struct semel_workers *workers)
{
	assert_true(readable(workers, 20000));
	struct semel_job *job = semel_workers_take(workers);
	assert_non_null(job);
	return job;
}

static struct semel_event event_of(const char *aggregate_id)
{
	struct semel_event event = sample_event();
	event.aggregate_id = semel_text_of(aggregate_id);
	return event;
}

static void jobs_of_an_aggregate_finish_in_the_order_of_their_submission(void **state)
{
	(void)state;
	char ids[AGGREGATES][16];
	struct semel_event events[AGGREGATES];
	uint32_t last[AGGREGATES] = { 0 };
	struct semel_job *jobs = calloc(JOBS, sizeof *jobs);
	for (int i = 0; i < AGGREGATES; i++) {
		snprintf(ids[i], sizeof ids[i], "ord-%d", i);
		events[i] = event_of(ids[i]);
	}
	struct semel_workers *workers = start(&counting, NULL, CREW);
	assert_int_equal(atomic_load(&opened), CREW);
	for (uint32_t i = 0; i < JOBS; i++) {
		jobs[i].event = &events[i % AGGREGATES];
		jobs[i].attempt = i + 1;
		jobs[i].user = &last[i % AGGREGATES];
		semel_workers_submit(workers, &jobs[i]);
	}
	for (int i = 0; i < JOBS; i++) {
		struct semel_job *job = take_one(workers);
		uint32_t *before = job->user;
		assert_int_equal(job->outcome.retry_after_ms, job->attempt);
		assert_true(*before < job->attempt);
		*before = job->attempt;
	}
	semel_workers_stop(workers);
	assert_int_equal(atomic_load(&ran), JOBS);
	assert_int_equal(atomic_load(&closed), CREW);
	free(jobs);
}

static void the_descriptor_is_readable_exactly_while_a_finished_job_is_there(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_job jobs[2] = { { .event = &event }, { .event = &event } };
	struct semel_workers *workers = start(&counting, NULL, 1);
	assert_false(readable(workers, 0));
	assert_null(semel_workers_take(workers));
	semel_workers_submit(workers, &jobs[0]);
	semel_workers_submit(workers, &jobs[1]);
	assert_ptr_equal(take_one(workers), &jobs[0]);
	assert_ptr_equal(take_one(workers), &jobs[1]);
	assert_false(readable(workers, 0));
	assert_null(semel_workers_take(workers));
	semel_workers_stop(workers);
}

static void different_aggregates_run_at_the_same_time(void **state)
{
	(void)state;
	char ids[CREW][16];
	struct semel_event events[CREW];
	struct semel_job jobs[CREW] = { 0 };
	/* Each run waits for the others: they end only if all are under way. */
	pthread_barrier_init(&meeting, NULL, CREW);
	struct semel_workers *workers = start(&meeting_kind, NULL, CREW);
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < CREW; i++) {
			snprintf(ids[i], sizeof ids[i], "ord-%d-%d", round, i);
			events[i] = event_of(ids[i]);
			jobs[i].event = &events[i];
			semel_workers_submit(workers, &jobs[i]);
		}
		for (int i = 0; i < CREW; i++)
			take_one(workers);
	}
	semel_workers_stop(workers);
	pthread_barrier_destroy(&meeting);
}

static void a_stop_interrupts_what_is_under_way_and_drops_the_rest(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_job jobs[3] = { { .event = &event },
				     { .event = &event },
				     { .event = &event } };
	struct semel_workers *workers = start(&endless, NULL, 1);
	for (int i = 0; i < 3; i++)
		semel_workers_submit(workers, &jobs[i]);
	while (atomic_load(&ran) == 0)
		sched_yield();
	semel_workers_stop(workers);
	assert_int_equal(atomic_load(&interrupted), 1);
	assert_int_equal(atomic_load(&ran), 1);
	assert_int_equal(atomic_load(&closed), 1);
}

static void a_stop_ends_programs_that_would_run_for_long(void **state)
{
	(void)state;
	struct semel_event first = event_of("ord-1"), second = event_of("ord-2");
	struct semel_job jobs[2] = { { .event = &first }, { .event = &second } };
	static const struct semel_outside_kind *const kinds[] = { &semel_outside_exec,
								  &semel_outside_pipe };
	for (int i = 0; i < 2; i++) {
		struct semel_workers *workers = start(kinds[i], "exec sleep 1000", CREW);
		semel_workers_submit(workers, &jobs[0]);
		semel_workers_submit(workers, &jobs[1]);
		int64_t before = semel_steady_ms(semel_env_system());
		semel_workers_stop(workers);
		assert_true(semel_steady_ms(semel_env_system()) - before < 15000);
	}
}

static void a_handler_that_cannot_be_opened_leaves_nothing_behind(void **state)
{
	(void)state;
	const struct semel_outside_options options = { .timeout_ms = 1000, .scope = "billing" };
	struct semel_workers *workers = NULL;
	semel_error error;
	open_limit = 2;
	assert_int_equal(semel_workers_start(&counting, &options, CREW, &workers, &error),
			 SEMEL_CONFIG);
	assert_string_equal(error.text, "no more");
	assert_int_equal(atomic_load(&closed), 2);
	semel_workers_stop(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(jobs_of_an_aggregate_finish_in_the_order_of_their_submission,
				       reset),
		cmocka_unit_test_setup(
			the_descriptor_is_readable_exactly_while_a_finished_job_is_there, reset),
		cmocka_unit_test_setup(different_aggregates_run_at_the_same_time, reset),
		cmocka_unit_test_setup(a_stop_interrupts_what_is_under_way_and_drops_the_rest,
				       reset),
		cmocka_unit_test_setup(a_stop_ends_programs_that_would_run_for_long, reset),
		cmocka_unit_test_setup(a_handler_that_cannot_be_opened_leaves_nothing_behind,
				       reset),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
