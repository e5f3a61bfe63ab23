/* SPDX-License-Identifier: Apache-2.0 */
/* `semel demo`: delivery and its failures on one screen. */
#include "cli/plays/demo/demo.h"
#include "cli/arguments/command.h"

#include <stdio.h>
#include <string.h>

/* A server's URL is used only if it is on the command line: one from the environment or the config
 * file may name a production server. Files are created in the sandbox, whatever a URL says. */
static const char *server(const struct semel_args *args, const char *option, const char *scheme)
{
	const char *url = semel_args_text(args, option);
	return url != NULL && strncmp(url, scheme, strlen(scheme)) == 0 ? url : NULL;
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	const struct semel_sandbox_plan plan = { .parent = semel_args_text(args, "dir"),
						 .fallback = "/tmp",
						 .keep = semel_args_flag(args, "keep"),
						 .store = server(args, "store", "postgres"),
						 .broker = server(args, "broker", "amqp") };
	struct semel_demo demo = { .colour = semel_demo_has_colour(),
				   .store = plan.store,
				   .broker = plan.broker,
				   .error = &invocation->error };
	semel_status status = semel_sandbox_open(&demo.sandbox, &plan, &invocation->error);
	if (status != SEMEL_OK)
		goto close_sandbox;
	status = semel_demo_run_steps(&demo);
	semel_shop_close(&demo.shop);
	if (plan.keep && demo.sandbox.folder[0])
		printf("\nThe databases are kept in %s\n", demo.sandbox.folder);

close_sandbox:
	semel_sandbox_close(&demo.sandbox);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "keep", .kind = SEMEL_OPTION_FLAG, .help = "keep the folder with the databases" },
	{ .name = "dir",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FOLDER",
	  .help = "create the temporary folder here (default: TMPDIR, else /tmp)" },
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel demo", "run it; a few seconds, nothing is left behind" },
	{ "semel demo --keep", "keep the databases for inspection" },
	{ "semel demo --store postgres://app@db/empty --broker amqp://mq/", "the same on servers" },
	{ 0 },
};

const struct semel_command semel_command_demo = {
	.name = "demo",
	.run = run,
	.group = SEMEL_GROUP_START,
	.summary = "run a shop and three services through crashes and duplicates",
	.options = options,
	.details = "Runs in a temporary folder, offline, with this executable as relay and "
		   "services: orders are placed, processes are killed, events are delivered twice, "
		   "an order is poisoned and corrected. Every number is read from the databases "
		   "and the broker. Exit 1 when a check fails.\n\n"
		   "With --store postgres://… and --broker amqp://… it runs there, on an empty "
		   "database and virtual host, where its tables and queues remain.",
	.examples = examples,
};
