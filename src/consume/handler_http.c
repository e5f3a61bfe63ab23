/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP endpoint: the payload is posted, the status is the verdict.
 *
 * - The endpoint cannot be reached: an outage, which costs no attempt. No answer in time: the same,
 *   unless the caller finds that other calls are answered.
 * - The endpoint closed the connection: a retry, since this event may have caused it.
 * - Redirects are not followed: the payload is sent to the given URL only.
 * - Proxies of the environment are not used, for the same reason.
 * - The metadata are headers: CloudEvents in binary mode, our own, and the event's. Values of
 *   CloudEvents attributes are percent-encoded as their HTTP binding says; the others travel as
 *   they are.
 */
#include "base/curl.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "base/url.h"
#include "consume/handler.h"
#include "consume/retry.h"
#include "observe/log.h"

#include <semel/version.h>

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SOURCE "/semel"
#define SHOWN_SIZE     256
#define BODY_SHOWN     500             /* bytes of the answer that go into the reason */
#define BODY_MAX       (1024L * 1024L) /* no more than this is read */

struct http_handler {
	struct semel_outside outside;
	const struct semel_curl *curl;
	CURLM *multi; /* keeps the connection between runs */
	CURL *easy;
	char *url;
	char shown[SHOWN_SIZE]; /* the URL without its secrets */
	int64_t timeout_ms;
	struct semel_arena *arena; /* of one run */
	atomic_bool interrupted;
};

struct answer {
	char body[BODY_SHOWN + 1];
	size_t shown, received;
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_http(const struct semel_curl *curl, CURLU *url)
{
	char *scheme = NULL;
	if (curl->url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK)
		return false;
	bool is = strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0;
	curl->free(scheme);
	return is;
}

static semel_status check_url(struct http_handler *handler, semel_error *error)
{
	const struct semel_curl *curl = handler->curl;
	CURLU *url = curl->url();
	semel_status status = SEMEL_OK;
	if (url == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	CURLUcode code = curl->url_set(url, CURLUPART_URL, handler->url, CURLU_NON_SUPPORT_SCHEME);
	if (code != CURLUE_OK)
		status = semel_error_set(error, SEMEL_CONFIG,
					 "the http handler needs a URL such as "
					 "http://127.0.0.1:8080/events: %s",
					 curl->url_strerror(code));
	else if (!is_http(curl, url))
		status = semel_error_set(error, SEMEL_CONFIG,
					 "the http handler's URL must begin with http:// or "
					 "https://");
	else
		semel_url_redact(handler->url, handler->shown, sizeof handler->shown);
	curl->url_cleanup(url);
	return status;
}

static void http_close(struct semel_outside *outside)
{
	struct http_handler *handler = (struct http_handler *)outside;
	if (handler->easy != NULL)
		handler->curl->easy_cleanup(handler->easy);
	if (handler->multi != NULL)
		handler->curl->multi_cleanup(handler->multi);
	semel_arena_free(handler->arena);
	free(handler->url);
	free(handler);
}

static semel_status prepare(struct http_handler *handler,
			    const struct semel_outside_options *options, semel_error *error)
{
	semel_status status = semel_curl_get(&handler->curl, error);
	if (status != SEMEL_OK)
		return status;
	handler->timeout_ms = options->timeout_ms;
	handler->url = strdup(options->target != NULL ? options->target : "");
	handler->arena = semel_arena_new(4096);
	handler->easy = handler->curl->easy_init();
	handler->multi = handler->curl->multi_init();
	if (handler->url == NULL || handler->arena == NULL || handler->easy == NULL ||
	    handler->multi == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	return check_url(handler, error);
}

static semel_status http_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct http_handler *handler = calloc(1, sizeof *handler);
	if (handler == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	handler->outside.kind = &semel_outside_http;
	atomic_init(&handler->interrupted, false);
	semel_status status = prepare(handler, options, error);
	if (status != SEMEL_OK) {
		http_close(&handler->outside);
		return status;
	}
	*outside_out = &handler->outside;
	return SEMEL_OK;
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Headers of the event with these names are left out: they are set by us or by HTTP itself, or an
 * endpoint, or a proxy in front of it, would trust them from any caller. A name that ends in - is a
 * prefix. Lower case; an underscore counts as a dash, as it does for many servers.
 */
static const char *const reserved[] = {
	/* ours */
	"ce-id",
	"ce-type",
	"ce-source",
	"ce-time",
	"ce-specversion",
	"ce-datacontenttype",
	"idempotency-key",
	"semel-",
	"webhook-",
	"svix-",
	/* of HTTP and its connections */
	"accept-encoding",
	"connection",
	"content-",
	"date",
	"expect",
	"host",
	"http2-settings",
	"keep-alive",
	"max-forwards",
	"proxy-",
	"te",
	"trailer",
	"transfer-encoding",
	"upgrade",
	"user-agent",
	"via",
	/* caller, origin and destination */
	"authorization",
	"client-ip",
	"cf-connecting-ip",
	"cookie",
	"forwarded",
	"origin",
	"referer",
	"remote-user",
	"sec-",
	"set-cookie",
	"true-client-ip",
	"x-api-key",
	"x-auth-",
	"x-client-",
	"x-csrf-token",
	"x-envoy-",
	"x-forwarded-",
	"x-host",
	"x-hub-signature",
	"x-hub-signature-256",
	"x-http-method",
	"x-http-method-override",
	"x-method-override",
	"x-original-",
	"x-real-ip",
	"x-remote-",
	"x-rewrite-url",
	"x-semel-",
};

#define RESERVED_COUNT (sizeof reserved / sizeof *reserved)

static atomic_bool logged[RESERVED_COUNT]; /* in the log, once each */

/* What the headers of a request are made from. */
struct heading {
	const struct semel_curl *curl;
	struct semel_arena *arena; /* of the run */
	const struct semel_event *event;
	uint32_t attempt;
};

struct writing {
	const struct heading *heading;
	struct curl_slist *list;
	semel_error *error;
};

static semel_status no_memory(struct writing *writing)
{
	return semel_error_set(writing->error, SEMEL_OUTAGE, "out of memory for a request");
}

static semel_status add_line(struct writing *writing, const char *line)
{
	if (line == NULL)
		return no_memory(writing);
	struct curl_slist *longer = writing->heading->curl->slist_append(writing->list, line);
	if (longer == NULL)
		return no_memory(writing);
	writing->list = longer;
	return SEMEL_OK;
}

static semel_status add(struct writing *writing, const char *name, struct semel_text value)
{
	/* libcurl takes "name:" as a request to drop a header, and "name;" for an empty one. */
	if (value.length == 0)
		return add_line(writing, semel_arena_printf(writing->heading->arena, "%s;", name));
	return add_line(writing, semel_arena_printf(writing->heading->arena, "%s: %s", name,
						    semel_text_string(value)));
}

static bool must_be_encoded(semel_byte byte)
{
	return byte <= ' ' || byte >= 0x7f || byte == '"' || byte == '%';
}

static struct semel_text percent_encoded(struct semel_text value, struct semel_arena *arena)
{
	char *encoded = semel_arena_alloc(arena, value.length * 3 + 1);
	size_t length = 0;
	if (encoded == NULL)
		return (struct semel_text){ NULL, 1 };
	for (size_t i = 0; i < value.length; i++) {
		if (must_be_encoded(value.data[i]))
			length += (size_t)sprintf(encoded + length, "%%%02X", value.data[i]);
		else
			encoded[length++] = (char)value.data[i];
	}
	encoded[length] = '\0';
	return semel_text_from(encoded, length);
}

static semel_status add_envelope(struct writing *writing)
{
	const struct semel_event *event = writing->heading->event;
	struct semel_arena *arena = writing->heading->arena;
	struct semel_text producer = semel_event_header(event, "producer", arena);
	char time[SEMEL_TIME_SIZE], attempt[16];
	semel_time_format(event->time_ms, time);
	snprintf(attempt, sizeof attempt, "%u", writing->heading->attempt);
	const struct {
		const char *name;
		struct semel_text value;
		bool encode;
	} rows[] = {
		{ "Content-Type", event->content_type, false },
		{ "Idempotency-Key", event->id, false },
		{ "webhook-id", event->id, false },
		{ "ce-specversion", SEMEL_TEXT("1.0"), true },
		{ "ce-id", event->id, true },
		{ "ce-type", event->type, true },
		{ "ce-source",
		  semel_text_is_blank(producer) ? SEMEL_TEXT(DEFAULT_SOURCE) : producer, true },
		{ "ce-time", semel_text_of(time), true },
		{ "semel-aggregate-type", event->aggregate_type, false },
		{ "semel-aggregate-id", event->aggregate_id, false },
		{ "semel-attempt", semel_text_of(attempt), false },
	};
	semel_status status = SEMEL_OK;
	for (size_t i = 0; status == SEMEL_OK && i < sizeof rows / sizeof *rows; i++) {
		struct semel_text value = rows[i].value;
		if (value.data == NULL)
			continue;
		if (semel_text_has_control(value))
			return semel_error_set(writing->error, SEMEL_HANDLER_REJECT,
					       "%s cannot be sent to an HTTP endpoint: the value "
					       "has control characters",
					       rows[i].name);
		if (rows[i].encode)
			value = percent_encoded(value, arena);
		status =
			value.data != NULL ? add(writing, rows[i].name, value) : no_memory(writing);
	}
	return status;
}

static char plain(char letter)
{
	if (letter >= 'A' && letter <= 'Z')
		return (char)(letter - 'A' + 'a');
	return letter == '_' ? '-' : letter;
}

static bool matches(const char *name, const char *rule)
{
	size_t at = 0;
	while (rule[at] && plain(name[at]) == rule[at])
		at++;
	return rule[at] == '\0' && (name[at] == '\0' || rule[at - 1] == '-');
}

static bool is_reserved(const char *name)
{
	for (size_t i = 0; i < RESERVED_COUNT; i++) {
		if (!matches(name, reserved[i]))
			continue;
		if (!atomic_exchange(&logged[i], true))
			semel_log_detail(
				SEMEL_LOG_DEBUG,
				"header of an event not sent to the endpoint: its name is reserved",
				"%s", reserved[i]);
		return true;
	}
	return false;
}

static semel_status add_own(struct writing *writing, json_t *headers)
{
	for (void *at = json_object_iter(headers); at != NULL;
	     at = json_object_iter_next(headers, at)) {
		const char *name = json_object_iter_key(at);
		json_t *member = json_object_iter_value(at);
		struct semel_text value = semel_json_string(member);
		if (value.data != NULL && semel_text_is_token(semel_text_of(name)) &&
		    !semel_text_has_control(value) && !is_reserved(name)) {
			semel_status status = add(writing, name, value);
			if (status != SEMEL_OK)
				return status;
		}
	}
	return SEMEL_OK;
}

/* HANDLER_REJECT, naming the field: a value of the envelope cannot be sent in a header. OUTAGE: no
 * memory. The caller frees *headers_out even then. Headers of the event that no request can carry,
 * or that we or HTTP set, are left out. */
static semel_status make_headers(const struct heading *heading, struct curl_slist **headers_out,
				 semel_error *error)
{
	struct writing writing = { .heading = heading, .error = error };
	struct semel_text text = heading->event->headers;
	json_t *headers = json_loadb(semel_text_chars(text), text.length, JSON_ALLOW_NUL, NULL);
	semel_status status = add_envelope(&writing);
	if (status != SEMEL_OK)
		goto free_headers;
	if (headers != NULL) {
		status = add_own(&writing, headers);
		if (status != SEMEL_OK)
			goto free_headers;
	}
	/* The endpoint answers the request directly, without 100-continue. */
	status = add_line(&writing, "Expect:");

free_headers:
	json_decref(headers);
	*headers_out = writing.list;
	return status;
}

/* ---- one request ----------------------------------------------------------------------------- */

/* The rest of the body, which is not shown, is read and dropped, so that the connection can be used
 * again; reading stops at BODY_MAX. */
static size_t collect_body(char *data, size_t size, size_t count, void *user)
{
	struct answer *answer = user;
	size_t length = size * count;
	size_t space = BODY_SHOWN - answer->shown;
	size_t shown = length < space ? length : space;
	memcpy(answer->body + answer->shown, data, shown);
	answer->shown += shown;
	answer->received += length;
	return answer->received > (size_t)BODY_MAX ? 0 : length;
}

static bool set_options(struct http_handler *handler, const struct semel_event *event,
			struct curl_slist *headers, struct answer *answer)
{
	CURLcode (*set)(CURL *, CURLoption, ...) = handler->curl->easy_setopt;
	CURL *easy = handler->easy;
	handler->curl->easy_reset(easy);
	return set(easy, CURLOPT_URL, handler->url) == CURLE_OK &&
	       set(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
	       set(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
	       set(easy, CURLOPT_PROXY, "") == CURLE_OK &&
	       set(easy, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
	       set(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
	       set(easy, CURLOPT_USERAGENT, "semel/" SEMEL_VERSION) == CURLE_OK &&
	       set(easy, CURLOPT_TIMEOUT_MS, (long)handler->timeout_ms) == CURLE_OK &&
	       set(easy, CURLOPT_POST, 1L) == CURLE_OK &&
	       set(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)event->payload.length) ==
		       CURLE_OK &&
	       set(easy, CURLOPT_POSTFIELDS, event->payload.data) == CURLE_OK &&
	       set(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
	       set(easy, CURLOPT_WRITEFUNCTION, collect_body) == CURLE_OK &&
	       set(easy, CURLOPT_WRITEDATA, answer) == CURLE_OK;
}

/* Runs until the transfer ends. CURLE_ABORTED_BY_CALLBACK: it was interrupted. */
static CURLcode transfer(struct http_handler *handler)
{
	const struct semel_curl *curl = handler->curl;
	CURLcode code = CURLE_FAILED_INIT;
	int running = 1, left;
	if (curl->multi_add_handle(handler->multi, handler->easy) != CURLM_OK)
		return code;
	while (running > 0 && !atomic_load(&handler->interrupted)) {
		if (curl->multi_perform(handler->multi, &running) != CURLM_OK)
			break;
		if (running > 0 &&
		    curl->multi_poll(handler->multi, NULL, 0, 1000, NULL) != CURLM_OK)
			break;
	}
	CURLMsg *message = curl->multi_info_read(handler->multi, &left);
	if (message != NULL && message->msg == CURLMSG_DONE)
		code = message->data.result;
	else if (atomic_load(&handler->interrupted))
		code = CURLE_ABORTED_BY_CALLBACK;
	curl->multi_remove_handle(handler->multi, handler->easy);
	return code;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static semel_status verdict_of(long code)
{
	if (code >= 200 && code < 300)
		return SEMEL_OK;
	if (code == 408 || code == 425 || code == 429 || code >= 500)
		return SEMEL_HANDLER_RETRY;
	return SEMEL_HANDLER_REJECT;
}

static int64_t requested_delay_ms(const struct http_handler *handler)
{
	curl_off_t seconds = 0;
	handler->curl->easy_getinfo(handler->easy, CURLINFO_RETRY_AFTER, &seconds);
	if (seconds <= 0)
		return 0;
	return seconds > SEMEL_RETRY_AFTER_MAX_MS / 1000 ? SEMEL_RETRY_AFTER_MAX_MS
							 : seconds * 1000;
}

static void drop_half_character(struct answer *answer)
{
	while (answer->shown > 0 && ((unsigned char)answer->body[answer->shown - 1] & 0xc0) == 0x80)
		answer->shown--;
	if (answer->shown > 0 && ((unsigned char)answer->body[answer->shown - 1] & 0xc0) == 0xc0)
		answer->shown--;
}

/* The reason is a C string for display: no NUL bytes, no half characters at its end. */
static const char *clean_body(struct answer *answer)
{
	for (size_t i = 0; i < answer->shown; i++)
		if (answer->body[i] == '\0')
			answer->body[i] = ' ';
	if (answer->received > answer->shown)
		drop_half_character(answer);
	while (answer->shown > 0 && strchr(" \t\r\n", answer->body[answer->shown - 1]) != NULL)
		answer->shown--;
	answer->body[answer->shown] = '\0';
	return answer->body;
}

static void take_answer(struct http_handler *handler, struct answer *answer,
			struct semel_outcome *outcome_out)
{
	long code = 0;
	handler->curl->easy_getinfo(handler->easy, CURLINFO_RESPONSE_CODE, &code);
	outcome_out->status = verdict_of(code);
	if (outcome_out->status == SEMEL_OK)
		return;
	if (outcome_out->status == SEMEL_HANDLER_RETRY)
		outcome_out->retry_after_ms = requested_delay_ms(handler);
	const char *body = clean_body(answer);
	if (semel_url_has_leaked(handler->url, body))
		body = "(its text repeats a secret of the URL, and is not shown)";
	bool redirect = code >= 300 && code < 400;
	snprintf(outcome_out->reason, sizeof outcome_out->reason, "%s answered %ld%s%s%s",
		 handler->shown, code, redirect ? ", and redirects are not followed" : "",
		 body[0] != '\0' ? ": " : "", body);
}

static bool server_responded(CURLcode code)
{
	switch (code) {
	case CURLE_GOT_NOTHING:
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
	case CURLE_PARTIAL_FILE:
	case CURLE_WEIRD_SERVER_REPLY:
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_HTTP2:
	case CURLE_HTTP2_STREAM:
	case CURLE_BAD_CONTENT_ENCODING:
		return true;
	default:
		return false;
	}
}

/* Without a connection nothing was sent. */
static bool was_connected(const struct http_handler *handler)
{
	curl_off_t connected_us = 0;
	handler->curl->easy_getinfo(handler->easy, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
	return connected_us > 0;
}

static void take_failure(struct http_handler *handler, CURLcode code,
			 struct semel_outcome *outcome_out)
{
	outcome_out->status = server_responded(code) ? SEMEL_HANDLER_RETRY : SEMEL_OUTAGE;
	outcome_out->timed_out = code == CURLE_OPERATION_TIMEDOUT && was_connected(handler);
	outcome_out->interrupted = code == CURLE_ABORTED_BY_CALLBACK;
	if (code == CURLE_ABORTED_BY_CALLBACK)
		snprintf(outcome_out->reason, sizeof outcome_out->reason,
			 "the request to %s was interrupted because the consumer is stopping",
			 handler->shown);
	else
		snprintf(outcome_out->reason, sizeof outcome_out->reason, "no answer from %s: %s",
			 handler->shown, handler->curl->easy_strerror(code));
}

static semel_status prepare_request(struct http_handler *handler, const struct heading *heading,
				    struct curl_slist **headers_out, struct answer *answer,
				    semel_error *error)
{
	semel_status status = make_headers(heading, headers_out, error);
	if (status != SEMEL_OK)
		return status;
	if (!set_options(handler, heading->event, *headers_out, answer))
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a request");
	return SEMEL_OK;
}

static void http_run(struct semel_outside *outside, const struct semel_event *event,
		     uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct http_handler *handler = (struct http_handler *)outside;
	struct curl_slist *headers = NULL;
	struct answer answer = { 0 };
	semel_error error = { 0 };
	*outcome_out = (struct semel_outcome){ 0 };
	semel_arena_reset(handler->arena);
	const struct heading heading = { handler->curl, handler->arena, event, attempt };
	semel_status status = prepare_request(handler, &heading, &headers, &answer, &error);
	if (status != SEMEL_OK) {
		outcome_out->status = status;
		snprintf(outcome_out->reason, sizeof outcome_out->reason, "%s", error.text);
		goto free_headers;
	}
	CURLcode code = transfer(handler);
	bool cut_by_us = code == CURLE_WRITE_ERROR && answer.received > (size_t)BODY_MAX;
	if (code == CURLE_OK || cut_by_us)
		take_answer(handler, &answer, outcome_out);
	else
		take_failure(handler, code, outcome_out);

free_headers:
	handler->curl->slist_free_all(headers);
}

static void http_interrupt(struct semel_outside *outside)
{
	struct http_handler *handler = (struct http_handler *)outside;
	atomic_store(&handler->interrupted, true);
	handler->curl->multi_wakeup(handler->multi);
}

const struct semel_outside_kind semel_outside_http = {
	.name = "http",
	.open = http_open,
	.run = http_run,
	.interrupt = http_interrupt,
	.close = http_close,
};
