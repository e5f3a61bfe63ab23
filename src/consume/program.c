/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of exec and pipe. An interrupted run is an outage: it says nothing about the
 * event, so it costs no attempt. */
#include "consume/program.h"

#include "base/error.h"
#include "base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

semel_status semel_program_init(struct semel_program *program,
				const struct semel_outside_kind *kind,
				const struct semel_outside_options *options, semel_error *error)
{
	if (semel_string_is_blank(options->target))
		return semel_error_set(error, SEMEL_CONFIG,
				       "the %s handler has no command (give one, as for sh -c)",
				       kind->name);
	*program = (struct semel_program){
		.outside.kind = kind,
		.command = strdup(options->target),
		.timeout_ms = options->timeout_ms,
		.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		.environment = semel_environment_new(options->scope, options->passed),
	};
	if (program->command != NULL && program->bell >= 0 && program->environment != NULL)
		return SEMEL_OK;
	semel_program_clear(program);
	return semel_error_set(error, SEMEL_OUTAGE, "no memory or no descriptors for a handler");
}

void semel_program_interrupt(struct semel_outside *outside)
{
	struct semel_program *program = (struct semel_program *)outside;
	eventfd_write(program->bell, 1);
}

void semel_program_clear(struct semel_program *program)
{
	free(program->command);
	if (program->bell >= 0)
		close(program->bell);
	semel_environment_free(program->environment);
}

/* The complaint behind a sentence, the sentence never cut. */
static void add_complaint(const struct semel_child *child, struct semel_outcome *outcome)
{
	static const char link[] = "; it said: ";
	size_t used = strlen(outcome->reason);
	size_t room = sizeof outcome->reason - used;
	char complaint[SEMEL_CHILD_STDERR_MAX];
	if (room <= sizeof link)
		return;
	size_t fits = room - (sizeof link - 1);
	semel_child_stderr(child, complaint, fits < sizeof complaint ? fits : sizeof complaint);
	if (complaint[0] != '\0')
		snprintf(outcome->reason + used, room, "%s%s", link, complaint);
}

void semel_program_give_up(const struct semel_program *program, struct semel_child *child,
			   enum semel_child_result news, struct semel_outcome *outcome_out)
{
	char limit[SEMEL_TIME_SIZE];
	semel_duration_format(program->timeout_ms, limit);
	outcome_out->status = SEMEL_HANDLER_RETRY;
	switch (news) {
	case SEMEL_CHILD_TIMED_OUT:
		outcome_out->timed_out = true;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program had not answered after %s and was ended", limit);
		break;
	case SEMEL_CHILD_INTERRUPTED:
		outcome_out->status = SEMEL_OUTAGE;
		outcome_out->interrupted = true;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program was ended because the consumer stops");
		break;
	case SEMEL_CHILD_TOO_MUCH:
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the program's answer is longer than allowed");
		break;
	default:
		outcome_out->status = SEMEL_OUTAGE;
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "no memory for the program's answer");
		break;
	}
	add_complaint(child, outcome_out);
	semel_child_end(child, 0);
}

void semel_program_not_started(semel_status status, const semel_error *error,
			       struct semel_outcome *outcome_out)
{
	bool never = status == SEMEL_TOO_LARGE || status == SEMEL_HANDLER_REJECT;
	outcome_out->status = never ? SEMEL_HANDLER_REJECT : SEMEL_OUTAGE;
	snprintf(outcome_out->reason, sizeof outcome_out->reason, "%s", error->text);
}

void semel_program_explain_exit(const struct semel_child *child, struct semel_outcome *outcome_out)
{
	char ending[128];
	semel_child_stderr(child, outcome_out->reason, sizeof outcome_out->reason);
	if (outcome_out->reason[0] != '\0')
		return;
	semel_child_describe_exit(child, ending, sizeof ending);
	snprintf(outcome_out->reason, sizeof outcome_out->reason,
		 "the program %s and said nothing on stderr", ending);
}
