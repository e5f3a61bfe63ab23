/* SPDX-License-Identifier: Apache-2.0 */
/* One long-lived program: an envelope per line in, a verdict per line out.
 *
 * - One event is processed at a time, so an answer with another id means that program and consumer
 *   are out of step; the program is ended, and the event is redelivered.
 * - A program that exits between two events is restarted, and no event loses an attempt; one that
 *   exits while it processes an event costs that event an attempt.
 */
#include "base/error.h"
#include "base/json.h"
#include "consume/program.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX   65536
#define ANSWER_SHOWN 200 /* bytes of a bad one in the reason */
#define FAREWELL_MS                                                                                \
	2000 /* for a program to end by itself when its stdin is closed; SIGTERM after */

struct pipe_handler {
	struct semel_program program;
	struct semel_child *child; /* NULL: not running */
	struct semel_buffer envelope;
};

static semel_status pipe_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct pipe_handler *handler = calloc(1, sizeof *handler);
	if (handler == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "no memory for a handler");
	semel_status status =
		semel_program_init(&handler->program, &semel_outside_pipe, options, error);
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

static semel_status be_running(struct pipe_handler *handler, semel_error *error)
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

/* False, with the reason, when the line is no answer to this event. */
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
			 "the program's answer is no line of JSON: %s: %.*s", problem.text, shown,
			 semel_text_shown(line));
	else if (answered.data == NULL || !semel_text_equal(answered, event->id))
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program answered for \"%.100s\" instead of this event",
			 semel_text_shown_or(answered, ""));
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

static void conclude(struct pipe_handler *handler, enum semel_child_result result,
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
			semel_program_explain_exit(child, outcome_out);
		semel_child_end(child, 0);
		return;
	}
	semel_program_give_up(&handler->program, child, result, outcome_out);
}

static void pipe_run(struct semel_outside *outside, const struct semel_event *event,
		     uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct pipe_handler *handler = (struct pipe_handler *)outside;
	semel_error error = { 0 };
	*outcome_out = (struct semel_outcome){ 0 };
	if (!write_envelope(&handler->envelope, event, attempt)) {
		semel_buffer_free(&handler->envelope);
		semel_error_set(&error, SEMEL_OUTAGE, "no memory for the event's envelope");
		semel_program_not_started(SEMEL_OUTAGE, &error, outcome_out);
		return;
	}
	semel_status status = be_running(handler, &error);
	if (status != SEMEL_OK) {
		semel_program_not_started(status, &error, outcome_out);
		return;
	}
	const struct semel_child_communication communication = {
		.input = semel_buffer_text(&handler->envelope),
		.timeout_ms = handler->program.timeout_ms,
		.interrupt_fd = handler->program.bell,
		.output_limit = ANSWER_MAX,
	};
	conclude(handler, semel_child_communicate(handler->child, &communication), event,
		 outcome_out);
}

static void pipe_close(struct semel_outside *outside)
{
	struct pipe_handler *handler = (struct pipe_handler *)outside;
	semel_child_end(handler->child, FAREWELL_MS);
	semel_buffer_free(&handler->envelope);
	semel_program_clear(&handler->program);
	free(handler);
}

const struct semel_outside_kind semel_outside_pipe = {
	.name = "pipe",
	.is_program = true,
	.open = pipe_open,
	.run = pipe_run,
	.interrupt = semel_program_interrupt,
	.close = pipe_close,
};
