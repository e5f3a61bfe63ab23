/* SPDX-License-Identifier: Apache-2.0 */
/* Section adopt of the config file: an outbox in Debezium's layout, whose rows become events. */
#ifndef SEMEL_CLI_ARGUMENTS_ADOPT_H
#define SEMEL_CLI_ARGUMENTS_ADOPT_H

#include "cli/arguments/command.h"

/* The keys of the section. */
extern const struct semel_option semel_adopt_rows[];

/* Both do nothing without the section. Adopts the table, and prints that. */
semel_status semel_adopt_apply(struct semel_invocation *invocation);
/* CONFIG when it is not adopted, or with other settings. */
semel_status semel_adopt_check(struct semel_invocation *invocation);

#endif
