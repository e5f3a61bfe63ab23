/* SPDX-License-Identifier: Apache-2.0 */
/* `semel doctor`: checks what delivery depends on, and prints a remedy for each problem. */
#include "doctor/doctor.h"
#include "base/buffer.h"
#include "base/error.h"
#include "cli/arguments/secrets.h"
#include "cli/commands/required_subscriptions.h"
#include "cli/process/output.h"
#include "store/changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct report {
	bool json;
	/* Indexed by check, so that they are printed in the order of the table. */
	struct semel_buffer texts[SEMEL_CHECK_COUNT];
	uint32_t counts[SEMEL_CHECK_COUNT];
	uint32_t problems, advice;
};

/* ---- one finding ----------------------------------------------------------------------------- */

static void finding_json(struct semel_buffer *text, const struct semel_finding *finding)
{
	semel_buffer_printf(text, "{\"check\":\"%s\",\"gravity\":\"%s\",\"text\":",
			    semel_check_name(finding->check),
			    semel_severity_name(finding->severity));
	semel_buffer_json(text, semel_text_of(finding->text));
	semel_buffer_string(text, ",\"do\":");
	semel_buffer_json_or_null(text, semel_text_of(finding->remedy));
	semel_buffer_string(text, "}");
}

static void finding_line(struct semel_buffer *text, const struct semel_finding *finding)
{
	semel_buffer_printf(text, "%-8s %-18s  %s\n", semel_severity_name(finding->severity),
			    semel_check_name(finding->check), finding->text);
	if (finding->remedy)
		semel_buffer_printf(text, "%-8s %-18s  do: %s\n", "", "", finding->remedy);
}

static void add_finding(const struct semel_finding *finding, void *user)
{
	struct report *report = user;
	struct semel_buffer *text = &report->texts[finding->check];

	report->problems += finding->severity == SEMEL_SEVERITY_PROBLEM;
	report->advice += finding->severity == SEMEL_SEVERITY_ADVICE;
	if (report->json && report->counts[finding->check] > 0)
		semel_buffer_string(text, ",\n ");
	report->counts[finding->check]++;
	if (report->json)
		finding_json(text, finding);
	else
		finding_line(text, finding);
}

static void print_report(struct report *report)
{
	bool first = true;

	if (report->json)
		fputs("{\"findings\":[", stdout);
	for (int check = 0; check < SEMEL_CHECK_COUNT; check++) {
		struct semel_buffer *text = &report->texts[check];
		if (text->length > 0)
			fputs(report->json && !first ? ",\n " : "", stdout);
		first = first && text->length == 0;
		(void)semel_output_print(text, NULL);
	}
	if (report->json)
		printf("],\"problems\":%u,\"advice\":%u}\n", report->problems, report->advice);
	else
		printf("%u problem%s, %u piece%s of advice\n", report->problems,
		       report->problems == 1 ? "" : "s", report->advice,
		       report->advice == 1 ? "" : "s");
}

/* ---- what the user's settings say ------------------------------------------------------------ */

/* Without a config file any service may run, so all of them are checked. */
static struct semel_examination examination_of(const struct semel_invocation *invocation,
					       struct report *report)
{
	const struct semel_config *config = invocation->config;
	const char *source = semel_section_text(&config->relay, "source");
	const char *slot = semel_section_text(&config->relay, "slot");
	const char *budget = semel_section_text(&config->relay, "slot-budget");
	bool any = !config->has_relay && config->subscription_count == 0;

	return (struct semel_examination){
		.report = add_finding,
		.user = report,
		.env = semel_env_system(),
		.relays = any || config->has_relay,
		.consumes = any || config->subscription_count > 0,
		.slot = slot ? slot : SEMEL_SLOT_DEFAULT,
		.slot_required = source && strcmp(source, "cdc") == 0,
		.slot_budget = budget ? strtoull(budget, NULL, 10) : SEMEL_SLOT_BUDGET_DEFAULT,
		.open_max_ms = semel_args_duration_ms(invocation->args, "open-max"),
		.management = semel_args_text(invocation->args, "management"),
	};
}

static semel_status run(struct semel_invocation *invocation)
{
	struct report report = { .json = invocation->json };
	struct semel_required_subscriptions required = { 0 };
	semel_error *error = &invocation->error;
	semel_status status =
		semel_required_subscriptions_read(invocation->config, &required, error);
	const struct semel_doctor_plan plan = {
		.store = invocation->store,
		.broker = invocation->broker,
		.examination = examination_of(invocation, &report),
		.required = required.all,
		.required_count = required.count,
		.outbox_ms = invocation->config->retention.outbox_ms,
		.inbox_ms = invocation->config->retention.inbox_ms,
	};

	if (status != SEMEL_OK)
		goto free_required;
	semel_secrets_examine(invocation, &plan.examination);
	status = semel_doctor_run(&plan, error);
	if (status != SEMEL_OK)
		goto free_required;
	print_report(&report);
	if (report.problems > 0)
		status = semel_error_set(error, SEMEL_PROBLEM_FOUND,
					 "found %u problem%s (the remedy is below each)",
					 report.problems, report.problems == 1 ? "" : "s");

free_required:
	semel_required_subscriptions_free(&required);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "open-max",
	  .kind = SEMEL_OPTION_DURATION,
	  .command_line_only = true,
	  .argument = "DURATION",
	  .min = 1,
	  .default_value = "5m",
	  .help = "report transactions that are open for longer than this" },
	{ .name = "management",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "URL",
	  .help = "RabbitMQ's management plugin (default: port 15672, with TLS 15671, of the "
		  "broker's host)" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel doctor", "when something is wrong, or before a deployment" },
	{ "semel --config semel.yaml doctor --json", "for a program" },
	{ 0 },
};

const struct semel_command semel_command_doctor = {
	.name = "doctor",
	.run = run,
	.group = SEMEL_GROUP_OPERATE,
	.summary = "check store, broker and settings, and print remedies",
	.options = options,
	.details =
		"Changes nothing. Each finding is fine, advice or a problem; a problem is "
		"something that does not work, or that can lose events, and makes the exit code 1, "
		"also when store or "
		"broker are unreachable. It checks: connections, versions, tables, permissions, "
		"settings, clocks, open transactions, commit order, disks, alarms, the "
		"replication slot and its limit, whether a relay publishes waiting events, events "
		"that the broker refused, retention, topics that no subscription reads, files "
		"with data or secrets that other users can open, and for every subscription (of "
		"the config file, and of the store) queues, topics, bindings, limits, running "
		"consumers and stuck events.\n\n"
		"With a config file it checks what that file asks for. Bindings, alarms and disks "
		"of RabbitMQ are read through its management plugin, with the broker's user and "
		"password; if that is unreachable, a finding says so.",
	.examples = examples,
};
