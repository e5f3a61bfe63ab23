/* SPDX-License-Identifier: Apache-2.0 */
/* A worker pool: a fixed number of threads that run jobs from one bounded queue, in the order of
 * submission.
 *
 * Invariants:
 * - run() is called exactly once for every job that was accepted: by a worker when its turn comes,
 *   or, when the pool is stopped before that, with abandoned true.
 * - A worker has a state of its own (a program, a connection), which only its thread uses, except
 *   that interrupt() may be called on it from any thread while it is open.
 * - A worker closes its state on its own thread, after its last job: a program dies with the thread
 *   that started it.
 *
 * Threads: semel_worker_pool_submit, _take and _interrupt may be called from any thread; start,
 * stop and free belong to the owner. Ownership: a job is the caller's memory. It belongs to the
 * pool from submit until run() returns, or, in a pool that collects, until it is taken.
 */
#ifndef SEMEL_BASE_WORKER_POOL_H
#define SEMEL_BASE_WORKER_POOL_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_worker_pool;

/* First member of the caller's job. */
struct semel_worker_job {
	/* Runs on a worker's thread. worker: the state that open() created for it; NULL without
	 * open(). abandoned: the pool was stopped; do not do the work, record that it was not
	 * done. */
	void (*run)(struct semel_worker_job *job, void *worker, bool abandoned);
	struct semel_worker_job *next; /* the pool's */
};

/* Copied by the pool. Functions that are NULL are not called. */
struct semel_worker_pool_options {
	uint32_t threads;   /* 0: 1 */
	uint32_t queue_max; /* jobs that wait for a worker; submit refuses more */
	/* Once per worker, on the thread that starts the pool. */
	semel_status (*open)(void *user, void **worker_out, semel_error *error);
	/* Ends the job that this worker runs soon, and every later one at once. */
	void (*interrupt)(void *worker);
	void (*close)(void *worker);
	void *user;    /* for open */
	bool collects; /* completed jobs are kept for semel_worker_pool_take */
};

/* OUTAGE when there is no memory, descriptor or thread left; otherwise the status of open(). */
semel_status semel_worker_pool_start(const struct semel_worker_pool_options *options,
				     struct semel_worker_pool **pool_out, semel_error *error);
/* False: the queue is full, or the pool is stopped; the job is still the caller's. */
bool semel_worker_pool_submit(struct semel_worker_pool *pool, struct semel_worker_job *job);
/* A completed job, or NULL. Does not wait. Only in a pool that collects. */
struct semel_worker_job *semel_worker_pool_take(struct semel_worker_pool *pool);
/* Readable exactly while there is a completed job to take; -1 in a pool that does not collect. */
int semel_worker_pool_fd(const struct semel_worker_pool *pool);
/* Calls interrupt() for every worker. */
void semel_worker_pool_interrupt(struct semel_worker_pool *pool);
/* Interrupts the workers, has the queued jobs run as abandoned, and returns when no job runs any
 * more. Later submits are refused; completed jobs may still be taken. pool may be NULL. */
void semel_worker_pool_stop(struct semel_worker_pool *pool);
/* Stops the pool first, if it was not stopped. pool may be NULL. */
void semel_worker_pool_free(struct semel_worker_pool *pool);

#endif
