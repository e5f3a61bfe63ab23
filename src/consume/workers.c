/* SPDX-License-Identifier: Apache-2.0 */
/* The crew. One lock guards all queues and the list of finished jobs: a job takes far longer than
 * the lock is ever held. The descriptor is readable exactly while that list is not empty.
 *
 * A worker closes its handler itself, because a program dies with the thread that started it and
 * should have its farewell first; it does so only after it saw the stop, and the stop is said only
 * after every handler was interrupted, so nobody interrupts a handler that is gone.
 */
#include "consume/workers.h"

#include "base/error.h"
#include "observe/step_timer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct queue {
	struct semel_job *first, *last;
};

struct worker {
	struct semel_workers *crew;
	struct semel_outside *outside; /* the worker's, once it runs */
	struct queue waiting;
	struct semel_job *at_work; /* NULL: idle */
	uint32_t load;             /* waiting and at work */
	pthread_cond_t called;
	pthread_t thread;
	bool running;
};

struct semel_workers {
	pthread_mutex_t lock; /* of everything below but the constant parts */
	struct queue finished;
	bool stopping;
	int finished_fd;
	uint32_t count;
	struct worker workers[];
};

static void put(struct queue *queue, struct semel_job *job)
{
	job->next = NULL;
	if (queue->last != NULL)
		queue->last->next = job;
	else
		queue->first = job;
	queue->last = job;
}

static struct semel_job *get(struct queue *queue)
{
	struct semel_job *job = queue->first;
	if (job == NULL)
		return NULL;
	queue->first = job->next;
	if (queue->first == NULL)
		queue->last = NULL;
	job->next = NULL;
	return job;
}

static void finish(struct semel_workers *crew, struct semel_job *job)
{
	if (crew->finished.first == NULL)
		eventfd_write(crew->finished_fd, 1);
	put(&crew->finished, job);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct semel_workers *crew = worker->crew;
	const struct semel_outside_kind *kind = worker->outside->kind;
	pthread_mutex_lock(&crew->lock);
	while (!crew->stopping) {
		struct semel_job *job = get(&worker->waiting);
		if (job == NULL) {
			pthread_cond_wait(&worker->called, &crew->lock);
			continue;
		}
		worker->at_work = job;
		pthread_mutex_unlock(&crew->lock);
		int64_t began_us = semel_step_timer_begin();
		kind->run(worker->outside, job->event, job->attempt, &job->outcome);
		semel_step_timer_end(SEMEL_TIMED_EFFECT, began_us);
		pthread_mutex_lock(&crew->lock);
		worker->at_work = NULL;
		worker->load--;
		finish(crew, job);
	}
	pthread_mutex_unlock(&crew->lock);
	kind->close(worker->outside);
	return NULL;
}

/* Signals are for the application's own threads. */
static int start_thread(struct worker *worker)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failure = pthread_create(&worker->thread, NULL, work, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	worker->running = failure == 0;
	return failure;
}

static semel_status start_worker(struct worker *worker, const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, semel_error *error)
{
	semel_status status = kind->open(options, &worker->outside, error);
	if (status != SEMEL_OK)
		return status;
	int failure = start_thread(worker);
	if (failure == 0)
		return SEMEL_OK;
	kind->close(worker->outside);
	return semel_error_set(error, SEMEL_OUTAGE,
			       "cannot start a worker: %s (lower --concurrency)",
			       strerror(failure));
}

static struct semel_workers *new_crew(uint32_t count)
{
	struct semel_workers *crew = calloc(1, sizeof *crew + count * sizeof *crew->workers);
	if (crew == NULL)
		return NULL;
	crew->finished_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (crew->finished_fd < 0) {
		free(crew);
		return NULL;
	}
	pthread_mutex_init(&crew->lock, NULL);
	crew->count = count;
	for (uint32_t i = 0; i < count; i++) {
		crew->workers[i].crew = crew;
		pthread_cond_init(&crew->workers[i].called, NULL);
	}
	return crew;
}

semel_status semel_workers_start(const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, uint32_t count,
				 struct semel_workers **workers_out, semel_error *error)
{
	struct semel_workers *crew = new_crew(count > 0 ? count : 1);
	if (crew == NULL)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "no memory or no descriptors for %u workers", count);
	for (uint32_t i = 0; i < crew->count; i++) {
		semel_status status = start_worker(&crew->workers[i], kind, options, error);
		if (status != SEMEL_OK) {
			semel_workers_stop(crew);
			return status;
		}
	}
	*workers_out = crew;
	return SEMEL_OK;
}

static bool same_aggregate(const struct semel_job *left, const struct semel_job *right)
{
	return semel_text_equal(left->event->aggregate_id, right->event->aggregate_id) &&
	       semel_text_equal(left->event->aggregate_type, right->event->aggregate_type);
}

static bool has_aggregate(const struct worker *worker, const struct semel_job *job)
{
	if (worker->at_work != NULL && same_aggregate(worker->at_work, job))
		return true;
	for (const struct semel_job *at = worker->waiting.first; at != NULL; at = at->next)
		if (same_aggregate(at, job))
			return true;
	return false;
}

/* Who has an aggregate at hand keeps it; everything else goes to whoever has least to do. */
static struct worker *choose(struct semel_workers *crew, const struct semel_job *job)
{
	struct worker *idlest = &crew->workers[0];
	for (uint32_t i = 0; i < crew->count; i++) {
		struct worker *worker = &crew->workers[i];
		if (has_aggregate(worker, job))
			return worker;
		if (worker->load < idlest->load)
			idlest = worker;
	}
	return idlest;
}

void semel_workers_submit(struct semel_workers *workers, struct semel_job *job)
{
	pthread_mutex_lock(&workers->lock);
	struct worker *worker = choose(workers, job);
	worker->load++;
	put(&worker->waiting, job);
	pthread_cond_signal(&worker->called);
	pthread_mutex_unlock(&workers->lock);
}

struct semel_job *semel_workers_take(struct semel_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	struct semel_job *job = get(&workers->finished);
	if (job != NULL && workers->finished.first == NULL) {
		eventfd_t count;
		eventfd_read(workers->finished_fd, &count);
	}
	pthread_mutex_unlock(&workers->lock);
	return job;
}

int semel_workers_fd(const struct semel_workers *workers)
{
	return workers->finished_fd;
}

/* With the lock. */
static void interrupt_all(struct semel_workers *crew)
{
	for (uint32_t i = 0; i < crew->count; i++) {
		struct worker *worker = &crew->workers[i];
		if (worker->running && worker->outside->kind->interrupt != NULL)
			worker->outside->kind->interrupt(worker->outside);
	}
}

void semel_workers_interrupt(struct semel_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	interrupt_all(workers);
	pthread_mutex_unlock(&workers->lock);
}

static void say_stop(struct semel_workers *crew)
{
	pthread_mutex_lock(&crew->lock);
	interrupt_all(crew);
	for (uint32_t i = 0; i < crew->count; i++)
		pthread_cond_signal(&crew->workers[i].called);
	crew->stopping = true;
	pthread_mutex_unlock(&crew->lock);
}

void semel_workers_stop(struct semel_workers *workers)
{
	if (workers == NULL)
		return;
	say_stop(workers);
	for (uint32_t i = 0; i < workers->count; i++) {
		if (workers->workers[i].running)
			pthread_join(workers->workers[i].thread, NULL);
		pthread_cond_destroy(&workers->workers[i].called);
	}
	pthread_mutex_destroy(&workers->lock);
	close(workers->finished_fd);
	free(workers);
}
