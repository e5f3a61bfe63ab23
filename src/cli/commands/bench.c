/* SPDX-License-Identifier: Apache-2.0 */
/* `semel bench`: measures the cost of Semel over the same work done by hand, and whether it grows
 * with the backlog. */
#include "cli/plays/bench/bench.h"
#include "base/buffer.h"
#include "base/error.h"
#include "cli/arguments/command.h"
#include "cli/process/output.h"
#include "cli/process/progress.h"

#include <stdio.h>

static semel_status measure(struct semel_bench *bench)
{
	semel_status status = semel_bench_find_baseline(bench);
	if (status != SEMEL_OK)
		return status;
	status = semel_bench_publish(bench);
	if (status != SEMEL_OK)
		return status;
	status = semel_bench_deliver(bench);
	if (status != SEMEL_OK)
		return status;
	return semel_bench_backlog(bench);
}

static semel_status print(struct semel_invocation *invocation, const struct semel_bench *bench)
{
	struct semel_buffer buffer = { 0 };
	if (invocation->json)
		semel_bench_json(bench, &buffer);
	else
		semel_bench_text(bench, &buffer);
	return semel_output_print(&buffer, &invocation->error);
}

static bool all_met(const struct semel_bench_row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!semel_bench_is_met(&rows[i]))
			return false;
	return true;
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	const struct semel_sandbox_plan plan = { .parent = semel_args_text(args, "dir"),
						 .fallback = "/var/tmp",
						 .keep = semel_args_flag(args, "keep") };
	struct semel_sandbox sandbox;
	struct semel_bench bench = {
		.sandbox = &sandbox,
		.rounds = (uint32_t)semel_args_number(args, "rounds"),
		.turns = (uint32_t)semel_args_number(args, "turns"),
		.transactions = (uint64_t)semel_args_number(args, "transactions"),
		.events = (uint64_t)semel_args_number(args, "events"),
		.backlog = (uint64_t)semel_args_number(args, "backlog"),
		.error = &invocation->error,
	};
	semel_status status = semel_sandbox_open(&sandbox, &plan, &invocation->error);
	if (status != SEMEL_OK)
		goto close_sandbox;
	status = measure(&bench);
	semel_progress_end();
	if (status != SEMEL_OK)
		goto close_sandbox;
	status = print(invocation, &bench);
	if (status != SEMEL_OK)
		goto close_sandbox;
	bool met =
		all_met(bench.rates, bench.rate_count) && all_met(bench.growth, bench.growth_count);
	if (semel_args_flag(args, "check") && !met)
		status = SEMEL_PROBLEM_FOUND;

close_sandbox:
	semel_sandbox_close(&sandbox);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "rounds",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1,
	  .max = 100,
	  .default_value = "7",
	  .help = "number of rounds, of which the median counts" },
	{ .name = "turns",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1,
	  .max = 1000,
	  .default_value = "5",
	  .help = "measurements per side and round (batched events)" },
	{ .name = "transactions",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1,
	  .max = 1000000,
	  .default_value = "300",
	  .help = "transactions of one event, per round and side" },
	{ .name = "events",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1,
	  .max = 10000000,
	  .default_value = "2500",
	  .help = "events to publish and consume, per measurement and side" },
	{ .name = "backlog",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1000,
	  .max = 100000000,
	  .default_value = "100000",
	  .help = "size of the backlog that is compared with one of 1,000" },
	{ .name = "dir",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FOLDER",
	  .help = "create the temporary folder here, on a real disk (default: TMPDIR, else "
		  "/var/tmp)" },
	{ .name = "keep", .kind = SEMEL_OPTION_FLAG, .help = "keep the folder" },
	{ .name = "check", .kind = SEMEL_OPTION_FLAG, .help = "exit 1 if a goal is missed" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel bench", "less than a minute" },
	{ "semel bench --backlog 1000000", "the full measurement, a few minutes" },
	{ 0 },
};

const struct semel_command semel_command_bench = {
	.name = "bench",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary = "compare this build with bare sqlite3, as ratios",
	.options = options,
	.details = "The bare side does the same durable work by hand: the same rows in the same "
		   "tables, WAL, synchronous=FULL, prepared statements, two commits for a batch of "
		   "500. It has one relay, one consumer and handles no failures, so it is an upper "
		   "bound, not an alternative.\n\n"
		   "--store and --broker are not used. Rates depend on the disk and on what else "
		   "runs; ratios hardly do.",
	.examples = examples,
};
