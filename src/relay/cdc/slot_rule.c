/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/slot_rule.h"

#include <stdio.h>
#include <string.h>

#define EXPLAIN(verdict, ...) snprintf((verdict)->reason, sizeof((verdict)->reason), __VA_ARGS__)

static bool is_same_history(const struct semel_slot_state *state)
{
	return strcmp(state->identity, state->recorded_identity) == 0;
}

static bool is_same_publication(const struct semel_slot_state *state)
{
	return strcmp(state->publication, state->recorded_publication) == 0;
}

static enum semel_slot_action decide_missing(const struct semel_slot_view *view,
					     struct semel_slot_verdict *verdict)
{
	EXPLAIN(verdict, "the replication slot does not exist");
	return view->caught_up ? SEMEL_SLOT_CREATE : SEMEL_SLOT_WAIT;
}

static enum semel_slot_action decide_found(const struct semel_slot_state *state,
					   struct semel_slot_verdict *verdict)
{
	if (!state->recorded || state->position > state->recorded_position) {
		EXPLAIN(verdict, "the slot was created or advanced by another program");
		return SEMEL_SLOT_RESYNC;
	}
	if (state->recorded_publication[0] == '\0') {
		EXPLAIN(verdict, "the publication at the time of the last read is not recorded");
		return SEMEL_SLOT_RESYNC;
	}
	if (state->poll_to_seq > 0) {
		EXPLAIN(verdict, "polling the events from before the slot first");
		return SEMEL_SLOT_POLL_FIRST;
	}
	return SEMEL_SLOT_STREAM;
}

void semel_slot_decide(const struct semel_slot_view *view, struct semel_slot_verdict *verdict_out)
{
	const struct semel_slot_state *state = view->state;

	*verdict_out = (struct semel_slot_verdict){ .action = SEMEL_SLOT_POLL };
	bool ours = state->known && state->exists && !state->foreign;
	if (state->obstacle[0] != '\0' && !ours) {
		EXPLAIN(verdict_out, "%s", state->obstacle);
		return;
	}
	if (!state->exists) {
		verdict_out->action = decide_missing(view, verdict_out);
		return;
	}
	verdict_out->action = SEMEL_SLOT_DROP;
	if (state->lost)
		EXPLAIN(verdict_out, "the server has removed parts of the log that the slot needs");
	else if (state->retained > view->budget)
		EXPLAIN(verdict_out,
			"the slot retains %llu MB of the log, more than its budget of %llu MB",
			(unsigned long long)(state->retained >> 20),
			(unsigned long long)(view->budget >> 20));
	else if (state->recorded && !is_same_history(state))
		EXPLAIN(verdict_out,
			"the database has another history now (%s instead of %s: a restore or a "
			"failover)",
			state->identity, state->recorded_identity);
	else if (state->recorded_publication[0] != '\0' && !is_same_publication(state))
		EXPLAIN(verdict_out, "the publication was changed and may have left out events");
	else if (state->obstacle[0] != '\0') {
		verdict_out->action = SEMEL_SLOT_POLL;
		EXPLAIN(verdict_out, "%s", state->obstacle);
	} else
		verdict_out->action = decide_found(state, verdict_out);
}
