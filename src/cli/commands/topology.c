/* SPDX-License-Identifier: Apache-2.0 */
/* `semel topology`: creates or compares what the subscriptions need at the broker before anything
 * runs, so that a deployment can do it with other permissions than the program has later. */
#include "base/error.h"
#include "broker/broker.h"
#include "cli/commands/required_subscriptions.h"
#include "cli/commands/slot.h"
#include "cli/process/output.h"

#include <inttypes.h>
#include <stdio.h>

struct topology {
	const struct semel_invocation *invocation;
	bool applying;
	bool incomplete; /* something could not be checked, which was reported */
	uint64_t subscriptions, differences;
};

static void print_difference(const char *difference, void *user)
{
	struct topology *topology = user;
	struct semel_buffer text = { 0 };
	bool first = topology->differences++ == 0;
	if (!topology->invocation->json) {
		(void)semel_output_write(difference, NULL);
		(void)semel_output_write("\n", NULL);
		return;
	}
	semel_buffer_json(&text, semel_text_of(difference));
	printf("%s%s", first ? "" : ",", text.failed ? "\"\"" : text.data);
	semel_buffer_free(&text);
}

/* What compare cannot see is reported as findings. */
static void report_finding(const struct semel_finding *finding, void *user)
{
	struct topology *topology = user;
	char text[SEMEL_ERROR_TEXT_MAX];
	if (finding->severity == SEMEL_SEVERITY_FINE)
		return;
	if (finding->severity == SEMEL_SEVERITY_ADVICE) {
		topology->incomplete = true;
		fprintf(stderr, "%s (%s)\n", finding->text, finding->remedy);
		return;
	}
	snprintf(text, sizeof(text), "%.500s (%.500s)", finding->text, finding->remedy);
	print_difference(text, topology);
}

static void check_bindings(struct topology *topology, struct semel_broker *broker,
			   const struct semel_subscribe_options *options)
{
	const struct semel_examination examination = {
		.report = report_finding,
		.user = topology,
		.env = semel_env_system(),
		.management = semel_args_text(topology->invocation->args, "management"),
	};
	if (broker->driver->examine_bindings && !topology->incomplete)
		broker->driver->examine_bindings(broker, options, &examination);
}

/* A connection to the broker has one subscription, so each gets its own. */
static semel_status process_subscription(struct topology *topology,
					 const struct semel_subscribe_options *options,
					 semel_error *error)
{
	struct semel_broker *broker = NULL;
	semel_status status = semel_broker_open(topology->invocation->broker, semel_env_system(), 1,
						&broker, error);
	if (status != SEMEL_OK)
		return status;
	topology->subscriptions++;
	if (topology->applying) {
		status = broker->driver->subscribe(broker, options, error);
		goto close_broker;
	}
	status = broker->driver->compare(broker, options, print_difference, topology, error);
	if (status != SEMEL_OK)
		goto close_broker;
	check_bindings(topology, broker, options);

close_broker:
	semel_broker_close(broker);
	return status;
}

/* ---- which subscriptions --------------------------------------------------------------------- */

static semel_status process_named(struct topology *topology, semel_error *error)
{
	const struct semel_args *args = topology->invocation->args;
	size_t topics = 0;
	struct semel_subscribe_options options = semel_declaration_of(
		semel_args_text(args, "scope"), semel_args_list(args, "topic", &topics));
	if (topics == 0)
		return semel_error_set(error, SEMEL_USAGE, "--scope needs --topic TOPIC");
	options.partitions = (uint32_t)semel_args_number(args, "partitions");
	options.bind = semel_args_text(args, "bind");
	options.delay_max_ms = semel_args_duration_ms(args, "delay-max");
	options.inbox_ms = topology->invocation->config->retention.inbox_ms;
	return process_subscription(topology, &options, error);
}

/* Even without subscriptions there may be a slot to process. */
static semel_status process_config(struct topology *topology,
				   const struct semel_required_subscriptions *required,
				   semel_error *error)
{
	if (required->count == 0 && !semel_slot_is_configured(topology->invocation))
		return semel_error_set(error, SEMEL_USAGE,
				       "no subscription given (give --scope and --topic, or a "
				       "--config with subscriptions)");
	for (size_t i = 0; i < required->count; i++) {
		semel_status status = process_subscription(topology, &required->all[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status process_all(struct topology *topology, semel_error *error)
{
	struct semel_required_subscriptions required = { 0 };
	if (semel_args_has(topology->invocation->args, "scope"))
		return process_named(topology, error);
	semel_status status =
		semel_required_subscriptions_read(topology->invocation->config, &required, error);
	if (status != SEMEL_OK)
		goto free_required;
	status = process_config(topology, &required, error);

free_required:
	semel_required_subscriptions_free(&required);
	return status;
}

/* ---- the commands ---------------------------------------------------------------------------- */

static semel_status run_apply(struct semel_invocation *invocation)
{
	struct topology topology = { .invocation = invocation, .applying = true };
	semel_status status = process_all(&topology, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_slot_create(invocation, invocation->json ? NULL : stdout);
	if (status != SEMEL_OK)
		return status;
	if (invocation->json)
		printf("{\"subscriptions\":%" PRIu64 "}\n", topology.subscriptions);
	else
		printf("broker objects of %" PRIu64 " subscription%s exist\n",
		       topology.subscriptions, topology.subscriptions == 1 ? "" : "s");
	return SEMEL_OK;
}

static semel_status check_all(struct topology *topology, struct semel_invocation *invocation)
{
	semel_status status = process_all(topology, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	return semel_slot_check(invocation, print_difference, topology);
}

static semel_status run_check(struct semel_invocation *invocation)
{
	struct topology topology = { .invocation = invocation };
	if (invocation->json)
		fputs("{\"differences\":[", stdout);
	semel_status status = check_all(&topology, invocation);
	if (invocation->json)
		fputs("]}\n", stdout);
	if (status != SEMEL_OK)
		return status;
	if (topology.differences > 0)
		return semel_error_set(
			&invocation->error, SEMEL_PROBLEM_FOUND,
			"found %" PRIu64
			" differences (to create missing objects, run: semel topology apply)",
			topology.differences);
	if (!invocation->json)
		puts(topology.incomplete
			     ? "no differences found (some objects could not be checked)"
			     : "no differences found");
	return SEMEL_OK;
}

static const struct semel_option options[] = {
	{ .name = "scope",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "NAME",
	  .help = "name of the subscription (default: all of the config file)" },
	{ .name = "topic",
	  .kind = SEMEL_OPTION_MULTI,
	  .command_line_only = true,
	  .argument = "TOPIC",
	  .help = "with --scope: topic that it reads" },
	{ .name = "partitions",
	  .kind = SEMEL_OPTION_NUMBER,
	  .command_line_only = true,
	  .argument = "N",
	  .min = 1,
	  .max = 64,
	  .help = "with --scope: spread the subscription over this many queues by aggregate" },
	{ .name = "bind",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "PATTERN",
	  .help = "with --scope, RabbitMQ: receive only events with a matching routing key, such "
		  "as order.*" },
	{ .name = "delay-max",
	  .kind = SEMEL_OPTION_DURATION,
	  .command_line_only = true,
	  .argument = "DURATION",
	  .min = 1,
	  .default_value = "1m",
	  .help = "with --scope: longest delay between attempts" },
	{ .name = "management",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "URL",
	  .help = "RabbitMQ's management plugin, for bindings and limits (default: port 15672, "
		  "with TLS 15671, of the broker's host)" },
	SEMEL_OPTION_CDC,
	SEMEL_OPTION_SLOT,
	SEMEL_OPTION_JSON,
	{ 0 },
};

extern const struct semel_command semel_command_topology;

static const struct semel_command command_apply = {
	.name = "apply",
	.run = run_apply,
	.summary = "create missing broker objects",
	.options = options,
	.details = "Safe to run again. Never changes what exists: a difference is reported as an "
		   "error.",
	.parent = &semel_command_topology,
};

static const struct semel_command command_check = {
	.name = "check",
	.run = run_check,
	.summary = "report missing or different broker objects",
	.options = options,
	.details =
		"Changes nothing. Prints each difference on a line; exit 1 if there is one. What "
		"the change stream needs is checked with --cdc, and when the relay of the config "
		"file has source: cdc.",
	.parent = &semel_command_topology,
};

static const struct semel_command *const subcommands[] = { &command_apply, &command_check, NULL };

static const struct semel_example examples[] = {
	{ "semel topology check --config semel.yaml", "before a deployment" },
	{ "semel topology apply --scope billing --topic order.events", "for one subscription" },
	{ "semel topology apply --cdc --store postgres://app@db/shop",
	  "create the publication and the slot of relay --source cdc" },
	{ 0 },
};

const struct semel_command semel_command_topology = {
	.name = "topology",
	.group = SEMEL_GROUP_OPERATE,
	.summary = "create or compare what subscriptions need at the broker",
	.details = "Exchanges, queues and retry tiers on RabbitMQ; topics and subscriptions in the "
		   "file of a local broker; with --cdc the publication and the replication slot of "
		   "the change stream in the database. `semel consume` declares them itself: this "
		   "command is for deployments that do it before, or with another account.",
	.examples = examples,
	.subcommands = subcommands,
};
