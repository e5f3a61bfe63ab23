/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/sight.h"

#include "admin/health.h"
#include "admin/routes.h"
#include "admin/views.h"
#include "observe/metrics.h"
#include "proof/position_reader.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_MS    900
#define ARENA_BLOCK ((size_t)16 * 1024)

struct semel_sights {
	struct semel_desk *desk;
	pthread_mutex_t lock; /* of what follows: one looks, the others wait for it */
	struct semel_buffer text;
	int64_t made_at_ms; /* steady; 0: never */
	struct semel_arena *arena;
	struct semel_broker *broker; /* kept open between looks; NULL: not reached */
	struct semel_position_reader position_reader;
};

struct semel_sights *semel_sights_new(struct semel_desk *desk)
{
	struct semel_sights *sights = calloc(1, sizeof *sights);

	if (!sights)
		return NULL;
	sights->desk = desk;
	sights->arena = semel_arena_new(ARENA_BLOCK);
	pthread_mutex_init(&sights->lock, NULL);
	return sights;
}

void semel_sights_free(struct semel_sights *sights)
{
	if (!sights)
		return;
	semel_broker_close(sights->broker);
	semel_buffer_free(&sights->text);
	semel_arena_free(sights->arena);
	pthread_mutex_destroy(&sights->lock);
	free(sights);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void tell_subscriptions(struct semel_sights *sights, struct semel_visit *visit,
			       struct semel_buffer *text)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;

	if (!visit->store ||
	    semel_subscriptions_read(visit->store, sights->arena, &rows, &count, NULL) != SEMEL_OK)
		count = 0;
	if (count > 0 && !sights->broker)
		(void)semel_broker_open(sights->desk->options.broker, sights->desk->env, 1,
					&sights->broker, NULL);
	if (sights->broker && visit->store)
		semel_position_reader_attach(&sights->position_reader, sights->broker,
					     visit->store);
	bool reached = true;
	semel_buffer_string(text, "\"subscriptions\":[");
	for (uint32_t i = 0; i < count; i++) {
		semel_buffer_string(text, i ? "," : "");
		reached = semel_subscription_to_json(visit, sights->broker, &rows[i], text) &&
			  reached;
	}
	semel_buffer_string(text, "],");
	if (!reached) {
		semel_broker_close(sights->broker);
		sights->broker = NULL;
	}
}

static void tell_process(struct semel_buffer *text)
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

static void tell_outbox(struct semel_visit *visit, struct semel_buffer *text)
{
	struct semel_outbox_counts counts = { 0 };
	uint64_t pending = 0;
	int64_t now_ms = semel_now_ms(visit->desk->env);

	if (visit->store) {
		(void)visit->store->driver->outbox_counts(visit->store, now_ms, &counts, NULL);
		(void)visit->store->driver->dead_count(visit->store, NULL, &pending, NULL);
	}
	semel_buffer_string(text, "\"outbox\":");
	semel_outbox_to_json(visit->desk, &counts, text);
	semel_buffer_printf(text, ",\"pending\":%" PRIu64 ",\"ageSeconds\":%" PRId64 ",", pending,
			    counts.oldest_ms > 0 ? (now_ms - counts.oldest_ms) / 1000 : 0);
}

static void look(struct semel_sights *sights)
{
	struct semel_buffer *text = &sights->text;
	struct semel_visit visit = { .desk = sights->desk, .arena = sights->arena };

	semel_arena_reset(sights->arena);
	semel_buffer_clear(text);
	bool reached = semel_visit_store(&visit, NULL) == SEMEL_OK;
	semel_buffer_string(text, "{\"time\":");
	semel_buffer_time(text, semel_now_ms(sights->desk->env));
	semel_buffer_string(text, ",");
	tell_outbox(&visit, text);
	tell_process(text);
	tell_subscriptions(sights, &visit, text);
	semel_buffer_string(text, "\"reasons\":[");
	(void)semel_reasons_tell(sights->desk, true, text);
	semel_buffer_string(text, "]}");
	semel_visit_end(&visit, reached);
}

void semel_sights_tell(struct semel_sights *sights, struct semel_buffer *text)
{
	pthread_mutex_lock(&sights->lock);
	int64_t now_ms = semel_steady_ms(sights->desk->env);
	if (sights->made_at_ms == 0 || now_ms - sights->made_at_ms >= FRESH_MS) {
		look(sights);
		sights->made_at_ms = semel_steady_ms(sights->desk->env);
	}
	semel_buffer_append(text, sights->text.data, sights->text.length);
	pthread_mutex_unlock(&sights->lock);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static bool next_sight(struct semel_buffer *chunk, void *user)
{
	semel_buffer_string(chunk, "data: ");
	semel_sights_tell(user, chunk);
	semel_buffer_string(chunk, "\n\n");
	return true;
}

semel_status semel_serve_stream(struct semel_visit *visit, semel_error *error)
{
	(void)error;
	visit->answer->content_type = "text/event-stream";
	if (strcmp(visit->request->method, "HEAD") == 0)
		return SEMEL_OK; /* the library would end the stream that it does not send */
	visit->answer->stream = next_sight;
	visit->answer->stream_user = visit->desk->sights;
	return SEMEL_OK;
}
