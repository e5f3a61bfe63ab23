/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the dispatch share: schedule.c chooses tasks, calls.c follows their calls,
 * dispatch.c commits what both have done. */
#ifndef SEMEL_CONSUME_DISPATCH_PARTS_H
#define SEMEL_CONSUME_DISPATCH_PARTS_H

#include "consume/task_table.h"
#include "consume/timeouts.h"

#define SEMEL_TASK_BYTES_MAX ((size_t)16 * 1024 * 1024) /* in flight; one fetch may exceed it */

struct semel_dispatch {
	struct semel_worker_pool *pool;
	struct semel_task_table table;
	struct semel_arena *fetched; /* of one fetch; the table has copies */
	struct semel_timeouts timeouts;
	const struct semel_task *probe; /* of a half-open breaker; NULL: none is running */
	uint32_t running;               /* calls */
	int64_t renew_at_ms;            /* steady: the claims of running calls */
	int64_t fetch_at_ms;            /* steady: not before, after a rewind */
};

struct semel_task_list {
	struct semel_task **tasks;
	uint32_t count;
};

/* ---- schedule.c ---- */
/* A topic waits as a whole, and its head comes from the broker in its own place. So what was
 * fetched is to be delivered again, once the running calls have ended; nothing new is begun until
 * then. */
bool semel_schedule_is_rewinding(const struct semel_consumer *consumer);
/* How many more deliveries may be fetched. */
uint32_t semel_schedule_wanted(struct semel_consumer *consumer);
/* Adds the tasks that may start now. */
void semel_schedule_choose(struct semel_consumer *consumer, struct semel_task_list *starting);

/* ---- calls.c ---- */
/* Adds the tasks whose calls have ended and are not settled. */
void semel_calls_collect(struct semel_consumer *consumer, struct semel_task_list *ended);
/* In the open transaction. */
semel_status semel_calls_settle(struct semel_consumer *consumer, struct semel_task *task,
				semel_error *error);
/* Its run ended with item.status. In the open transaction. */
semel_status semel_calls_settle_failed(struct semel_consumer *consumer, struct semel_task *task,
				       int64_t retry_after_ms, semel_error *error);
/* Those that were admitted go to the workers; those that were deferred wait. */
void semel_calls_start(struct semel_consumer *consumer, const struct semel_task_list *starting);
/* Now and then: so that no other consumer takes the running calls for abandoned. */
semel_status semel_calls_renew_claims(struct semel_consumer *consumer, semel_error *error);

#endif
