/* SPDX-License-Identifier: Apache-2.0 */
/* What a C handler is given besides the event. */
#include "base/error.h"
#include "base/json.h"
#include "consume/consumer.h"

#include <stdarg.h>
#include <stdio.h>

struct semel_context {
	struct semel_consumer *consumer;
	const struct semel_item *item;
	char reason[SEMEL_ERROR_TEXT_MAX];
};

semel_tx semel_context_tx(const semel_context *context)
{
	semel_store *store = context->consumer->store;

	return store->driver->tx(store);
}

uint32_t semel_context_attempt(const semel_context *context)
{
	return context->item->runs;
}

void semel_context_explain(semel_context *context, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(context->reason, sizeof context->reason, format, arguments);
	va_end(arguments);
}

/* The follow-up's own headers win over those that flow on. */
static struct semel_text merge_headers(const struct semel_event *event, const char *own,
				       struct semel_arena *arena)
{
	static const char *const flowing[] = { "correlationId", "causationId", "tenantId",
					       "sagaId",        "traceparent", "tracestate" };
	struct semel_text flow = semel_event_flow_headers(event, arena);
	struct semel_text merged = own ? semel_text_of(own) : SEMEL_TEXT("{}");

	if (!own)
		return flow;
	for (size_t i = 0; i < sizeof flowing / sizeof *flowing && merged.data; i++) {
		struct semel_text value = semel_json_member(flow, flowing[i], arena);
		if (value.data && !semel_json_member(merged, flowing[i], arena).data)
			merged = semel_json_with(merged, flowing[i], value, arena);
	}
	return merged;
}

semel_status semel_context_publish(semel_context *context, const semel_event_input *input,
				   char id_out[SEMEL_ID_SIZE], semel_error *error)
{
	struct semel_arena *arena = context->consumer->arena;
	semel_event_input flowing = *input;

	if (input->headers && !semel_json_is_valid(semel_text_of(input->headers)))
		return semel_error_set(error, SEMEL_INVALID,
				       "headers are not JSON; give an object with text values");
	struct semel_text headers =
		merge_headers(&context->item->delivery->event, input->headers, arena);
	if (!headers.data)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the headers");
	flowing.headers = semel_text_string(headers);
	return semel_outbox_publish(semel_context_tx(context), &flowing, id_out, error);
}

semel_verdict semel_context_run(struct semel_consumer *consumer, const struct semel_item *item,
				semel_error *error)
{
	struct semel_context context = { .consumer = consumer, .item = item };
	semel_verdict verdict = consumer->function(&item->event, &context, consumer->user);

	if (verdict != SEMEL_DONE)
		semel_error_set(
			error, verdict == SEMEL_REJECT ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY,
			"%s", context.reason[0] ? context.reason : "the handler gave no reason");
	return verdict;
}
