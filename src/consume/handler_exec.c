/* SPDX-License-Identifier: Apache-2.0 */
/* A program per event: the payload on stdin, the rest in the environment, the exit status is the
 * verdict (0 done, 65 reject, anything else retry). Its stdout is ours. */
#include "base/error.h"
#include "consume/program.h"
#include "observe/log.h"

#include <stdlib.h>

static semel_status exec_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct semel_program *program = malloc(sizeof *program);
	if (program == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "no memory for a handler");
	semel_status status = semel_program_init(program, &semel_outside_exec, options, error);
	if (status != SEMEL_OK) {
		free(program);
		return status;
	}
	*outside_out = &program->outside;
	return SEMEL_OK;
}

static semel_status verdict_of(int exit_code)
{
	if (exit_code == 0)
		return SEMEL_OK;
	return exit_code == SEMEL_PROGRAM_REJECTS ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY;
}

/* What a program that succeeded wrote to stderr goes nowhere else. */
static void log_remark(const struct semel_child *child, const struct semel_event *event)
{
	char remark[1024];
	if (!semel_log_enabled(SEMEL_LOG_DEBUG))
		return;
	semel_child_stderr(child, remark, sizeof remark);
	if (remark[0] != '\0')
		semel_logf(SEMEL_LOG_DEBUG, "the program said for event %s: %s",
			   semel_text_shown(event->id), remark);
}

static void conclude(struct semel_child *child, const struct semel_event *event,
		     struct semel_outcome *outcome_out)
{
	outcome_out->status = verdict_of(semel_child_exit_code(child));
	if (outcome_out->status == SEMEL_OK)
		log_remark(child, event);
	else
		semel_program_explain_exit(child, outcome_out);
	semel_child_end(child, 0);
}

static semel_status start_program(struct semel_program *program, const struct semel_event *event,
				  uint32_t attempt, struct semel_child **child_out,
				  semel_error *error)
{
	semel_status status =
		semel_environment_describe(program->environment, event, attempt, error);
	if (status != SEMEL_OK)
		return status;
	const struct semel_child_options plan = {
		.command = program->command,
		.environment = semel_environment_list(program->environment),
		.input = &event->payload,
	};
	return semel_child_start(&plan, child_out, error);
}

static void exec_run(struct semel_outside *outside, const struct semel_event *event,
		     uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct semel_program *program = (struct semel_program *)outside;
	struct semel_child *child = NULL;
	semel_error error = { 0 };
	*outcome_out = (struct semel_outcome){ 0 };

	semel_status status = start_program(program, event, attempt, &child, &error);
	if (status != SEMEL_OK) {
		semel_program_not_started(status, &error, outcome_out);
		return;
	}

	const struct semel_child_communication communication = { .until_exit = true,
								 .timeout_ms = program->timeout_ms,
								 .interrupt_fd = program->bell };
	enum semel_child_result result = semel_child_communicate(child, &communication);
	if (result == SEMEL_CHILD_EXITED)
		conclude(child, event, outcome_out);
	else
		semel_program_give_up(program, child, result, outcome_out);
}

static void exec_close(struct semel_outside *outside)
{
	struct semel_program *program = (struct semel_program *)outside;
	semel_program_clear(program);
	free(program);
}

const struct semel_outside_kind semel_outside_exec = {
	.name = "exec",
	.is_program = true,
	.open = exec_open,
	.run = exec_run,
	.interrupt = semel_program_interrupt,
	.close = exec_close,
};
