/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/dashboard.h"

#include "admin/health.h"
#include "admin/routes.h"
#include "base/error.h"
#include "observe/metrics.h"
#include "proof/position_reader.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_MS    900
#define ARENA_BLOCK ((size_t)16 * 1024)

/* Generated from src/admin/page by the build. */
extern const char semel_page_index_html[], semel_page_app_js[], semel_page_app_css[],
	semel_page_favicon_svg[];

struct semel_dashboard {
	struct semel_admin_context *context;
	pthread_mutex_t mutex; /* protects what follows: one thread reads, the others wait for it */
	struct semel_buffer text;
	int64_t made_at_ms; /* steady; 0: never */
	struct semel_arena *arena;
	struct semel_broker *broker; /* stays open; NULL: not reachable */
	struct semel_position_reader position_reader;
};

struct semel_dashboard *semel_dashboard_new(struct semel_admin_context *context)
{
	struct semel_dashboard *dashboard = calloc(1, sizeof *dashboard);

	if (!dashboard)
		return NULL;
	dashboard->context = context;
	dashboard->arena = semel_arena_new(ARENA_BLOCK);
	pthread_mutex_init(&dashboard->mutex, NULL);
	return dashboard;
}

void semel_dashboard_free(struct semel_dashboard *dashboard)
{
	if (!dashboard)
		return;
	semel_broker_close(dashboard->broker);
	semel_buffer_free(&dashboard->text);
	semel_arena_free(dashboard->arena);
	pthread_mutex_destroy(&dashboard->mutex);
	free(dashboard);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void write_subscriptions(struct semel_dashboard *dashboard,
				struct semel_admin_request *request, struct semel_buffer *text)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;

	if (!request->store || semel_subscriptions_read(request->store, dashboard->arena, &rows,
							&count, NULL) != SEMEL_OK)
		count = 0;
	if (count > 0 && !dashboard->broker)
		(void)semel_broker_open(dashboard->context->options.broker, dashboard->context->env,
					1, &dashboard->broker, NULL);
	if (dashboard->broker && request->store)
		semel_position_reader_attach(&dashboard->position_reader, dashboard->broker,
					     request->store);
	bool reached = true;
	semel_buffer_string(text, "\"subscriptions\":[");
	for (uint32_t i = 0; i < count; i++) {
		semel_buffer_string(text, i ? "," : "");
		reached = semel_subscription_to_json(request, dashboard->broker, &rows[i], text) &&
			  reached;
	}
	semel_buffer_string(text, "],");
	if (!reached) {
		semel_broker_close(dashboard->broker);
		dashboard->broker = NULL;
	}
}

static void write_process(struct semel_buffer *text)
{
	int64_t published = 0, done = 0, outstanding = 0;
	bool relays = semel_metric_sum(SEMEL_METRIC_PUBLISH_OUTSTANDING, NULL, &outstanding);
	bool consumes = semel_metric_sum(SEMEL_METRIC_CONSUMED, "done", &done);

	(void)semel_metric_sum(SEMEL_METRIC_PUBLISHED, NULL, &published);
	semel_buffer_printf(text,
			    "\"process\":{\"works\":%s,\"outstanding\":%" PRId64
			    ",\"published\":%" PRId64 ",\"done\":%" PRId64 "},",
			    relays || consumes ? "true" : "false", outstanding, published, done);
}

static void write_outbox(struct semel_admin_request *request, struct semel_buffer *text)
{
	struct semel_outbox_counts counts = { 0 };
	uint64_t pending = 0;
	int64_t now_ms = semel_now_ms(request->context->env);

	if (request->store) {
		(void)request->store->driver->outbox->count(request->store, &counts, NULL);
		(void)request->store->driver->dead_letters->count(request->store, NULL, &pending,
								  NULL);
	}
	semel_buffer_string(text, "\"outbox\":");
	semel_outbox_to_json(request->context, &counts, text);
	semel_buffer_printf(text, ",\"pending\":%" PRIu64 ",\"ageSeconds\":%" PRId64 ",", pending,
			    counts.oldest_ms > 0 ? (now_ms - counts.oldest_ms) / 1000 : 0);
}

static void refresh(struct semel_dashboard *dashboard)
{
	struct semel_buffer *text = &dashboard->text;
	struct semel_admin_request request = { .context = dashboard->context,
					       .arena = dashboard->arena };

	semel_arena_reset(dashboard->arena);
	semel_buffer_clear(text);
	bool reached = semel_admin_request_open_store(&request, NULL) == SEMEL_OK;
	semel_buffer_string(text, "{\"time\":");
	semel_buffer_time(text, semel_now_ms(dashboard->context->env));
	semel_buffer_string(text, ",");
	write_outbox(&request, text);
	write_process(text);
	write_subscriptions(dashboard, &request, text);
	semel_buffer_string(text, "\"reasons\":[");
	(void)semel_health_write_reasons(dashboard->context, true, text);
	semel_buffer_string(text, "]}");
	semel_admin_request_close_store(&request, reached);
}

void semel_dashboard_write_json(struct semel_dashboard *dashboard, struct semel_buffer *text)
{
	pthread_mutex_lock(&dashboard->mutex);
	int64_t now_ms = semel_steady_ms(dashboard->context->env);
	if (dashboard->made_at_ms == 0 || now_ms - dashboard->made_at_ms >= FRESH_MS) {
		refresh(dashboard);
		dashboard->made_at_ms = semel_steady_ms(dashboard->context->env);
	}
	semel_buffer_append(text, dashboard->text.data, dashboard->text.length);
	pthread_mutex_unlock(&dashboard->mutex);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static bool write_event(struct semel_buffer *chunk, void *user)
{
	semel_buffer_string(chunk, "data: ");
	semel_dashboard_write_json(user, chunk);
	semel_buffer_string(chunk, "\n\n");
	return true;
}

semel_status semel_serve_stream(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	request->response->content_type = "text/event-stream";
	if (strcmp(request->http->method, "HEAD") == 0)
		return SEMEL_OK; /* libmicrohttpd would end the stream, which it does not send */
	request->response->stream = write_event;
	request->response->stream_user = request->context->dashboard;
	return SEMEL_OK;
}

/* ---- the page: four files in the program, so that it needs no other host and no bundler -------
 */

static semel_status serve_file(struct semel_admin_request *request, const char *text,
			       const char *content_type)
{
	request->response->content_type = content_type;
	request->response->cache_control = "no-cache";
	semel_buffer_string(semel_admin_request_body(request), text);
	return SEMEL_OK;
}

semel_status semel_serve_page(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_index_html, "text/html; charset=utf-8");
}

semel_status semel_serve_page_script(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_app_js, "text/javascript; charset=utf-8");
}

semel_status semel_serve_page_style(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_app_css, "text/css; charset=utf-8");
}

semel_status semel_serve_page_icon(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_favicon_svg, "image/svg+xml");
}

/* ---- without a server -------------------------------------------------------------------------
 */

struct semel_dashboard_reader {
	struct semel_admin_context context;
};

semel_status semel_dashboard_reader_open(const struct semel_admin_options *options,
					 struct semel_dashboard_reader **reader_out,
					 semel_error *error)
{
	struct semel_dashboard_reader *reader = calloc(1, sizeof *reader);

	*reader_out = NULL;
	if (!reader)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the dashboard");
	struct semel_admin_context *context = &reader->context;
	context->options = *options;
	semel_admin_defaults(&context->options);
	context->env = semel_env_system();
	pthread_mutex_init(&context->idle_mutex, NULL);
	context->dashboard = semel_dashboard_new(context);
	semel_status status =
		context->dashboard
			? semel_health_monitor_start(context, &context->health, error)
			: semel_error_set(error, SEMEL_INTERNAL, "out of memory for the dashboard");
	if (status != SEMEL_OK) {
		semel_dashboard_reader_close(reader);
		return status;
	}
	*reader_out = reader;
	return SEMEL_OK;
}

void semel_dashboard_reader_write_json(struct semel_dashboard_reader *reader,
				       struct semel_buffer *text)
{
	semel_health_monitor_check(reader->context.health);
	semel_dashboard_write_json(reader->context.dashboard, text);
}

void semel_dashboard_reader_close(struct semel_dashboard_reader *reader)
{
	if (!reader)
		return;
	semel_health_monitor_stop(reader->context.health);
	semel_dashboard_free(reader->context.dashboard);
	for (size_t i = 0; i < reader->context.idle_count; i++)
		semel_store_close(reader->context.idle[i]);
	pthread_mutex_destroy(&reader->context.idle_mutex);
	free(reader);
}
