/* SPDX-License-Identifier: Apache-2.0 */
/* `semel subscriptions`: lists, pauses and resumes subscriptions. */
#include "base/buffer.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/arguments/command.h"
#include "cli/process/operator.h"
#include "cli/process/output.h"
#include "proof/consumers.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdio.h>

#define ARENA_BLOCK ((size_t)16 * 1024)

/* Writes the texts of a JSON array as a list for a person. */
static void names_text(struct semel_buffer *buffer, const char *json)
{
	for (; *json; json++)
		if (*json == ',')
			semel_buffer_string(buffer, ", ");
		else if (*json != '[' && *json != ']' && *json != '"')
			semel_buffer_append(buffer, json, 1);
}

static void row_text(struct semel_buffer *buffer, const struct semel_subscription_row *row,
		     const struct semel_consumers *consumers, int64_t now_ms)
{
	semel_buffer_printf(buffer, "%s  ", semel_text_shown(row->scope));
	names_text(buffer, semel_text_string(row->topics));
	semel_buffer_printf(buffer, "  %s  consumers %u, in flight %" PRIu64,
			    semel_text_shown_or(row->handler, "-"), consumers->alive,
			    consumers->in_flight);
	semel_buffer_string(buffer, row->paused ? ", paused: " : ": ");
	if (!semel_consumers_explain(consumers, now_ms, buffer))
		semel_buffer_string(buffer, "running");
	semel_buffer_string(buffer, "\n");
}

static void time_member(struct semel_buffer *buffer, const char *name, int64_t time_ms)
{
	char time[SEMEL_TIME_SIZE];

	semel_time_format(time_ms, time);
	semel_buffer_printf(buffer, ",\"%s\":", name);
	semel_buffer_json_or_null(buffer, semel_text_of(time_ms > 0 ? time : NULL));
}

static void row_json(struct semel_buffer *buffer, const struct semel_subscription_row *row,
		     const struct semel_consumers *consumers)
{
	semel_buffer_string(buffer, "{\"scope\":");
	semel_buffer_json(buffer, row->scope);
	semel_buffer_printf(buffer, ",\"topics\":%s,\"bind\":", semel_text_shown(row->topics));
	semel_buffer_json_or_null(buffer, row->bind);
	semel_buffer_string(buffer, ",\"handler\":");
	semel_buffer_json_or_null(buffer, row->handler);
	semel_buffer_printf(buffer,
			    ",\"paused\":%s,\"consumers\":%u,\"inHand\":%" PRIu64
			    ",\"breaker\":%u,\"waitsFor\":",
			    row->paused ? "true" : "false", consumers->alive, consumers->in_flight,
			    consumers->breaker);
	semel_buffer_json_or_null(buffer,
				  semel_text_of(consumers->reason[0] ? consumers->reason : NULL));
	time_member(buffer, "waitsSince", consumers->since_ms);
	time_member(buffer, "nextTry", consumers->next_try_ms);
	semel_buffer_string(buffer, "}");
}

static semel_status list_rows(struct semel_invocation *invocation, semel_store *store,
			      struct semel_arena *arena, struct semel_buffer *buffer)
{
	semel_error *error = &invocation->error;
	int64_t now_ms = semel_now_ms(semel_env_system());
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status = semel_subscriptions_read(store, arena, &rows, &count, error);

	semel_buffer_string(buffer, invocation->json ? "[" : "");
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		struct semel_consumers consumers = { 0 };
		status = semel_consumers_read(store, rows[i].scope, now_ms, &consumers, error);
		if (invocation->json) {
			semel_buffer_string(buffer, i ? ",\n " : "");
			row_json(buffer, &rows[i], &consumers);
		} else {
			row_text(buffer, &rows[i], &consumers, now_ms);
		}
	}
	semel_buffer_string(buffer, invocation->json ? "]\n" : "");
	return status;
}

static semel_status run_list(struct semel_invocation *invocation)
{
	struct semel_buffer buffer = { 0 };
	semel_store *store = NULL;
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	semel_status status = semel_store_open(invocation->store, &store, &invocation->error);
	if (status != SEMEL_OK)
		goto free_arena;
	status = list_rows(invocation, store, arena, &buffer);
	semel_store_close(store);
	if (status != SEMEL_OK)
		semel_buffer_free(&buffer);
	else
		status = semel_output_print(&buffer, &invocation->error);

free_arena:
	semel_arena_free(arena);
	return status;
}

/* Recorded in the audit log, as a change over HTTP is. */
static semel_status set_paused(struct semel_invocation *invocation, bool paused)
{
	semel_error *error = &invocation->error;
	const char *scope = semel_args_positionals(invocation->args, NULL)[0];
	const struct semel_audit_row row = {
		.at_ms = semel_now_ms(semel_env_system()),
		.who = semel_text_of(semel_operator_name()),
		.what = semel_text_of(paused ? "pause" : "resume"),
		.target = semel_text_of(scope),
		.outcome = SEMEL_TEXT("done"),
	};
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, error);
	if (status != SEMEL_OK)
		return status;
	status = store->driver->upkeep->subscription_pause(store, semel_text_of(scope), paused,
							   error);
	if (status != SEMEL_OK)
		goto close_store;
	status = store->driver->upkeep->audit_add(store, &row, NULL, error);
	if (status != SEMEL_OK)
		goto close_store;
	printf("%s: %s\n", scope, paused ? "paused: its consumers stop fetching" : "resumed");

close_store:
	semel_store_close(store);
	return status;
}

static semel_status run_pause(struct semel_invocation *invocation)
{
	return set_paused(invocation, true);
}

static semel_status run_resume(struct semel_invocation *invocation)
{
	return set_paused(invocation, false);
}

static const struct semel_option list_options[] = { SEMEL_OPTION_JSON, { 0 } };
static const struct semel_option no_options[] = { { 0 } };

extern const struct semel_command semel_command_subscriptions;

static const struct semel_command command_list = {
	.name = "list",
	.run = run_list,
	.summary = "list subscriptions, their topics and consumers",
	.options = list_options,
	.details = "Consumers record in the store, every few seconds, how many events they have in "
		   "flight and what they wait for.",
	.parent = &semel_command_subscriptions,
};

static const struct semel_command command_pause = {
	.name = "pause",
	.run = run_pause,
	.positionals = "SCOPE",
	.positionals_min = 1,
	.positionals_max = 1,
	.options = no_options,
	.summary = "pause a subscription: its consumers stop fetching",
	.details = "Events in flight are finished. Exit 65 if no subscription has the scope.",
	.parent = &semel_command_subscriptions,
};

static const struct semel_command command_resume = {
	.name = "resume",
	.run = run_resume,
	.positionals = "SCOPE",
	.positionals_min = 1,
	.positionals_max = 1,
	.options = no_options,
	.summary = "resume a subscription",
	.details = "Exit 65 if no subscription has the scope.",
	.parent = &semel_command_subscriptions,
};

static const struct semel_command *const subcommands[] = { &command_list, &command_pause,
							   &command_resume, NULL };

static const struct semel_example examples[] = {
	{ "semel subscriptions list", "list consumers, and what they wait for" },
	{ "semel subscriptions pause billing", "while its database is repaired" },
	{ "semel subscriptions resume billing", "afterwards" },
	{ 0 },
};

const struct semel_command semel_command_subscriptions = {
	.name = "subscriptions",
	.group = SEMEL_GROUP_OPERATE,
	.summary = "list, pause and resume subscriptions",
	.details = "Lists the subscriptions recorded in the store; a consumer records its "
		   "subscription when it starts.",
	.examples = examples,
	.subcommands = subcommands,
};
