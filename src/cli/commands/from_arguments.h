/* SPDX-License-Identifier: Apache-2.0 */
/* A relay or a consumer as a command line describes it: for `relay`, `consume` and `run`. */
#ifndef SEMEL_CLI_COMMANDS_FROM_ARGUMENTS_H
#define SEMEL_CLI_COMMANDS_FROM_ARGUMENTS_H

#include "cli/arguments/command.h"

#include <semel/consumer.h>
#include <semel/relay.h>

/* In relay.c. Both functions open what the arguments describe; errors are in the invocation. */
semel_status semel_relay_from_arguments(struct semel_invocation *invocation,
					semel_relay **relay_out);
/* In consume.c. The consumer has its handler and its upcasters. */
semel_status semel_consumer_from_arguments(struct semel_invocation *invocation,
					   semel_consumer **consumer_out);

#endif
