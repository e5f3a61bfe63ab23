/* SPDX-License-Identifier: Apache-2.0 */
/* The subscriptions of the config file, as a broker is asked for what they need. */
#ifndef SEMEL_CLI_COMMANDS_REQUIRED_SUBSCRIPTIONS_H
#define SEMEL_CLI_COMMANDS_REQUIRED_SUBSCRIPTIONS_H

#include "broker/broker.h"
#include "cli/arguments/config.h"

struct semel_wanted {
	struct semel_subscribe_options *all;
	size_t count;
};

/* Texts are the config's, which outlives it. Free it also after a failure. */
semel_status semel_wanted_read(const struct semel_config *config, struct semel_wanted *wanted_out,
			       semel_error *error);
void semel_wanted_free(struct semel_wanted *wanted);
/* What is declared or compared, and never fetched. */
struct semel_subscribe_options semel_wanted_with(const char *scope, const char *const *topics);

#endif
