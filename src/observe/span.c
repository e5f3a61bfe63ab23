/* SPDX-License-Identifier: Apache-2.0 */
/* Trace contexts, spans, and the export of finished spans: a bounded queue, and one thread that
 * posts what is in it. */
#include "observe/span.h"

#include "base/curl.h"
#include "observe/log.h"

#include <semel/version.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_MAX  2048
#define BATCH_MAX  256
#define GATHER_MS  200
#define REQUEST_MS 5000L

static struct {
	pthread_once_t once;
	bool enabled; /* constant after the environment was read */
	char url[1024], service[128];
	pthread_mutex_t mutex; /* protects what follows */
	pthread_cond_t filled, emptied;
	struct semel_span *queue; /* a ring */
	size_t first, count;
	bool sending, flushing, started, given_up;
	uint64_t dropped;
} export = { .once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER };

/* ---- contexts and spans -----------------------------------------------------------------------
 */

static const char digits[] = "0123456789abcdef";

static int digit(char character)
{
	const char *at = character ? strchr(digits, character) : NULL;

	return at ? (int)(at - digits) : -1;
}

static bool read_hex(const char *text, uint8_t *bytes_out, size_t count)
{
	bool any = false;

	for (size_t i = 0; i < count; i++) {
		int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
		if (low < 0)
			return false;
		bytes_out[i] = (uint8_t)(high * 16 + low);
		any = any || bytes_out[i] != 0;
	}
	return any;
}

static char *write_hex(char *out, const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		*out++ = digits[bytes[i] >> 4];
		*out++ = digits[bytes[i] & 15];
	}
	return out;
}

bool semel_traceparent_parse(struct semel_text text, struct semel_span_context *context_out)
{
	const char *at = semel_text_chars(text);
	uint8_t flags = 0;

	/* Later versions may be longer; the known fields have the same positions. */
	if (!at || text.length < SEMEL_TRACEPARENT_SIZE - 1 || at[2] != '-' || at[35] != '-' ||
	    at[52] != '-' || memcmp(at, "ff", 2) == 0 || digit(at[0]) < 0 || digit(at[1]) < 0 ||
	    (text.length > SEMEL_TRACEPARENT_SIZE - 1 &&
	     (memcmp(at, "00", 2) == 0 || at[55] != '-')))
		return false;
	if (!read_hex(at + 3, context_out->trace, 16) || !read_hex(at + 36, context_out->span, 8))
		return false;
	if (digit(at[53]) < 0 || digit(at[54]) < 0)
		return false;
	flags = (uint8_t)digit(at[54]);
	context_out->sampled = flags & 1;
	return true;
}

void semel_traceparent_format(const struct semel_span_context *context,
			      char out[SEMEL_TRACEPARENT_SIZE])
{
	memcpy(out, "00-", 3);
	char *at = write_hex(out + 3, context->trace, 16);
	*at++ = '-';
	at = write_hex(at, context->span, 8);
	memcpy(at, context->sampled ? "-01" : "-00", 4);
}

static void random_bytes(const struct semel_env *env, uint8_t *out, size_t count)
{
	for (size_t i = 0; i < count; i += 8) {
		uint64_t chance = semel_random(env) | 1; /* never all zero */
		memcpy(out + i, &chance, 8);
	}
}

/* The ratio of new traces that are sampled, in units of 2^-32. */
static uint64_t sample_ratio(void)
{
	const char *sampler = getenv("OTEL_TRACES_SAMPLER");
	const char *argument = getenv("OTEL_TRACES_SAMPLER_ARG");
	const uint64_t all = UINT64_C(1) << 32;

	if (!sampler)
		return all;
	if (strstr(sampler, "always_off"))
		return 0;
	if (!strstr(sampler, "traceidratio") || !argument)
		return all;
	double ratio = strtod(argument, NULL);
	return ratio >= 1 ? all : ratio <= 0 ? 0 : (uint64_t)(ratio * (double)all);
}

struct semel_span_context semel_trace_begin(const struct semel_env *env)
{
	struct semel_span_context context = { 0 };
	uint32_t chance;

	random_bytes(env, context.trace, 16);
	random_bytes(env, context.span, 8);
	memcpy(&chance, context.trace + 4, sizeof chance);
	context.sampled = chance < sample_ratio();
	return context;
}

struct semel_span_context semel_span_context_of(struct semel_text traceparent,
						struct semel_text event_id)
{
	struct semel_span_context context = { 0 };
	char hex[33] = "";
	size_t length = 0;

	if (semel_traceparent_parse(traceparent, &context))
		return context;
	context = (struct semel_span_context){ 0 };
	for (size_t i = 0; i < event_id.length && length < 32; i++)
		if (event_id.data[i] != '-')
			hex[length++] =
				(char)(event_id.data[i] | 0x20); /* digits stay as they are */
	context.sampled = length == 32 && read_hex(hex, context.trace, 16);
	return context;
}

struct semel_span semel_span_make(const char *name, enum semel_span_kind kind,
				  const struct semel_span_context *parent,
				  const struct semel_env *env)
{
	struct semel_span span = {
		.name = name, .kind = kind, .parent = *parent, .began_ms = semel_now_ms(env)
	};

	span.ended_ms = span.began_ms;
	random_bytes(env, span.id, 8);
	return span;
}

struct semel_span_context semel_span_as_parent(const struct semel_span *span)
{
	struct semel_span_context context = span->parent;

	memcpy(context.span, span->id, 8);
	return context;
}

static struct semel_span_attribute *attribute(struct semel_span *span, const char *name)
{
	if (span->attribute_count == SEMEL_SPAN_ATTRIBUTES_MAX)
		return NULL;
	struct semel_span_attribute *next = &span->attributes[span->attribute_count++];
	next->name = name;
	return next;
}

void semel_span_text(struct semel_span *span, const char *name, struct semel_text value)
{
	struct semel_span_attribute *next = attribute(span, name);

	if (next)
		snprintf(next->text, sizeof next->text, "%.*s", (int)value.length,
			 semel_text_shown_or(value, ""));
}

void semel_span_number(struct semel_span *span, const char *name, int64_t value)
{
	struct semel_span_attribute *next = attribute(span, name);

	if (!next)
		return;
	next->number = value;
	next->is_number = true;
}

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

	while (length > 0 && base[length - 1] == '/')
		length--;
	if (traces)
		snprintf(export.url, sizeof export.url, "%s", traces);
	else if (base)
		snprintf(export.url, sizeof export.url, "%.*s/v1/traces", (int)length, base);
	snprintf(export.service, sizeof export.service, "%s", service ? service : "semel");
	export.enabled = export.url[0] && !(off && strcmp(off, "true") == 0) &&
			 !(exporter && strcmp(exporter, "none") == 0);
	semel_cond_init(&export.filled);
	semel_cond_init(&export.emptied);
}

bool semel_spans_are_enabled(void)
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
		if (attribute->is_number)
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

void semel_spans_to_json(const struct semel_span *spans, size_t count, const char *service,
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

/* With the mutex held. */
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

/* With the mutex held. Waits for a span, then a little longer, so that a request carries more of
 * them. */
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
		semel_log(SEMEL_LOG_WARN, "cannot send spans to the collector; dropping them",
			  NULL);
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
		semel_spans_to_json(batch, count, export.service, &body);
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

/* With the mutex held. */
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

void semel_span_end(const struct semel_span *span)
{
	if (!span->parent.sampled || !semel_spans_are_enabled())
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
	if (!semel_spans_are_enabled())
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
