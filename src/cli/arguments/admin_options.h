/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `serve`, which are also the keys of the section admin in the config file. */
#ifndef SEMEL_CLI_ARGUMENTS_ADMIN_OPTIONS_H
#define SEMEL_CLI_ARGUMENTS_ADMIN_OPTIONS_H

#include "admin/admin.h"
#include "cli/arguments/command.h"

extern const struct semel_option semel_admin_rows[];

/* An option of relay and consume: --metrics ADDRESS:PORT. */
#define SEMEL_OPTION_METRICS                                                                       \
	{                                                                                          \
		.name = "metrics", .kind = SEMEL_OPTION_TEXT, .argument = "ADDRESS:PORT",          \
		.command_line_only = true,                                                         \
		.help = "serve /metrics, /livez and /readyz on this loopback address",             \
	}

/* Starts the server if --metrics is given; otherwise *admin_out is NULL. The caller stops it. */
semel_status semel_metrics_start(struct semel_invocation *invocation,
				 struct semel_admin **admin_out);

/* The texts of the result belong to the invocation. */
struct semel_admin_options semel_admin_options_read(const struct semel_invocation *invocation);
/* The same for commands that only read and have none of these options. */
struct semel_admin_options semel_dashboard_options_read(const struct semel_invocation *invocation);

#endif
