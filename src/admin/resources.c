/* SPDX-License-Identifier: Apache-2.0 */
/* The resources outbox, subscriptions, trace and audit. */
#include "admin/redact.h"
#include "admin/routes.h"
#include "base/error.h"
#include "observe/metrics.h"
#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/trace.h"
#include "store/subscription.h"

#include <inttypes.h>

void semel_outbox_to_json(const struct semel_admin_context *context,
			  const struct semel_outbox_counts *counts, struct semel_buffer *text)
{
	const char *last_error = counts->last_error[0] ? counts->last_error : NULL;

	semel_buffer_printf(text,
			    "{\"waiting\":%" PRIu64 ",\"retrying\":%" PRIu64 ",\"parked\":%" PRIu64
			    ",\"blocked\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"oldest\":",
			    counts->waiting, counts->retrying, counts->parked, counts->blocked,
			    counts->failed);
	semel_buffer_time(text, counts->oldest_ms);
	semel_buffer_string(text, ",\"nextAttempt\":");
	semel_buffer_time(text, counts->next_due_ms);
	semel_buffer_string(text, ",\"lastError\":");
	semel_buffer_json_or_null(
		text, semel_text_of(semel_redaction_text(context->redaction, last_error)));
	semel_buffer_string(text, "}");
}

semel_status semel_serve_outbox(struct semel_admin_request *request, semel_error *error)
{
	struct semel_outbox_counts counts = { 0 };
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	status = request->store->driver->outbox->count(request->store, &counts, error);
	if (status != SEMEL_OK)
		return status;
	semel_outbox_to_json(request->context, &counts, semel_admin_request_body(request));
	semel_buffer_string(semel_admin_request_body(request), "\n");
	return SEMEL_OK;
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static void write_text_member(struct semel_buffer *body, const char *name, struct semel_text text)
{
	semel_buffer_printf(body, "\"%s\":", name);
	semel_buffer_json_or_null(body, text);
	semel_buffer_string(body, ",");
}

/* Writes the broker's backlog; null if the broker is not reachable. */
static bool write_backlog(struct semel_admin_request *request, struct semel_broker *broker,
			  const struct semel_subscription_row *row, uint64_t in_flight,
			  struct semel_buffer *text)
{
	struct semel_backlog backlog = { 0 };
	struct semel_topics topics = { 0 };
	bool known = broker &&
		     semel_subscription_topics(row, request->arena, &topics, NULL) == SEMEL_OK &&
		     broker->driver->backlog(broker, semel_text_string(row->scope), topics.names,
					     &backlog, NULL) == SEMEL_OK;

	if (known && broker->driver->count_in_flight)
		backlog.waiting += in_flight; /* the broker does not count them */
	if (known)
		semel_buffer_printf(text, "\"lag\":%" PRIu64 ",\"delayed\":%" PRIu64 ",",
				    backlog.waiting, backlog.delayed);
	else
		semel_buffer_string(text, "\"lag\":null,\"delayed\":null,");
	return known;
}

/* The breaker's state comes from this process if it consumes the subscription, otherwise from what
 * consumers report in the store. */
static void write_consumers(struct semel_admin_request *request, const char *scope,
			    const struct semel_consumers *consumers, struct semel_buffer *text)
{
	struct semel_buffer why = { 0 };
	bool waits = semel_consumers_explain(consumers, semel_now_ms(request->context->env), &why);
	int64_t state = consumers->breaker;

	if (semel_metric_value(SEMEL_METRIC_BREAKER_STATE, scope, NULL, &state) ||
	    consumers->alive > 0)
		semel_buffer_printf(text, "\"breaker\":%" PRId64 ",", state);
	else
		semel_buffer_string(text, "\"breaker\":null,");
	semel_buffer_printf(text, "\"consumers\":%u,\"inHand\":%" PRIu64 ",\"waitsFor\":",
			    consumers->alive, consumers->in_flight);
	semel_buffer_json_or_null(text, semel_text_of(waits ? why.data : NULL));
	semel_buffer_string(text, ",");
	semel_buffer_free(&why);
}

bool semel_subscription_to_json(struct semel_admin_request *request, struct semel_broker *broker,
				const struct semel_subscription_row *row, struct semel_buffer *text)
{
	const struct semel_store_driver *driver = request->store->driver;
	struct semel_hold_counts held = { 0 };
	struct semel_consumers consumers = { 0 };
	uint64_t dead = 0;
	(void)semel_consumers_read(request->store, row->scope, semel_now_ms(request->context->env),
				   &consumers, NULL);
	if (request->context->redaction)
		semel_consumers_hide_reason(&consumers);
	bool reached = driver->holds->count(request->store, row->scope, &held, NULL) == SEMEL_OK &&
		       driver->dead_letters->count(request->store, semel_text_string(row->scope),
						   &dead, NULL) == SEMEL_OK;

	semel_buffer_string(text, "{");
	write_text_member(text, "scope", row->scope);
	semel_buffer_printf(text, "\"topics\":%s,", semel_text_shown(row->topics));
	write_text_member(text, "guarantee", row->guarantee);
	write_text_member(text, "claim", row->claim);
	write_text_member(text, "poison", row->poison);
	write_text_member(text, "order", row->order);
	write_text_member(text, "dedupBy", row->dedup_by);
	write_text_member(text, "handler", row->handler);
	semel_buffer_string(text, "\"since\":");
	semel_buffer_time(text, row->since_ms);
	semel_buffer_string(text, ",");
	reached = write_backlog(request, broker, row, consumers.in_flight, text) && reached;
	write_consumers(request, semel_text_string(row->scope), &consumers, text);
	semel_buffer_printf(text,
			    "\"paused\":%s,\"retrying\":%" PRIu64 ",\"blocked\":%" PRIu64
			    ",\"parked\":%" PRIu64 ",\"deadLetters\":%" PRIu64 "}",
			    row->paused ? "true" : "false", held.waiting, held.blocked, held.parked,
			    dead);
	return reached;
}

semel_status semel_serve_subscriptions(struct semel_admin_request *request, semel_error *error)
{
	struct semel_buffer *body = semel_admin_request_body(request);
	struct semel_subscription_row *rows = NULL;
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader;
	uint32_t count = 0;
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_subscriptions_read(request->store, request->arena, &rows, &count, error);
	if (status != SEMEL_OK)
		return status;
	if (count > 0)
		(void)semel_broker_open(request->context->options.broker, request->context->env, 1,
					&broker, NULL);
	if (broker)
		semel_position_reader_attach(&position_reader, broker, request->store);
	semel_buffer_string(body, "[");
	for (uint32_t i = 0; i < count; i++) {
		semel_buffer_string(body, i ? ",\n " : "");
		(void)semel_subscription_to_json(request, broker, &rows[i], body);
	}
	semel_buffer_string(body, "]\n");
	semel_broker_close(broker);
	return SEMEL_OK;
}

/* ---- trace ----------------------------------------------------------------------------------- */

semel_status semel_serve_trace(struct semel_admin_request *request, semel_error *error)
{
	struct semel_trace trace = { 0 };
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	struct semel_trace_plan plan = { .stores = &request->store,
					 .store_count = 1,
					 .broker_url = request->context->options.broker,
					 .env = request->context->env,
					 .hides_text = request->context->redaction != NULL };
	status = semel_trace_run(&plan, request->id, request->arena, &trace, error);
	if (status != SEMEL_OK)
		return status;
	semel_trace_to_json(&trace, request->id, semel_admin_request_body(request));
	return SEMEL_OK;
}

/* ---- pause and resume ------------------------------------------------------------------------ */

static semel_status set_paused(struct semel_admin_request *request, bool paused, semel_error *error)
{
	struct semel_buffer *body = semel_admin_request_body(request);
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_admin_request_audit(request, paused ? "pause" : "resume", request->id, NULL,
					   error);
	if (status != SEMEL_OK)
		return status;
	status = request->store->driver->upkeep->subscription_pause(
		request->store, semel_text_of(request->id), paused, error);
	if (status != SEMEL_OK)
		return status;
	semel_buffer_printf(body, "{\"paused\":%s,\"scope\":", paused ? "true" : "false");
	semel_buffer_json(body, semel_text_of(request->id));
	semel_buffer_string(body, "}\n");
	return SEMEL_OK;
}

semel_status semel_serve_pause(struct semel_admin_request *request, semel_error *error)
{
	return set_paused(request, true, error);
}

semel_status semel_serve_resume(struct semel_admin_request *request, semel_error *error)
{
	return set_paused(request, false, error);
}

/* ---- the audit log --------------------------------------------------------------------------- */

/* The reason of a discard may quote the event, so it is hidden if anything is. Its dead letter
 * shows what may be shown. */
static struct semel_text shown_detail(const struct semel_redaction *redaction,
				      const struct semel_audit_row *row)
{
	bool hides =
		redaction && row->detail.length > 0 && semel_text_starts_with(row->what, "discard");

	return hides ? SEMEL_TEXT(SEMEL_HIDDEN) : row->detail;
}

/* Beyond the size limit of a response the details are omitted. */
static void write_audit_row(const struct semel_redaction *redaction,
			    const struct semel_audit_row *row, struct semel_buffer *body)
{
	bool full = body->length > SEMEL_RESPONSE_MAX;

	semel_buffer_string(body, "{\"at\":");
	semel_buffer_time(body, row->at_ms);
	semel_buffer_string(body, ",");
	write_text_member(body, "who", row->who);
	write_text_member(body, "what", row->what);
	write_text_member(body, "target", row->target);
	write_text_member(body, "detail",
			  full && row->detail.data ? SEMEL_TEXT("…")
						   : shown_detail(redaction, row));
	semel_buffer_string(body, "\"outcome\":");
	semel_buffer_json_or_null(body, row->outcome);
	semel_buffer_string(body, "}");
}

semel_status semel_serve_audit(struct semel_admin_request *request, semel_error *error)
{
	struct semel_buffer *body = semel_admin_request_body(request);
	int64_t limit = 0;
	uint32_t count = 0;
	semel_status status = semel_admin_request_number(
		request, "limit", (struct semel_range){ 1, 1000, 100 }, &limit, error);

	if (status != SEMEL_OK)
		return status;
	struct semel_audit_row *rows =
		semel_arena_alloc(request->arena, (size_t)limit * sizeof *rows);
	if (!rows)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the audit log");
	status = semel_admin_request_open_store(request, error);
	if (status != SEMEL_OK)
		return status;
	status = request->store->driver->upkeep->audit_list(request->store, request->arena, rows,
							    (uint32_t)limit, &count, error);
	if (status != SEMEL_OK)
		return status;
	semel_buffer_string(body, "[");
	for (uint32_t i = 0; i < count; i++) {
		semel_buffer_string(body, i ? ",\n " : "");
		write_audit_row(request->context->redaction, &rows[i], body);
	}
	semel_buffer_string(body, "]\n");
	return SEMEL_OK;
}
