/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/run/pruner.h"

#include "base/error.h"
#include "cli/arguments/config.h"
#include "observe/log.h"
#include "proof/retention.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define EVERY_MS (INT64_C(3600) * 1000)

struct semel_pruner {
	const char *store, *broker; /* URLs, the invocation's */
	struct semel_retention_plan plan;
};

semel_status semel_pruner_open(struct semel_invocation *invocation,
			       struct semel_pruner **pruner_out)
{
	const struct semel_retention *retention = &invocation->config->retention;
	struct semel_pruner *pruner = calloc(1, sizeof *pruner);

	*pruner_out = NULL;
	if (!pruner)
		return semel_error_set(&invocation->error, SEMEL_INTERNAL, "no memory to prune");
	pruner->store = invocation->store;
	pruner->broker = invocation->broker;
	pruner->plan = (struct semel_retention_plan){
		.env = semel_env_system(),
		.ages = { .outbox_ms = retention->outbox_ms,
			  .inbox_ms = retention->inbox_ms,
			  .dead_ms = retention->dead_ms },
	};
	semel_status status = semel_retention_check(&pruner->plan.ages, &invocation->error);
	if (status != SEMEL_OK)
		goto close_pruner;
	status = semel_wake_new(&pruner->plan.wake, &invocation->error);
	if (status != SEMEL_OK)
		goto close_pruner;
	*pruner_out = pruner;
	return SEMEL_OK;

close_pruner:
	semel_pruner_close(pruner);
	return status;
}

static void log_counts(const struct semel_retention_counts *counts)
{
	char text[160];
	snprintf(text, sizeof text,
		 "outbox %" PRIu64 ", inbox %" PRIu64 ", dead letters %" PRIu64
		 ", log of the broker %" PRIu64,
		 counts->rows.outbox, counts->rows.inbox, counts->rows.dead, counts->broker);
	semel_log(SEMEL_LOG_INFO, "old rows pruned", &(struct semel_log_fields){ .detail = text });
}

static semel_status prune(struct semel_pruner *pruner, semel_error *error)
{
	struct semel_retention_counts counts = { 0 };
	struct semel_retention_plan *plan = &pruner->plan;
	semel_status status = semel_store_open(pruner->store, &plan->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_broker_open(pruner->broker, plan->env, 1, &plan->broker, error);
	if (status != SEMEL_OK)
		goto close_store;
	status = semel_retention_run(plan, &counts, error);
	semel_broker_close(plan->broker);
	plan->broker = NULL;
	if (status == SEMEL_OK)
		log_counts(&counts);

close_store:
	semel_store_close(plan->store);
	plan->store = NULL;
	return status;
}

semel_status semel_pruner_run(struct semel_pruner *pruner, semel_error *error)
{
	const struct semel_env *env = pruner->plan.env;

	while (!semel_wake_is_notified(pruner->plan.wake)) {
		semel_status status = prune(pruner, error);
		if (status != SEMEL_OK)
			return status;
		int64_t until_ms = semel_steady_ms(env) + EVERY_MS;
		while (!semel_wake_is_notified(pruner->plan.wake) &&
		       semel_steady_ms(env) < until_ms)
			semel_wake_sleep(pruner->plan.wake, until_ms - semel_steady_ms(env));
	}
	return SEMEL_OK;
}

void semel_pruner_stop(struct semel_pruner *pruner)
{
	semel_wake_notify(pruner->plan.wake);
}

void semel_pruner_close(struct semel_pruner *pruner)
{
	if (!pruner)
		return;
	semel_wake_free(pruner->plan.wake);
	free(pruner);
}
