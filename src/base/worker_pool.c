/* SPDX-License-Identifier: Apache-2.0 */
/* One mutex protects the queue, the completed jobs and the stop flag: a job takes far longer than
 * the mutex is ever held. A worker leaves its loop only after it has read the stop flag, which is
 * set in the same critical section in which every worker is interrupted; so a state that is being
 * closed is never interrupted. */
#include "base/worker_pool.h"

#include "base/error.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct job_list {
	struct semel_worker_job *first, *last;
};

struct worker {
	struct semel_worker_pool *pool;
	void *state; /* used only by its thread, once that runs */
	pthread_t thread;
};

struct semel_worker_pool {
	struct semel_worker_pool_options options;
	int completed_fd;       /* -1: completed jobs are not collected */
	pthread_mutex_t mutex;  /* protects what follows */
	pthread_cond_t changed; /* a job was queued, or the pool is stopped */
	struct job_list queued, completed;
	uint32_t queued_count;
	bool stopped;
	uint32_t worker_count; /* workers whose threads run */
	struct worker workers[];
};

static void append(struct job_list *list, struct semel_worker_job *job)
{
	job->next = NULL;
	if (list->last)
		list->last->next = job;
	else
		list->first = job;
	list->last = job;
}

static struct semel_worker_job *remove_first(struct job_list *list)
{
	struct semel_worker_job *job = list->first;

	if (!job)
		return NULL;
	list->first = job->next;
	if (!list->first)
		list->last = NULL;
	job->next = NULL;
	return job;
}

/* ---- the workers ----------------------------------------------------------------------------- */

/* With the mutex held. NULL: the pool is stopped, and the queue is empty. */
static struct semel_worker_job *await_job(struct semel_worker_pool *pool)
{
	while (!pool->queued.first && !pool->stopped)
		pthread_cond_wait(&pool->changed, &pool->mutex);
	struct semel_worker_job *job = remove_first(&pool->queued);
	pool->queued_count -= job != NULL;
	return job;
}

/* With the mutex held. */
static void complete(struct semel_worker_pool *pool, struct semel_worker_job *job)
{
	if (!pool->completed.first)
		eventfd_write(pool->completed_fd, 1);
	append(&pool->completed, job);
}

static void *run_jobs(void *user)
{
	struct worker *worker = user;
	struct semel_worker_pool *pool = worker->pool;
	struct semel_worker_job *job = NULL;

	pthread_mutex_lock(&pool->mutex);
	while ((job = await_job(pool)) != NULL) {
		bool abandoned = pool->stopped;
		pthread_mutex_unlock(&pool->mutex);
		job->run(job, worker->state, abandoned);
		pthread_mutex_lock(&pool->mutex);
		if (pool->options.collects)
			complete(pool, job);
	}
	pthread_mutex_unlock(&pool->mutex);
	if (pool->options.close)
		pool->options.close(worker->state);
	return NULL;
}

/* Signals are for the application's own threads. */
static int start_thread(struct worker *worker)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failure = pthread_create(&worker->thread, NULL, run_jobs, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failure;
}

static semel_status start_worker(struct semel_worker_pool *pool, semel_error *error)
{
	const struct semel_worker_pool_options *options = &pool->options;
	struct worker *worker = &pool->workers[pool->worker_count];
	semel_status status = SEMEL_OK;

	worker->pool = pool;
	if (options->open)
		status = options->open(options->user, &worker->state, error);
	if (status != SEMEL_OK)
		return status;
	int failure = start_thread(worker);
	if (failure == 0) {
		pool->worker_count++;
		return SEMEL_OK;
	}
	if (options->close)
		options->close(worker->state);
	return semel_error_set(error, SEMEL_OUTAGE, "cannot start a worker thread: %s",
			       strerror(failure));
}

/* ---- the pool -------------------------------------------------------------------------------- */

static struct semel_worker_pool *new_pool(const struct semel_worker_pool_options *options,
					  uint32_t threads)
{
	struct semel_worker_pool *pool = calloc(1, sizeof *pool + threads * sizeof *pool->workers);

	if (!pool)
		return NULL;
	pool->options = *options;
	pool->completed_fd = options->collects ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
	if (options->collects && pool->completed_fd < 0) {
		free(pool);
		return NULL;
	}
	pthread_mutex_init(&pool->mutex, NULL);
	pthread_cond_init(&pool->changed, NULL);
	return pool;
}

semel_status semel_worker_pool_start(const struct semel_worker_pool_options *options,
				     struct semel_worker_pool **pool_out, semel_error *error)
{
	uint32_t threads = options->threads > 0 ? options->threads : 1;
	struct semel_worker_pool *pool = new_pool(options, threads);

	*pool_out = NULL;
	if (!pool)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "out of memory or file descriptors for %u worker threads",
				       (unsigned)threads);
	for (uint32_t i = 0; i < threads; i++) {
		semel_status status = start_worker(pool, error);
		if (status != SEMEL_OK) {
			semel_worker_pool_free(pool);
			return status;
		}
	}
	*pool_out = pool;
	return SEMEL_OK;
}

bool semel_worker_pool_submit(struct semel_worker_pool *pool, struct semel_worker_job *job)
{
	pthread_mutex_lock(&pool->mutex);
	bool accepted = !pool->stopped && pool->queued_count < pool->options.queue_max;
	if (accepted) {
		append(&pool->queued, job);
		pool->queued_count++;
		pthread_cond_signal(&pool->changed);
	}
	pthread_mutex_unlock(&pool->mutex);
	return accepted;
}

struct semel_worker_job *semel_worker_pool_take(struct semel_worker_pool *pool)
{
	pthread_mutex_lock(&pool->mutex);
	struct semel_worker_job *job = remove_first(&pool->completed);
	if (job && !pool->completed.first) {
		eventfd_t count;
		eventfd_read(pool->completed_fd, &count);
	}
	pthread_mutex_unlock(&pool->mutex);
	return job;
}

int semel_worker_pool_fd(const struct semel_worker_pool *pool)
{
	return pool->completed_fd;
}

/* With the mutex held, before the stop is set. */
static void interrupt_workers(struct semel_worker_pool *pool)
{
	for (uint32_t i = 0; i < pool->worker_count && pool->options.interrupt; i++)
		pool->options.interrupt(pool->workers[i].state);
}

void semel_worker_pool_interrupt(struct semel_worker_pool *pool)
{
	pthread_mutex_lock(&pool->mutex);
	if (!pool->stopped)
		interrupt_workers(pool);
	pthread_mutex_unlock(&pool->mutex);
}

void semel_worker_pool_stop(struct semel_worker_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->mutex);
	if (!pool->stopped)
		interrupt_workers(pool);
	pool->stopped = true;
	pthread_cond_broadcast(&pool->changed);
	pthread_mutex_unlock(&pool->mutex);
	for (uint32_t i = 0; i < pool->worker_count; i++)
		pthread_join(pool->workers[i].thread, NULL);
	pool->worker_count = 0;
}

void semel_worker_pool_free(struct semel_worker_pool *pool)
{
	if (!pool)
		return;
	semel_worker_pool_stop(pool);
	if (pool->completed_fd >= 0)
		close(pool->completed_fd);
	pthread_cond_destroy(&pool->changed);
	pthread_mutex_destroy(&pool->mutex);
	free(pool);
}
