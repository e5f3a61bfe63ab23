/* SPDX-License-Identifier: Apache-2.0 */
/* Creates what the change stream needs in the database, at the user's request. */
#ifndef SEMEL_CLI_COMMANDS_SLOT_H
#define SEMEL_CLI_COMMANDS_SLOT_H

#include "broker/broker.h"
#include "cli/arguments/command.h"

#include <stdbool.h>
#include <stdio.h>

#define SEMEL_OPTION_CDC                                                                           \
	{                                                                                          \
		.name = "cdc", .kind = SEMEL_OPTION_FLAG, .command_line_only = true,               \
		.help = "include what relay --source cdc needs: a publication and a "              \
			"replication slot"                                                         \
	}
#define SEMEL_OPTION_SLOT                                                                          \
	{                                                                                          \
		.name = "slot", .kind = SEMEL_OPTION_TEXT, .argument = "NAME",                     \
		.default_value = "semel", .help = "name of the replication slot, with cdc"         \
	}

/* Was --cdc given, or does the config file have a relay with the source cdc? */
bool semel_slot_is_configured(const struct semel_invocation *invocation);
/* Does nothing without --cdc. Reports to output, which may be NULL. */
semel_status semel_slot_create(struct semel_invocation *invocation, FILE *output);
/* If a slot is configured, reports what is missing; creates nothing. */
semel_status semel_slot_check(struct semel_invocation *invocation, semel_difference_callback report,
			      void *user);

#endif
