/* SPDX-License-Identifier: Apache-2.0 */
/* The service of `semel run` that does what `semel prune` does, every hour. */
#ifndef SEMEL_CLI_COMMANDS_RUN_PRUNER_H
#define SEMEL_CLI_COMMANDS_RUN_PRUNER_H

#include "cli/arguments/command.h"

struct semel_pruner;

semel_status semel_pruner_open(struct semel_invocation *invocation,
			       struct semel_pruner **pruner_out);
/* Prunes every hour until it is stopped. */
semel_status semel_pruner_run(struct semel_pruner *pruner, semel_error *error);
/* Any thread. */
void semel_pruner_stop(struct semel_pruner *pruner);
void semel_pruner_close(struct semel_pruner *pruner);

#endif
