/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of one event: the entries of all stores, ordered by time, and its state at each
 * subscription in a sentence. Entries of one store with the same millisecond stay in the order in
 * which the store returned them. */
#include "proof/trace.h"

#include "base/error.h"
#include "base/time.h"
#include "observe/log.h"
#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "state/state.h"
#include "store/subscription.h"

#include <stdio.h>
#include <string.h>

#define FIRST_ENTRIES 32

struct collection {
	struct semel_arena *arena;
	struct semel_trace *trace;
	size_t capacity;
	bool failed;
};

/* Stable: equal times stay in the order of arrival. */
static void insert_by_time(struct semel_trace *trace, const struct semel_trace_entry *entry)
{
	size_t at = trace->count++;
	while (at > 0 && trace->entries[at - 1].time_ms > entry->time_ms) {
		trace->entries[at] = trace->entries[at - 1];
		at--;
	}
	trace->entries[at] = *entry;
}

static bool is_known(const struct semel_trace *trace, const struct semel_trace_entry *entry)
{
	for (size_t i = 0; i < trace->count; i++) {
		const struct semel_trace_entry *known = &trace->entries[i];
		if (known->time_ms == entry->time_ms && strcmp(known->what, entry->what) == 0 &&
		    semel_text_equal(semel_text_of(known->scope), semel_text_of(entry->scope)) &&
		    semel_text_equal(semel_text_of(known->detail), semel_text_of(entry->detail)) &&
		    semel_text_equal(semel_text_of(known->quoted), semel_text_of(entry->quoted)))
			return true;
	}
	return false;
}

static void collect_entry(const struct semel_trace_entry *entry, void *user)
{
	struct collection *collection = user;
	struct semel_trace *trace = collection->trace;
	if (is_known(trace, entry))
		return; /* two URLs of the same database */
	if (trace->count == collection->capacity) {
		size_t capacity = collection->capacity ? collection->capacity * 2 : FIRST_ENTRIES;
		struct semel_trace_entry *bigger =
			semel_arena_alloc(collection->arena, sizeof(*bigger) * capacity);
		if (!bigger) {
			collection->failed = true;
			return;
		}
		if (trace->count > 0)
			memcpy(bigger, trace->entries, sizeof(*bigger) * trace->count);
		trace->entries = bigger;
		collection->capacity = capacity;
	}
	insert_by_time(trace, entry);
}

static semel_status find_copy(const struct semel_trace_plan *plan, struct semel_broker *broker,
			      const struct semel_subscription_row *row, const char *event_id,
			      struct collection *collection, semel_error *error)
{
	struct semel_topics topics = { 0 };
	bool waiting = false;
	semel_status status = semel_subscription_topics(row, collection->arena, &topics, error);
	if (status != SEMEL_OK)
		return status;
	status = broker->driver->find_event(broker, semel_text_string(row->scope), topics.names,
					    event_id, &waiting, error);
	if (status != SEMEL_OK || !waiting)
		return status;
	const struct semel_trace_entry entry = { .time_ms = semel_now_ms(plan->env),
						 .what = "waiting",
						 .scope = semel_text_string(row->scope),
						 .detail = "at the broker" };
	collect_entry(&entry, collection);
	return SEMEL_OK;
}

/* Finds copies of the event that wait at the broker for the subscriptions of a store. */
static semel_status find_copies(const struct semel_trace_plan *plan, struct semel_broker *broker,
				semel_store *store, const char *event_id,
				struct collection *collection, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(store, collection->arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		status = find_copy(plan, broker, &rows[i], event_id, collection, error);
	return status;
}

/* ---- the state of the event at one subscription ---------------------------------------------- */

/* A final state follows from the entries of the trace; a waiting one from the tables (waits), which
 * say what the event waits for; any other event is in transit to the scope, or lost. */

/* The event, and what was found about it. */
struct state_query {
	const char *event_id;
	const struct semel_event *event; /* from the outbox; NULL: not found there */
	const struct semel_trace *trace;
	struct semel_broker *broker; /* NULL: not reachable */
	const struct semel_env *env;
	struct semel_arena *arena;
	bool hides_text; /* hides the reason of an open breaker */
};

struct reader {
	const struct state_query *query;
	semel_store *store;
	const struct semel_subscription_row *row;
	struct semel_trace_state *state;
	struct semel_topics topics;
	struct semel_consumers consumers;
	struct semel_wait wait; /* the last wait of the event; its texts are in the arena */
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

/* Appends why nothing is consumed: "waiting, the subscription is paused since …". */
static const char *with_reason(const struct reader *reader, const char *text)
{
	struct semel_buffer why = { 0 };
	if (reader->row->paused && !reader->consumers.paused)
		return semel_arena_printf(reader->query->arena, "%s, the subscription is paused",
					  text);
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
				 "stuck: no consumer will process it");
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
	    !semel_topics_has(&now, event->topic))
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
		return set_state(reader, "waiting", NULL,
				 "waiting or lost: in no queue, but a consumer may have it in "
				 "flight (semel verify decides after 10 s)");
	return set_state(reader, "missing",
			 semel_arena_printf(reader->query->arena,
					    "semel replay --scope %s --aggregate %s:%s",
					    semel_text_shown(reader->row->scope),
					    semel_text_shown(event->aggregate_type),
					    semel_text_shown(event->aggregate_id)),
			 "missing: published, but neither in its tables nor at the broker");
}

/* ---- final states ---------------------------------------------------------------------------- */

/* Reads the id from a detail such as "entry ID after 3 attempts: …". */
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

/* Reads the state at this subscription of the store. text NULL: the event is not for it. */
static semel_status read_state(const struct state_query *query, semel_store *store,
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

/* ---- all states ------------------------------------------------------------------------------ */

/* Reads the event from the outbox. found_out false: it is not there. */
static semel_status find_event(const struct semel_trace_plan *plan, const char *event_id,
			       struct semel_arena *arena, struct semel_outbox_row *row,
			       bool *found_out, semel_error *error)
{
	const struct semel_outbox_filter filter = { .id = event_id };
	*found_out = false;
	for (size_t i = 0; i < plan->store_count && !*found_out; i++) {
		semel_store *store = plan->stores[i];
		struct semel_outbox_batch batch = {
			.arena = arena, .rows = row, .capacity = 1, .bytes_max = 1
		};
		semel_status status =
			store->driver->outbox->select(store, &filter, 0, &batch, error);
		if (status != SEMEL_OK)
			return status;
		*found_out = batch.count > 0;
	}
	return SEMEL_OK;
}

static bool has_entry(const struct semel_trace *trace, const char *what)
{
	for (size_t i = 0; i < trace->count; i++)
		if (!trace->entries[i].scope && strcmp(trace->entries[i].what, what) == 0)
			return true;
	return false;
}

static void add_state(struct collection *collection, const struct semel_trace_state *state)
{
	struct semel_trace *trace = collection->trace;
	struct semel_trace_state *bigger =
		semel_arena_alloc(collection->arena, sizeof(*bigger) * (trace->state_count + 1));
	if (!bigger) {
		collection->failed = true;
		return;
	}
	if (trace->state_count > 0)
		memcpy(bigger, trace->states, sizeof(*bigger) * trace->state_count);
	bigger[trace->state_count++] = *state;
	trace->states = bigger;
}

static semel_status read_store_states(const struct state_query *query, semel_store *store,
				      struct collection *collection, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(store, collection->arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		struct semel_trace_state state = { 0 };
		status = read_state(query, store, &rows[i], &state, error);
		if (status != SEMEL_OK)
			return status;
		if (state.text)
			add_state(collection, &state);
	}
	return status;
}

static void add_unpublished(struct collection *collection)
{
	const struct semel_trace *trace = collection->trace;
	bool refused = has_entry(trace, "refused");
	const struct semel_trace_state state = {
		.state = "unpublished",
		.text = refused ? "not published: the broker refused it, and the relay is retrying"
				: "not published yet",
		.command = refused ? "semel doctor" : "semel relay --drain"
	};
	if (has_entry(trace, "committed") && !has_entry(trace, "published"))
		add_state(collection, &state);
}

/* Opens the broker and finds the copies that wait there. A trace is useful even without the broker,
 * so a failure is only logged, and the result is false. */
static bool query_broker(const struct semel_trace_plan *plan, const char *event_id,
			 struct collection *collection,
			 struct semel_position_reader *position_reader,
			 struct semel_broker **broker_out)
{
	semel_error error = { 0 };
	*broker_out = NULL;
	if (!plan->broker_url)
		return true;
	if (semel_broker_open(plan->broker_url, plan->env, 1, broker_out, &error) != SEMEL_OK)
		goto log;
	for (size_t i = 0; i < plan->store_count; i++) {
		semel_position_reader_attach(position_reader, *broker_out, plan->stores[i]);
		if (find_copies(plan, *broker_out, plan->stores[i], event_id, collection, &error) !=
		    SEMEL_OK)
			goto log;
	}
	return true;

log:
	semel_log(SEMEL_LOG_WARN, "cannot query the broker for the event",
		  &(struct semel_log_fields){ .message_id = event_id, .error = error.text });
	return false;
}

static semel_status read_states(const struct semel_trace_plan *plan, const char *event_id,
				struct collection *collection, semel_error *error)
{
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader; /* outlives the broker */
	struct semel_outbox_row row = { .seq = 0 };
	bool found = false;
	bool reached = query_broker(plan, event_id, collection, &position_reader, &broker);
	semel_status status = find_event(plan, event_id, collection->arena, &row, &found, error);
	const struct state_query query = { .event_id = event_id,
					   .event = found ? &row.event : NULL,
					   .trace = collection->trace,
					   .broker = reached ? broker : NULL,
					   .env = plan->env,
					   .arena = collection->arena,
					   .hides_text = plan->hides_text };
	add_unpublished(collection);
	for (size_t i = 0; i < plan->store_count && status == SEMEL_OK; i++) {
		if (broker)
			semel_position_reader_attach(&position_reader, broker, plan->stores[i]);
		status = read_store_states(&query, plan->stores[i], collection, error);
	}
	semel_broker_close(broker);
	return status;
}

semel_status semel_trace_run(const struct semel_trace_plan *plan, const char *event_id,
			     struct semel_arena *arena, struct semel_trace *trace_out,
			     semel_error *error)
{
	*trace_out = (struct semel_trace){ 0 };
	struct collection collection = { .arena = arena, .trace = trace_out };
	for (size_t i = 0; i < plan->store_count; i++) {
		semel_store *store = plan->stores[i];
		semel_status status = store->driver->upkeep->trace(
			store, event_id, arena, collect_entry, &collection, error);
		if (status != SEMEL_OK && status != SEMEL_NOT_FOUND)
			return status;
	}
	if (trace_out->count == 0)
		return semel_error_set(error, SEMEL_NOT_FOUND,
				       "event %s not found: it was never committed here, or its "
				       "rows are past their retention (if it is in another "
				       "database, add --consumer-store URL)",
				       event_id);
	semel_status status = read_states(plan, event_id, &collection, error);
	if (status != SEMEL_OK)
		return status;
	if (collection.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the trace");
	for (size_t i = 0; i < trace_out->count && plan->hides_text; i++)
		if (trace_out->entries[i].quoted && trace_out->entries[i].quoted[0])
			trace_out->entries[i].quoted = SEMEL_HIDDEN;
	return SEMEL_OK;
}

void semel_trace_entry_describe(const struct semel_trace_entry *entry, struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, entry->detail ? entry->detail : "");
	semel_buffer_string(buffer, entry->quoted ? entry->quoted : "");
}

/* Writes the detail and the quoted text as one member. */
static void write_detail(const struct semel_trace_entry *entry, struct semel_buffer *buffer)
{
	struct semel_buffer text = { 0 };

	semel_trace_entry_describe(entry, &text);
	buffer->failed = buffer->failed || text.failed;
	if (entry->detail || entry->quoted)
		semel_buffer_json(buffer, semel_buffer_text(&text));
	else
		semel_buffer_string(buffer, "null");
	semel_buffer_free(&text);
}

static void entry_to_json(const struct semel_trace_entry *entry, struct semel_buffer *buffer)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(entry->time_ms, time);
	semel_buffer_printf(buffer, "{\"time\":\"%s\",\"what\":", time);
	semel_buffer_json(buffer, semel_text_of(entry->what));
	semel_buffer_string(buffer, ",\"scope\":");
	semel_buffer_json_or_null(buffer, semel_text_of(entry->scope));
	semel_buffer_string(buffer, ",\"detail\":");
	write_detail(entry, buffer);
	semel_buffer_string(buffer, "}");
}

void semel_trace_to_json(const struct semel_trace *trace, const char *event_id,
			 struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, "{\"eventId\":");
	semel_buffer_json(buffer, semel_text_of(event_id));
	semel_buffer_string(buffer, ",\"facts\":[");
	for (size_t i = 0; i < trace->count; i++) {
		semel_buffer_string(buffer, i ? ",\n " : "");
		entry_to_json(&trace->entries[i], buffer);
	}
	semel_buffer_string(buffer, "],\n\"verdicts\":[");
	for (size_t i = 0; i < trace->state_count; i++) {
		const struct semel_trace_state *state = &trace->states[i];
		semel_buffer_string(buffer, i ? ",\n {\"scope\":" : "{\"scope\":");
		semel_buffer_json_or_null(buffer, semel_text_of(state->scope));
		semel_buffer_string(buffer, ",\"state\":");
		semel_buffer_json(buffer, semel_text_of(state->state));
		semel_buffer_string(buffer, ",\"text\":");
		semel_buffer_json(buffer, semel_text_of(state->text));
		semel_buffer_string(buffer, ",\"command\":");
		semel_buffer_json_or_null(buffer, semel_text_of(state->command));
		semel_buffer_string(buffer, "}");
	}
	semel_buffer_string(buffer, "]}\n");
}
