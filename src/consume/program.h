/* SPDX-License-Identifier: Apache-2.0 */
/* What the handlers that run a program have in common: the command, its environment, the time
 * limit, and the eventfd that ends a run from another thread. */
#ifndef SEMEL_CONSUME_PROGRAM_H
#define SEMEL_CONSUME_PROGRAM_H

#include "base/child.h"
#include "consume/environment.h"
#include "consume/handler.h"

#define SEMEL_PROGRAM_REJECTS 65 /* EX_DATAERR: the exit status for "never" */

struct semel_program {
	struct semel_outside outside;
	char *command;
	int64_t timeout_ms;
	int bell; /* an eventfd; once rung it stays so */
	struct semel_environment *environment;
};

/* CONFIG when the command is blank. On failure nothing is owned. */
semel_status semel_program_init(struct semel_program *program,
				const struct semel_outside_kind *kind,
				const struct semel_outside_options *options, semel_error *error);
/* Any thread. */
void semel_program_interrupt(struct semel_outside *outside);
void semel_program_clear(struct semel_program *program);

/* The outcome of a talk that yielded no answer (it timed out, was interrupted, wrote too much), and
 * the end of the child. */
void semel_program_give_up(const struct semel_program *program, struct semel_child *child,
			   enum semel_child_result news, struct semel_outcome *outcome_out);
/* The outcome when it could not be started, or not be given the event. */
void semel_program_not_started(semel_status status, const semel_error *error,
			       struct semel_outcome *outcome_out);
/* The child's complaint; where it was silent, how it ended. */
void semel_program_explain_exit(const struct semel_child *child, struct semel_outcome *outcome_out);

#endif
