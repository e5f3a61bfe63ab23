/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/arguments/admin_options.h"

#include "admin/redact.h"
#include "cli/arguments/config.h"
#include "cli/process/signals.h"
#include "observe/log.h"

#include <stdlib.h>

#define BEYOND "Beyond loopback"

const struct semel_option semel_admin_rows[] = {
	{ .name = "listen",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "ADDRESS:PORT",
	  .default_value = "127.0.0.1:8082",
	  .help = "address to listen on; port 0: any free port" },
	{ .name = "ready-stall",
	  .kind = SEMEL_OPTION_DURATION,
	  .argument = "DURATION",
	  .min = 1,
	  .default_value = "60s",
	  .help = "/readyz returns 503 when events wait and none has moved for this long" },
	{ .name = "redact",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "PATH",
	  .is_valid = semel_redaction_path_is_valid,
	  .expected = "$.card.number, $.items[*].name, $..password, headers.NAME or reasons",
	  .help = "hide this member of payloads, this header, or failure reasons (\"reasons\") in "
		  "the API and on the page" },
	SEMEL_OPTION_GRACE,
	{ .name = "token-file",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FILE",
	  .group = BEYOND,
	  .help = "file with access tokens, one per line: \"TOKEN\", \"ROLE TOKEN\" or \"ROLE NAME "
		  "TOKEN\", with the role read or operate (environment: SEMEL_ADMIN_TOKEN_FILE)" },
	{ .name = "tls-cert",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FILE",
	  .group = BEYOND,
	  .help = "PEM file of the certificate chain" },
	{ .name = "tls-key",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FILE",
	  .group = BEYOND,
	  .help = "PEM file of its private key" },
	{ .name = "host",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "NAME",
	  .group = BEYOND,
	  .help = "host name by which browsers reach this server" },
	{ 0 },
};

/* Reads the slot options of this process's relay, or else of the relay in the config file. */
static void read_slot(const struct semel_invocation *invocation,
		      struct semel_admin_options *options)
{
	const struct semel_section *relay = &invocation->config->relay;
	const struct semel_command *command = semel_args_command(invocation->args);
	bool relays = command->config_part == SEMEL_CONFIG_PART_RELAY;
	const char *budget = relays ? semel_args_text(invocation->args, "slot-budget")
				    : semel_section_text(relay, "slot-budget");

	options->slot = relays ? semel_args_text(invocation->args, "slot")
			       : semel_section_text(relay, "slot");
	options->slot_budget = budget ? strtoull(budget, NULL, 10) : 0;
}

struct semel_admin_options semel_admin_options_read(const struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	const char *token_file = semel_args_text(args, "token-file");
	size_t hosts = 0, redacted = 0;
	struct semel_admin_options options = {
		.store = invocation->store,
		.broker = invocation->broker,
		.listen = semel_args_text(args, "listen"),
		.token_file = token_file ? token_file : getenv("SEMEL_ADMIN_TOKEN_FILE"),
		.tls_cert = semel_args_text(args, "tls-cert"),
		.tls_key = semel_args_text(args, "tls-key"),
		.hosts = semel_args_list(args, "host", &hosts),
		.redact = semel_args_list(args, "redact", &redacted),
		.ready_stall_ms = semel_args_duration_ms(args, "ready-stall"),
		.inbox_retention_ms = invocation->config->retention.inbox_ms,
	};

	read_slot(invocation, &options);
	return options;
}

struct semel_admin_options semel_dashboard_options_read(const struct semel_invocation *invocation)
{
	struct semel_admin_options options = { .store = invocation->store,
					       .broker = invocation->broker };

	read_slot(invocation, &options);
	return options;
}

semel_status semel_metrics_start(struct semel_invocation *invocation,
				 struct semel_admin **admin_out)
{
	struct semel_admin_options options = semel_dashboard_options_read(invocation);

	options.listen = semel_args_text(invocation->args, "metrics");
	options.metrics_only = true;
	*admin_out = NULL;
	if (!options.listen)
		return SEMEL_OK;
	semel_status status = semel_admin_start(&options, admin_out, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	semel_log(SEMEL_LOG_INFO, "metrics server started",
		  &(struct semel_log_fields){ .detail = semel_admin_url(*admin_out) });
	return SEMEL_OK;
}
