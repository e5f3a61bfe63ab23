/* SPDX-License-Identifier: Apache-2.0 */
/* `semel consume`: sets the options of a subscription, attaches its handler, runs or drains it, and
 * prints the counts. */
#include "base/error.h"
#include "cli/arguments/admin_options.h"
#include "cli/arguments/delivery_options.h"
#include "cli/commands/from_arguments.h"
#include "cli/process/notify.h"
#include "cli/process/progress.h"
#include "cli/process/signals.h"
#include "consume/consumer.h"
#include "consume/handler.h"
#include "consume/upcast.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FINISH_LIMIT_MS 3000 /* after the grace period: to settle interrupted calls, then exit */

static semel_consumer_options read_options(const struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	const char *dedup_by = semel_args_text(args, "dedup-by");
	size_t prefix = strlen(SEMEL_DEDUP_HEADER);
	return (semel_consumer_options){
		.store = invocation->store,
		.broker = invocation->broker,
		.scope = semel_args_text(args, "scope"),
		.topics = semel_args_list(args, "topic", NULL),
		.handler_version = semel_args_text(args, "handler-version"),
		.dedup_header = strncmp(dedup_by, SEMEL_DEDUP_HEADER, prefix) == 0
					? dedup_by + prefix
					: NULL,
		.id_header = semel_args_text(args, "id-header"),
		.guarantee = (semel_guarantee)semel_args_choice(args, "guarantee"),
		.claim = (semel_claim_mode)semel_args_choice(args, "claim"),
		.poison = (semel_poison)semel_args_choice(args, "poison"),
		.order = (semel_order)semel_args_choice(args, "order"),
		.attempts = (uint32_t)semel_args_number(args, "attempts"),
		.immediate = (uint32_t)semel_args_number(args, "immediate"),
		.first_delay_ms = semel_args_duration_ms(args, "first-delay"),
		.delay_max_ms = semel_args_duration_ms(args, "delay-max"),
		.batch = (uint32_t)semel_args_number(args, "batch"),
		.prefetch_bytes = semel_args_number(args, "prefetch-bytes"),
		.concurrency = (uint32_t)semel_args_number(args, "concurrency"),
		.timeout_ms = semel_args_duration_ms(args, "handler-timeout"),
		.lease_ms = semel_args_duration_ms(args, "lease"),
		.strict_wait_ms = semel_args_duration_ms(args, "strict-wait"),
		.partitions = (uint32_t)semel_args_number(args, "partitions"),
		.bind = semel_args_text(args, "bind"),
		.from_latest = strcmp(semel_args_text(args, "from"), "latest") == 0,
	};
}

/* ---- the handler ----------------------------------------------------------------------------- */

/* The handlers outside the store's transaction, by the option that chooses them. */
static const struct {
	const char *option;
	const struct semel_outside_kind *kind;
} outside_kinds[] = {
	{ "exec", &semel_outside_exec },
	{ "pipe", &semel_outside_pipe },
	{ "http", &semel_outside_http },
	{ "print", &semel_outside_print },
};

static semel_status check_handler(const struct semel_args *args, semel_error *error)
{
	bool any = semel_args_has(args, "sql");
	for (size_t i = 0; i < sizeof outside_kinds / sizeof *outside_kinds; i++)
		any = any || semel_args_has(args, outside_kinds[i].option);
	if (any)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_USAGE,
			       "consume needs a handler (one of --sql, --exec, --pipe, --http, "
			       "--print)");
}

static semel_status use_handler(const struct semel_args *args, semel_consumer *consumer,
				semel_error *error)
{
	size_t count = 0;
	const char *const *names = semel_args_list(args, "pass-env", &count);
	semel_status status = semel_consumer_pass_env(consumer, names, count, error);
	if (status != SEMEL_OK)
		return status;
	const char *const *statements = semel_args_list(args, "sql", &count);
	if (count > 0)
		return semel_consumer_use_sql(consumer, statements, count, error);
	for (size_t i = 0; i < sizeof outside_kinds / sizeof *outside_kinds; i++)
		if (semel_args_has(args, outside_kinds[i].option))
			return semel_consumer_use_outside(
				consumer, outside_kinds[i].kind,
				semel_args_text(args, outside_kinds[i].option), error);
	return check_handler(args, error);
}

static semel_status use_upcasters(const struct semel_args *args, semel_consumer *consumer,
				  semel_error *error)
{
	size_t count = 0;
	const char *const *steps = semel_args_list(args, "upcast", &count);
	semel_status status = SEMEL_OK;
	for (size_t i = 0; status == SEMEL_OK && i < count; i++)
		status = semel_upcasters_parse(semel_consumer_upcasters(consumer), steps[i], error);
	return status;
}

/* ---- the run --------------------------------------------------------------------------------- */

static void stop(void *consumer)
{
	semel_consumer_stop(consumer);
}

/* With --print, stdout has only the events. */
static void report(const struct semel_invocation *invocation, const semel_consumer *consumer)
{
	FILE *file = semel_args_flag(invocation->args, "print") ? stderr : stdout;
	semel_consumer_counts counts = semel_consumer_count(consumer);
	const struct {
		const char *name;
		uint64_t count;
	} rows[] = {
		{ "done", counts.done },       { "duplicate", counts.duplicate },
		{ "retried", counts.retried }, { "dead", counts.dead },
		{ "parked", counts.parked },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		fprintf(file, invocation->json ? "%s\"%s\":%" PRIu64 : "%s%s %" PRIu64,
			i ? (invocation->json ? "," : ", ") : (invocation->json ? "{" : ""),
			rows[i].name, rows[i].count);
	fputs(invocation->json ? "}\n" : "\n", file);
}

static semel_status work(struct semel_invocation *invocation, semel_consumer *consumer)
{
	const struct semel_args *args = invocation->args;
	uint64_t max = (uint64_t)semel_args_number(args, "max");
	semel_signals_watch(stop, consumer,
			    semel_args_duration_ms(args, "grace") + FINISH_LIMIT_MS);
	semel_notify("READY=1");
	if (semel_args_flag(args, "drain") && !semel_args_flag(args, "print"))
		semel_progress_follow("events done", SEMEL_METRIC_CONSUMED, "done");
	semel_status status =
		semel_args_flag(args, "drain")
			? semel_consumer_drain(consumer, semel_args_duration_ms(args, "timeout"),
					       max, &invocation->error)
			: semel_consumer_run(consumer, max, &invocation->error);
	semel_progress_end();
	semel_signals_forget();
	return status;
}

semel_status semel_consumer_from_arguments(struct semel_invocation *invocation,
					   semel_consumer **consumer_out)
{
	const struct semel_args *args = invocation->args;
	semel_error *error = &invocation->error;
	semel_status status = check_handler(args, error);
	*consumer_out = NULL;
	if (status != SEMEL_OK)
		return status;
	semel_consumer_options options = read_options(invocation);
	status = semel_consumer_open(&options, consumer_out, error);
	if (status != SEMEL_OK)
		return status;
	semel_consumer_set_grace(*consumer_out, semel_args_duration_ms(args, "grace"));
	status = use_upcasters(args, *consumer_out, error);
	if (status != SEMEL_OK)
		goto close_consumer;
	status = use_handler(args, *consumer_out, error);
	if (status != SEMEL_OK)
		goto close_consumer;
	return SEMEL_OK;

close_consumer:
	semel_consumer_close(*consumer_out);
	*consumer_out = NULL;
	return status;
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_consumer *consumer = NULL;
	semel_status status = semel_consumer_from_arguments(invocation, &consumer);
	if (status != SEMEL_OK)
		return status;
	struct semel_admin *admin = NULL;
	status = semel_metrics_start(invocation, &admin);
	if (status != SEMEL_OK)
		goto close_consumer;
	status = work(invocation, consumer);
	report(invocation, consumer);
	semel_admin_stop(admin);

close_consumer:
	semel_consumer_close(consumer);
	return status;
}

static const struct semel_example examples[] = {
	{ "semel consume --scope billing --topic order.events \\\n"
	  "      --sql \"INSERT INTO invoice(order_id) VALUES (:aggregate_id)\"",
	  "an invoice per order, effectively once, without code" },
	{ "semel consume --scope mail --topic order.events --exec ./send-mail --claim separate",
	  "run a program per event; never send a second mail, even after a crash" },
	{ "semel consume --scope inspect --topic order.events --print --drain",
	  "print the events of a topic" },
	{ 0 },
};

const struct semel_command semel_command_consume = {
	.name = "consume",
	.run = run,
	.group = SEMEL_GROUP_DELIVER,
	.summary = "process the events of topics, effectively once per scope",
	.options = semel_consume_rows,
	.details =
		"A scope is one subscription: it receives every event of its topics, and by "
		"default the effect happens once, whatever crashes. The effect of --sql commits "
		"together with the record that the event was processed. Handlers outside the "
		"database (--exec, --pipe, --http) receive the event's id as an idempotency key: a "
		"crash between the call and its record repeats the call, with the same id, unless "
		"--claim separate is chosen.\n\n"
		"In --sql the fields of the event are :id :type :aggregate_type :aggregate_id "
		":topic :payload "
		":headers :time :attempt. A program of --exec has the payload on stdin and "
		"SEMEL_EVENT_ID, SEMEL_EVENT_TYPE, SEMEL_AGGREGATE_TYPE, SEMEL_AGGREGATE_ID, "
		"SEMEL_TOPIC, SEMEL_ATTEMPT and SEMEL_HEADERS in its environment; exit 0 is done, "
		"65 is reject, anything else is retry.\n\n"
		"On SIGTERM or SIGINT it stops fetching, finishes what is in flight, and exits 0; "
		"a second signal terminates it immediately. A subscription of the config file with "
		"the same "
		"scope provides the defaults of these options.",
	.examples = examples,
	.config_part = SEMEL_CONFIG_PART_SUBSCRIPTION,
};
