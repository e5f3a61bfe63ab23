/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of handlers outside the transaction: started, collected, settled. For dispatch.c. */
#ifndef SEMEL_CONSUME_CALLS_H
#define SEMEL_CONSUME_CALLS_H

#include "consume/retry.h"
#include "consume/task_table.h"

struct semel_calls {
	struct semel_worker_pool *pool;
	struct semel_timeouts timeouts;
	const struct semel_task *probe; /* of a half-open breaker; NULL: none is running */
	uint32_t running;
	int64_t renew_at_ms; /* steady: when the claims are renewed */
};

struct semel_task_list {
	struct semel_task **tasks;
	uint32_t count;
};

/* Did the task's last call time out, as far as is remembered? */
bool semel_calls_has_timed_out(const struct semel_calls *calls, const struct semel_task *task);
/* Collects the calls that have ended: their tasks become ENDED, and the breaker gets the
 * outcomes. */
void semel_calls_collect(struct semel_consumer *consumer, struct semel_calls *calls);
/* Settles a task that has ended. In the open transaction. */
semel_status semel_calls_settle(struct semel_consumer *consumer, struct semel_task *task,
				semel_error *error);
/* The task's run ended with item.status. In the open transaction. */
semel_status semel_calls_settle_failed(struct semel_consumer *consumer, struct semel_task *task,
				       int64_t retry_after_ms, semel_error *error);
/* Submits the admitted tasks to the workers; deferred tasks wait. */
void semel_calls_start(struct semel_consumer *consumer, struct semel_calls *calls,
		       const struct semel_task_list *starting);
/* Renews the claims of the running calls from time to time, so that no other consumer takes the
 * calls for abandoned. */
semel_status semel_calls_renew_claims(struct semel_consumer *consumer, struct semel_calls *calls,
				      semel_error *error);

#endif
