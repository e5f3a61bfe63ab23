/* SPDX-License-Identifier: Apache-2.0 */
/* `semel repair`: repairs stuck events where that is provably safe. */
#include "repair/repair.h"

#include "base/buffer.h"
#include "base/error.h"
#include "cli/commands/stores.h"
#include "cli/process/operator.h"
#include "cli/process/output.h"

#include <stdio.h>

struct listing {
	struct semel_buffer buffer;
	bool json;
	uint32_t count;
};

static void add_step(const struct semel_repair_step *step, void *user)
{
	static const char *const results[] = { "would do", "done", "no longer stuck",
					       "not possible" };
	static const char *const names[] = { "planned", "done", "needless", "impossible" };
	struct listing *listing = user;
	struct semel_buffer *buffer = &listing->buffer;

	if (!listing->json) {
		semel_buffer_printf(buffer, "%-15s  %s: %s %s: %s\n", results[step->result],
				    step->scope, step->what, step->target, step->text);
		return;
	}
	semel_buffer_printf(buffer, "%s{\"scope\":", listing->count++ ? ",\n " : "");
	semel_buffer_json(buffer, semel_text_of(step->scope));
	semel_buffer_printf(buffer, ",\"step\":\"%s\",\"target\":", step->what);
	semel_buffer_json(buffer, semel_text_of(step->target));
	semel_buffer_string(buffer, ",\"text\":");
	semel_buffer_json(buffer, semel_text_of(step->text));
	semel_buffer_printf(buffer, ",\"result\":\"%s\"}", names[step->result]);
}

static semel_status print_listing(struct listing *listing, bool dry_run,
				  const struct semel_repair_counts *counts, semel_error *error)
{
	struct semel_buffer *buffer = &listing->buffer;

	if (listing->json)
		semel_buffer_printf(buffer, "],\"dryRun\":%s,\"done\":%u,\"impossible\":%u}\n",
				    dry_run ? "true" : "false", dry_run ? 0 : counts->done,
				    counts->impossible);
	else if (counts->done + counts->impossible == 0)
		semel_buffer_string(buffer, "no event is stuck\n");
	else if (!dry_run && counts->done > 0)
		semel_buffer_string(buffer, "consumers process these events next (run: semel "
					    "verify --wait 1m)\n");
	return semel_output_print(buffer, error);
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	struct listing listing = { .json = invocation->json };
	struct semel_stores stores = { 0 };
	struct semel_repair_counts counts = { 0 };
	semel_status status = semel_stores_open(invocation, &stores);
	if (status != SEMEL_OK)
		goto close_stores;
	const struct semel_repair_plan plan = {
		.stores = stores.all,
		.store_count = stores.count,
		.broker_url = invocation->broker,
		.scopes = semel_args_list(invocation->args, "scope", NULL),
		.env = semel_env_system(),
		.who = semel_operator_name(),
		.dry_run = semel_args_flag(invocation->args, "dry-run"),
		.callback = add_step,
		.user = &listing,
	};
	semel_buffer_string(&listing.buffer, listing.json ? "{\"steps\":[" : "");
	status = semel_repair_run(&plan, &counts, error);
	if (status != SEMEL_OK) {
		semel_buffer_free(&listing.buffer);
		goto close_stores;
	}
	status = print_listing(&listing, plan.dry_run, &counts, error);
	if (status != SEMEL_OK || counts.impossible == 0)
		goto close_stores;
	status = semel_error_set(error, SEMEL_PROBLEM_FOUND,
				 "%u steps were not possible (each line shows the reason)",
				 counts.impossible);

close_stores:
	semel_stores_close(&stores);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "dry-run",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "print the steps, and change nothing" },
	{ .name = "scope",
	  .kind = SEMEL_OPTION_MULTI,
	  .command_line_only = true,
	  .argument = "SCOPE",
	  .help = "repair this subscription only" },
	SEMEL_OPTION_CONSUMER_STORE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel repair --dry-run", "list stuck events, and the steps that would repair them" },
	{ "semel repair", "repair them" },
	{ 0 },
};

const struct semel_command semel_command_repair = {
	.name = "repair",
	.run = run,
	.group = SEMEL_GROUP_OPERATE,
	.summary = "repair stuck events where that is provably safe",
	.options = options,
	.details =
		"Releases parked events that nothing holds, or whose hold has a head that is "
		"settled; sends a replay or a retry again whose copy at the broker is gone. "
		"Nothing else: what needs an operator's decision stays a dead letter, and no "
		"effect happens twice. Each step is checked again in the transaction that makes "
		"it, printed, and recorded in the audit log. It needs the broker, which alone can "
		"report whether a copy is gone. On RabbitMQ nothing is sent while a consumer has "
		"deliveries in flight. Exit 1 when something could not be repaired.",
	.examples = examples,
};
