/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/workers.h"

#include "base/error.h"
#include "observe/metrics.h"

#include <stddef.h>
#include <stdio.h>

struct opening {
	const struct semel_outside_kind *kind;
	const struct semel_outside_options *options;
};

static semel_status open_handler(void *user, void **worker_out, semel_error *error)
{
	const struct opening *opening = user;
	struct semel_outside *outside = NULL;
	semel_status status = opening->kind->open(opening->options, &outside, error);

	*worker_out = outside;
	return status;
}

static void interrupt_handler(void *worker)
{
	struct semel_outside *outside = worker;

	if (outside->kind->interrupt)
		outside->kind->interrupt(outside);
}

static void close_handler(void *worker)
{
	struct semel_outside *outside = worker;

	outside->kind->close(outside);
}

static void run_call(struct semel_worker_job *job, void *worker, bool abandoned)
{
	struct semel_call *call = (struct semel_call *)job; /* job is its first member */
	struct semel_outside *outside = worker;

	if (abandoned) {
		call->outcome =
			(struct semel_outcome){ .status = SEMEL_OUTAGE, .interrupted = true };
		snprintf(call->outcome.reason, sizeof call->outcome.reason,
			 "not started because the consumer is stopping");
		return;
	}
	int64_t began_us = semel_step_timer_begin();
	outside->kind->run(outside, call->event, call->attempt, &call->outcome);
	semel_step_timer_end(SEMEL_TIMED_EFFECT, began_us);
}

semel_status semel_workers_start(const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, uint32_t count,
				 struct semel_worker_pool **pool_out, semel_error *error)
{
	struct opening opening = { .kind = kind, .options = options };
	struct semel_worker_pool_options pool = {
		.threads = count > 0 ? count : 1,
		.queue_max = count > 0 ? count : 1,
		.open = open_handler,
		.interrupt = interrupt_handler,
		.close = close_handler,
		.user = &opening,
		.collects = true,
	};

	return semel_worker_pool_start(&pool, pool_out, error);
}

bool semel_workers_submit(struct semel_worker_pool *pool, struct semel_call *call)
{
	call->job.run = run_call;
	return semel_worker_pool_submit(pool, &call->job);
}

struct semel_call *semel_workers_take(struct semel_worker_pool *pool)
{
	return (struct semel_call *)semel_worker_pool_take(pool);
}
