/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of handlers outside: started, ended, settled. For dispatch.c. */
#ifndef SEMEL_CONSUME_CALLS_H
#define SEMEL_CONSUME_CALLS_H

#include "consume/retry.h"
#include "consume/task_table.h"

struct semel_calls {
	struct semel_worker_pool *pool;
	struct semel_timeouts timeouts;
	const struct semel_task *probe; /* of a half-open breaker; NULL: none is running */
	uint32_t running;
	int64_t renew_at_ms; /* steady: their claims */
};

struct semel_task_list {
	struct semel_task **tasks;
	uint32_t count;
};

/* Did its last call time out, as far as is remembered? */
bool semel_calls_has_timed_out(const struct semel_calls *calls, const struct semel_task *task);
/* Those that have ended: their tasks are ENDED, and the breaker knows the outcome. */
void semel_calls_collect(struct semel_consumer *consumer, struct semel_calls *calls);
/* In the open transaction. */
semel_status semel_calls_settle(struct semel_consumer *consumer, struct semel_task *task,
				semel_error *error);
/* Its run ended with item.status. In the open transaction. */
semel_status semel_calls_settle_failed(struct semel_consumer *consumer, struct semel_task *task,
				       int64_t retry_after_ms, semel_error *error);
/* Those that were admitted go to the workers; those that were deferred wait. */
void semel_calls_start(struct semel_consumer *consumer, struct semel_calls *calls,
		       const struct semel_task_list *starting);
/* Now and then: so that no other consumer takes the running calls for abandoned. */
semel_status semel_calls_renew_claims(struct semel_consumer *consumer, struct semel_calls *calls,
				      semel_error *error);

#endif
