/* SPDX-License-Identifier: Apache-2.0 */
/* `semel replay`: sends retained events of the outbox again. */
#include "deadletter/replay.h"
#include "base/arena.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/arguments/config.h"
#include "cli/commands/stores.h"
#include "cli/process/progress.h"
#include "cli/process/signals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS 10000

/* Everything that is open while a replay runs. */
struct session {
	struct semel_stores stores;
	struct semel_broker *broker;
	struct semel_wake *wake;
	char *aggregate; /* "TYPE\0ID" */
};

static void close_session(struct session *session)
{
	semel_wake_free(session->wake);
	semel_broker_close(session->broker);
	semel_stores_close(&session->stores);
	free(session->aggregate);
}

static semel_status read_aggregate(const struct semel_args *args, struct session *session,
				   struct semel_outbox_filter *filter, semel_error *error)
{
	const char *text = semel_args_text(args, "aggregate");
	if (!text)
		return SEMEL_OK;
	const char *colon = strchr(text, ':');
	if (!colon || colon == text || !colon[1])
		return semel_error_set(error, SEMEL_USAGE,
				       "invalid value \"%s\" for --aggregate (expected TYPE:ID)",
				       text);
	session->aggregate = strdup(text);
	if (!session->aggregate)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	session->aggregate[colon - text] = '\0';
	filter->aggregate_type = session->aggregate;
	filter->aggregate_id = session->aggregate + (colon - text) + 1;
	return SEMEL_OK;
}

static semel_status read_plan(const struct semel_invocation *invocation, struct session *session,
			      struct semel_replay_plan *plan, semel_error *error)
{
	const struct semel_args *args = invocation->args;
	*plan = (struct semel_replay_plan){
		.env = semel_env_system(),
		.filter = { .type = semel_args_text(args, "type") },
		.scope = semel_args_text(args, "scope"),
		.max = (uint64_t)semel_args_number(args, "max"),
		.rate = (uint32_t)semel_args_number(args, "rate"),
		.inbox_retention_ms = invocation->config->retention.inbox_ms,
		.reprocess = semel_args_flag(args, "reprocess"),
		.force = semel_args_flag(args, "force"),
		.dry_run = semel_args_flag(args, "dry-run"),
	};
	if (plan->reprocess && !plan->scope)
		return semel_error_set(error, SEMEL_USAGE,
				       "--reprocess needs --scope SCOPE (the subscription whose "
				       "claims are deleted)");
	semel_status status = read_aggregate(args, session, &plan->filter, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_args_time_ms(args, "since", &plan->filter.since_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_args_time_ms(args, "until", &plan->filter.until_ms, error);
	return status;
}

static semel_status open_session(struct semel_invocation *invocation, struct session *session,
				 struct semel_replay_plan *plan, semel_error *error)
{
	semel_status status = semel_stores_open(invocation, &session->stores);
	if (status != SEMEL_OK)
		return status;
	status = semel_wake_new(&session->wake, error);
	if (status != SEMEL_OK)
		return status;
	if (!plan->dry_run)
		status = semel_broker_open(invocation->broker, plan->env, SEMEL_REPLAY_WINDOW,
					   &session->broker, error);
	if (status != SEMEL_OK)
		return status;
	plan->producer = session->stores.all[0];
	plan->consumers = session->stores.all;
	plan->consumer_count = session->stores.count;
	plan->broker = session->broker;
	plan->wake = session->wake;
	return SEMEL_OK;
}

static void stop(void *wake)
{
	semel_wake_notify(wake);
}

static void show_progress(const struct semel_replay_counts *counts, void *user)
{
	(void)user;
	semel_progress_show_of("events replayed", counts->sent, counts->chosen);
}

static void report_json(const struct semel_replay_plan *plan,
			const struct semel_replay_counts *counts)
{
	char oldest[SEMEL_TIME_SIZE + 2] = "null";
	if (counts->oldest_ms > 0) {
		char time[SEMEL_TIME_SIZE];
		semel_time_format(counts->oldest_ms, time);
		snprintf(oldest, sizeof(oldest), "\"%s\"", time);
	}
	printf("{\"matching\":%" PRIu64 ",\"chosen\":%" PRIu64 ",\"replayed\":%" PRIu64
	       ",\"tooOld\":%" PRIu64 ",\"held\":%" PRIu64 ",\"oldest\":%s,\"dryRun\":%s}\n",
	       counts->matching, counts->chosen, counts->sent, counts->too_old, counts->held,
	       oldest, plan->dry_run ? "true" : "false");
}

static void report(const struct semel_replay_plan *plan, const struct semel_replay_counts *counts,
		   semel_status status)
{
	uint64_t number = plan->dry_run ? counts->chosen : counts->sent;
	printf("%s %" PRIu64 " event%s", plan->dry_run ? "would replay" : "replayed", number,
	       number == 1 ? "" : "s");
	if (plan->scope)
		printf(" to %s", plan->scope);
	if (counts->chosen < counts->matching)
		printf(", of %" PRIu64 " that match", counts->matching);
	if (status == SEMEL_STOPPED)
		printf(" (stopped; %" PRIu64 " not sent)", counts->chosen - counts->sent);
	printf("\n");
	if (plan->dry_run && counts->too_old > 0)
		printf("%" PRIu64 " of them are older than the inbox retention (refused unless "
		       "--force is given)\n",
		       counts->too_old);
	if (plan->dry_run && counts->held > 0)
		printf("%" PRIu64 " of them belong to held aggregates (refused unless --force is "
		       "given)\n",
		       counts->held);
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	struct session session = { 0 };
	struct semel_replay_plan plan;
	struct semel_replay_counts counts = { 0 };
	semel_status status = read_plan(invocation, &session, &plan, error);
	if (status != SEMEL_OK)
		goto close_session;
	status = open_session(invocation, &session, &plan, error);
	if (status != SEMEL_OK)
		goto close_session;

	plan.progress = show_progress;
	semel_signals_watch(stop, session.wake, GRACE_MS);
	status = semel_replay_run(&plan, &counts, error);
	semel_signals_forget();
	semel_progress_end();
	if (invocation->json)
		report_json(&plan, &counts);
	else if (status == SEMEL_OK || status == SEMEL_STOPPED || counts.sent > 0)
		report(&plan, &counts, status);

close_session:
	close_session(&session);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "type",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "TYPE",
	  .group = "Which events",
	  .help = "select events of this type" },
	{ .name = "aggregate",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "TYPE:ID",
	  .group = "Which events",
	  .help = "select events of this aggregate" },
	{ .name = "since",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "TIME",
	  .group = "Which events",
	  .help = "select events whose time is this or later (RFC 3339, or a date)" },
	{ .name = "until",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "TIME",
	  .group = "Which events",
	  .help = "select events whose time is earlier than this" },
	{ .name = "max",
	  .kind = SEMEL_OPTION_NUMBER,
	  .command_line_only = true,
	  .argument = "N",
	  .min = 1,
	  .group = "Which events",
	  .help = "select at most this many events, the first in outbox order (default: no "
		  "limit)" },
	{ .name = "scope",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "SCOPE",
	  .help = "send to this subscription only (default: to all)" },
	{ .name = "reprocess",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "delete the claims of the scope, so that the effects happen again" },
	{ .name = "force",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "also send events whose claims may have been pruned, and events of held "
		  "aggregates" },
	{ .name = "rate",
	  .kind = SEMEL_OPTION_NUMBER,
	  .command_line_only = true,
	  .argument = "N",
	  .min = 1,
	  .max = 10000000,
	  .help = "send at most this many events per second (default: no limit)" },
	{ .name = "dry-run",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "count the events, and send none" },
	SEMEL_OPTION_CONSUMER_STORE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel replay --type order.created.v1 --since 2026-11-01 --dry-run",
	  "count the events that would be sent" },
	{ "semel replay --aggregate order:ord-1",
	  "to all subscriptions; those that have processed it skip it" },
	{ "semel replay --scope audit --reprocess --rate 200", "rebuild the tables of audit" },
	{ 0 },
};

const struct semel_command semel_command_replay = {
	.name = "replay",
	.run = run,
	.group = SEMEL_GROUP_OPERATE,
	.summary = "send retained events again, with the same ids",
	.options = options,
	.details =
		"Sends events of the outbox that were published before, in their order. A "
		"subscription that has processed an event skips it by its id, as long as the inbox "
		"keeps the id. If a selected event is older than the inbox retention, nothing is "
		"sent (exit 65) unless --force is given.\n\n"
		"--reprocess makes the effects of one subscription happen again: its claims are "
		"deleted, then the events are sent. Empty the tables that it has written first.",
	.examples = examples,
};
