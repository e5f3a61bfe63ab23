/* SPDX-License-Identifier: Apache-2.0 */
#include "event/wire.h"

#include "base/json.h"
#include "base/time.h"
#include "event/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OURS "semel-"

static const struct semel_text aggregate_type_name = SEMEL_TEXT_CONST(OURS "aggregate-type"),
			       aggregate_id_name = SEMEL_TEXT_CONST(OURS "aggregate-id"),
			       previous_name = SEMEL_TEXT_CONST(OURS "previous"),
			       attempt_name = SEMEL_TEXT_CONST(OURS "attempt"),
			       replay_name = SEMEL_TEXT_CONST(OURS "replay"),
			       lane_name = SEMEL_TEXT_CONST(OURS "lane"),
			       routing_key_name = SEMEL_TEXT_CONST(OURS "routing-key"),
			       wire_name = SEMEL_TEXT_CONST(OURS "wire"),
			       own_prefix = SEMEL_TEXT_CONST(OURS),
			       own_source = SEMEL_TEXT_CONST("/semel");

const struct semel_wire_names semel_wire_amqp = {
	.prefix = SEMEL_TEXT_CONST("cloudEvents_"),
	.id = SEMEL_TEXT_CONST("cloudEvents_id"),
	.type = SEMEL_TEXT_CONST("cloudEvents_type"),
	.source = SEMEL_TEXT_CONST("cloudEvents_source"),
	.time = SEMEL_TEXT_CONST("cloudEvents_time"),
	.version = SEMEL_TEXT_CONST("cloudEvents_specversion"),
	.has_lanes = true,
};

const struct semel_wire_names semel_wire_kafka = {
	.prefix = SEMEL_TEXT_CONST("ce_"),
	.id = SEMEL_TEXT_CONST("ce_id"),
	.type = SEMEL_TEXT_CONST("ce_type"),
	.source = SEMEL_TEXT_CONST("ce_source"),
	.time = SEMEL_TEXT_CONST("ce_time"),
	.version = SEMEL_TEXT_CONST("ce_specversion"),
	.may_be_plain = true,
};

uint32_t semel_wire_lane(const struct semel_event *event)
{
	return (uint32_t)(semel_hash_aggregate(event->aggregate_type, event->aggregate_id) %
			  SEMEL_WIRE_LANES);
}

static bool begins_with(struct semel_text text, struct semel_text prefix)
{
	return text.length >= prefix.length && memcmp(text.data, prefix.data, prefix.length) == 0;
}

/* The attributes that Semel writes itself; others of CloudEvents (subject, dataschema, extensions)
 * are headers like any other. */
static bool is_attribute(const struct semel_wire_names *names, struct semel_text name)
{
	return begins_with(name, names->prefix) &&
	       (semel_text_equal(name, names->id) || semel_text_equal(name, names->type) ||
		semel_text_equal(name, names->source) || semel_text_equal(name, names->time) ||
		semel_text_equal(name, names->version));
}

static char lower(char letter)
{
	return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

/* Ignores case; prefix must be lower-case. */
static bool begins_alike(struct semel_text text, const char *prefix)
{
	size_t at = 0;
	while (prefix[at] && at < text.length && lower((char)text.data[at]) == prefix[at])
		at++;
	return prefix[at] == '\0';
}

/* CloudEvents has several spellings of an attribute, and a reader may use another one than we do.
 * The comparison ignores case, for readers that do so too. */
static bool spells_attribute(struct semel_text name)
{
	static const char *const spellings[] = { "cloudevents_", "cloudevents:", "ce_", "ce-" };
	static const char *const attributes[] = { "id", "type", "source", "time", "specversion" };
	for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		size_t prefix = strlen(spellings[i]);
		if (!begins_alike(name, spellings[i]))
			continue;
		struct semel_text rest = { name.data + prefix, name.length - prefix };
		for (size_t j = 0; j < sizeof(attributes) / sizeof(attributes[0]); j++)
			if (rest.length == strlen(attributes[j]) &&
			    begins_alike(rest, attributes[j]))
				return true;
	}
	return false;
}

/* Headers that RabbitMQ interprets (CC and BCC are additional routing keys) or writes itself. */
static bool is_brokers(struct semel_text name)
{
	static const char *const begins[] = { "x-death",          "x-first-death-",
					      "x-last-death-",    "x-delivery-count",
					      "x-acquired-count", "x-stream-",
					      "x-dead-letter-",   "x-received-from",
					      "x-delay" };
	if (semel_text_equal(name, SEMEL_TEXT("CC")) || semel_text_equal(name, SEMEL_TEXT("BCC")))
		return true;
	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (begins_alike(name, begins[i]))
			return true;
	return false;
}

/* Names with a special meaning are never headers of an event; nor is a name with a NUL byte, where
 * some readers would cut it. */
static bool is_reserved(const struct semel_wire_names *names, struct semel_text name)
{
	return semel_text_has_control(name) || begins_alike(name, OURS) ||
	       is_attribute(names, name) || spells_attribute(name) ||
	       (names->has_lanes && is_brokers(name));
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
	struct semel_wire_message *message;
	struct semel_arena *arena;
	bool failed;
};

static void put(struct writer *writer, struct semel_text name, struct semel_text value)
{
	if (value.data)
		writer->message->fields[writer->message->count++] =
			(struct semel_wire_field){ name, value };
}

/* If the event has no headers of its own, there are fewer fields than bits. */
static void put_varying(struct writer *writer, struct semel_text name, struct semel_text value)
{
	if (value.data && writer->message->count < 32)
		writer->message->varying |= UINT32_C(1) << writer->message->count;
	put(writer, name, value);
}

static void put_number(struct writer *writer, struct semel_text name, uint32_t number)
{
	char text[16];
	if (number == 0)
		return;
	int length = snprintf(text, sizeof(text), "%u", number);
	struct semel_text value = semel_arena_text(writer->arena, text, (size_t)length);
	writer->failed = writer->failed || !value.data;
	put(writer, name, value);
}

static void put_time(struct writer *writer, struct semel_text name, int64_t time_ms)
{
	char *text = semel_arena_alloc(writer->arena, SEMEL_TIME_SIZE);
	writer->failed = writer->failed || !text;
	if (!text)
		return;
	semel_time_format(time_ms, text);
	put_varying(writer, name, semel_text_of(text));
}

static void put_lane(struct writer *writer, const struct semel_event *event)
{
	static const char *const lanes[SEMEL_WIRE_LANES] = { "0",  "1",  "2",  "3", "4",  "5",
							     "6",  "7",  "8",  "9", "10", "11",
							     "12", "13", "14", "15" };
	if (event->aggregate_id.data)
		put(writer, lane_name, semel_text_of(lanes[semel_wire_lane(event)]));
}

static size_t count_headers(struct semel_text headers)
{
	struct semel_json_walk walk = semel_json_walk(headers);
	struct semel_text name, value;
	size_t count = 0;
	while (semel_json_next(&walk, &name, &value))
		count++;
	return count;
}

/* Writes the event's own headers; *is_plain_out: no others are to be written. */
static void put_headers(struct writer *writer, const struct semel_wire_names *names,
			struct semel_text headers, bool *is_plain_out)
{
	struct semel_json_walk walk = semel_json_walk(headers);
	struct semel_text name, value;
	while (semel_json_next(&walk, &name, &value)) {
		name = semel_json_unquote(name, writer->arena);
		if (value.length > 0 && value.data[0] == '"')
			value = semel_json_unquote(value, writer->arena);
		else
			value = semel_arena_text(writer->arena, value.data, value.length);
		if (!name.data || !value.data) {
			writer->failed = true;
			return;
		}
		if (semel_text_equal(name, wire_name))
			*is_plain_out = semel_text_equal(value, SEMEL_TEXT("plain"));
		if (is_reserved(names, name))
			continue;
		put(writer, name, value);
		if (semel_text_equal(name, SEMEL_TEXT("correlationId")))
			writer->message->correlation = value;
		if (semel_text_equal(name, SEMEL_TEXT("producer")))
			writer->message->producer = value;
	}
}

#define OWN_FIELDS 11

bool semel_wire_write(const struct semel_event *event,
		      const struct semel_publish_metadata *metadata,
		      const struct semel_wire_names *names, struct semel_arena *arena,
		      struct semel_wire_message *message_out)
{
	struct writer writer = { .message = message_out, .arena = arena };
	bool none = semel_text_equal(event->headers, SEMEL_TEXT("{}"));
	size_t capacity = OWN_FIELDS + (none ? 0 : count_headers(event->headers));
	*message_out = (struct semel_wire_message){ 0 };
	message_out->fields = semel_arena_alloc(arena, capacity * sizeof(message_out->fields[0]));
	if (!message_out->fields)
		return false;
	if (!none)
		put_headers(&writer, names, event->headers, &message_out->plain);
	message_out->plain = message_out->plain && names->may_be_plain;
	if (message_out->plain)
		return !writer.failed;
	put_varying(&writer, names->id, event->id);
	put(&writer, names->type, event->type);
	put(&writer, names->source,
	    message_out->producer.data ? message_out->producer : own_source);
	put(&writer, names->version, SEMEL_TEXT("1.0"));
	put_time(&writer, names->time, event->time_ms);
	put(&writer, aggregate_type_name, event->aggregate_type);
	if (names->has_lanes)
		put_lane(&writer, event);
	put_varying(&writer, previous_name, metadata->previous);
	put_varying(&writer, aggregate_id_name, event->aggregate_id);
	put_number(&writer, attempt_name, metadata->attempt);
	put_number(&writer, replay_name, metadata->replay);
	if (metadata->replayed && metadata->replay == 0)
		put(&writer, replay_name, SEMEL_TEXT("0"));
	return !writer.failed;
}

struct semel_wire_field semel_wire_routing_key(const struct semel_event *event)
{
	return (struct semel_wire_field){ routing_key_name, event->routing_key };
}

/* ---- reading --------------------------------------------------------------------------------- */

void semel_wire_read_begin(struct semel_wire_reading *reading, const struct semel_wire_names *names,
			   struct semel_arena *arena, struct semel_buffer *headers)
{
	*reading =
		(struct semel_wire_reading){ .names = names, .arena = arena, .headers = headers };
	semel_buffer_clear(headers);
	semel_buffer_string(headers, "{");
}

static uint32_t number_of(struct semel_text value)
{
	char text[16];
	long long number = 0;
	if (value.length >= sizeof(text) || semel_text_has_nul(value))
		return 0;
	memcpy(text, value.data, value.length);
	text[value.length] = '\0';
	return semel_text_to_int64(text, 0, UINT32_MAX, &number) ? (uint32_t)number : 0;
}

static void take_own(struct semel_wire_reading *reading, struct semel_text name,
		     struct semel_text value)
{
	const struct {
		struct semel_text name;
		struct semel_text *text;
	} rows[] = {
		{ aggregate_type_name, &reading->event.aggregate_type },
		{ aggregate_id_name, &reading->event.aggregate_id },
		{ previous_name, &reading->metadata.previous },
		{ routing_key_name, &reading->event.routing_key },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (semel_text_equal(name, rows[i].name))
			*rows[i].text = value;
	if (semel_text_equal(name, attempt_name))
		reading->metadata.attempt = number_of(value);
	else if (semel_text_equal(name, replay_name))
		reading->metadata.replay = number_of(value);
}

static void take_time(struct semel_wire_reading *reading, struct semel_text value)
{
	char text[64];
	int64_t time_ms;
	if (value.length >= sizeof(text) || semel_text_has_nul(value))
		return;
	memcpy(text, value.data, value.length);
	text[value.length] = '\0';
	if (!semel_time_parse(text, &time_ms))
		return;
	reading->event.time_ms = time_ms;
}

/* The protocol's own property takes precedence over the attribute. */
static void take_attribute(struct semel_wire_reading *reading, struct semel_text name,
			   struct semel_text value)
{
	const struct semel_wire_names *names = reading->names;
	if (semel_text_equal(name, names->id) && !reading->event.id.data)
		reading->event.id = value;
	else if (semel_text_equal(name, names->type) && !reading->event.type.data)
		reading->event.type = value;
	else if (semel_text_equal(name, names->time))
		take_time(reading, value);
	else if (semel_text_equal(name, names->source) && !reading->producer.data &&
		 !semel_text_equal(value, own_source))
		reading->producer = value;
}

static void add_header(struct semel_wire_reading *reading, struct semel_text name,
		       struct semel_text value)
{
	if (reading->has_headers)
		semel_buffer_string(reading->headers, ",");
	semel_buffer_json(reading->headers, name);
	semel_buffer_string(reading->headers, ":");
	semel_buffer_json(reading->headers, value);
	reading->has_headers = true;
}

void semel_wire_read_field(struct semel_wire_reading *reading, struct semel_text name,
			   struct semel_text value)
{
	if (begins_with(name, own_prefix)) {
		take_own(reading, name, value);
		return;
	}
	if (is_attribute(reading->names, name)) {
		take_attribute(reading, name, value);
		return;
	}
	reading->has_correlation =
		reading->has_correlation || semel_text_equal(name, SEMEL_TEXT("correlationId"));
	reading->has_producer =
		reading->has_producer || semel_text_equal(name, SEMEL_TEXT("producer"));
	add_header(reading, name, value);
}

static bool copy_text(struct semel_arena *arena, struct semel_text *text)
{
	if (!text->data)
		return true;
	*text = semel_arena_text(arena, text->data, text->length);
	return text->data != NULL;
}

static void fall_back(struct semel_text *text, struct semel_text fallback)
{
	if (!text->data || text->length == 0)
		*text = fallback;
}

bool semel_wire_read_end(struct semel_wire_reading *reading)
{
	struct semel_event *event = &reading->event;
	struct semel_arena *arena = reading->arena;
	if (reading->correlation.data && !reading->has_correlation)
		add_header(reading, SEMEL_TEXT("correlationId"), reading->correlation);
	if (reading->producer.data && !reading->has_producer)
		add_header(reading, SEMEL_TEXT("producer"), reading->producer);
	semel_buffer_string(reading->headers, "}");
	fall_back(&event->type, event->routing_key);
	fall_back(&event->aggregate_type, event->topic);
	fall_back(&event->aggregate_id, event->routing_key);
	fall_back(&event->content_type, SEMEL_TEXT("application/octet-stream"));
	/* For example, milliseconds in a field of seconds: no store could keep such a time. */
	if (!semel_time_is_in_calendar(event->time_ms))
		event->time_ms = 0;
	event->headers = semel_buffer_text(reading->headers);
	struct semel_text *texts[] = { &event->id,
				       &event->type,
				       &event->topic,
				       &event->aggregate_type,
				       &event->aggregate_id,
				       &event->routing_key,
				       &event->content_type,
				       &event->headers,
				       &reading->metadata.previous };
	bool copied = !reading->headers->failed;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		copied = copy_text(arena, texts[i]) && copied;
	return copied;
}
