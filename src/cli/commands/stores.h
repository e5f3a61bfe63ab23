/* SPDX-License-Identifier: Apache-2.0 */
/* The databases that a command reads: the producer's, and those in which subscriptions have their
 * inboxes. Usually they are the same database. */
#ifndef SEMEL_CLI_COMMANDS_STORES_H
#define SEMEL_CLI_COMMANDS_STORES_H

#include "cli/arguments/command.h"

#include <semel/store.h>
#include <stdint.h>

#define SEMEL_STORES_MAX 17

struct semel_stores {
	semel_store *all[SEMEL_STORES_MAX]; /* the producer's first */
	size_t count;
};

/* Opens --store and every --consumer-store. Close it also after a failure. */
semel_status semel_stores_open(struct semel_invocation *invocation,
			       struct semel_stores *stores_out);
void semel_stores_close(struct semel_stores *stores);

/* The time that an option gives; 0 if it is not given. USAGE if its value is not a time. */
semel_status semel_args_time_ms(const struct semel_args *args, const char *name,
				int64_t *time_ms_out, semel_error *error);

#define SEMEL_OPTION_CONSUMER_STORE                                                                \
	{                                                                                          \
		.name = "consumer-store", .kind = SEMEL_OPTION_MULTI, .command_line_only = true,   \
		.argument = "URL",                                                                 \
		.help = "additional store that contains inboxes of subscriptions",                 \
	}

#endif
