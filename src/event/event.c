/* SPDX-License-Identifier: Apache-2.0 */
/* The rules that an event must meet. They are checked when it is created, and again when it is
 * delivered, since other programs write outbox rows and messages too. Both checks use the same
 * rules; only the messages differ. */
#include "event/event.h"

#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "base/uuid.h"
#include "event/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define JSON_TYPE    "application/json"
#define TOPIC_SUFFIX ".events"
#define PREFIX_MAX   200 /* bytes of a new name before its hash */

const char *semel_event_id(const semel_event *event)
{
	return semel_text_string(event->id);
}

const char *semel_event_type(const semel_event *event)
{
	return semel_text_string(event->type);
}

const char *semel_event_aggregate_type(const semel_event *event)
{
	return semel_text_string(event->aggregate_type);
}

const char *semel_event_aggregate_id(const semel_event *event)
{
	return semel_text_string(event->aggregate_id);
}

const char *semel_event_topic(const semel_event *event)
{
	return semel_text_string(event->topic);
}

const char *semel_event_routing_key(const semel_event *event)
{
	return semel_text_string(event->routing_key);
}

const char *semel_event_content_type(const semel_event *event)
{
	return semel_text_string(event->content_type);
}

const char *semel_event_headers(const semel_event *event)
{
	return semel_text_string(event->headers);
}

const void *semel_event_payload(const semel_event *event, size_t *size_out)
{
	if (size_out)
		*size_out = event->payload.length;
	return event->payload.data;
}

int64_t semel_event_time_ms(const semel_event *event)
{
	return event->time_ms;
}

/* "application/json; charset=utf-8" without its parameters. */
static struct semel_text media_type(struct semel_text content_type)
{
	struct semel_text type = content_type;
	const semel_byte *semicolon = type.data ? memchr(type.data, ';', type.length) : NULL;
	if (semicolon)
		type.length = (size_t)(semicolon - type.data);
	while (type.length > 0 && (*type.data == ' ' || *type.data == '\t')) {
		type.data++;
		type.length--;
	}
	while (type.length > 0 &&
	       (type.data[type.length - 1] == ' ' || type.data[type.length - 1] == '\t'))
		type.length--;
	return type;
}

static bool is_json_type(struct semel_text content_type)
{
	static const char suffix[] = "+json";
	const size_t suffix_length = sizeof(suffix) - 1;
	struct semel_text type = media_type(content_type);
	if (semel_text_equals_caseless(type, JSON_TYPE))
		return true;
	if (type.length <= suffix_length || !memchr(type.data, '/', type.length))
		return false;
	type = semel_text_from(type.data + type.length - suffix_length, suffix_length);
	return semel_text_equals_caseless(type, suffix);
}

static bool is_text_type(struct semel_text content_type)
{
	struct semel_text type = media_type(content_type);
	return type.length > 5 &&
	       semel_text_equals_caseless(semel_text_from(type.data, 5), "text/");
}

bool semel_event_is_json(const struct semel_event *event)
{
	return is_json_type(event->content_type);
}

/* Nearly every name is short and plain, and needs no other check than this one. */
static bool is_plain_name(struct semel_text name)
{
	if (name.length == 0 || name.length > SEMEL_NAME_MAX || name.data[0] == ' ')
		return false;
	for (size_t i = 0; i < name.length; i++)
		if (name.data[i] < ' ' || name.data[i] > '~')
			return false;
	return true;
}

/* A name that is present must be one line of text. */
static semel_status check_name(const char *field, struct semel_text name, semel_error *error)
{
	if (is_plain_name(name))
		return SEMEL_OK;
	if (name.length > SEMEL_NAME_MAX)
		return semel_error_set(error, SEMEL_INVALID,
				       "%s is %zu bytes long (at most %d are allowed)", field,
				       name.length, SEMEL_NAME_MAX);
	if (!semel_text_is_utf8(name))
		return semel_error_set(error, SEMEL_INVALID,
				       "%s is not valid UTF-8 (encode it as UTF-8)", field);
	if (semel_text_has_control(name))
		return semel_error_set(error, SEMEL_INVALID,
				       "%s has a control character in it (remove line breaks, tabs "
				       "and NUL bytes)",
				       field);
	if (semel_text_is_blank(name))
		return semel_error_set(error, SEMEL_INVALID, "%s is blank (give one)", field);
	return SEMEL_OK;
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the event");
}

/* Checks the given name, or takes the fallback; a name without a fallback is required. */
static semel_status take_name(const char *field, const char *given, struct semel_text fallback,
			      struct semel_arena *arena, struct semel_text *name_out,
			      semel_error *error)
{
	*name_out = fallback;
	if (!given && fallback.data)
		return SEMEL_OK;
	if (!given)
		return semel_error_set(error, SEMEL_INVALID, "%s is missing (give one)", field);
	struct semel_text name = semel_text_of(given);
	semel_status status = check_name(field, name, error);
	if (status != SEMEL_OK)
		return status;
	*name_out = semel_arena_text(arena, name.data, name.length);
	return name_out->data ? SEMEL_OK : no_memory(error);
}

struct semel_text semel_event_default_topic(struct semel_text aggregate_type,
					    struct semel_arena *arena)
{
	size_t length = aggregate_type.length;
	char *topic = semel_arena_alloc(arena, length + sizeof(TOPIC_SUFFIX));
	if (!topic)
		return (struct semel_text){ NULL, 1 };
	memcpy(topic, aggregate_type.data, length);
	memcpy(topic + length, TOPIC_SUFFIX, sizeof(TOPIC_SUFFIX));
	return semel_text_from(topic, length + sizeof(TOPIC_SUFFIX) - 1);
}

static semel_status take_topic(const semel_event_input *input, struct semel_arena *arena,
			       struct semel_event *event, semel_error *error)
{
	const struct semel_text none = { NULL, 0 };
	if (input->topic)
		return take_name("topic", input->topic, none, arena, &event->topic, error);
	if (event->aggregate_type.length + sizeof(TOPIC_SUFFIX) - 1 > SEMEL_NAME_MAX)
		return semel_error_set(
			error, SEMEL_INVALID,
			"the aggregate type is too long for the default topic (give a topic)");
	event->topic = semel_event_default_topic(event->aggregate_type, arena);
	return event->topic.data ? SEMEL_OK : no_memory(error);
}

static semel_status take_names(const semel_event_input *input, struct semel_arena *arena,
			       struct semel_event *event, semel_error *error)
{
	const struct semel_text none = { NULL, 0 };
	semel_status status = take_name("type", input->type, none, arena, &event->type, error);
	if (status != SEMEL_OK)
		return status;
	status = take_name("aggregate type", input->aggregate_type, none, arena,
			   &event->aggregate_type, error);
	if (status != SEMEL_OK)
		return status;
	status = take_name("aggregate id", input->aggregate_id, none, arena, &event->aggregate_id,
			   error);
	if (status != SEMEL_OK)
		return status;
	status = take_name("content type", input->content_type, SEMEL_TEXT(JSON_TYPE), arena,
			   &event->content_type, error);
	if (status != SEMEL_OK)
		return status;
	status = take_name("routing key", input->routing_key, event->type, arena,
			   &event->routing_key, error);
	if (status != SEMEL_OK)
		return status;
	return take_topic(input, arena, event, error);
}

static semel_status take_id(const semel_event_input *input, const struct semel_env *env,
			    struct semel_arena *arena, struct semel_event *event,
			    semel_error *error)
{
	const struct semel_text none = { NULL, 0 };
	if (!input->id) {
		char made[SEMEL_UUID_SIZE];
		semel_uuid_make(env, made);
		event->id = semel_arena_text(arena, made, SEMEL_UUID_SIZE - 1);
		return event->id.data ? SEMEL_OK : no_memory(error);
	}
	semel_status status = take_name("id", input->id, none, arena, &event->id, error);
	if (status != SEMEL_OK)
		return status;
	if (event->id.data[0] == ' ' || event->id.data[event->id.length - 1] == ' ')
		return semel_error_set(error, SEMEL_INVALID,
				       "id has a leading or trailing blank (remove it)");
	return SEMEL_OK;
}

static semel_status check_header(struct semel_text name_token, struct semel_text value_token,
				 struct semel_arena *arena, semel_error *error)
{
	struct semel_text name = semel_json_unquote(name_token, arena);
	if (!name.data)
		return no_memory(error);
	if (!semel_text_is_token(name))
		return semel_error_set(error, SEMEL_INVALID,
				       "header name %.*s is not a token (use letters, digits and "
				       "any of !#$%%&'*+-.^_`|~)",
				       (int)name_token.length, semel_text_shown(name_token));
	if (name.length > SEMEL_NAME_MAX)
		return semel_error_set(error, SEMEL_INVALID,
				       "a header name is %zu bytes long (at most %d are allowed)",
				       name.length, SEMEL_NAME_MAX);
	if (*value_token.data != '"')
		return semel_error_set(error, SEMEL_INVALID,
				       "header %s is not a string (write its value in quotes)",
				       semel_text_shown(name));
	struct semel_text value = semel_json_unquote(value_token, arena);
	if (!value.data)
		return no_memory(error);
	if (semel_text_has_control(value))
		return semel_error_set(error, SEMEL_INVALID,
				       "header %s has a control character in its value (remove "
				       "line breaks, tabs and NUL bytes)",
				       semel_text_shown(name));
	return SEMEL_OK;
}

static semel_status check_headers(struct semel_text headers, struct semel_arena *arena,
				  semel_error *error)
{
	if (headers.length > SEMEL_HEADERS_MAX)
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "headers are %zu bytes long (at most %d are allowed; move "
				       "data into the payload)",
				       headers.length, SEMEL_HEADERS_MAX);
	if (!semel_json_is_valid(headers))
		return semel_error_set(error, SEMEL_INVALID,
				       "headers are not valid JSON at byte %zu (give an object "
				       "such as {\"tenantId\":\"42\"})",
				       semel_json_error_at(headers));
	if (semel_json_first(headers) != '{')
		return semel_error_set(error, SEMEL_INVALID,
				       "headers are not a JSON object (give one such as "
				       "{\"tenantId\":\"42\"})");
	struct semel_json_walk walk = semel_json_walk(headers);
	struct semel_text name, value;
	while (semel_json_next(&walk, &name, &value)) {
		semel_status status = check_header(name, value, arena, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status take_headers(const semel_event_input *input, struct semel_arena *arena,
				 struct semel_event *event, semel_error *error)
{
	event->headers = SEMEL_TEXT("{}");
	if (!input->headers)
		return SEMEL_OK;
	struct semel_text given = semel_text_of(input->headers);
	semel_status status = check_headers(given, arena, error);
	if (status != SEMEL_OK)
		return status;
	event->headers = semel_arena_text(arena, given.data, given.length);
	return event->headers.data ? SEMEL_OK : no_memory(error);
}

static semel_status check_payload(struct semel_text payload, struct semel_text content_type,
				  semel_error *error)
{
	if (is_json_type(content_type) && !semel_json_is_valid(payload))
		return semel_error_set(error, SEMEL_INVALID,
				       "payload is not valid JSON at byte %zu of %zu (correct it, "
				       "or give another content type than %s)",
				       semel_json_error_at(payload), payload.length,
				       semel_text_shown(content_type));
	if (is_text_type(content_type) && !semel_text_is_utf8(payload))
		return semel_error_set(error, SEMEL_INVALID,
				       "payload is not valid UTF-8 (encode it as UTF-8, or give "
				       "another content type than %s)",
				       semel_text_shown(content_type));
	return SEMEL_OK;
}

static semel_status take_payload(const semel_event_input *input, struct semel_event *event,
				 semel_error *error)
{
	if (!input->payload)
		return semel_error_set(error, SEMEL_INVALID, "payload is missing (give one)");
	event->payload = input->payload_size > 0
				 ? semel_text_from(input->payload, input->payload_size)
				 : semel_text_of(input->payload);
	if (event->payload.length > SEMEL_PAYLOAD_MAX)
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "payload is %zu bytes long (at most %zu are allowed; store "
				       "it elsewhere and send a reference)",
				       event->payload.length, SEMEL_PAYLOAD_MAX);
	return check_payload(event->payload, event->content_type, error);
}

static semel_status take_time(const semel_event_input *input, const struct semel_env *env,
			      struct semel_event *event, semel_error *error)
{
	event->time_ms = input->time_ms != 0 ? input->time_ms : semel_now_ms(env);
	if (!semel_time_is_in_calendar(event->time_ms))
		return semel_error_set(error, SEMEL_INVALID,
				       "time is outside the years 1 to 9999 (give milliseconds "
				       "since 1970)");
	return SEMEL_OK;
}

semel_status semel_event_from_input(const semel_event_input *input, const struct semel_env *env,
				    struct semel_arena *arena, struct semel_event *event_out,
				    semel_error *error)
{
	*event_out = (struct semel_event){ 0 };
	semel_status status = take_names(input, arena, event_out, error);
	if (status != SEMEL_OK)
		return status;
	status = take_id(input, env, arena, event_out, error);
	if (status != SEMEL_OK)
		return status;
	status = take_time(input, env, event_out, error);
	if (status != SEMEL_OK)
		return status;
	status = take_headers(input, arena, event_out, error);
	if (status != SEMEL_OK)
		return status;
	return take_payload(input, event_out, error);
}

semel_status semel_event_check_names(const struct semel_event *event, semel_error *error)
{
	const struct {
		const char *field;
		struct semel_text text;
	} names[] = {
		{ "id", event->id },
		{ "type", event->type },
		{ "aggregate type", event->aggregate_type },
		{ "aggregate id", event->aggregate_id },
		{ "topic", event->topic },
		{ "routing key", event->routing_key },
		{ "content type", event->content_type },
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (semel_text_has_nul(names[i].text))
			return semel_error_set(error, SEMEL_INVALID,
					       "the event's %s has a NUL byte in it (publish the "
					       "event again without it)",
					       names[i].field);
	/* JSON has no other way to write a NUL. Headers are invalid if a name contains one; a value
	 * may contain one. */
	if (semel_text_find(event->headers, SEMEL_TEXT("\\u0000")) &&
	    !semel_json_is_valid(event->headers))
		return semel_error_set(error, SEMEL_INVALID,
				       "the name of a header has a NUL byte in it (publish the "
				       "event again without it)");
	return SEMEL_OK;
}

static semel_status check_delivered(const char *field, struct semel_text name, semel_error *error)
{
	if (is_plain_name(name))
		return SEMEL_OK;
	if (semel_text_is_blank(name))
		return semel_error_set(error, SEMEL_CONTRACT, "the event has no %s", field);
	return semel_event_check_storable(field, name, error);
}

semel_status semel_event_check(const struct semel_event *event, semel_error *error)
{
	const struct {
		const char *field;
		struct semel_text text;
	} needed[] = {
		{ "id", event->id },
		{ "type", event->type },
		{ "aggregate type", event->aggregate_type },
		{ "aggregate id", event->aggregate_id },
		{ "topic", event->topic },
	};
	semel_status status;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		status = check_delivered(needed[i].field, needed[i].text, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = semel_event_check_storable("routing key", event->routing_key, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_event_check_storable("content type", event->content_type, error);
	if (status != SEMEL_OK)
		return status;
	if (!semel_json_is_valid(event->headers) || semel_json_first(event->headers) != '{')
		return semel_error_set(error, SEMEL_CONTRACT,
				       "the event's headers are not a JSON object");
	if (!event->payload.data)
		return SEMEL_OK; /* a tombstone has no payload to check */
	if (check_payload(event->payload, event->content_type, error) != SEMEL_OK)
		return semel_error_set(error, SEMEL_CONTRACT,
				       "the event's payload does not match its content type %s",
				       semel_text_shown(event->content_type));
	return SEMEL_OK;
}

uint64_t semel_event_hash_id(struct semel_text id)
{
	return semel_hash_aggregate(SEMEL_TEXT(""), id);
}

bool semel_event_has_same_aggregate(const struct semel_event *event,
				    const struct semel_event *other)
{
	return semel_text_equal(event->aggregate_id, other->aggregate_id) &&
	       semel_text_equal(event->aggregate_type, other->aggregate_type);
}

struct semel_text semel_event_header(const struct semel_event *event, const char *name,
				     struct semel_arena *arena)
{
	return semel_json_member(event->headers, name, arena);
}

/* The headers that flow from an event to its follow-ups. */
static const struct {
	const char *name;
	bool is_event_id;  /* the value is the event's id … */
	bool is_inherited; /* … or that of the event's own header, where it has one */
} flow_headers[] = {
	{ "correlationId", true, true }, { "causationId", true, false },
	{ "tenantId", false, true },     { "sagaId", false, true },
	{ "traceparent", false, true },  { "tracestate", false, true },
};

struct semel_text semel_event_follow_up_headers(const struct semel_event *event,
						struct semel_text own, struct semel_arena *arena)
{
	struct semel_text headers = own.data ? own : SEMEL_TEXT("{}");

	for (size_t i = 0; i < sizeof flow_headers / sizeof *flow_headers && headers.data; i++) {
		const char *name = flow_headers[i].name;
		struct semel_text value = { 0 };
		if (own.data && semel_json_member(own, name, arena).data)
			continue;
		if (flow_headers[i].is_inherited)
			value = semel_event_header(event, name, arena);
		if (!value.data && flow_headers[i].is_event_id)
			value = event->id;
		if (value.data)
			headers = semel_json_with(headers, name, value, arena);
	}
	return headers;
}

struct semel_text semel_event_flow_headers(const struct semel_event *event,
					   struct semel_arena *arena)
{
	return semel_event_follow_up_headers(event, (struct semel_text){ 0 }, arena);
}

/* ---- names that no store can keep -------------------------------------------------------------
 *
 * They come from other programs: too long for an index, not UTF-8, or with a NUL byte. Such an
 * event breaks the contract; its dead letter gets names that can be stored. A hash of the whole
 * name at the end keeps different names different. */

/* U+FFFD */
static const struct semel_text replacement = SEMEL_TEXT_CONST("\xef\xbf\xbd");

static bool is_storable(struct semel_text name)
{
	return !name.data || (name.length <= SEMEL_FOREIGN_NAME_MAX && !semel_text_has_nul(name) &&
			      semel_text_is_utf8(name));
}

semel_status semel_event_check_storable(const char *field, struct semel_text name,
					semel_error *error)
{
	if (is_storable(name))
		return SEMEL_OK;
	if (name.length > SEMEL_FOREIGN_NAME_MAX)
		return semel_error_set(
			error, SEMEL_CONTRACT,
			"the event's %s is %zu bytes long (at most %d can be stored)", field,
			name.length, SEMEL_FOREIGN_NAME_MAX);
	return semel_error_set(error, SEMEL_CONTRACT, "the event's %s %s", field,
			       semel_text_has_nul(name) ? "has a NUL byte in it"
							: "is not valid UTF-8");
}

static struct semel_text make_storable(struct semel_text name, struct semel_arena *arena)
{
	char prefix[PREFIX_MAX + 4];
	size_t length = 0;
	if (is_storable(name))
		return name;
	for (size_t at = 0; at < name.length && length < PREFIX_MAX;) {
		const unsigned char *byte = (const unsigned char *)name.data + at;
		size_t step = *byte == '\0' ? 0 : semel_utf8_length(byte, name.length - at);
		const semel_byte *from = step == 0 ? replacement.data : name.data + at;
		size_t size = step == 0 ? replacement.length : step;
		memcpy(prefix + length, from, size);
		length += size;
		at += step == 0 ? 1 : step;
	}
	const char *name_and_hash = semel_arena_printf(arena, "%.*s~%016" PRIx64, (int)length,
						       prefix, semel_event_hash_id(name));
	return semel_text_of(name_and_hash);
}

void semel_event_make_storable(struct semel_event *event, struct semel_arena *arena)
{
	struct semel_text *const names[] = {
		&event->id,    &event->type,        &event->aggregate_type, &event->aggregate_id,
		&event->topic, &event->routing_key, &event->content_type
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		*names[i] = make_storable(*names[i], arena);
}
