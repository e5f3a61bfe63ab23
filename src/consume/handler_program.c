/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers that run a program: one per event (exec), or a long-lived one (pipe).
 *
 * exec: the payload on stdin, the rest in the environment, the exit status is the verdict (0 done,
 * 65 reject, anything else retry). Its stdout is ours.
 *
 * pipe: an envelope per line in, a verdict per line out.
 * - One event is processed at a time, so an answer with another id means that program and consumer
 *   are out of step; the program is ended, and the event is redelivered.
 * - A program that exits between two events is restarted, and no event loses an attempt; one that
 *   exits while it processes an event costs that event an attempt.
 *
 * An interrupted run is an outage: it says nothing about the event, so it costs no attempt.
 */
#include "base/child.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "consume/environment.h"
#include "consume/handler.h"
#include "observe/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ANSWER_MAX    65536
#define ANSWER_SHOWN  200  /* bytes of an invalid answer in the reason */
#define EXIT_GRACE_MS 2000 /* from the end of stdin to SIGTERM */

struct program {
	struct semel_outside outside;
	char *command;
	int64_t timeout_ms;
	int interrupt_fd; /* eventfd: ends a run from another thread; stays set */
	struct semel_environment *environment;
};

static void clear_program(struct program *program)
{
	free(program->command);
	if (program->interrupt_fd >= 0)
		close(program->interrupt_fd);
	semel_environment_free(program->environment);
}

/* CONFIG when the command is blank. On failure nothing is owned. */
static semel_status init_program(struct program *program, const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, semel_error *error)
{
	if (semel_string_is_blank(options->target))
		return semel_error_set(error, SEMEL_CONFIG,
				       "the %s handler has no command (give one, as for sh -c)",
				       kind->name);
	*program = (struct program){
		.outside.kind = kind,
		.command = strdup(options->target),
		.timeout_ms = options->timeout_ms,
		.interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		.environment = semel_environment_new(options->scope, options->passed),
	};
	if (program->command != NULL && program->interrupt_fd >= 0 && program->environment != NULL)
		return SEMEL_OK;
	clear_program(program);
	return semel_error_set(error, SEMEL_OUTAGE, "out of memory or descriptors for a handler");
}

/* Any thread. */
static void interrupt_program(struct semel_outside *outside)
{
	struct program *program = (struct program *)outside;
	eventfd_write(program->interrupt_fd, 1);
}

/* Adds what the child wrote to stderr, after a sentence that is never truncated. */
static void add_stderr(const struct semel_child *child, struct semel_outcome *outcome)
{
	static const char link[] = "; stderr: ";
	size_t used = strlen(outcome->reason);
	size_t capacity = sizeof outcome->reason - used;
	char stderr_text[SEMEL_CHILD_STDERR_MAX];
	if (capacity <= sizeof link)
		return;
	size_t fits = capacity - (sizeof link - 1);
	semel_child_stderr(child, stderr_text,
			   fits < sizeof stderr_text ? fits : sizeof stderr_text);
	if (stderr_text[0] != '\0')
		snprintf(outcome->reason + used, capacity, "%s%s", link, stderr_text);
}

/* Sets the outcome of a run without an answer (it timed out, was interrupted, wrote too much), and
 * ends the child. */
static void give_up(const struct program *program, struct semel_child *child,
		    enum semel_child_result result, struct semel_outcome *outcome_out)
{
	char limit[SEMEL_TIME_SIZE];
	semel_duration_format(program->timeout_ms, limit);
	outcome_out->status = SEMEL_HANDLER_RETRY;
	switch (result) {
	case SEMEL_CHILD_TIMED_OUT:
		outcome_out->timed_out = true;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program did not answer within %s and was terminated", limit);
		break;
	case SEMEL_CHILD_INTERRUPTED:
		outcome_out->status = SEMEL_OUTAGE;
		outcome_out->interrupted = true;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program was ended because the consumer is stopping");
		break;
	case SEMEL_CHILD_TOO_MUCH:
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer is too long");
		break;
	default:
		outcome_out->status = SEMEL_OUTAGE;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "out of memory for the program's answer");
		break;
	}
	add_stderr(child, outcome_out);
	semel_child_end(child, 0);
}

/* The outcome when the program could not be started, or could not be given the event. */
static void note_not_started(semel_status status, const semel_error *error,
			     struct semel_outcome *outcome_out)
{
	bool never = status == SEMEL_TOO_LARGE || status == SEMEL_HANDLER_REJECT;
	outcome_out->status = never ? SEMEL_HANDLER_REJECT : SEMEL_OUTAGE;
	snprintf(outcome_out->reason, sizeof outcome_out->reason, "%s", error->text);
}

/* Sets the reason: what the child wrote to stderr; if nothing, how it ended. */
static void explain_exit(const struct semel_child *child, struct semel_outcome *outcome_out)
{
	char ending[128];
	semel_child_stderr(child, outcome_out->reason, sizeof outcome_out->reason);
	if (outcome_out->reason[0] != '\0')
		return;
	semel_child_describe_exit(child, ending, sizeof ending);
	snprintf(outcome_out->reason, sizeof outcome_out->reason,
		 "the program %s and wrote nothing to stderr", ending);
}

/* ---- exec ------------------------------------------------------------------------------------ */

static semel_status exec_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct program *program = malloc(sizeof *program);
	if (program == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	semel_status status = init_program(program, &semel_outside_exec, options, error);
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

/* Logs what a successful program wrote to stderr, which is recorded nowhere else. */
static void log_remark(const struct semel_child *child, const struct semel_event *event)
{
	char remark[1024];
	if (!semel_log_is_enabled(SEMEL_LOG_DEBUG))
		return;
	semel_child_stderr(child, remark, sizeof remark);
	if (remark[0] != '\0')
		semel_log(SEMEL_LOG_DEBUG, "program wrote to stderr",
			  &(struct semel_log_fields){ .message_id = semel_text_shown(event->id),
						      .detail = remark });
}

static void conclude_exec(struct semel_child *child, const struct semel_event *event,
			  struct semel_outcome *outcome_out)
{
	outcome_out->status = verdict_of(semel_child_exit_code(child));
	if (outcome_out->status != SEMEL_OK)
		explain_exit(child, outcome_out);
	else
		log_remark(child, event);
	semel_child_end(child, 0);
}

static semel_status start_exec(struct program *program, const struct semel_event *event,
			       uint32_t attempt, struct semel_child **child_out, semel_error *error)
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
	struct program *program = (struct program *)outside;
	struct semel_child *child = NULL;
	semel_error error = { 0 };
	*outcome_out = (struct semel_outcome){ 0 };

	semel_status status = start_exec(program, event, attempt, &child, &error);
	if (status != SEMEL_OK) {
		note_not_started(status, &error, outcome_out);
		return;
	}

	const struct semel_child_communication communication = { .until_exit = true,
								 .timeout_ms = program->timeout_ms,
								 .interrupt_fd =
									 program->interrupt_fd };
	enum semel_child_result result = semel_child_communicate(child, &communication);
	if (result == SEMEL_CHILD_EXITED)
		conclude_exec(child, event, outcome_out);
	else
		give_up(program, child, result, outcome_out);
}

static void exec_close(struct semel_outside *outside)
{
	struct program *program = (struct program *)outside;
	clear_program(program);
	free(program);
}

const struct semel_outside_kind semel_outside_exec = {
	.name = "exec",
	.is_program = true,
	.open = exec_open,
	.run = exec_run,
	.interrupt = interrupt_program,
	.close = exec_close,
};

/* ---- pipe ------------------------------------------------------------------------------------ */

struct pipe_handler {
	struct program program;
	struct semel_child *child; /* NULL: not running */
	struct semel_buffer envelope;
};

static semel_status pipe_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct pipe_handler *handler = calloc(1, sizeof *handler);
	if (handler == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	semel_status status = init_program(&handler->program, &semel_outside_pipe, options, error);
	if (status != SEMEL_OK) {
		free(handler);
		return status;
	}
	*outside_out = &handler->program.outside;
	return SEMEL_OK;
}

static bool write_envelope(struct semel_buffer *line, const struct semel_event *event,
			   uint32_t attempt)
{
	semel_buffer_clear(line);
	semel_event_to_json(event, line);
	if (line->failed || line->length == 0)
		return false;
	line->length--; /* the closing brace */
	semel_buffer_printf(line, ",\"attempt\":%u}\n", attempt);
	return !line->failed;
}

static semel_status ensure_running(struct pipe_handler *handler, semel_error *error)
{
	if (handler->child != NULL && semel_child_has_exited(handler->child)) {
		semel_child_end(handler->child, 0);
		handler->child = NULL;
	}
	if (handler->child != NULL) {
		semel_child_clear_stderr(handler->child);
		return SEMEL_OK;
	}
	const struct semel_child_options plan = {
		.command = handler->program.command,
		.environment = semel_environment_list(handler->program.environment),
		.capture = true,
	};
	return semel_child_start(&plan, &handler->child, error);
}

static bool read_verdict(const char *word, semel_status *status_out)
{
	static const struct {
		const char *word;
		semel_status status;
	} verdicts[] = {
		{ "done", SEMEL_OK },
		{ "retry", SEMEL_HANDLER_RETRY },
		{ "reject", SEMEL_HANDLER_REJECT },
	};
	for (size_t i = 0; word != NULL && i < sizeof verdicts / sizeof *verdicts; i++) {
		if (strcmp(word, verdicts[i].word) == 0) {
			*status_out = verdicts[i].status;
			return true;
		}
	}
	return false;
}

/* False, with the reason, when the line does not answer this event. */
static bool read_answer(struct semel_text line, const struct semel_event *event,
			struct semel_outcome *outcome_out)
{
	json_error_t problem;
	json_t *answer = json_loadb(semel_text_chars(line), line.length, 0, &problem);
	json_t *id = json_object_get(answer, "id");
	struct semel_text answered = semel_json_string(id);
	const char *reason = json_string_value(json_object_get(answer, "reason"));
	int shown = line.length < ANSWER_SHOWN ? (int)line.length : ANSWER_SHOWN;
	bool right = false;
	if (answer == NULL)
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer is not a line of JSON: %s: %.*s", problem.text,
			 shown, semel_text_shown(line));
	else if (answered.data == NULL)
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer has no id: %.*s", shown, semel_text_shown(line));
	else if (!semel_text_equal(answered, event->id))
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer has the id \"%.100s\", not that of this event",
			 semel_text_shown(answered));
	else if (!read_verdict(json_string_value(json_object_get(answer, "verdict")),
			       &outcome_out->status))
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer has no verdict (done, retry or reject): %.*s", shown,
			 semel_text_shown(line));
	else
		right = true;
	if (right && reason != NULL)
		snprintf(outcome_out->reason, sizeof outcome_out->reason, "%s", reason);
	else if (right && outcome_out->status != SEMEL_OK)
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program gave no reason");
	json_decref(answer);
	return right;
}

static void conclude_pipe(struct pipe_handler *handler, enum semel_child_result result,
			  const struct semel_event *event, struct semel_outcome *outcome_out)
{
	struct semel_child *child = handler->child;
	if (result == SEMEL_CHILD_LINE &&
	    read_answer(semel_child_output(child), event, outcome_out))
		return;

	handler->child = NULL; /* the next run starts another */
	if (result == SEMEL_CHILD_LINE || result == SEMEL_CHILD_EXITED) {
		outcome_out->status = SEMEL_HANDLER_RETRY;
		if (result == SEMEL_CHILD_EXITED)
			explain_exit(child, outcome_out);
		semel_child_end(child, 0);
		return;
	}
	give_up(&handler->program, child, result, outcome_out);
}

static void pipe_run(struct semel_outside *outside, const struct semel_event *event,
		     uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct pipe_handler *handler = (struct pipe_handler *)outside;
	semel_error error = { 0 };
	*outcome_out = (struct semel_outcome){ 0 };
	if (!write_envelope(&handler->envelope, event, attempt)) {
		semel_buffer_free(&handler->envelope);
		semel_error_set(&error, SEMEL_OUTAGE, "out of memory for the event's envelope");
		note_not_started(SEMEL_OUTAGE, &error, outcome_out);
		return;
	}
	semel_status status = ensure_running(handler, &error);
	if (status != SEMEL_OK) {
		note_not_started(status, &error, outcome_out);
		return;
	}
	const struct semel_child_communication communication = {
		.input = semel_buffer_text(&handler->envelope),
		.timeout_ms = handler->program.timeout_ms,
		.interrupt_fd = handler->program.interrupt_fd,
		.output_limit = ANSWER_MAX,
	};
	conclude_pipe(handler, semel_child_communicate(handler->child, &communication), event,
		      outcome_out);
}

static void pipe_close(struct semel_outside *outside)
{
	struct pipe_handler *handler = (struct pipe_handler *)outside;
	semel_child_end(handler->child, EXIT_GRACE_MS);
	semel_buffer_free(&handler->envelope);
	clear_program(&handler->program);
	free(handler);
}

const struct semel_outside_kind semel_outside_pipe = {
	.name = "pipe",
	.is_program = true,
	.open = pipe_open,
	.run = pipe_run,
	.interrupt = interrupt_program,
	.close = pipe_close,
};
