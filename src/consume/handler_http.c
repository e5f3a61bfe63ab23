/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP endpoint: the payload is posted, the status is the verdict.
 *
 * - The endpoint cannot be reached: an outage, which costs no attempt. No answer in time: the same,
 *   unless the caller finds that other calls are answered.
 * - The endpoint closed the connection: a retry, since this event may have caused it.
 * - Redirects are not followed: the payload goes where the user said, or nowhere.
 * - Proxies of the environment are not used, for the same reason.
 */
#include "base/curl.h"
#include "base/error.h"
#include "base/time.h"
#include "base/url.h"
#include "consume/handler.h"
#include "consume/http_headers.h"
#include "consume/retry.h"

#include <semel/version.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_SIZE 256
#define BODY_SHOWN 500             /* bytes of the answer that go into the reason */
#define BODY_MAX   (1024L * 1024L) /* of which more is not read */

struct http_handler {
	struct semel_outside outside;
	const struct semel_curl *curl;
	CURLM *multi; /* keeps the connection from run to run */
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
		return semel_error_set(error, SEMEL_OUTAGE, "no memory for a handler");
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
		return semel_error_set(error, SEMEL_OUTAGE, "no memory for a handler");
	return check_url(handler, error);
}

static semel_status http_open(const struct semel_outside_options *options,
			      struct semel_outside **outside_out, semel_error *error)
{
	struct http_handler *handler = calloc(1, sizeof *handler);
	if (handler == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "no memory for a handler");
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

/* ---- one request ----------------------------------------------------------------------------- */

/* What is not shown is read and dropped, so that the connection can be used again; of an endless
 * answer only so much. */
static size_t keep_body(char *data, size_t size, size_t count, void *user)
{
	struct answer *answer = user;
	size_t length = size * count;
	size_t room = BODY_SHOWN - answer->shown;
	size_t shown = length < room ? length : room;
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
	       set(easy, CURLOPT_WRITEFUNCTION, keep_body) == CURLE_OK &&
	       set(easy, CURLOPT_WRITEDATA, answer) == CURLE_OK;
}

/* Until the transfer ends; CURLE_ABORTED_BY_CALLBACK when it was interrupted. */
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

/* The reason is a C string for display: no zero bytes, no half characters at its end. */
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
	if (semel_url_leaks_into(handler->url, body))
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
			 "the request to %s was interrupted because the consumer stops",
			 handler->shown);
	else
		snprintf(outcome_out->reason, sizeof outcome_out->reason, "no answer from %s: %s",
			 handler->shown, handler->curl->easy_strerror(code));
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
	const struct semel_http_heading heading = { handler->curl, handler->arena, event, attempt };
	semel_status status = semel_http_headers(&heading, &headers, &error);
	if (status == SEMEL_OK && !set_options(handler, event, headers, &answer))
		status = semel_error_set(&error, SEMEL_OUTAGE, "no memory for a request");
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
