/* SPDX-License-Identifier: Apache-2.0 */
#include "base/worker_pool.h"

#include "base/error.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

struct counted_job {
	struct semel_worker_job job; /* first */
	sem_t begun, may_end;
	int done, abandoned;
	void *worker;
};

static void run_counted_job(struct semel_worker_job *job, void *worker, bool abandoned)
{
	struct counted_job *counted_job = (struct counted_job *)job;

	sem_post(&counted_job->begun);
	if (!abandoned)
		sem_wait(&counted_job->may_end);
	counted_job->done += !abandoned;
	counted_job->abandoned += abandoned;
	counted_job->worker = worker;
}

static void init(struct counted_job *counted_job)
{
	*counted_job = (struct counted_job){ .job = { .run = run_counted_job } };
	sem_init(&counted_job->begun, 0, 0);
	sem_init(&counted_job->may_end, 0, 0);
}

static struct semel_worker_pool *start(const struct semel_worker_pool_options *options)
{
	struct semel_worker_pool *pool = NULL;

	assert_int_equal(semel_worker_pool_start(options, &pool, NULL), SEMEL_OK);
	return pool;
}

static bool is_readable(const struct semel_worker_pool *pool, int wait_ms)
{
	struct pollfd descriptor = { .fd = semel_worker_pool_fd(pool), .events = POLLIN };

	return poll(&descriptor, 1, wait_ms) == 1;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void a_full_queue_refuses_and_the_accepted_jobs_run(void **state)
{
	struct semel_worker_pool *pool =
		start(&(struct semel_worker_pool_options){ .threads = 1, .queue_max = 1 });
	struct counted_job first, second, third;

	(void)state;
	init(&first), init(&second), init(&third);
	assert_true(semel_worker_pool_submit(pool, &first.job));
	sem_wait(&first.begun); /* the queue is empty now */
	assert_true(semel_worker_pool_submit(pool, &second.job));
	assert_false(semel_worker_pool_submit(pool, &third.job));
	sem_post(&first.may_end);
	sem_wait(&second.begun);
	assert_true(semel_worker_pool_submit(pool, &third.job));
	sem_post(&second.may_end);
	sem_wait(&third.begun);
	sem_post(&third.may_end);
	semel_worker_pool_stop(pool);
	assert_int_equal(first.done + second.done + third.done, 3);
	assert_int_equal(semel_worker_pool_fd(pool), -1);
	semel_worker_pool_free(pool);
}

static void *end_counted_job(void *user)
{
	struct counted_job *counted_job = user;

	sem_post(&counted_job->may_end);
	return NULL;
}

static void a_stopped_pool_abandons_what_is_queued_and_accepts_nothing(void **state)
{
	struct semel_worker_pool *pool =
		start(&(struct semel_worker_pool_options){ .threads = 1, .queue_max = 10 });
	struct counted_job counted_jobs[4];
	pthread_t helper;

	(void)state;
	for (size_t i = 0; i < 4; i++)
		init(&counted_jobs[i]);
	for (size_t i = 0; i < 3; i++)
		assert_true(semel_worker_pool_submit(pool, &counted_jobs[i].job));
	sem_wait(&counted_jobs[0].begun);
	for (size_t i = 1; i < 3; i++)
		sem_post(&counted_jobs[i].may_end);
	assert_int_equal(pthread_create(&helper, NULL, end_counted_job, &counted_jobs[0]), 0);
	semel_worker_pool_stop(pool);
	pthread_join(helper, NULL);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(counted_jobs[i].done + counted_jobs[i].abandoned, 1);
	assert_int_equal(counted_jobs[0].done, 1);
	assert_false(semel_worker_pool_submit(pool, &counted_jobs[3].job));
	semel_worker_pool_free(pool);
}

static void a_pool_without_threads_has_one(void **state)
{
	struct semel_worker_pool *pool =
		start(&(struct semel_worker_pool_options){ .queue_max = 1 });
	struct counted_job counted_job;

	(void)state;
	init(&counted_job);
	sem_post(&counted_job.may_end);
	assert_true(semel_worker_pool_submit(pool, &counted_job.job));
	sem_wait(&counted_job.begun);
	semel_worker_pool_free(pool);
	assert_int_equal(counted_job.done, 1);
}

/* ---- completed jobs -------------------------------------------------------------------------- */

static void the_descriptor_is_readable_while_a_completed_job_is_there(void **state)
{
	struct semel_worker_pool *pool = start(&(struct semel_worker_pool_options){
		.threads = 1, .queue_max = 2, .collects = true });
	struct counted_job first, second;

	(void)state;
	init(&first), init(&second);
	assert_null(semel_worker_pool_take(pool));
	assert_true(semel_worker_pool_submit(pool, &first.job));
	assert_true(semel_worker_pool_submit(pool, &second.job));
	assert_false(is_readable(pool, 0));
	sem_post(&first.may_end);
	sem_post(&second.may_end);
	sem_wait(&second.begun);
	assert_true(is_readable(pool, 20000));
	assert_ptr_equal(semel_worker_pool_take(pool), &first.job);
	assert_true(is_readable(pool, 20000));
	assert_ptr_equal(semel_worker_pool_take(pool), &second.job);
	assert_false(is_readable(pool, 0));
	assert_null(semel_worker_pool_take(pool));
	semel_worker_pool_free(pool);
}

static void a_stopped_pool_still_gives_its_completed_jobs(void **state)
{
	struct semel_worker_pool *pool = start(&(struct semel_worker_pool_options){
		.threads = 2, .queue_max = 2, .collects = true });
	struct counted_job counted_job;

	(void)state;
	init(&counted_job);
	sem_post(&counted_job.may_end);
	assert_true(semel_worker_pool_submit(pool, &counted_job.job));
	semel_worker_pool_stop(pool);
	assert_ptr_equal(semel_worker_pool_take(pool), &counted_job.job);
	assert_int_equal(counted_job.done + counted_job.abandoned, 1);
	semel_worker_pool_free(pool);
}

/* ---- the state of a worker ------------------------------------------------------------------- */

static atomic_int opened, closed;
static int open_max;
static sem_t interrupted;
static char target[] = "program";

static semel_status open_state(void *user, void **worker_out, semel_error *error)
{
	if (atomic_load(&opened) == open_max)
		return semel_error_set(error, SEMEL_CONFIG, "no more");
	atomic_fetch_add(&opened, 1);
	*worker_out = malloc(1);
	assert_ptr_equal(user, target);
	return SEMEL_OK;
}

static void interrupt_state(void *worker)
{
	assert_non_null(worker);
	sem_post(&interrupted);
}

static void close_state(void *worker)
{
	free(worker);
	atomic_fetch_add(&closed, 1);
}

static const struct semel_worker_pool_options with_state = { .threads = 3,
							     .queue_max = 3,
							     .open = open_state,
							     .interrupt = interrupt_state,
							     .close = close_state,
							     .user = target };

static int reset(void **state)
{
	(void)state;
	atomic_store(&opened, 0);
	atomic_store(&closed, 0);
	open_max = 100;
	sem_init(&interrupted, 0, 0);
	return 0;
}

static void a_job_gets_the_state_of_its_worker(void **state)
{
	struct semel_worker_pool *pool = start(&with_state);
	struct counted_job counted_jobs[3];

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		init(&counted_jobs[i]);
		assert_true(semel_worker_pool_submit(pool, &counted_jobs[i].job));
	}
	for (size_t i = 0; i < 3; i++)
		sem_wait(&counted_jobs[i].begun);
	for (size_t i = 0; i < 3; i++)
		sem_post(&counted_jobs[i].may_end);
	semel_worker_pool_free(pool);
	for (size_t i = 0; i < 3; i++)
		assert_non_null(counted_jobs[i].worker);
	assert_ptr_not_equal(counted_jobs[0].worker, counted_jobs[1].worker);
	assert_ptr_not_equal(counted_jobs[1].worker, counted_jobs[2].worker);
	assert_int_equal(atomic_load(&opened), 3);
	assert_int_equal(atomic_load(&closed), 3);
}

static void a_worker_that_cannot_be_opened_closes_the_others(void **state)
{
	struct semel_worker_pool *pool = NULL;
	semel_error error = { .status = SEMEL_OK };

	(void)state;
	open_max = 2;
	assert_int_equal(semel_worker_pool_start(&with_state, &pool, &error), SEMEL_CONFIG);
	assert_null(pool);
	assert_string_equal(error.text, "no more");
	assert_int_equal(atomic_load(&closed), 2);
}

static void run_until_interrupted(struct semel_worker_job *job, void *worker, bool abandoned)
{
	(void)worker;
	if (!abandoned)
		sem_wait(&interrupted);
	((struct counted_job *)job)->done++;
}

static void an_interrupt_reaches_every_worker_and_so_does_the_stop(void **state)
{
	struct semel_worker_pool *pool = start(&with_state);
	struct counted_job counted_jobs[3];

	(void)state;
	for (size_t i = 0; i < 3; i++)
		counted_jobs[i] = (struct counted_job){ .job = { .run = run_until_interrupted } };
	for (size_t i = 0; i < 3; i++)
		assert_true(semel_worker_pool_submit(pool, &counted_jobs[i].job));
	semel_worker_pool_interrupt(pool);
	semel_worker_pool_stop(pool);
	semel_worker_pool_interrupt(pool); /* they are closed: nothing */
	semel_worker_pool_stop(pool);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(counted_jobs[i].done, 1);
	assert_int_equal(atomic_load(&closed), 3);
	semel_worker_pool_free(pool);
	semel_worker_pool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_queue_refuses_and_the_accepted_jobs_run),
		cmocka_unit_test(a_stopped_pool_abandons_what_is_queued_and_accepts_nothing),
		cmocka_unit_test(a_pool_without_threads_has_one),
		cmocka_unit_test(the_descriptor_is_readable_while_a_completed_job_is_there),
		cmocka_unit_test(a_stopped_pool_still_gives_its_completed_jobs),
		cmocka_unit_test_setup(a_job_gets_the_state_of_its_worker, reset),
		cmocka_unit_test_setup(a_worker_that_cannot_be_opened_closes_the_others, reset),
		cmocka_unit_test_setup(an_interrupt_reaches_every_worker_and_so_does_the_stop,
				       reset),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
