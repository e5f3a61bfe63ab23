/* SPDX-License-Identifier: Apache-2.0 */
/* A record as a delivery. Foreign records are read as far as possible: a null key, a null value (a
 * tombstone), headers without a value, keys that are no text. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <string.h>

static const char empty[] = "";

struct semel_text semel_kafka_header(const struct semel_kafka *kafka,
				     const rd_kafka_message_t *message, const char *name)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_headers_t *headers = NULL;
	const void *value = NULL;
	size_t size = 0;
	if (library->message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
	    library->header_get_last(headers, name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return (struct semel_text){ NULL, 0 };
	return (struct semel_text){ value ? value : empty, size };
}

int64_t semel_kafka_due_of(const struct semel_kafka *kafka, const rd_kafka_message_t *message)
{
	struct semel_text text = semel_kafka_header(kafka, message, "semel-due");
	char digits[24];
	long long due_ms = 0;
	if (!text.data || text.length >= sizeof(digits) || semel_text_has_nul(text))
		return 0;
	memcpy(digits, text.data, text.length);
	digits[text.length] = '\0';
	return semel_text_to_int64(digits, 0, INT64_MAX, &due_ms) ? due_ms : 0;
}

static void read_headers(const struct semel_kafka *kafka, const rd_kafka_message_t *message,
			 struct semel_wire_reading *reading)
{
	rd_kafka_headers_t *headers = NULL;
	const char *name;
	const void *value;
	size_t size;
	if (kafka->library->message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return;
	for (size_t i = 0; kafka->library->header_get_all(headers, i, &name, &value, &size) ==
			   RD_KAFKA_RESP_ERR_NO_ERROR;
	     i++) {
		struct semel_text text = { value ? value : empty, value ? size : 0 };
		struct semel_text key = semel_text_of(name);
		if (semel_text_equal(key, SEMEL_TEXT("content-type")))
			reading->event.content_type = text;
		else
			semel_wire_read_field(reading, key, text);
	}
}

/* The ordering key of a foreign record. A record without a key has no order to keep: it is an
 * aggregate of its own. Bytes that are no text become base64. */
static struct semel_text key_of(struct semel_kafka *kafka, const rd_kafka_message_t *message,
				struct semel_arena *arena, struct semel_text id)
{
	struct semel_text key = { message->key, message->key_len };
	if (!message->key)
		return id;
	if (semel_text_is_utf8(key) && !semel_text_has_control(key))
		return key;
	struct semel_buffer text = { 0 };
	semel_buffer_base64(&text, message->key, message->key_len);
	struct semel_text copy = semel_arena_text(arena, text.data, text.length);
	semel_buffer_free(&text);
	(void)kafka;
	return copy;
}

static void complete(struct semel_wire_reading *reading, struct semel_text key)
{
	struct semel_event *event = &reading->event;
	if (!event->type.data && event->routing_key.data)
		event->type = event->routing_key;
	if (!event->type.data)
		event->type = event->topic;
	if (!event->routing_key.data)
		event->routing_key = event->type;
	if (!event->aggregate_id.data || event->aggregate_id.length == 0)
		event->aggregate_id = key;
}

bool semel_kafka_read_record(struct semel_kafka *kafka,
			     const struct semel_kafka_assignment *assignment,
			     const rd_kafka_message_t *message, struct semel_arena *arena,
			     struct semel_delivery *delivery_out)
{
	struct semel_wire_reading reading;
	rd_kafka_timestamp_type_t kind;
	int64_t stamp_ms = kafka->library->message_timestamp(message, &kind);
	semel_wire_read_begin(&reading, &semel_wire_kafka, arena, &kafka->header_text);
	reading.event.topic = semel_text_of(assignment->event_topic);
	reading.event.time_ms =
		kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE || stamp_ms < 0 ? 0 : stamp_ms;
	read_headers(kafka, message, &reading);
	complete(&reading, key_of(kafka, message, arena, reading.event.id));
	if (!semel_wire_read_end(&reading))
		return false;
	if (!message->payload) /* a tombstone is not invalid JSON, whatever its headers say */
		reading.event.content_type = SEMEL_TEXT("application/octet-stream");
	reading.event.payload = semel_arena_text(arena, message->payload ? message->payload : empty,
						 message->payload ? message->len : 0);
	*delivery_out = (struct semel_delivery){
		.event = reading.event,
		.metadata = reading.metadata,
		.partition = message->partition,
		.offset = message->offset,
	};
	return reading.event.payload.data != NULL;
}
