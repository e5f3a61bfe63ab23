/* SPDX-License-Identifier: Apache-2.0 */
/* The subscriptions of the config file, in the form in which a broker declares or compares them. */
#ifndef SEMEL_CLI_COMMANDS_REQUIRED_SUBSCRIPTIONS_H
#define SEMEL_CLI_COMMANDS_REQUIRED_SUBSCRIPTIONS_H

#include "broker/broker.h"
#include "cli/arguments/config.h"

struct semel_required_subscriptions {
	struct semel_subscribe_options *all;
	size_t count;
};

/* The texts belong to the config, which must outlive the result. Free it also after a failure. */
semel_status semel_required_subscriptions_read(const struct semel_config *config,
					       struct semel_required_subscriptions *required_out,
					       semel_error *error);
void semel_required_subscriptions_free(struct semel_required_subscriptions *required);
/* Options to declare or compare a subscription without fetching from it. */
struct semel_subscribe_options semel_declaration_of(const char *scope, const char *const *topics);

#endif
