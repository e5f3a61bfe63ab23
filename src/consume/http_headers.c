/* SPDX-License-Identifier: Apache-2.0 */
/* Which header says what. Values of CloudEvents attributes are percent-encoded as their HTTP
 * binding says; the others travel as they are. */
#include "consume/http_headers.h"

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "observe/log.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_SOURCE "/semel"

/* An event's header with such a name is left out: it is set by us or by HTTP itself, or an
 * endpoint, or a proxy before it, trusts it from any caller. A name that ends in - stands for all
 * names with that prefix. Lower case; an underscore counts as a dash, as it does for many servers.
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
	/* who calls, from where, and for what */
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

struct writing {
	const struct semel_http_heading *heading;
	struct curl_slist *list;
	semel_error *error;
};

static semel_status no_memory(struct writing *writing)
{
	return semel_error_set(writing->error, SEMEL_OUTAGE, "no memory for a request");
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
	/* libcurl takes "name:" as the wish to drop a header, and "name;" for an empty one. */
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
			semel_logf(SEMEL_LOG_DEBUG,
				   "a header of an event is not sent to the endpoint: its name is "
				   "reserved (%s)",
				   reserved[i]);
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

semel_status semel_http_headers(const struct semel_http_heading *heading,
				struct curl_slist **headers_out, semel_error *error)
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
	/* The endpoint answers the request at once, without a 100-continue first. */
	status = add_line(&writing, "Expect:");

free_headers:
	json_decref(headers);
	*headers_out = writing.list;
	return status;
}
