/* SPDX-License-Identifier: Apache-2.0 */
/* The worker pool that runs a handler outside the transaction: one handler instance per worker, and
 * calls as jobs. The pool does not keep the order of an aggregate: the caller submits at most one
 * call per ordering key at a time (dispatch.c).
 *
 * Threads: all functions are called from the consumer's thread. A call belongs to the pool between
 * submit and take, and its event must stay unchanged meanwhile.
 */
#ifndef SEMEL_CONSUME_WORKERS_H
#define SEMEL_CONSUME_WORKERS_H

#include "base/worker_pool.h"
#include "consume/handler.h"

struct semel_call {
	struct semel_worker_job job; /* the pool's */
	const struct semel_event *event;
	uint32_t attempt;
	void *user;
	struct semel_outcome outcome; /* filled in by the worker */
};

/* Opens the handler once per worker. The pool is freed with semel_worker_pool_free. */
semel_status semel_workers_start(const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, uint32_t count,
				 struct semel_worker_pool **pool_out, semel_error *error);
/* False: as many calls wait as there are workers. */
bool semel_workers_submit(struct semel_worker_pool *pool, struct semel_call *call);
/* A call that has ended, or NULL. Does not wait. */
struct semel_call *semel_workers_take(struct semel_worker_pool *pool);

#endif
