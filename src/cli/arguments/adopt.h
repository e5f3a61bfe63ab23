/* SPDX-License-Identifier: Apache-2.0 */
/* Section adopt of the config file: an outbox in Debezium's layout, whose rows become events. */
#ifndef SEMEL_CLI_ARGUMENTS_ADOPT_H
#define SEMEL_CLI_ARGUMENTS_ADOPT_H

#include "cli/arguments/command.h"

/* The keys of the section. */
extern const struct semel_option semel_adopt_rows[];

/* Both functions do nothing without the section. This one adopts the table and reports it on
 * stdout. */
semel_status semel_adopt_apply(struct semel_invocation *invocation);
/* CONFIG if the table is not adopted, or was adopted with other settings. */
semel_status semel_adopt_check(struct semel_invocation *invocation);

#endif
