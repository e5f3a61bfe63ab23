/* SPDX-License-Identifier: Apache-2.0 */
/* The properties and headers of a message, from any publisher, become an event (event/wire.h has
 * their meaning). Header values that are not texts are converted.
 *
 * librabbitmq has parsed them into a tree before; a frame is at most 128 KiB, and so is the tree.
 */
#include "broker/rabbitmq/rabbitmq.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- values ---------------------------------------------------------------------------------- */

static void write_value(struct semel_buffer *buffer, const amqp_field_value_t *value, int depth);

static void write_table(struct semel_buffer *buffer, const amqp_table_t *table, int depth)
{
	semel_buffer_string(buffer, "{");
	for (int i = 0; i < table->num_entries; i++) {
		if (i > 0)
			semel_buffer_string(buffer, ",");
		semel_buffer_json(buffer, semel_rabbit_text(table->entries[i].key));
		semel_buffer_string(buffer, ":");
		write_value(buffer, &table->entries[i].value, depth + 1);
	}
	semel_buffer_string(buffer, "}");
}

static void write_array(struct semel_buffer *buffer, const amqp_array_t *array, int depth)
{
	semel_buffer_string(buffer, "[");
	for (int i = 0; i < array->num_entries; i++) {
		if (i > 0)
			semel_buffer_string(buffer, ",");
		write_value(buffer, &array->entries[i], depth + 1);
	}
	semel_buffer_string(buffer, "]");
}

static bool write_whole_number(struct semel_buffer *buffer, const amqp_field_value_t *value)
{
	int64_t number;
	switch (value->kind) {
	case AMQP_FIELD_KIND_I8:
		number = (int64_t)value->value.i8;
		break;
	case AMQP_FIELD_KIND_U8:
		number = value->value.u8;
		break;
	case AMQP_FIELD_KIND_I16:
		number = value->value.i16;
		break;
	case AMQP_FIELD_KIND_U16:
		number = value->value.u16;
		break;
	case AMQP_FIELD_KIND_I32:
		number = value->value.i32;
		break;
	case AMQP_FIELD_KIND_U32:
		number = value->value.u32;
		break;
	case AMQP_FIELD_KIND_I64:
		number = value->value.i64;
		break;
	case AMQP_FIELD_KIND_U64:
	case AMQP_FIELD_KIND_TIMESTAMP:
		semel_buffer_printf(buffer, "%" PRIu64, value->value.u64);
		return true;
	default:
		return false;
	}
	semel_buffer_printf(buffer, "%" PRId64, number);
	return true;
}

/* JSON has no token for NaN and infinity. */
static void write_fraction(struct semel_buffer *buffer, double number, int digits)
{
	if (isfinite(number))
		semel_buffer_printf(buffer, "%.*g", digits, number);
	else
		semel_buffer_string(buffer, "null");
}

/* As JSON; nested too deep: null. */
static void write_value(struct semel_buffer *buffer, const amqp_field_value_t *value, int depth)
{
	if (depth > 8 || write_whole_number(buffer, value)) {
		semel_buffer_string(buffer, depth > 8 ? "null" : "");
		return;
	}
	switch (value->kind) {
	case AMQP_FIELD_KIND_UTF8:
	case AMQP_FIELD_KIND_BYTES:
		semel_buffer_json(buffer, semel_rabbit_text(value->value.bytes));
		break;
	case AMQP_FIELD_KIND_BOOLEAN:
		semel_buffer_string(buffer, value->value.boolean ? "true" : "false");
		break;
	case AMQP_FIELD_KIND_F32:
		write_fraction(buffer, (double)value->value.f32, 9);
		break;
	case AMQP_FIELD_KIND_F64:
		write_fraction(buffer, value->value.f64, 17);
		break;
	case AMQP_FIELD_KIND_DECIMAL:
		semel_buffer_printf(buffer, "%ue-%u", value->value.decimal.value,
				    value->value.decimal.decimals);
		break;
	case AMQP_FIELD_KIND_TABLE:
		write_table(buffer, &value->value.table, depth);
		break;
	case AMQP_FIELD_KIND_ARRAY:
		write_array(buffer, &value->value.array, depth);
		break;
	default:
		semel_buffer_string(buffer, "null");
	}
}

/* A text as it is, everything else as JSON. Data NULL: out of memory. */
static struct semel_text text_of(struct semel_arena *arena, const amqp_field_value_t *value)
{
	struct semel_buffer buffer = { 0 };
	if (value->kind == AMQP_FIELD_KIND_UTF8 || value->kind == AMQP_FIELD_KIND_BYTES)
		return semel_rabbit_text(value->value.bytes);
	write_value(&buffer, value, 0);
	struct semel_text text = buffer.failed
					 ? (struct semel_text){ NULL, 1 }
					 : semel_arena_text(arena, buffer.data, buffer.length);
	semel_buffer_free(&buffer);
	return text;
}

/* ---- headers --------------------------------------------------------------------------------- */

/* Headers that the broker adds on the message's way. */
static bool is_broker_header(struct semel_text name)
{
	static const char *const prefixes[] = { "x-death",          "x-first-death",
						"x-last-death",     "x-delivery-count",
						"x-acquired-count", "x-opt-",
						"x-stream-offset" };
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (name.length >= strlen(prefixes[i]) &&
		    memcmp(name.data, prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	return false;
}

/* The first entry of x-death is the queue that the message has just left. */
static void find_tier(const amqp_field_value_t *death, struct semel_text *tier_out)
{
	if (death->kind != AMQP_FIELD_KIND_ARRAY || death->value.array.num_entries == 0)
		return;
	const amqp_field_value_t *first = &death->value.array.entries[0];
	for (int i = 0; first->kind == AMQP_FIELD_KIND_TABLE && i < first->value.table.num_entries;
	     i++) {
		const amqp_table_entry_t *entry = &first->value.table.entries[i];
		if (semel_text_equal(semel_rabbit_text(entry->key), SEMEL_TEXT("queue")) &&
		    entry->value.kind == AMQP_FIELD_KIND_UTF8)
			*tier_out = semel_rabbit_text(entry->value.value.bytes);
	}
}

/* A stream keeps no nested values; but what goes through a tier is dead-lettered only once. */
static void read_broker_header(bool is_stream, struct semel_text name,
			       const amqp_field_value_t *value, struct semel_text *tier_out)
{
	if (!is_stream && semel_text_equal(name, SEMEL_TEXT("x-death")))
		find_tier(value, tier_out);
	else if (is_stream && value->kind == AMQP_FIELD_KIND_UTF8 &&
		 semel_text_equal(name, SEMEL_TEXT("x-first-death-queue")))
		*tier_out = semel_rabbit_text(value->value.bytes);
}

static bool read_headers(const amqp_table_t *table, bool is_stream,
			 struct semel_wire_reading *reading, struct semel_text *tier_out)
{
	for (int i = 0; i < table->num_entries; i++) {
		struct semel_text name = semel_rabbit_text(table->entries[i].key);
		if (is_broker_header(name)) {
			read_broker_header(is_stream, name, &table->entries[i].value, tier_out);
			continue;
		}
		struct semel_text value = text_of(reading->arena, &table->entries[i].value);
		if (!value.data)
			return false;
		semel_wire_read_field(reading, name, value);
	}
	return true;
}

static struct semel_text property(const amqp_basic_properties_t *properties, amqp_flags_t flag,
				  amqp_bytes_t bytes)
{
	if (!(properties->_flags & flag) || bytes.len == 0)
		return (struct semel_text){ NULL, 0 };
	return semel_rabbit_text(bytes);
}

bool semel_rabbit_properties_read(const amqp_basic_properties_t *properties, bool is_stream,
				  struct semel_wire_reading *reading, struct semel_text *tier_out)
{
	*tier_out = (struct semel_text){ NULL, 0 };
	reading->event.id =
		property(properties, AMQP_BASIC_MESSAGE_ID_FLAG, properties->message_id);
	reading->event.type = property(properties, AMQP_BASIC_TYPE_FLAG, properties->type);
	reading->event.content_type =
		property(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, properties->content_type);
	reading->producer = property(properties, AMQP_BASIC_APP_ID_FLAG, properties->app_id);
	reading->correlation =
		property(properties, AMQP_BASIC_CORRELATION_ID_FLAG, properties->correlation_id);
	if (properties->_flags & AMQP_BASIC_TIMESTAMP_FLAG &&
	    properties->timestamp < INT64_MAX / 1000)
		reading->event.time_ms = (int64_t)properties->timestamp * 1000;
	return !(properties->_flags & AMQP_BASIC_HEADERS_FLAG) ||
	       read_headers(&properties->headers, is_stream, reading, tier_out);
}

/* ---- of a stream ----------------------------------------------------------------------------- */

int64_t semel_rabbit_offset_of(const amqp_basic_properties_t *properties)
{
	if (!(properties->_flags & AMQP_BASIC_HEADERS_FLAG))
		return -1;
	for (int i = 0; i < properties->headers.num_entries; i++) {
		const amqp_table_entry_t *entry = &properties->headers.entries[i];
		if (entry->value.kind == AMQP_FIELD_KIND_I64 &&
		    semel_text_equal(semel_rabbit_text(entry->key), SEMEL_TEXT("x-stream-offset")))
			return entry->value.value.i64;
	}
	return -1;
}

bool semel_rabbit_is_marker(const amqp_basic_properties_t *properties, uint64_t body_size)
{
	return body_size == 0 && !(properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) &&
	       properties->_flags & AMQP_BASIC_TYPE_FLAG &&
	       semel_text_equal(semel_rabbit_text(properties->type),
				SEMEL_TEXT(SEMEL_RABBIT_MARKER));
}
