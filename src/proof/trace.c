/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of all stores, in the order of time. Entries of one store with the same millisecond
 * stay in the order in which the store returned them. */
#include "proof/trace.h"

#include "base/error.h"
#include "base/time.h"
#include "observe/log.h"
#include "proof/position_reader.h"
#include "proof/trace_state.h"
#include "store/subscription.h"

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
		return; /* two URLs of one database */
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

/* Copies of the event that wait at the broker for the subscriptions of a store. */
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

/* ---- states ---------------------------------------------------------------------------------- */

/* From the outbox; found_out false: it is not published. */
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

static semel_status read_store_states(const struct semel_trace_state_query *query,
				      semel_store *store, struct collection *collection,
				      semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(store, collection->arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		struct semel_trace_state state = { 0 };
		status = semel_trace_state_read(query, store, &rows[i], &state, error);
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

/* Opens the broker and finds the copies that wait there. The trace is useful without the broker
 * too: a failure is logged, and false. */
static bool query_broker(const struct semel_trace_plan *plan, const char *event_id,
			 struct collection *collection, struct semel_broker **broker_out)
{
	struct semel_position_reader position_reader;
	semel_error error = { 0 };
	*broker_out = NULL;
	if (!plan->broker_url)
		return true;
	if (semel_broker_open(plan->broker_url, plan->env, 1, broker_out, &error) != SEMEL_OK)
		goto log;
	for (size_t i = 0; i < plan->store_count; i++) {
		semel_position_reader_attach(&position_reader, *broker_out, plan->stores[i]);
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
	struct semel_position_reader position_reader;
	struct semel_outbox_row row = { .seq = 0 };
	bool found = false;
	bool reached = query_broker(plan, event_id, collection, &broker);
	semel_status status = find_event(plan, event_id, collection->arena, &row, &found, error);
	const struct semel_trace_state_query query = { .event_id = event_id,
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
		return semel_error_set(error, SEMEL_INTERNAL, "no memory to trace");
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

/* The detail and the quoted text are one member. */
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
