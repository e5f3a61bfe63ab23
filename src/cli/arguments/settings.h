/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a command, by precedence: option, environment, config file, default. */
#ifndef SEMEL_CLI_ARGUMENTS_SETTINGS_H
#define SEMEL_CLI_ARGUMENTS_SETTINGS_H

#include "cli/arguments/config.h"

struct semel_settings {
	struct semel_config *config;
	char *store, *broker;
};

/* Reads the environment and the config file, and completes args from them. Free it also after a
 * failure. */
semel_status semel_settings_resolve(struct semel_args *args, struct semel_settings *settings_out,
				    semel_error *error);
void semel_settings_free(struct semel_settings *settings);

#endif
