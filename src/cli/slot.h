/* SPDX-License-Identifier: Apache-2.0 */
/* Making what the change stream needs in the database, with the user's consent. */
#ifndef SEMEL_CLI_SLOT_H
#define SEMEL_CLI_SLOT_H

#include "cli/command.h"

#define SEMEL_OPTION_CDC                                                                           \
	{                                                                                          \
		.name = "cdc", .kind = SEMEL_OPTION_FLAG, .command_line_only = true,               \
		.help = "also make what relay --source cdc needs: a publication and a slot"        \
	}
#define SEMEL_OPTION_SLOT                                                                          \
	{                                                                                          \
		.name = "slot", .kind = SEMEL_OPTION_TEXT, .argument = "NAME",                     \
		.fallback = "semel", .help = "the name of the replication slot, with cdc"          \
	}

/* When --cdc was given; else nothing. Says what it did. */
semel_status semel_slot_make(struct semel_invocation *invocation);

#endif
