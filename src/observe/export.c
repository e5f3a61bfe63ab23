/* SPDX-License-Identifier: Apache-2.0 */
/* Sending finished spans: a bounded queue, and one thread that posts what is in it. */
#include "observe/export.h"

#include "base/curl.h"
#include "observe/log.h"

#include <semel/version.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_MAX  2048
#define BATCH_MAX  256
#define GATHER_MS  200
#define REQUEST_MS 5000L

static struct {
	pthread_once_t once;
	bool enabled; /* constant once the environment was read */
	char url[1024], service[128];
	pthread_mutex_t mutex; /* of what follows */
	pthread_cond_t filled, emptied;
	struct semel_span *queue; /* a ring */
	size_t first, count;
	bool sending, flushing, started, given_up;
	uint64_t dropped;
} export = { .once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER };

/* ---- settings -------------------------------------------------------------------------------- */

static const char *setting(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

static void read_environment(void)
{
	const char *traces = setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
	const char *base = setting("OTEL_EXPORTER_OTLP_ENDPOINT");
	const char *off = setting("OTEL_SDK_DISABLED");
	const char *exporter = setting("OTEL_TRACES_EXPORTER");
	const char *service = setting("OTEL_SERVICE_NAME");
	size_t length = base ? strlen(base) : 0;
	pthread_condattr_t steady;

	while (length > 0 && base[length - 1] == '/')
		length--;
	if (traces)
		snprintf(export.url, sizeof export.url, "%s", traces);
	else if (base)
		snprintf(export.url, sizeof export.url, "%.*s/v1/traces", (int)length, base);
	snprintf(export.service, sizeof export.service, "%s", service ? service : "semel");
	export.enabled = export.url[0] && !(off && strcmp(off, "true") == 0) &&
			 !(exporter && strcmp(exporter, "none") == 0);
	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(&export.filled, &steady);
	pthread_cond_init(&export.emptied, &steady);
	pthread_condattr_destroy(&steady);
}

bool semel_spans_enabled(void)
{
	pthread_once(&export.once, read_environment);
	return export.enabled;
}

/* ---- the body -------------------------------------------------------------------------------- */

static void hex(struct semel_buffer *text, const uint8_t *bytes, size_t count)
{
	semel_buffer_string(text, "\"");
	for (size_t i = 0; i < count; i++)
		semel_buffer_printf(text, "%02x", bytes[i]);
	semel_buffer_string(text, "\"");
}

static void string_value(struct semel_buffer *text, const char *name, const char *value)
{
	semel_buffer_printf(text, "{\"key\":\"%s\",\"value\":{\"stringValue\":", name);
	semel_buffer_json(text, semel_text_of(value));
	semel_buffer_string(text, "}}");
}

static void attributes(struct semel_buffer *text, const struct semel_span *span)
{
	semel_buffer_string(text, ",\"attributes\":[");
	for (uint32_t i = 0; i < span->attribute_count; i++) {
		const struct semel_span_attribute *attribute = &span->attributes[i];
		semel_buffer_string(text, i ? "," : "");
		if (attribute->is_monitoring)
			semel_buffer_printf(
				text, "{\"key\":\"%s\",\"value\":{\"intValue\":\"%" PRId64 "\"}}",
				attribute->name, attribute->number);
		else
			string_value(text, attribute->name, attribute->text);
	}
	semel_buffer_string(text, "]");
}

static void span_json(struct semel_buffer *text, const struct semel_span *span)
{
	static const uint8_t none[8];

	semel_buffer_string(text, "{\"traceId\":");
	hex(text, span->parent.trace, 16);
	semel_buffer_string(text, ",\"spanId\":");
	hex(text, span->id, 8);
	if (memcmp(span->parent.span, none, 8) != 0) {
		semel_buffer_string(text, ",\"parentSpanId\":");
		hex(text, span->parent.span, 8);
	}
	semel_buffer_printf(text,
			    ",\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%" PRId64
			    "000000\",\"endTimeUnixNano\":\"%" PRId64 "000000\"",
			    span->name, (int)span->kind, span->began_ms, span->ended_ms);
	attributes(text, span);
	if (span->failure) {
		semel_buffer_string(text, ",\"status\":{\"code\":2,\"message\":");
		semel_buffer_json(text, semel_text_of(span->failure));
		semel_buffer_string(text, "}}");
	} else {
		semel_buffer_string(text, ",\"status\":{}}");
	}
}

void semel_export_json(const struct semel_span *spans, size_t count, const char *service,
		       struct semel_buffer *text)
{
	semel_buffer_string(text, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
	string_value(text, "service.name", service);
	semel_buffer_printf(text,
			    "]},\"scopeSpans\":[{\"scope\":{\"name\":\"semel\",\"version\":\"%s\"},"
			    "\"spans\":[",
			    semel_version());
	for (size_t i = 0; i < count; i++) {
		semel_buffer_string(text, i ? "," : "");
		span_json(text, &spans[i]);
	}
	semel_buffer_string(text, "]}]}]}");
}

/* ---- sending --------------------------------------------------------------------------------- */

static size_t ignore_answer(char *data, size_t size, size_t count, void *user)
{
	(void)data;
	(void)user;
	return size * count;
}

/* "name=value,name=value", values may be percent-encoded: the collector decodes them. */
static struct curl_slist *headers(const struct semel_curl *curl)
{
	struct curl_slist *list = curl->slist_append(NULL, "Content-Type: application/json");
	const char *more = setting("OTEL_EXPORTER_OTLP_HEADERS");

	while (more && *more) {
		size_t length = strcspn(more, ",");
		const char *equals = memchr(more, '=', length);
		char line[512];
		if (equals) {
			snprintf(line, sizeof line, "%.*s: %.*s", (int)(equals - more), more,
				 (int)(length - (size_t)(equals - more) - 1), equals + 1);
			list = curl->slist_append(list, line);
		}
		more += length + (more[length] == ',');
	}
	return list;
}

static bool post(const struct semel_curl *curl, CURL *easy, const struct semel_buffer *body)
{
	long code = 0;
	struct curl_slist *list = headers(curl);

	curl->easy_setopt(easy, CURLOPT_URL, export.url);
	curl->easy_setopt(easy, CURLOPT_POSTFIELDS, body->data);
	curl->easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->length);
	curl->easy_setopt(easy, CURLOPT_HTTPHEADER, list);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore_answer);
	curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, REQUEST_MS);
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	CURLcode result = curl->easy_perform(easy);
	curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
	curl->slist_free_all(list);
	return result == CURLE_OK && code >= 200 && code < 300;
}

/* With the mutex. */
static size_t take_batch(struct semel_span *batch)
{
	size_t count = export.count < BATCH_MAX ? export.count : BATCH_MAX;

	for (size_t i = 0; i < count; i++)
		batch[i] = export.queue[(export.first + i) % QUEUE_MAX];
	export.first = (export.first + count) % QUEUE_MAX;
	export.count -= count;
	return count;
}

static struct timespec after_ms(int64_t wait_ms)
{
	int64_t until_ms = semel_steady_ms(semel_env_system()) + wait_ms;

	return (struct timespec){ .tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000 };
}

/* With the mutex. A little more may gather before it is worth a request. */
static void wait_for_spans(void)
{
	while (export.count == 0)
		pthread_cond_wait(&export.filled, &export.mutex);
	struct timespec until = after_ms(GATHER_MS);
	while (export.count < BATCH_MAX && !export.flushing &&
	       pthread_cond_timedwait(&export.filled, &export.mutex, &until) == 0)
		;
}

static void note_result(bool sent, size_t count)
{
	static bool warned;

	if (!sent && !warned)
		semel_logf(SEMEL_LOG_WARN, "collector refused spans; dropping them");
	warned = !sent;
	if (!sent)
		export.dropped += count;
}

static void *send_spans(void *user)
{
	const struct semel_curl *curl = user;
	CURL *easy = curl->easy_init();
	struct semel_span *batch = calloc(BATCH_MAX, sizeof *batch);

	pthread_mutex_lock(&export.mutex);
	while (easy && batch) {
		struct semel_buffer body = { 0 };
		wait_for_spans();
		size_t count = take_batch(batch);
		export.sending = true;
		pthread_mutex_unlock(&export.mutex);
		semel_export_json(batch, count, export.service, &body);
		bool sent = !body.failed && post(curl, easy, &body);
		semel_buffer_free(&body);
		pthread_mutex_lock(&export.mutex);
		note_result(sent, count);
		export.sending = false;
		pthread_cond_broadcast(&export.emptied);
	}
	export.given_up = true;
	pthread_mutex_unlock(&export.mutex);
	return NULL;
}

/* With the mutex. */
static void start(void)
{
	const struct semel_curl *curl = NULL;
	semel_error error = { .status = SEMEL_OK };
	pthread_t thread;

	export.started = true;
	export.queue = calloc(QUEUE_MAX, sizeof *export.queue);
	export.given_up = !export.queue || semel_curl_get(&curl, &error) != SEMEL_OK ||
			  pthread_create(&thread, NULL, send_spans, (void *)(uintptr_t)curl) != 0;
	if (export.given_up)
		semel_log(SEMEL_LOG_WARN, "span export disabled",
			  &(struct semel_log_fields){ .error = error.text });
	else
		pthread_detach(thread);
}

void semel_export_add(const struct semel_span *span)
{
	if (!semel_spans_enabled())
		return;
	pthread_mutex_lock(&export.mutex);
	if (!export.started)
		start();
	if (export.given_up || export.count == QUEUE_MAX) {
		export.dropped++;
	} else {
		export.queue[(export.first + export.count++) % QUEUE_MAX] = *span;
		pthread_cond_signal(&export.filled);
	}
	pthread_mutex_unlock(&export.mutex);
}

void semel_spans_flush(int64_t wait_ms)
{
	if (!semel_spans_enabled())
		return;
	struct timespec until = after_ms(wait_ms);
	pthread_mutex_lock(&export.mutex);
	export.flushing = true;
	pthread_cond_signal(&export.filled);
	while (export.started && !export.given_up && (export.count > 0 || export.sending) &&
	       pthread_cond_timedwait(&export.emptied, &export.mutex, &until) == 0)
		;
	export.flushing = false;
	pthread_mutex_unlock(&export.mutex);
}

uint64_t semel_spans_dropped(void)
{
	pthread_mutex_lock(&export.mutex);
	uint64_t dropped = export.dropped;
	pthread_mutex_unlock(&export.mutex);
	return dropped;
}
