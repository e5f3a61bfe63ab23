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
		.help = "also create what relay --source cdc needs: a publication and a "          \
			"replication slot"                                                         \
	}
#define SEMEL_OPTION_SLOT                                                                          \
	{                                                                                          \
		.name = "slot", .kind = SEMEL_OPTION_TEXT, .argument = "NAME",                     \
		.default_value = "semel", .help = "name of the replication slot, with cdc"         \
	}

/* --cdc was given, or the config file has a relay with this source. */
bool semel_slot_is_configured(const struct semel_invocation *invocation);
/* Does nothing without --cdc. Reports to output, unless that is NULL. */
semel_status semel_slot_create(struct semel_invocation *invocation, FILE *output);
/* Reports what is missing if it is configured, and creates nothing. */
semel_status semel_slot_check(struct semel_invocation *invocation, semel_difference_callback report,
			      void *user);

#endif
