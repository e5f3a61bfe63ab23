/* SPDX-License-Identifier: Apache-2.0 */
/* What is final is said by the facts of the trace; what waits, by the tables (waits_each), which
 * know what it waits for; the rest is on its way to the scope, or lost. */
#include "proof/trace_state.h"

#include "base/error.h"
#include "proof/consumers.h"
#include "proof/pattern.h"
#include "proof/stuck.h"
#include "state/state.h"
#include "store/subscription.h"

#include <stdio.h>
#include <string.h>

struct look {
	const struct semel_trace_state_query *of;
	semel_store *store;
	const struct semel_subscription_row *row;
	struct semel_trace_state *state;
	struct semel_topics topics;
	struct semel_consumers consumers;
	struct semel_wait wait; /* texts in the arena; the last one of the event */
	bool waits;
	int64_t now_ms;
};

static const struct semel_trace_entry *fact_of(const struct look *look, const char *what)
{
	const struct semel_trace *trace = look->of->trace;

	for (size_t i = trace->count; i > 0; i--) {
		const struct semel_trace_entry *fact = &trace->facts[i - 1];
		if (fact->scope && strcmp(fact->what, what) == 0 &&
		    semel_text_equal(semel_text_of(fact->scope), look->row->scope))
			return fact;
	}
	return NULL;
}

static semel_status say(struct look *look, const char *state, const char *command, const char *text)
{
	look->state->state = state;
	look->state->command = command;
	look->state->text = text ? text : "";
	return SEMEL_OK;
}

/* ---- what waits in the tables ---------------------------------------------------------------- */

static struct semel_text keep(const struct look *look, struct semel_text text)
{
	return text.data ? semel_arena_text(look->of->arena, text.data, text.length) : text;
}

static semel_status wait_seen(const struct semel_wait *wait, void *user)
{
	struct look *look = user;

	if (!semel_text_equal(wait->event_id, semel_text_of(look->of->event_id)))
		return SEMEL_OK;
	look->waits = true;
	look->wait = *wait;
	look->wait.event_id = keep(look, wait->event_id);
	look->wait.head_id = keep(look, wait->head_id);
	look->wait.entry_id = keep(look, wait->entry_id);
	look->wait.owner = keep(look, wait->owner);
	return SEMEL_OK;
}

static semel_status is_stuck(const struct look *look, bool *stuck_out, semel_error *error)
{
	struct semel_wait_fix need = semel_wait_find_fix(&look->wait, look->now_ms);
	const struct semel_stuck_check stuck = { .store = look->store,
						 .broker = look->of->broker,
						 .scope = semel_text_string(look->row->scope),
						 .topics = look->topics.names,
						 .in_flight = look->consumers.in_flight,
						 .now_ms = look->now_ms };

	*stuck_out = need.fix == SEMEL_FIX_RELEASE;
	if (need.fix != SEMEL_FIX_RESEND)
		return SEMEL_OK;
	return semel_stuck_check_is_gone(&stuck, need.awaited_id, stuck_out, error);
}

/* "waiting, the subscription is paused since …"; what stands before it says for what. */
static const char *with_reason(const struct look *look, const char *text)
{
	struct semel_buffer why = { 0 };
	bool stands = semel_consumers_explain(&look->consumers, look->now_ms, &why);
	const char *told =
		stands ? semel_arena_printf(look->of->arena, "%s, %s", text, why.data) : text;

	semel_buffer_free(&why);
	return told;
}

static const char *command_of(const struct look *look)
{
	if (look->row->paused)
		return semel_arena_printf(look->of->arena, "semel subscriptions resume %s",
					  semel_text_shown(look->row->scope));
	return NULL;
}

static semel_status tell_wait(struct look *look, semel_error *error)
{
	struct semel_arena *arena = look->of->arena;
	bool stuck = false;
	semel_status status = is_stuck(look, &stuck, error);

	if (status != SEMEL_OK)
		return status;
	if (stuck)
		return say(look, "stuck", "semel repair",
			   "stuck: it waits, and nothing will ever move it");
	switch (look->wait.kind) {
	case SEMEL_WAIT_PARKED:
		return say(look, semel_state_name(SEMEL_STATE_PARKED), command_of(look),
			   with_reason(look, semel_arena_printf(
						     arena, "parked behind %s",
						     semel_text_shown_or(look->wait.head_id,
									 "an earlier event"))));
	case SEMEL_WAIT_HOLD:
		return say(look, semel_state_name(SEMEL_STATE_RETRYING), command_of(look),
			   with_reason(look, semel_state_sentence(SEMEL_STATE_RETRYING)));
	case SEMEL_WAIT_REPLAY:
		return say(look, semel_state_name(SEMEL_STATE_REPLAYED), command_of(look),
			   with_reason(look, "waiting: its replay is on its way"));
	case SEMEL_WAIT_CLAIM:
		break;
	}
	return say(look, semel_state_name(SEMEL_STATE_CLAIMED), command_of(look),
		   with_reason(look, "in a consumer's hands"));
}

/* ---- what is not in the tables ----------------------------------------------------------------
 */

static bool is_wanted(const struct look *look)
{
	const struct semel_event *event = look->of->event;
	const struct semel_broker *broker = look->of->broker;
	bool binds = look->row->bind.data && broker && broker->driver->has_exchanges;
	struct semel_topics now = { 0 };

	if (semel_subscription_topics(look->row, look->of->arena, &now, NULL) != SEMEL_OK ||
	    !semel_topics_contain(&now, event->topic))
		return false;
	if (look->row->from_latest && event->time_ms < look->row->since_ms)
		return false;
	return !binds ||
	       semel_pattern_matches(look->row->bind,
				     event->routing_key.data ? event->routing_key : event->type);
}

static semel_status tell_transit(struct look *look, semel_error *error)
{
	struct semel_broker *broker = look->of->broker;
	const struct semel_event *event = look->of->event;
	bool at_broker = true;
	semel_status status = SEMEL_OK;

	if (!event || !is_wanted(look))
		return SEMEL_OK;
	if (semel_text_equal(look->row->guarantee, SEMEL_TEXT("at-least-once")))
		return say(look, "not tracked", NULL,
			   "not tracked (at-least-once keeps no claims)");
	if (broker)
		status = broker->driver->find_event(broker, semel_text_string(look->row->scope),
						    look->topics.names, look->of->event_id,
						    &at_broker, error);
	if (status != SEMEL_OK)
		return status;
	if (at_broker || (broker->driver->count_in_flight && look->consumers.in_flight > 0))
		return say(look, "waiting", command_of(look), with_reason(look, "waiting"));
	if (broker->driver->count_in_flight && look->consumers.alive > 0)
		return say(look, "waiting", NULL,
			   "waiting, unless it was lost: no queue has it (semel verify tells after "
			   "10 s)");
	return say(look, "missing",
		   semel_arena_printf(look->of->arena, "semel replay --scope %s --aggregate %s:%s",
				      semel_text_shown(look->row->scope),
				      semel_text_shown(event->aggregate_type),
				      semel_text_shown(event->aggregate_id)),
		   "missing: published, and neither in its tables nor at the broker");
}

/* ---- what is final -----------------------------------------------------------------------------
 */

/* "entry ID after 3 attempts: …" */
static const char *entry_in(const struct look *look, const struct semel_trace_entry *fact)
{
	char entry[64] = "";

	if (fact->detail && sscanf(fact->detail, "entry %63s", entry) == 1)
		return semel_arena_printf(look->of->arena, "%s", entry);
	return NULL;
}

static semel_status tell_letter(struct look *look, const struct semel_trace_entry *letter)
{
	const char *entry = entry_in(look, letter);

	return say(look, semel_state_name(SEMEL_STATE_DEAD),
		   entry ? semel_arena_printf(look->of->arena, "semel dlq show %s", entry) : NULL,
		   semel_arena_printf(look->of->arena, "dead letter %s", entry ? entry : ""));
}

static semel_status tell(struct look *look, semel_error *error)
{
	const struct semel_trace_entry *letter = fact_of(look, "dead-lettered");
	const struct semel_trace_entry *parked = fact_of(look, "parked");
	struct semel_arena *arena = look->of->arena;

	if (look->waits)
		return tell_wait(look, error);
	if (fact_of(look, "processed") || fact_of(look, "skipped"))
		return say(look, semel_state_name(SEMEL_STATE_DONE), NULL, "done");
	if (fact_of(look, "discarded"))
		return say(look, semel_state_name(SEMEL_STATE_DISCARDED), NULL,
			   semel_state_sentence(SEMEL_STATE_DISCARDED));
	if (parked) /* also one whose own letter was replayed */
		return say(look, semel_state_name(SEMEL_STATE_PARKED), "semel dlq list",
			   semel_arena_printf(arena, "parked %s, a dead letter",
					      parked->detail ? parked->detail : ""));
	if (letter)
		return tell_letter(look, letter);
	if (fact_of(look, "failed"))
		return say(look, semel_state_name(SEMEL_STATE_EXPIRED), NULL,
			   semel_state_sentence(SEMEL_STATE_EXPIRED));
	return tell_transit(look, error);
}

semel_status semel_trace_state_read(const struct semel_trace_state_query *of, semel_store *store,
				    const struct semel_subscription_row *row,
				    struct semel_trace_state *state_out, semel_error *error)
{
	struct look look = { .of = of, .store = store, .row = row, .state = state_out };

	*state_out = (struct semel_trace_state){ .scope = semel_text_string(row->scope) };
	look.now_ms = semel_now_ms(of->env);
	semel_status status =
		semel_subscription_all_topics(store, row, of->arena, &look.topics, error);
	if (status == SEMEL_OK)
		status = semel_consumers_read(store, row->scope, look.now_ms, &look.consumers,
					      error);
	if (of->hides_text)
		semel_consumers_hide_reason(&look.consumers);
	if (status == SEMEL_OK)
		status = store->driver->holds->waits_each(store, row->scope, wait_seen, &look,
							  error);
	return status == SEMEL_OK ? tell(&look, error) : status;
}
