/* SPDX-License-Identifier: Apache-2.0 */
/* What is promised of an event that was read from a broker, whatever the message contained. */
#ifndef SEMEL_FUZZ_WIRE_PROMISES_H
#define SEMEL_FUZZ_WIRE_PROMISES_H

#include "base/json.h"
#include "base/time.h"
#include "event/wire.h"

#include "fuzz.h"

static inline void check_text(struct semel_text text)
{
	PROMISE(text.data || text.length == 0);
	PROMISE(!text.data || text.data[text.length] == '\0');
}

static inline bool is_same(struct semel_text left, struct semel_text right)
{
	return (left.data == NULL) == (right.data == NULL) &&
	       (!left.data || semel_text_equal(left, right));
}

/* Every text ends; headers are a JSON object of texts; the time is one that a store can keep. */
static inline void check_event(const struct semel_event *event,
			       const struct semel_publish_metadata *metadata)
{
	const struct semel_text texts[] = {
		event->id,           event->type,        event->aggregate_type, event->aggregate_id,
		event->topic,        event->routing_key, event->headers,        event->payload,
		event->content_type, metadata->previous,
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		check_text(texts[i]);
	PROMISE(event->type.data && event->aggregate_type.data && event->content_type.data);
	PROMISE(semel_time_is_in_calendar(event->time_ms));
	PROMISE(semel_text_is_utf8(event->headers) && event->headers.data[0] == '{');
	/* A name with a NUL byte is no name; such an event breaks the contract. */
	if (!semel_json_is_valid(event->headers))
		PROMISE(semel_text_find(event->headers, SEMEL_TEXT("\\u0000")) &&
			semel_event_check(event, NULL) == SEMEL_CONTRACT);
	struct semel_json_walk walk = semel_json_walk(event->headers);
	struct semel_text name, value;
	while (semel_json_next(&walk, &name, &value))
		PROMISE(value.length >= 2 && value.data[0] == '"');
}

/* Written and read again. */
static inline void send_again(const struct semel_event *event,
			      const struct semel_publish_metadata *metadata,
			      const struct semel_wire_names *names, struct semel_buffer *headers,
			      struct semel_wire_reading *reading_out, struct semel_arena *arena)
{
	struct semel_wire_message message;
	PROMISE(semel_wire_write(event, metadata, names, arena, &message));
	PROMISE(!message.plain);
	semel_wire_read_begin(reading_out, names, arena, headers);
	reading_out->event.topic = event->topic;
	reading_out->event.routing_key = event->routing_key;
	reading_out->event.content_type = event->content_type;
	for (size_t i = 0; i < message.count; i++)
		semel_wire_read_field(reading_out, message.fields[i].name, message.fields[i].value);
	PROMISE(semel_wire_read_end(reading_out));
}

/* Sent again, it is still the same event. Headers whose names may not travel are left out at the
 * first time; of those that do travel nothing is lost at a second one. */
static inline void check_way_back(const struct semel_event *event,
				  const struct semel_publish_metadata *metadata,
				  const struct semel_wire_names *names, struct semel_arena *arena)
{
	struct semel_wire_reading once, twice;
	struct semel_buffer headers = { 0 };
	send_again(event, metadata, names, &headers, &once, arena);
	PROMISE(is_same(once.event.id, event->id));
	PROMISE(is_same(once.event.type, event->type));
	PROMISE(is_same(once.event.aggregate_type, event->aggregate_type));
	PROMISE(is_same(once.event.aggregate_id, event->aggregate_id));
	PROMISE(is_same(once.metadata.previous, metadata->previous));
	PROMISE(once.event.time_ms == event->time_ms);
	PROMISE(once.metadata.attempt == metadata->attempt);
	PROMISE(once.metadata.replay == metadata->replay);
	PROMISE(once.event.headers.length <= event->headers.length);
	send_again(&once.event, &once.metadata, names, &headers, &twice, arena);
	PROMISE(is_same(twice.event.headers, once.event.headers));
	semel_buffer_free(&headers);
}

#endif
