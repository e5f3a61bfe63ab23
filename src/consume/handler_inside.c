/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a handler inside the transaction, and what a C handler is given besides the event. */
#include "consume/consumer.h"

#include "base/error.h"
#include "base/json.h"
#include "fault/failpoint.h"
#include "observe/metrics.h"

#include <stdarg.h>
#include <stdio.h>

struct semel_context {
	struct semel_consumer *consumer;
	const struct semel_item *item;
	char reason[SEMEL_ERROR_TEXT_MAX];
};

/* ---- the context of a C handler -------------------------------------------------------------- */

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

semel_status semel_context_publish(semel_context *context, const semel_event_input *input,
				   char id_out[SEMEL_ID_SIZE], semel_error *error)
{
	semel_event_input follow_up = *input;

	if (input->headers && !semel_json_is_valid(semel_text_of(input->headers)))
		return semel_error_set(error, SEMEL_INVALID,
				       "headers are not valid JSON; give an object with text "
				       "values");
	struct semel_text headers = semel_event_follow_up_headers(&context->item->delivery->event,
								  semel_text_of(input->headers),
								  context->consumer->arena);
	if (!headers.data)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the headers");
	follow_up.headers = semel_text_string(headers);
	return semel_outbox_publish(semel_context_tx(context), &follow_up, id_out, error);
}

/* ---- running --------------------------------------------------------------------------------- */

static semel_status call_function(struct semel_consumer *consumer, const struct semel_item *item,
				  semel_error *error)
{
	struct semel_context context = { .consumer = consumer, .item = item };
	semel_verdict verdict =
		consumer->handler.function(&item->event, &context, consumer->handler.user);

	if (verdict == SEMEL_DONE)
		return SEMEL_OK;
	return semel_error_set(
		error, verdict == SEMEL_REJECT ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY, "%s",
		context.reason[0] ? context.reason : "the handler gave no reason");
}

static semel_status run_newest_version(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error)
{
	item->event = item->delivery->event;
	semel_status status = semel_upcasters_apply(consumer->handler.upcasters, consumer->store,
						    &item->event, consumer->arena, error);
	if (status != SEMEL_OK)
		return status;
	if (consumer->handler.kind == SEMEL_HANDLER_SQL)
		return consumer->store->driver->inbox->effect_run(consumer->store, &item->event,
								  item->runs, error);
	return call_function(consumer, item, error);
}

semel_status semel_handler_run(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error)
{
	item->runs++;
	int64_t began_us = semel_step_timer_begin();
	item->status = run_newest_version(consumer, item, error);
	semel_step_timer_end(SEMEL_TIMED_EFFECT, began_us);
	if (item->status != SEMEL_OK)
		return item->status;
	item->status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_EFFECT, error);
	return item->status;
}
