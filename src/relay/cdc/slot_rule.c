/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/slot_rule.h"

#include <stdio.h>
#include <string.h>

#define SAY(verdict, ...) snprintf((verdict)->reason, sizeof((verdict)->reason), __VA_ARGS__)

static bool is_same_history(const struct semel_slot_state *state)
{
	return strcmp(state->identity, state->remembered_identity) == 0;
}

static bool is_same_publication(const struct semel_slot_state *state)
{
	return strcmp(state->publication, state->remembered_publication) == 0;
}

static enum semel_slot_move judge_missing(const struct semel_slot_view *view,
					  struct semel_slot_verdict *verdict)
{
	SAY(verdict, "the slot is not there");
	return view->caught_up ? SEMEL_SLOT_MAKE : SEMEL_SLOT_WAIT;
}

static enum semel_slot_move judge_found(const struct semel_slot_state *state,
					struct semel_slot_verdict *verdict)
{
	if (!state->remembered || state->position > state->remembered_position) {
		SAY(verdict, "the slot was made or moved on by somebody else");
		return SEMEL_SLOT_DISTRUST;
	}
	if (state->remembered_publication[0] == '\0') {
		SAY(verdict, "it is not known what the publication has left out");
		return SEMEL_SLOT_DISTRUST;
	}
	if (state->poll_to_seq > 0) {
		SAY(verdict, "events from before the slot are polled first");
		return SEMEL_SLOT_POLL_FIRST;
	}
	return SEMEL_SLOT_STREAM;
}

void semel_slot_judge(const struct semel_slot_view *view, struct semel_slot_verdict *verdict_out)
{
	const struct semel_slot_state *state = view->state;

	*verdict_out = (struct semel_slot_verdict){ .move = SEMEL_SLOT_POLL };
	bool ours = state->looked && state->exists && !state->foreign;
	if (state->obstacle[0] != '\0' && !ours) {
		SAY(verdict_out, "%s", state->obstacle);
		return;
	}
	if (!state->exists) {
		verdict_out->move = judge_missing(view, verdict_out);
		return;
	}
	verdict_out->move = SEMEL_SLOT_DROP;
	if (state->lost)
		SAY(verdict_out, "the server has removed a part of the log that the slot needs");
	else if (state->retained > view->budget)
		SAY(verdict_out,
		    "the slot keeps %llu MB of the log, more than its budget of %llu MB",
		    (unsigned long long)(state->retained >> 20),
		    (unsigned long long)(view->budget >> 20));
	else if (state->remembered && !is_same_history(state))
		SAY(verdict_out,
		    "the database has another history now (%s instead of %s: a restore or a "
		    "fail-over)",
		    state->identity, state->remembered_identity);
	else if (state->remembered_publication[0] != '\0' && !is_same_publication(state))
		SAY(verdict_out,
		    "the publication was changed, and may have left out events: they are polled");
	else if (state->obstacle[0] != '\0') {
		verdict_out->move = SEMEL_SLOT_POLL;
		SAY(verdict_out, "%s", state->obstacle);
	} else
		verdict_out->move = judge_found(state, verdict_out);
}
