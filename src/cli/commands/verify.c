/* SPDX-License-Identifier: Apache-2.0 */
/* `semel verify`: checks that every committed event is accounted for, in every scope. */
#include "proof/verify.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/commands/stores.h"
#include "cli/process/output.h"
#include "cli/process/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)64 * 1024)

/* ---- JSON ------------------------------------------------------------------------------------ */

static void number_member(struct semel_buffer *buffer, const char *name, uint64_t number)
{
	semel_buffer_printf(buffer, "\"%s\":%" PRIu64 ",", name, number);
}

static size_t listed(const struct semel_verify_finding *finding)
{
	return finding->count < SEMEL_VERIFY_SAMPLES ? (size_t)finding->count
						     : SEMEL_VERIFY_SAMPLES;
}

static void finding_members(struct semel_buffer *buffer, const char *name,
			    const struct semel_verify_finding *finding)
{
	number_member(buffer, name, finding->count);
	semel_buffer_printf(buffer, "\"%sIds\":[", name);
	for (size_t i = 0; i < listed(finding) && finding->ids[i].data; i++) {
		semel_buffer_string(buffer, i ? "," : "");
		semel_buffer_json(buffer, finding->ids[i]);
	}
	semel_buffer_string(buffer, "],");
}

static void scope_json(const struct semel_verify_scope *scope, struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, "{\"scope\":");
	semel_buffer_json(buffer, scope->scope);
	semel_buffer_string(buffer, ",\"guarantee\":");
	semel_buffer_json_or_null(buffer, scope->guarantee);
	semel_buffer_printf(buffer, ",\"tracked\":%s,", scope->tracked ? "true" : "false");
	number_member(buffer, "expected", scope->expected);
	number_member(buffer, "processed", scope->processed);
	number_member(buffer, "pending", scope->pending);
	number_member(buffer, "discarded", scope->discarded);
	number_member(buffer, "parked", scope->parked);
	number_member(buffer, "undelivered", scope->undelivered);
	number_member(buffer, "waiting", scope->waiting);
	finding_members(buffer, "missing", &scope->missing);
	finding_members(buffer, "doubled", &scope->doubled);
	finding_members(buffer, "orphaned", &scope->orphaned);
	finding_members(buffer, "stuck", &scope->stuck);
	finding_members(buffer, "unread", &scope->unread);
	number_member(buffer, "consumers", scope->consumers.alive);
	number_member(buffer, "inHand", scope->consumers.in_flight);
	number_member(buffer, "foreign", scope->foreign);
	semel_buffer_printf(buffer, "\"doubtful\":%s,", scope->doubtful ? "true" : "false");
	semel_buffer_printf(buffer, "\"ok\":%s}",
			    semel_verify_scope_is_clean(scope) ? "true" : "false");
}

struct advising {
	struct semel_buffer *buffer;
	uint32_t count;
};

static void advice_json(const struct semel_verify_remedy *advice, void *user)
{
	struct advising *advising = user;
	struct semel_buffer *buffer = advising->buffer;
	semel_buffer_printf(buffer,
			    "%s{\"problem\":\"%s\",\"scope\":", advising->count++ ? ",\n " : "",
			    advice->problem);
	semel_buffer_json_or_null(buffer, semel_text_of(advice->scope));
	semel_buffer_string(buffer, ",\"text\":");
	semel_buffer_json(buffer, semel_text_of(advice->text));
	semel_buffer_string(buffer, ",\"command\":");
	semel_buffer_json_or_null(buffer, semel_text_of(advice->command));
	semel_buffer_string(buffer, "}");
}

static void unread_json(const struct semel_verify_report *report, struct semel_buffer *buffer)
{
	uint64_t events = 0;
	for (size_t i = 0; i < report->unread_count; i++)
		events += report->unread[i].events;
	number_member(buffer, "unread", events);
	semel_buffer_string(buffer, "\"unreadTopics\":[");
	for (size_t i = 0; i < report->unread_count; i++) {
		semel_buffer_printf(buffer, "%s{\"topic\":", i ? "," : "");
		semel_buffer_json(buffer, report->unread[i].topic);
		semel_buffer_printf(
			buffer, ",\"events\":%" PRIu64 ",\"nearest\":", report->unread[i].events);
		semel_buffer_json_or_null(buffer, report->unread[i].nearest);
		semel_buffer_string(buffer, "}");
	}
	semel_buffer_string(buffer, "],");
}

static void report_json(const struct semel_verify_report *report, struct semel_buffer *buffer)
{
	struct advising advising = { buffer, 0 };
	semel_buffer_string(buffer, "{");
	number_member(buffer, "committed", report->committed);
	number_member(buffer, "published", report->published);
	number_member(buffer, "unpublished", report->unpublished);
	number_member(buffer, "parked", report->parked);
	number_member(buffer, "failed", report->failed);
	finding_members(buffer, "unexplained", &report->unexplained);
	char time[SEMEL_TIME_SIZE];
	semel_time_format(report->pruned_until_ms, time);
	if (report->pruned_until_ms > 0)
		semel_buffer_printf(buffer, "\"prunedUntil\":\"%s\",", time);
	else
		semel_buffer_string(buffer, "\"prunedUntil\":null,");
	semel_buffer_string(buffer, "\"brokerTrouble\":");
	semel_buffer_json_or_null(
		buffer, semel_text_of(report->broker_error[0] ? report->broker_error : NULL));
	semel_buffer_string(buffer, ",\"scopes\":[");
	for (size_t i = 0; i < report->scope_count; i++) {
		semel_buffer_string(buffer, i ? ",\n " : "");
		scope_json(&report->scopes[i], buffer);
	}
	semel_buffer_string(buffer, "],");
	unread_json(report, buffer);
	semel_buffer_string(buffer, "\"advice\":[");
	semel_verify_list_remedies(report, semel_now_ms(semel_env_system()), advice_json,
				   &advising);
	semel_buffer_printf(buffer, "],\"ok\":%s}\n",
			    semel_verify_is_clean(report) ? "true" : "false");
}

/* ---- text ------------------------------------------------------------------------------------ */

static void outbox_text(const struct semel_verify_report *report, struct semel_buffer *buffer)
{
	semel_buffer_printf(buffer,
			    "outbox: %" PRIu64 " committed, %" PRIu64 " published, %" PRIu64
			    " not yet published, %" PRIu64 " given up by the relay",
			    report->committed, report->published, report->unpublished,
			    report->failed);
	if (report->parked > 0)
		semel_buffer_printf(buffer, ", %" PRIu64 " parked behind them", report->parked);
	semel_buffer_string(buffer, "\n");
	if (report->pruned_until_ms > 0) {
		char time[SEMEL_TIME_SIZE];
		semel_time_format(report->pruned_until_ms, time);
		semel_buffer_printf(buffer, "        (events committed up to %s are pruned)\n",
				    time);
	}
}

static int widest_scope(const struct semel_verify_report *report)
{
	size_t widest = strlen("scope");
	for (size_t i = 0; i < report->scope_count; i++)
		if (report->scopes[i].scope.length > widest)
			widest = report->scopes[i].scope.length;
	return (int)widest;
}

static void scopes_text(const struct semel_verify_report *report, struct semel_buffer *buffer)
{
	static const char *const columns[] = { "expected", "processed",   "pending", "discarded",
					       "parked",   "undelivered", "waiting", "missing",
					       "doubled",  "orphaned",    "stuck",   "unread" };
	const size_t column_count = sizeof(columns) / sizeof(columns[0]);
	int width = widest_scope(report);
	semel_buffer_printf(buffer, "\n%-*s", width, "scope");
	for (size_t i = 0; i < column_count; i++)
		semel_buffer_printf(buffer, "  %s", columns[i]);
	semel_buffer_string(buffer, "\n");
	for (size_t i = 0; i < report->scope_count; i++) {
		const struct semel_verify_scope *scope = &report->scopes[i];
		semel_buffer_printf(buffer, "%-*s", width, semel_text_shown(scope->scope));
		if (!scope->tracked) {
			semel_buffer_string(buffer,
					    "  not tracked (at-least-once keeps no claims)\n");
			continue;
		}
		const uint64_t numbers[] = { scope->expected,      scope->processed,
					     scope->pending,       scope->discarded,
					     scope->parked,        scope->undelivered,
					     scope->waiting,       scope->missing.count,
					     scope->doubled.count, scope->orphaned.count,
					     scope->stuck.count,   scope->unread.count };
		for (size_t j = 0; j < column_count; j++)
			semel_buffer_printf(buffer, "  %*" PRIu64, (int)strlen(columns[j]),
					    numbers[j]);
		semel_buffer_string(buffer, "\n");
	}
}

static void finding_text(struct semel_buffer *buffer, const char *what, struct semel_text scope,
			 const struct semel_verify_finding *finding)
{
	if (finding->count == 0)
		return;
	semel_buffer_printf(buffer, "\n%s in %s:\n", what, semel_text_shown(scope));
	for (size_t i = 0; i < listed(finding) && finding->ids[i].data; i++)
		semel_buffer_printf(buffer, "  %s\n", semel_text_shown(finding->ids[i]));
	if (finding->count > listed(finding))
		semel_buffer_printf(buffer, "  and %" PRIu64 " more\n",
				    finding->count - listed(finding));
}

static void advice_text(const struct semel_verify_remedy *advice, void *user)
{
	struct advising *advising = user;
	semel_buffer_printf(advising->buffer, "%s%s: %s\n", advising->count++ ? "" : "\n",
			    advice->problem, advice->text);
	if (advice->command)
		semel_buffer_printf(advising->buffer, "  do: %s\n", advice->command);
}

static void report_text(const struct semel_verify_report *report, struct semel_buffer *buffer)
{
	struct advising advising = { buffer, 0 };
	outbox_text(report, buffer);
	if (report->scope_count > 0)
		scopes_text(report, buffer);
	else
		semel_buffer_string(buffer, "no subscription found in these stores\n");
	finding_text(buffer, "given up by the relay, without a dead letter",
		     SEMEL_TEXT("the outbox"), &report->unexplained);
	for (size_t i = 0; i < report->scope_count; i++) {
		const struct semel_verify_scope *scope = &report->scopes[i];
		finding_text(buffer, "missing", scope->scope, &scope->missing);
		if (scope->doubtful)
			semel_buffer_printf(
				buffer,
				"  unless they are in flight at a consumer of %s, which the broker "
				"does not report (verify again with --wait longer than a "
				"handler takes, or while no consumer runs)\n",
				semel_text_shown(scope->scope));
		finding_text(buffer, "doubled", scope->scope, &scope->doubled);
		finding_text(buffer, "orphaned (processed, never committed)", scope->scope,
			     &scope->orphaned);
		finding_text(buffer, "stuck", scope->scope, &scope->stuck);
		finding_text(buffer, "unread, of a topic that is no longer read", scope->scope,
			     &scope->unread);
	}
	semel_verify_list_remedies(report, semel_now_ms(semel_env_system()), advice_text,
				   &advising);
	if (report->broker_error[0])
		semel_buffer_printf(buffer,
				    "\nbroker unreachable (%s): missing events may still wait "
				    "there\n",
				    report->broker_error);
	semel_buffer_string(buffer, semel_verify_is_clean(report)
					    ? "\nevery committed event is accounted for\n"
					    : "\nnot every committed event is accounted for (run: "
					      "semel trace EVENT_ID)\n");
}

/* ---- the command ----------------------------------------------------------------------------- */

static semel_status print_report(const struct semel_invocation *invocation,
				 const struct semel_verify_report *report, semel_error *error)
{
	struct semel_buffer buffer = { 0 };
	if (invocation->json)
		report_json(report, &buffer);
	else
		report_text(report, &buffer);
	semel_status status = semel_output_print(&buffer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_verify_is_clean(report) ? SEMEL_OK : SEMEL_PROBLEM_FOUND;
}

static void show_progress(const char *what, uint64_t count, void *user)
{
	(void)user;
	semel_progress_show(what, count);
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");

	struct semel_stores stores = { 0 };
	semel_status status = semel_stores_open(invocation, &stores);
	if (status != SEMEL_OK)
		goto close_stores;
	const struct semel_verify_plan plan = {
		.producer = stores.all[0],
		.consumers = stores.all,
		.consumer_count = stores.count,
		.broker_url = invocation->broker,
		.scopes = semel_args_list(invocation->args, "scope", NULL),
		.elsewhere = semel_args_list(invocation->args, "read-elsewhere", NULL),
		.wait_ms = semel_args_duration_ms(invocation->args, "wait"),
		.progress = show_progress,
		.env = semel_env_system(),
	};
	struct semel_verify_report report;
	status = semel_verify_run(&plan, arena, &report, error);
	semel_progress_end();
	if (status != SEMEL_OK)
		goto close_stores;
	status = print_report(invocation, &report, error);

close_stores:
	semel_stores_close(&stores);
	semel_arena_free(arena);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "scope",
	  .kind = SEMEL_OPTION_MULTI,
	  .command_line_only = true,
	  .argument = "SCOPE",
	  .help = "check this subscription only" },
	{ .name = "wait",
	  .kind = SEMEL_OPTION_DURATION,
	  .command_line_only = true,
	  .argument = "DURATION",
	  .max = 86400000,
	  .default_value = "0s",
	  .help = "wait at most this long for events that are in flight" },
	{ .name = "read-elsewhere",
	  .kind = SEMEL_OPTION_MULTI,
	  .command_line_only = true,
	  .argument = "TOPIC",
	  .help = "do not report this topic as unread: its readers keep no record in these "
		  "stores" },
	SEMEL_OPTION_CONSUMER_STORE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel verify", "check every subscription of this store" },
	{ "semel verify --wait 5m", "while relays and consumers run" },
	{ "semel verify --consumer-store sqlite:billing.db", "billing has a database of its own" },
	{ 0 },
};

const struct semel_command semel_command_verify = {
	.name = "verify",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary = "check that every committed event is accounted for",
	.options = options,
	.details =
		"Compares the outbox with each subscription: each event must be processed, be a "
		"dead letter, or be parked behind one. Exit 1 when an event is missing, doubled, "
		"orphaned (processed but never committed), stuck (it waits, and nothing will "
		"ever process it) or still waiting, or was published to a topic that no "
		"subscription reads. Each problem is printed with the command that repairs it. "
		"Relays and consumers may run meanwhile; events in flight then count as "
		"waiting. With --wait it checks again until the events that were committed at "
		"its start have arrived. Where a broker does not report events in flight "
		"(RabbitMQ's queues), the consumers do, in the store; an event counts as missing "
		"when it has not been found anywhere for 10 s.",
	.examples = examples,
};
