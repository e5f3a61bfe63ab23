/* SPDX-License-Identifier: Apache-2.0 */
/* `semel prune`: deletes rows that are past their retention. */
#include "cli/arguments/config.h"
#include "cli/process/progress.h"
#include "cli/process/signals.h"
#include "proof/retention.h"

#include <inttypes.h>
#include <stdio.h>

#define GRACE_MS 10000

static void report_json(const struct semel_retention_counts *counts, bool dry_run)
{
	printf("{\"outbox\":%" PRIu64 ",\"inbox\":%" PRIu64 ",\"deadLetters\":%" PRIu64
	       ",\"broker\":%" PRIu64 ",\"dryRun\":%s}\n",
	       counts->rows.outbox, counts->rows.inbox, counts->rows.dead, counts->broker,
	       dry_run ? "true" : "false");
}

static void report(const struct semel_retention_counts *counts, bool dry_run)
{
	printf("%s %" PRIu64 " events of the outbox, %" PRIu64 " claims, %" PRIu64
	       " dead letters, %" PRIu64 " entries of the broker's log\n",
	       dry_run ? "would prune" : "pruned", counts->rows.outbox, counts->rows.inbox,
	       counts->rows.dead, counts->broker);
}

static void stop(void *wake)
{
	semel_wake_notify(wake);
}

static void show_progress(const struct semel_retention_counts *counts, void *user)
{
	const struct semel_prune_counts *rows = &counts->rows;
	(void)user;
	semel_progress_show("rows", rows->outbox + rows->inbox + rows->dead);
}

static semel_status prune(struct semel_invocation *invocation, struct semel_retention_plan *plan)
{
	struct semel_retention_counts counts = { 0 };
	semel_signals_watch(stop, plan->wake, GRACE_MS);
	semel_status status = semel_retention_run(plan, &counts, &invocation->error);
	semel_signals_forget();
	semel_progress_end();
	if (status != SEMEL_OK && status != SEMEL_STOPPED)
		return status;
	if (invocation->json)
		report_json(&counts, plan->dry_run);
	else
		report(&counts, plan->dry_run);
	return status;
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_retention *retention = &invocation->config->retention;
	semel_error *error = &invocation->error;
	struct semel_retention_plan plan = {
		.env = semel_env_system(),
		.ages = { .outbox_ms = retention->outbox_ms,
			  .inbox_ms = retention->inbox_ms,
			  .dead_ms = retention->dead_ms },
		.dry_run = semel_args_flag(invocation->args, "dry-run"),
		.progress = show_progress,
	};
	/* Checked before anything is opened: a configuration error does not depend on a
	 * database. */
	semel_status status = semel_retention_check(&plan.ages, error);
	if (status != SEMEL_OK)
		goto close_all;
	status = semel_wake_new(&plan.wake, error);
	if (status != SEMEL_OK)
		goto close_all;
	status = semel_store_open(invocation->store, &plan.store, error);
	if (status != SEMEL_OK)
		goto close_all;
	status = semel_broker_open(invocation->broker, plan.env, 1, &plan.broker, error);
	if (status != SEMEL_OK)
		goto close_all;
	status = prune(invocation, &plan);

close_all:
	semel_broker_close(plan.broker);
	semel_store_close(plan.store);
	semel_wake_free(plan.wake);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "dry-run",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "count the rows, and delete none" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel prune --dry-run", "count the rows that would be deleted" },
	{ "semel --config shop.yaml prune",
	  "apply the retention of a config file, for example from cron" },
	{ 0 },
};

const struct semel_command semel_command_prune = {
	.name = "prune",
	.run = run,
	.group = SEMEL_GROUP_OPERATE,
	.summary = "delete rows that are past their retention",
	.options = options,
	.details =
		"The section retention of the config file sets how long rows are kept: outbox "
		"(14d), inbox (30d), dead-letters (168h). Only published events, finished claims "
		"and dead letters without parked events are deleted, in short transactions. "
		"Entries of a local broker's log are deleted after the outbox retention, once "
		"every subscription has processed them.\n\n"
		"An inbox retention shorter than that of the outbox is refused (exit 78): a replay "
		"could be processed twice.",
	.examples = examples,
};
