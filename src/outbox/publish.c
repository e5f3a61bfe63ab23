/* SPDX-License-Identifier: Apache-2.0 */
/* src/outbox: publishing. Events join the transaction of the business change, or nothing is
 * written.
 *
 * - Every event is checked and completed before the first is written.
 * - No transaction is begun here: without an open one of the caller, the call fails.
 *
 * To change here: this room implements <semel/outbox.h> and needs no header of its own.
 * It has no SQL (the store's driver inserts the rows) and no broker (the relay sends them), keeps
 * nothing between two calls, and neither commits nor rolls back. */
#include "base/error.h"
#include "base/json.h"
#include "observe/span.h"
#include "store/store.h"

#include <semel/outbox.h>

#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK 4096

static semel_status check_tx(semel_tx tx, semel_error *error)
{
	if (tx.driver == NULL || tx.native == NULL)
		return semel_error_set(error, SEMEL_INVALID,
				       "no connection was given (semel_borrow_sqlite and "
				       "semel_borrow_postgres make a semel_tx from one)");
	if (!tx.driver->in_transaction(tx))
		return semel_error_set(error, SEMEL_NO_TRANSACTION,
				       "no transaction is open on this connection: BEGIN, "
				       "write the business change, publish, then COMMIT");
	return SEMEL_OK;
}

static semel_status complete(const struct semel_env *env, const semel_event_input *inputs,
			     size_t count, struct semel_arena *arena, struct semel_event *events,
			     semel_error *error)
{
	for (size_t i = 0; i < count; i++) {
		semel_status status =
			semel_event_from_input(&inputs[i], env, arena, &events[i], error);
		if (status == SEMEL_OK)
			continue;
		if (count > 1 && error != NULL)
			return semel_error_prefix(error, "event %zu", i + 1);
		return status;
	}
	return SEMEL_OK;
}

/* The span of publishing one event; it is ended when the row is written. An event without a
 * traceparent is given one, so that everything after it joins the same trace. */
static struct semel_span begin_span(const struct semel_env *env, struct semel_event *event,
				    struct semel_arena *arena)
{
	struct semel_text given = semel_event_header(event, "traceparent", arena);
	struct semel_span_context context;
	struct semel_span span;

	if (semel_traceparent_parse(given, &context)) {
		span = semel_span_make("semel.publish", SEMEL_SPAN_PRODUCER, &context, env);
	} else {
		char text[SEMEL_TRACEPARENT_SIZE];
		context = semel_trace_begin(env);
		semel_traceparent_format(&context, text);
		struct semel_text headers =
			semel_json_with(event->headers, "traceparent", semel_text_of(text), arena);
		if (headers.data)
			event->headers = headers;
		span = semel_span_make("semel.publish", SEMEL_SPAN_PRODUCER, &context, env);
		memcpy(span.id, context.span, sizeof span.id);
		memset(span.parent.span, 0, sizeof span.parent.span);
	}
	semel_span_text(&span, "event.id", event->id);
	semel_span_text(&span, "event.type", event->type);
	semel_span_text(&span, "messaging.destination.name", event->topic);
	return span;
}

static struct semel_span *begin_spans(const struct semel_env *env, struct semel_event *events,
				      size_t count, struct semel_arena *arena)
{
	struct semel_span *spans =
		semel_spans_are_enabled() ? semel_arena_alloc(arena, count * sizeof *spans) : NULL;

	for (size_t i = 0; spans && i < count; i++)
		spans[i] = begin_span(env, &events[i], arena);
	return spans;
}

static void end_spans(const struct semel_env *env, struct semel_span *spans, size_t count,
		      semel_status status)
{
	for (size_t i = 0; spans && i < count; i++) {
		spans[i].ended_ms = semel_now_ms(env);
		spans[i].failure = status == SEMEL_OK ? NULL : semel_status_name(status);
		semel_span_end(&spans[i]);
	}
}

semel_status semel_outbox_publish_all(semel_tx tx, const semel_event_input *inputs, size_t count,
				      char (*ids_out)[SEMEL_ID_SIZE], semel_error *error)
{
	semel_status status = check_tx(tx, error);
	if (status != SEMEL_OK || count == 0)
		return status;
	if (inputs == NULL)
		return semel_error_set(error, SEMEL_INVALID, "there is no event to publish");
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	struct semel_event *events =
		arena != NULL ? semel_arena_alloc(arena, count * sizeof(*events)) : NULL;
	if (events == NULL) {
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for %zu events",
					 count);
		goto free_arena;
	}
	status = complete(semel_tx_env(tx), inputs, count, arena, events, error);
	if (status != SEMEL_OK)
		goto free_arena;
	struct semel_span *spans = begin_spans(semel_tx_env(tx), events, count, arena);
	status = tx.driver->outbox->insert(tx, events, count, error);
	end_spans(semel_tx_env(tx), spans, count, status);
	for (size_t i = 0; i < count && status == SEMEL_OK && ids_out != NULL; i++)
		snprintf(ids_out[i], SEMEL_ID_SIZE, "%s", semel_text_string(events[i].id));
free_arena:
	semel_arena_free(arena);
	return status;
}

semel_status semel_outbox_publish(semel_tx tx, const semel_event_input *input,
				  char id_out[SEMEL_ID_SIZE], semel_error *error)
{
	return semel_outbox_publish_all(tx, input, 1, (char(*)[SEMEL_ID_SIZE])id_out, error);
}
