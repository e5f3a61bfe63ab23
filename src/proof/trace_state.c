/* SPDX-License-Identifier: Apache-2.0 */
/* A final state follows from the entries of the trace; a waiting one from the tables (waits), which
 * say what the event waits for; any other event is in transit to the scope, or lost. */
#include "proof/trace_state.h"

#include "base/error.h"
#include "proof/consumers.h"
#include "proof/pattern.h"
#include "proof/stuck.h"
#include "state/state.h"
#include "store/subscription.h"

#include <stdio.h>
#include <string.h>

struct reader {
	const struct semel_trace_state_query *query;
	semel_store *store;
	const struct semel_subscription_row *row;
	struct semel_trace_state *state;
	struct semel_topics topics;
	struct semel_consumers consumers;
	struct semel_wait wait; /* texts in the arena; the last one of the event */
	bool waits;
	int64_t now_ms;
};

static const struct semel_trace_entry *find_entry(const struct reader *reader, const char *what)
{
	const struct semel_trace *trace = reader->query->trace;

	for (size_t i = trace->count; i > 0; i--) {
		const struct semel_trace_entry *entry = &trace->entries[i - 1];
		if (entry->scope && strcmp(entry->what, what) == 0 &&
		    semel_text_equal(semel_text_of(entry->scope), reader->row->scope))
			return entry;
	}
	return NULL;
}

static semel_status set_state(struct reader *reader, const char *state, const char *command,
			      const char *text)
{
	reader->state->state = state;
	reader->state->command = command;
	reader->state->text = text ? text : "";
	return SEMEL_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static struct semel_text copy_text(const struct reader *reader, struct semel_text text)
{
	return text.data ? semel_arena_text(reader->query->arena, text.data, text.length) : text;
}

static semel_status record_wait(const struct semel_wait *wait, void *user)
{
	struct reader *reader = user;

	if (!semel_text_equal(wait->event_id, semel_text_of(reader->query->event_id)))
		return SEMEL_OK;
	reader->waits = true;
	reader->wait = *wait;
	reader->wait.event_id = copy_text(reader, wait->event_id);
	reader->wait.head_id = copy_text(reader, wait->head_id);
	reader->wait.entry_id = copy_text(reader, wait->entry_id);
	reader->wait.owner = copy_text(reader, wait->owner);
	return SEMEL_OK;
}

static semel_status is_stuck(const struct reader *reader, bool *stuck_out, semel_error *error)
{
	struct semel_wait_fix fix = semel_wait_find_fix(&reader->wait, reader->now_ms);
	const struct semel_stuck_check stuck = { .store = reader->store,
						 .broker = reader->query->broker,
						 .scope = semel_text_string(reader->row->scope),
						 .topics = reader->topics.names,
						 .in_flight = reader->consumers.in_flight,
						 .now_ms = reader->now_ms };

	*stuck_out = fix.kind == SEMEL_FIX_RELEASE;
	if (fix.kind != SEMEL_FIX_RESEND)
		return SEMEL_OK;
	return semel_stuck_check_is_gone(&stuck, fix.awaited_id, stuck_out, error);
}

/* "waiting, the subscription is paused since …"; what precedes it says for what. */
static const char *with_reason(const struct reader *reader, const char *text)
{
	struct semel_buffer why = { 0 };
	bool waits = semel_consumers_explain(&reader->consumers, reader->now_ms, &why);
	const char *reason =
		waits ? semel_arena_printf(reader->query->arena, "%s, %s", text, why.data) : text;

	semel_buffer_free(&why);
	return reason;
}

static const char *command_of(const struct reader *reader)
{
	if (reader->row->paused)
		return semel_arena_printf(reader->query->arena, "semel subscriptions resume %s",
					  semel_text_shown(reader->row->scope));
	return NULL;
}

static semel_status describe_wait(struct reader *reader, semel_error *error)
{
	struct semel_arena *arena = reader->query->arena;
	bool stuck = false;
	semel_status status = is_stuck(reader, &stuck, error);

	if (status != SEMEL_OK)
		return status;
	if (stuck)
		return set_state(reader, "stuck", "semel repair",
				 "stuck: no consumer will ever process it");
	switch (reader->wait.kind) {
	case SEMEL_WAIT_PARKED:
		return set_state(
			reader, semel_state_name(SEMEL_STATE_PARKED), command_of(reader),
			with_reason(reader,
				    semel_arena_printf(arena, "parked behind %s",
						       semel_text_shown_or(reader->wait.head_id,
									   "an earlier event"))));
	case SEMEL_WAIT_HOLD:
		return set_state(reader, semel_state_name(SEMEL_STATE_RETRYING), command_of(reader),
				 with_reason(reader, semel_state_sentence(SEMEL_STATE_RETRYING)));
	case SEMEL_WAIT_REPLAY:
		return set_state(reader, semel_state_name(SEMEL_STATE_REPLAYED), command_of(reader),
				 with_reason(reader, "waiting: its replay is in transit"));
	case SEMEL_WAIT_CLAIM:
		break;
	}
	return set_state(reader, semel_state_name(SEMEL_STATE_CLAIMED), command_of(reader),
			 with_reason(reader, "being processed by a consumer"));
}

/* ---- in transit ------------------------------------------------------------------------------ */

static bool is_expected(const struct reader *reader)
{
	const struct semel_event *event = reader->query->event;
	const struct semel_broker *broker = reader->query->broker;
	bool binds = reader->row->bind.data && broker && broker->driver->has_exchanges;
	struct semel_topics now = { 0 };

	if (semel_subscription_topics(reader->row, reader->query->arena, &now, NULL) != SEMEL_OK ||
	    !semel_topics_contain(&now, event->topic))
		return false;
	if (reader->row->from_latest && event->time_ms < reader->row->since_ms)
		return false;
	return !binds ||
	       semel_pattern_matches(reader->row->bind,
				     event->routing_key.data ? event->routing_key : event->type);
}

static semel_status describe_transit(struct reader *reader, semel_error *error)
{
	struct semel_broker *broker = reader->query->broker;
	const struct semel_event *event = reader->query->event;
	bool at_broker = true;
	semel_status status = SEMEL_OK;

	if (!event || !is_expected(reader))
		return SEMEL_OK;
	if (semel_text_equal(reader->row->guarantee, SEMEL_TEXT("at-least-once")))
		return set_state(reader, "not tracked", NULL,
				 "not tracked (at-least-once keeps no claims)");
	if (broker)
		status = broker->driver->find_event(broker, semel_text_string(reader->row->scope),
						    reader->topics.names, reader->query->event_id,
						    &at_broker, error);
	if (status != SEMEL_OK)
		return status;
	if (at_broker || (broker->driver->count_in_flight && reader->consumers.in_flight > 0))
		return set_state(reader, "waiting", command_of(reader),
				 with_reason(reader, "waiting"));
	if (broker->driver->count_in_flight && reader->consumers.alive > 0)
		return set_state(
			reader, "waiting", NULL,
			"waiting or lost: it is in no queue (semel verify decides after 10 s)");
	return set_state(reader, "missing",
			 semel_arena_printf(reader->query->arena,
					    "semel replay --scope %s --aggregate %s:%s",
					    semel_text_shown(reader->row->scope),
					    semel_text_shown(event->aggregate_type),
					    semel_text_shown(event->aggregate_id)),
			 "missing: published, but neither in its tables nor at the broker");
}

/* ---- final states ---------------------------------------------------------------------------- */

/* "entry ID after 3 attempts: …" */
static const char *entry_id_in(const struct reader *reader, const struct semel_trace_entry *entry)
{
	char id[64] = "";

	if (entry->detail && sscanf(entry->detail, "entry %63s", id) == 1)
		return semel_arena_printf(reader->query->arena, "%s", id);
	return NULL;
}

static semel_status describe_letter(struct reader *reader, const struct semel_trace_entry *letter)
{
	const char *entry = entry_id_in(reader, letter);

	return set_state(
		reader, semel_state_name(SEMEL_STATE_DEAD),
		entry ? semel_arena_printf(reader->query->arena, "semel dlq show %s", entry) : NULL,
		semel_arena_printf(reader->query->arena, "dead letter %s", entry ? entry : ""));
}

static semel_status describe(struct reader *reader, semel_error *error)
{
	const struct semel_trace_entry *letter = find_entry(reader, "dead-lettered");
	const struct semel_trace_entry *parked = find_entry(reader, "parked");
	struct semel_arena *arena = reader->query->arena;

	if (reader->waits)
		return describe_wait(reader, error);
	if (find_entry(reader, "processed") || find_entry(reader, "skipped"))
		return set_state(reader, semel_state_name(SEMEL_STATE_DONE), NULL, "done");
	if (find_entry(reader, "discarded"))
		return set_state(reader, semel_state_name(SEMEL_STATE_DISCARDED), NULL,
				 semel_state_sentence(SEMEL_STATE_DISCARDED));
	if (parked) /* even if its own dead letter was replayed */
		return set_state(reader, semel_state_name(SEMEL_STATE_PARKED), "semel dlq list",
				 semel_arena_printf(arena, "parked %s, a dead letter",
						    parked->detail ? parked->detail : ""));
	if (letter)
		return describe_letter(reader, letter);
	if (find_entry(reader, "failed"))
		return set_state(reader, semel_state_name(SEMEL_STATE_EXPIRED), NULL,
				 semel_state_sentence(SEMEL_STATE_EXPIRED));
	return describe_transit(reader, error);
}

semel_status semel_trace_state_read(const struct semel_trace_state_query *query, semel_store *store,
				    const struct semel_subscription_row *row,
				    struct semel_trace_state *state_out, semel_error *error)
{
	struct reader reader = { .query = query, .store = store, .row = row, .state = state_out };

	*state_out = (struct semel_trace_state){ .scope = semel_text_string(row->scope) };
	reader.now_ms = semel_now_ms(query->env);
	semel_status status =
		semel_subscription_all_topics(store, row, query->arena, &reader.topics, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_consumers_read(store, row->scope, reader.now_ms, &reader.consumers, error);
	if (status != SEMEL_OK)
		return status;
	if (query->hides_text)
		semel_consumers_hide_reason(&reader.consumers);
	status = store->driver->holds->waits_each(store, row->scope, record_wait, &reader, error);
	if (status != SEMEL_OK)
		return status;
	return describe(&reader, error);
}
