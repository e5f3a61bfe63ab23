/* SPDX-License-Identifier: Apache-2.0 */
/* An event as one line of JSON, and back. The bytes of the payload are kept, so that a number with
 * twenty digits or the order of members survives the conversion. */
#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "event/event.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static void put_text(struct semel_buffer *buffer, const char *name, struct semel_text text)
{
	semel_buffer_printf(buffer, "\"%s\":", name);
	semel_buffer_json_or_null(buffer, text);
	semel_buffer_append(buffer, ",", 1);
}

/* Valid JSON has no raw line breaks inside strings, so every line break is between tokens. */
static void put_on_one_line(struct semel_buffer *buffer, struct semel_text json)
{
	size_t from = buffer->length;
	semel_buffer_append(buffer, json.data, json.length);
	for (size_t i = from; i < buffer->length; i++)
		if (buffer->data[i] == '\n' || buffer->data[i] == '\r')
			buffer->data[i] = ' ';
}

static void put_payload(struct semel_buffer *buffer, const struct semel_event *event)
{
	struct semel_text payload = event->payload;
	if (!payload.data) {
		semel_buffer_string(buffer, "\"payload\":null");
	} else if (semel_event_is_json(event) && semel_json_is_valid(payload)) {
		semel_buffer_string(buffer, "\"payload\":");
		put_on_one_line(buffer, payload);
	} else if (semel_text_is_utf8(payload)) {
		semel_buffer_string(buffer, "\"payload\":");
		semel_buffer_json(buffer, payload);
	} else {
		semel_buffer_string(buffer, "\"payloadBase64\":\"");
		semel_buffer_base64(buffer, payload.data, payload.length);
		semel_buffer_append(buffer, "\"", 1);
	}
}

/* Headers of a broken delivery may be anything; what is not an object is shown as text. */
static void put_headers(struct semel_buffer *buffer, struct semel_text headers)
{
	semel_buffer_string(buffer, "\"headers\":");
	if (!headers.data)
		semel_buffer_string(buffer, "{}");
	else if (semel_json_is_valid(headers))
		put_on_one_line(buffer, headers);
	else
		semel_buffer_json(buffer, headers);
	semel_buffer_append(buffer, ",", 1);
}

static void put_event(const struct semel_event *event, struct semel_text time,
		      struct semel_buffer *buffer)
{
	semel_buffer_append(buffer, "{", 1);
	put_text(buffer, "id", event->id);
	put_text(buffer, "type", event->type);
	put_text(buffer, "aggregateType", event->aggregate_type);
	put_text(buffer, "aggregateId", event->aggregate_id);
	put_text(buffer, "topic", event->topic);
	put_text(buffer, "routingKey", event->routing_key);
	put_text(buffer, "time", time);
	put_text(buffer, "contentType", event->content_type);
	put_headers(buffer, event->headers);
	put_payload(buffer, event);
	semel_buffer_append(buffer, "}", 1);
}

void semel_event_to_json(const struct semel_event *event, struct semel_buffer *buffer)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(event->time_ms, time);
	put_event(event, semel_text_of(time), buffer);
}

void semel_event_to_record(const struct semel_event *event, struct semel_buffer *buffer)
{
	if (event->time_ms == 0)
		put_event(event, (struct semel_text){ 0 }, buffer);
	else
		semel_event_to_json(event, buffer);
}

enum kind { KIND_TEXT, KIND_TIME, KIND_HEADERS, KIND_PAYLOAD, KIND_BASE64 };

/* The members that a line may have. */
static const struct member {
	const char *name;
	enum kind kind;
	size_t offset; /* of a KIND_TEXT in the input */
} members[] = {
	{ "id", KIND_TEXT, offsetof(semel_event_input, id) },
	{ "type", KIND_TEXT, offsetof(semel_event_input, type) },
	{ "aggregateType", KIND_TEXT, offsetof(semel_event_input, aggregate_type) },
	{ "aggregateId", KIND_TEXT, offsetof(semel_event_input, aggregate_id) },
	{ "topic", KIND_TEXT, offsetof(semel_event_input, topic) },
	{ "routingKey", KIND_TEXT, offsetof(semel_event_input, routing_key) },
	{ "time", KIND_TIME, 0 },
	{ "contentType", KIND_TEXT, offsetof(semel_event_input, content_type) },
	{ "headers", KIND_HEADERS, 0 },
	{ "payload", KIND_PAYLOAD, 0 },
	{ "payloadBase64", KIND_BASE64, 0 },
};

enum { MEMBER_COUNT = sizeof(members) / sizeof(members[0]) };

struct reading {
	struct semel_arena *arena;
	semel_event_input *input;
	struct semel_text values[MEMBER_COUNT]; /* raw tokens; data NULL: not in the line */
	semel_error *error;
};

static semel_status no_memory(struct reading *reading)
{
	return semel_error_set(reading->error, SEMEL_INTERNAL, "out of memory for the event");
}

static semel_status note_member(struct reading *reading, struct semel_text name_token,
				struct semel_text value)
{
	const char *names[MEMBER_COUNT];
	struct semel_text name = semel_json_unquote(name_token, reading->arena);
	if (!name.data)
		return no_memory(reading);
	for (size_t i = 0; i < MEMBER_COUNT; i++) {
		names[i] = members[i].name;
		if (!semel_text_equal(semel_text_of(names[i]), name))
			continue;
		if (reading->values[i].data)
			return semel_error_set(reading->error, SEMEL_INVALID,
					       "\"%s\" occurs twice (remove one)", names[i]);
		reading->values[i] = value;
		return SEMEL_OK;
	}
	const char *nearest = semel_text_nearest(semel_text_shown(name), names, MEMBER_COUNT);
	return semel_error_set(reading->error, SEMEL_INVALID, "unknown member \"%s\"%s%s%s",
			       semel_text_shown(name), nearest ? " (did you mean \"" : "",
			       nearest ? nearest : "", nearest ? "\"?)" : "");
}

static bool is_null(struct semel_text value)
{
	return *value.data == 'n';
}

/* A JSON string as a C string; a NUL byte would truncate it silently. */
static semel_status read_string(struct reading *reading, const char *name, struct semel_text value,
				struct semel_text *text_out)
{
	if (*value.data != '"')
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "\"%s\" must be a string (write it in quotes)", name);
	*text_out = semel_json_unquote(value, reading->arena);
	if (!text_out->data)
		return no_memory(reading);
	if (memchr(text_out->data, '\0', text_out->length))
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "\"%s\" has a NUL byte in it (remove it)", name);
	return SEMEL_OK;
}

static semel_status read_text(struct reading *reading, const struct member *member,
			      struct semel_text value)
{
	struct semel_text text = { 0 };
	semel_status status = read_string(reading, member->name, value, &text);
	if (status != SEMEL_OK)
		return status;
	memcpy((char *)reading->input + member->offset, &text.data, sizeof(text.data));
	return SEMEL_OK;
}

static semel_status read_time(struct reading *reading, const struct member *member,
			      struct semel_text value)
{
	struct semel_text text = { 0 };
	semel_status status = read_string(reading, member->name, value, &text);
	if (status != SEMEL_OK)
		return status;
	if (!semel_time_parse(semel_text_string(text), &reading->input->time_ms))
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "\"%s\" is not a time (write it as in "
				       "2026-11-15T12:00:00Z)",
				       member->name);
	if (reading->input->time_ms == 0)
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "\"%s\" is the first moment of 1970, which stands for "
				       "\"not known\" (give the real one, or leave it out)",
				       member->name);
	return SEMEL_OK;
}

/* The value's own bytes; the rest is checked with the event. */
static semel_status read_raw(struct reading *reading, struct semel_text value,
			     struct semel_text *copy_out)
{
	*copy_out = semel_arena_text(reading->arena, value.data, value.length);
	return copy_out->data ? SEMEL_OK : no_memory(reading);
}

static semel_status read_headers(struct reading *reading, struct semel_text value)
{
	struct semel_text copy;
	semel_status status = read_raw(reading, value, &copy);
	reading->input->headers = semel_text_string(copy);
	return status;
}

static bool content_is_json(const semel_event_input *input)
{
	struct semel_event event = { .content_type = semel_text_of(input->content_type) };
	return !input->content_type || semel_event_is_json(&event);
}

static semel_status read_payload(struct reading *reading, struct semel_text value)
{
	struct semel_text copy;
	if (*value.data == '"' && !content_is_json(reading->input)) {
		copy = semel_json_unquote(value, reading->arena);
		if (!copy.data)
			return no_memory(reading);
	} else {
		semel_status status = read_raw(reading, value, &copy);
		if (status != SEMEL_OK)
			return status;
	}
	reading->input->payload = copy.data;
	reading->input->payload_size = copy.length;
	return SEMEL_OK;
}

/* Four characters to at most three bytes; padding only at the very end. False: not Base64. */
static bool decode_base64(struct semel_text text, unsigned char *to, size_t *length_out)
{
	size_t padding = 0;
	while (padding < 2 && padding < text.length && text.data[text.length - 1 - padding] == '=')
		padding++;
	if (text.length % 4 != 0)
		return false;
	size_t digits = text.length - padding;
	uint32_t bits = 0;
	*length_out = 0;
	for (size_t i = 0; i < digits; i++) {
		int digit = semel_base64_digit(text.data[i]);
		if (digit < 0)
			return false;
		bits = bits << 6 | (uint32_t)digit;
		if (i % 4 > 0)
			to[(*length_out)++] = (unsigned char)(bits >> (6 - i % 4 * 2) & 0xFF);
	}
	return true;
}

static semel_status read_base64(struct reading *reading, const struct member *member,
				struct semel_text value)
{
	struct semel_text text = { 0 };
	semel_status status = read_string(reading, member->name, value, &text);
	if (status != SEMEL_OK)
		return status;
	unsigned char *bytes = semel_arena_alloc(reading->arena, text.length + 1);
	if (!bytes)
		return no_memory(reading);
	size_t length;
	if (!decode_base64(text, bytes, &length))
		return semel_error_set(
			reading->error, SEMEL_INVALID,
			"\"%s\" is not Base64 (use A-Z a-z 0-9 + / and = at the end)",
			member->name);
	bytes[length] = '\0';
	reading->input->payload = bytes;
	reading->input->payload_size = length;
	return SEMEL_OK;
}

static semel_status read_member(struct reading *reading, const struct member *member,
				struct semel_text value)
{
	if (!value.data || (is_null(value) && member->kind != KIND_PAYLOAD))
		return SEMEL_OK;
	switch (member->kind) {
	case KIND_TEXT:
		return read_text(reading, member, value);
	case KIND_TIME:
		return read_time(reading, member, value);
	case KIND_HEADERS:
		return read_headers(reading, value);
	case KIND_BASE64:
		if (reading->input->payload)
			return semel_error_set(reading->error, SEMEL_INVALID,
					       "\"payload\" and \"payloadBase64\" are both present "
					       "(remove one)");
		return read_base64(reading, member, value);
	case KIND_PAYLOAD:
	default:
		return read_payload(reading, value);
	}
}

static semel_status note_members(struct reading *reading, struct semel_text line)
{
	if (!semel_json_is_valid(line))
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "not valid JSON at byte %zu of %zu (write one JSON object "
				       "on one line)",
				       semel_json_error_at(line), line.length);
	struct semel_json_walk walk = semel_json_walk(line);
	if (walk.at == walk.end)
		return semel_error_set(reading->error, SEMEL_INVALID,
				       "not a JSON object (write {\"type\":…,\"aggregateType\":…,"
				       "\"aggregateId\":…,\"payload\":…})");
	struct semel_text name, value;
	while (semel_json_next(&walk, &name, &value)) {
		semel_status status = note_member(reading, name, value);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Members are read in the order of the table, not of the line: how the payload is read depends on
 * the content type. */
semel_status semel_event_input_from_json(struct semel_text line, struct semel_arena *arena,
					 semel_event_input *input_out, semel_error *error)
{
	*input_out = (semel_event_input){ 0 };
	struct reading reading = { .arena = arena, .input = input_out, .error = error };
	semel_status status = note_members(&reading, line);
	for (size_t i = 0; status == SEMEL_OK && i < MEMBER_COUNT; i++)
		status = read_member(&reading, &members[i], reading.values[i]);
	return status;
}
