/* SPDX-License-Identifier: Apache-2.0 */
/* Facts come store by store; told is the one story that they make, by time. What a store wrote
 * within one millisecond stays in the order in which it was told. */
#include "proof/trace.h"

#include "base/error.h"
#include "base/time.h"
#include "observe/log.h"
#include "proof/position_reader.h"
#include "proof/trace_state.h"
#include "store/subscription.h"

#include <string.h>

#define FIRST_FACTS 32

struct collection {
	struct semel_arena *arena;
	struct semel_trace *trace;
	size_t capacity;
	bool failed;
};

/* Earlier facts stay before later ones, equals in the order of arrival. */
static void insert_by_time(struct semel_trace *trace, const struct semel_trace_entry *fact)
{
	size_t at = trace->count++;
	while (at > 0 && trace->facts[at - 1].time_ms > fact->time_ms) {
		trace->facts[at] = trace->facts[at - 1];
		at--;
	}
	trace->facts[at] = *fact;
}

static bool is_known(const struct semel_trace *trace, const struct semel_trace_entry *fact)
{
	for (size_t i = 0; i < trace->count; i++) {
		const struct semel_trace_entry *known = &trace->facts[i];
		if (known->time_ms == fact->time_ms && strcmp(known->what, fact->what) == 0 &&
		    semel_text_equal(semel_text_of(known->scope), semel_text_of(fact->scope)) &&
		    semel_text_equal(semel_text_of(known->detail), semel_text_of(fact->detail)) &&
		    semel_text_equal(semel_text_of(known->quoted), semel_text_of(fact->quoted)))
			return true;
	}
	return false;
}

static void fact_seen(const struct semel_trace_entry *fact, void *user)
{
	struct collection *collection = user;
	struct semel_trace *trace = collection->trace;
	if (is_known(trace, fact))
		return; /* two URLs of one database */
	if (trace->count == collection->capacity) {
		size_t wanted = collection->capacity ? collection->capacity * 2 : FIRST_FACTS;
		struct semel_trace_entry *bigger =
			semel_arena_alloc(collection->arena, sizeof(*bigger) * wanted);
		if (!bigger) {
			collection->failed = true;
			return;
		}
		if (trace->count > 0)
			memcpy(bigger, trace->facts, sizeof(*bigger) * trace->count);
		trace->facts = bigger;
		collection->capacity = wanted;
	}
	insert_by_time(trace, fact);
}

/* Whether a copy of the event still waits at the broker for one of the store's subscriptions. */
static semel_status look_in(struct semel_broker *broker, semel_store *store,
			    const struct semel_trace_plan *plan, const char *event_id,
			    struct collection *collection, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(store, collection->arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		struct semel_topics topics = { 0 };
		bool waiting = false;
		status = semel_subscription_topics(&rows[i], collection->arena, &topics, error);
		if (status == SEMEL_OK)
			status =
				broker->driver->find_event(broker, semel_text_string(rows[i].scope),
							   topics.names, event_id, &waiting, error);
		if (status != SEMEL_OK || !waiting)
			continue;
		struct semel_trace_entry fact = { .time_ms = semel_now_ms(plan->env),
						  .what = "waiting",
						  .scope = semel_text_string(rows[i].scope),
						  .detail = "at the broker" };
		fact_seen(&fact, collection);
	}
	return status;
}

/* ---- how it stands ----------------------------------------------------------------------------
 */

/* As the outbox has it, once it is published. */
static semel_status find_event(const struct semel_trace_plan *plan, const char *event_id,
			       struct semel_arena *arena, struct semel_outbox_row *row,
			       bool *found_out, semel_error *error)
{
	const struct semel_outbox_filter filter = { .id = event_id };
	semel_status status = SEMEL_OK;
	*found_out = false;
	for (size_t i = 0; i < plan->store_count && status == SEMEL_OK && !*found_out; i++) {
		semel_store *store = plan->stores[i];
		struct semel_outbox_batch batch = {
			.arena = arena, .rows = row, .capacity = 1, .bytes_max = 1
		};
		status = store->driver->outbox->select(store, &filter, 0, &batch, error);
		*found_out = status == SEMEL_OK && batch.count > 0;
	}
	return status;
}

static bool has_fact(const struct semel_trace *trace, const char *what)
{
	for (size_t i = 0; i < trace->count; i++)
		if (!trace->facts[i].scope && strcmp(trace->facts[i].what, what) == 0)
			return true;
	return false;
}

static void add_verdict(struct collection *collection, const struct semel_trace_state *state)
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

static semel_status judge_store(const struct semel_trace_state_query *of, semel_store *store,
				struct collection *collection, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(store, collection->arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		struct semel_trace_state state = { 0 };
		status = semel_trace_state_read(of, store, &rows[i], &state, error);
		if (status == SEMEL_OK && state.text)
			add_verdict(collection, &state);
	}
	return status;
}

static void judge_unpublished(struct collection *collection)
{
	const struct semel_trace *trace = collection->trace;
	bool refused = has_fact(trace, "refused");
	const struct semel_trace_state state = {
		.state = "unpublished",
		.text = refused ? "not published: the broker refused it, and the relay tries again"
				: "not published yet: a relay does that",
		.command = refused ? "semel doctor" : "semel relay --drain"
	};
	if (has_fact(trace, "committed") && !has_fact(trace, "published"))
		add_verdict(collection, &state);
}

/* The story is worth telling without the broker too. */
static semel_status judge(const struct semel_trace_plan *plan, const char *event_id,
			  struct collection *collection, semel_error *error)
{
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader;
	struct semel_outbox_row row = { .seq = 0 };
	bool found = false;
	semel_error trouble = { 0 };
	semel_status reached = plan->broker_url ? semel_broker_open(plan->broker_url, plan->env, 1,
								    &broker, &trouble)
						: SEMEL_OK;
	if (reached != SEMEL_OK)
		semel_logf(SEMEL_LOG_WARN, "the broker could not be asked: %s", trouble.text);
	for (size_t i = 0; i < plan->store_count && broker && reached == SEMEL_OK; i++) {
		semel_position_reader_attach(&position_reader, broker, plan->stores[i]);
		reached = look_in(broker, plan->stores[i], plan, event_id, collection, &trouble);
		if (reached != SEMEL_OK)
			semel_logf(SEMEL_LOG_WARN, "the broker could not be asked: %s",
				   trouble.text);
	}
	semel_status status = find_event(plan, event_id, collection->arena, &row, &found, error);
	const struct semel_trace_state_query of = { .event_id = event_id,
						    .event = found ? &row.event : NULL,
						    .trace = collection->trace,
						    .broker = reached == SEMEL_OK ? broker : NULL,
						    .env = plan->env,
						    .arena = collection->arena,
						    .hides_text = plan->hides_text };
	judge_unpublished(collection);
	for (size_t i = 0; i < plan->store_count && status == SEMEL_OK; i++) {
		if (broker)
			semel_position_reader_attach(&position_reader, broker, plan->stores[i]);
		status = judge_store(&of, plan->stores[i], collection, error);
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
		semel_status status = store->driver->upkeep->trace(store, event_id, arena,
								   fact_seen, &collection, error);
		if (status != SEMEL_OK && status != SEMEL_NOT_FOUND)
			return status;
	}
	semel_status status =
		trace_out->count > 0 ? judge(plan, event_id, &collection, error) : SEMEL_OK;
	if (status != SEMEL_OK)
		return status;
	if (collection.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory to trace");
	for (size_t i = 0; i < trace_out->count && plan->hides_text; i++)
		if (trace_out->facts[i].quoted && trace_out->facts[i].quoted[0])
			trace_out->facts[i].quoted = SEMEL_HIDDEN;
	if (trace_out->count == 0)
		return semel_error_set(error, SEMEL_NOT_FOUND,
				       "nobody knows an event %s: it was never committed here, or "
				       "its rows are past their retention (another database? add "
				       "--consumer-store URL)",
				       event_id);
	return SEMEL_OK;
}

void semel_trace_entry_describe(const struct semel_trace_entry *fact, struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, fact->detail ? fact->detail : "");
	semel_buffer_string(buffer, fact->quoted ? fact->quoted : "");
}

/* The detail, and what was said, are one text to those who read it. */
static void put_detail(const struct semel_trace_entry *fact, struct semel_buffer *buffer)
{
	struct semel_buffer text = { 0 };

	semel_trace_entry_describe(fact, &text);
	buffer->failed = buffer->failed || text.failed;
	if (fact->detail || fact->quoted)
		semel_buffer_json(buffer, semel_buffer_text(&text));
	else
		semel_buffer_string(buffer, "null");
	semel_buffer_free(&text);
}

static void fact_json(const struct semel_trace_entry *fact, struct semel_buffer *buffer)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(fact->time_ms, time);
	semel_buffer_printf(buffer, "{\"time\":\"%s\",\"what\":", time);
	semel_buffer_json(buffer, semel_text_of(fact->what));
	semel_buffer_string(buffer, ",\"scope\":");
	semel_buffer_json_or_null(buffer, semel_text_of(fact->scope));
	semel_buffer_string(buffer, ",\"detail\":");
	put_detail(fact, buffer);
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
		fact_json(&trace->facts[i], buffer);
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
