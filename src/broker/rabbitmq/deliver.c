/* SPDX-License-Identifier: Apache-2.0 */
/* A message becomes a delivery: the properties and headers are read into an event (event/wire.h
 * knows what they mean), in the stage, where it waits to be fetched. Header values that are no
 * texts are turned into such. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BODY_MAX ((uint64_t)1 << 30) /* RabbitMQ itself takes half of it at most */

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
}

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
		semel_buffer_printf(buffer, "%.9g", (double)value->value.f32);
		break;
	case AMQP_FIELD_KIND_F64:
		semel_buffer_printf(buffer, "%.17g", value->value.f64);
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

/* A text as it is, everything else as JSON. Data NULL: no memory. */
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

/* The broker's own notes about the message's way. */
static bool is_broker_note(struct semel_text name)
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
static void note_tier(struct semel_rabbit *rabbit, const amqp_field_value_t *death)
{
	if (death->kind != AMQP_FIELD_KIND_ARRAY || death->value.array.num_entries == 0)
		return;
	const amqp_field_value_t *first = &death->value.array.entries[0];
	for (int i = 0; first->kind == AMQP_FIELD_KIND_TABLE && i < first->value.table.num_entries;
	     i++) {
		const amqp_table_entry_t *entry = &first->value.table.entries[i];
		if (semel_text_equal(semel_rabbit_text(entry->key), SEMEL_TEXT("queue")) &&
		    entry->value.kind == AMQP_FIELD_KIND_UTF8)
			semel_rabbit_tier_arrived(rabbit,
						  semel_rabbit_text(entry->value.value.bytes));
	}
}

/* A stream keeps no nested values; but what goes through a tier has died once only. */
static void note_way(struct semel_rabbit *rabbit, struct semel_text name,
		     const amqp_field_value_t *value)
{
	if (!rabbit->settings.stream && semel_text_equal(name, SEMEL_TEXT("x-death")))
		note_tier(rabbit, value);
	else if (rabbit->settings.stream && value->kind == AMQP_FIELD_KIND_UTF8 &&
		 semel_text_equal(name, SEMEL_TEXT("x-first-death-queue")))
		semel_rabbit_tier_arrived(rabbit, semel_rabbit_text(value->value.bytes));
}

static bool read_headers(struct semel_rabbit *rabbit, struct semel_wire_reading *reading,
			 const amqp_table_t *table)
{
	for (int i = 0; i < table->num_entries; i++) {
		struct semel_text name = semel_rabbit_text(table->entries[i].key);
		if (is_broker_note(name)) {
			note_way(rabbit, name, &table->entries[i].value);
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

static bool read_message(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel,
			 const amqp_basic_properties_t *properties)
{
	struct semel_delivery *delivery = &parcel->delivery;
	struct semel_wire_reading reading;
	semel_wire_read_begin(&reading, &semel_wire_amqp, semel_rabbit_parcel_arena(parcel),
			      &rabbit->header_text);
	reading.event = delivery->event;
	reading.event.id = property(properties, AMQP_BASIC_MESSAGE_ID_FLAG, properties->message_id);
	reading.event.type = property(properties, AMQP_BASIC_TYPE_FLAG, properties->type);
	reading.event.content_type =
		property(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, properties->content_type);
	reading.producer = property(properties, AMQP_BASIC_APP_ID_FLAG, properties->app_id);
	reading.correlation =
		property(properties, AMQP_BASIC_CORRELATION_ID_FLAG, properties->correlation_id);
	if (properties->_flags & AMQP_BASIC_TIMESTAMP_FLAG &&
	    properties->timestamp < INT64_MAX / 1000)
		reading.event.time_ms = (int64_t)properties->timestamp * 1000;
	if (properties->_flags & AMQP_BASIC_HEADERS_FLAG &&
	    !read_headers(rabbit, &reading, &properties->headers))
		return false;
	if (!semel_wire_read_end(&reading))
		return false;
	delivery->event = reading.event;
	delivery->passage = reading.passage;
	return true;
}

/* ---- the three steps ------------------------------------------------------------------------- */

/* Which queue, which opening of it, and the broker's tag; see consume.c. */
static uint64_t own_tag(uint32_t at, uint16_t epoch, uint64_t tag)
{
	return (uint64_t)at << 56 | (uint64_t)epoch << 40 | (tag & 0xffffffffff);
}

semel_status semel_rabbit_deliver_begin(struct semel_rabbit *rabbit, uint32_t at,
					const amqp_basic_deliver_t *deliver, semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	struct semel_rabbit_parcel *parcel = semel_rabbit_parcel_make(rabbit);
	if (!parcel)
		return no_memory(error);
	parcel->share = at;
	parcel->delivery = (struct semel_delivery){
		.event = { .topic = semel_text_of(share->topic) },
		.partition = share->partition,
		.offset = (int64_t)deliver->delivery_tag,
		.redelivered = deliver->redelivered,
		.tag = own_tag(at, share->epoch, deliver->delivery_tag),
	};
	share->assembly =
		(struct semel_rabbit_assembly){ .expects_header = true, .parcel = parcel };
	parcel->delivery.event.routing_key =
		semel_arena_text(semel_rabbit_parcel_arena(parcel),
				 deliver->routing_key.bytes ? deliver->routing_key.bytes : "",
				 deliver->routing_key.len);
	if (!parcel->delivery.event.routing_key.data ||
	    !semel_rabbit_share_note(share, deliver->delivery_tag))
		return no_memory(error);
	share->active = true;
	return SEMEL_OK;
}

semel_status semel_rabbit_deliver_header(struct semel_rabbit *rabbit,
					 struct semel_rabbit_share *share,
					 const amqp_basic_properties_t *properties,
					 uint64_t body_size, semel_error *error)
{
	struct semel_rabbit_assembly *assembly = &share->assembly;
	struct semel_rabbit_parcel *parcel = assembly->parcel;
	struct semel_delivery *delivery = &parcel->delivery;
	struct semel_arena *arena = semel_rabbit_parcel_arena(parcel);
	size_t before = semel_arena_used(arena);
	char *body = body_size > BODY_MAX ? NULL : semel_arena_alloc(arena, body_size + 1);
	if (rabbit->settings.stream) {
		delivery->offset = semel_rabbit_offset_of(properties);
		delivery->kept = true;
		semel_rabbit_stream_seen(share, parcel,
					 semel_rabbit_is_mark(properties, body_size));
	}
	if (!body || !read_message(rabbit, parcel, properties))
		return no_memory(error);
	semel_rabbit_parcel_grew(rabbit, parcel, semel_arena_used(arena) - before);
	body[body_size] = '\0';
	delivery->event.payload = semel_text_from(body, body_size);
	assembly->body_at = body;
	assembly->body_left = body_size;
	assembly->expects_header = false;
	return SEMEL_OK;
}

void semel_rabbit_deliver_end(struct semel_rabbit *rabbit, struct semel_rabbit_share *share)
{
	struct semel_rabbit_parcel *parcel = share->assembly.parcel;
	share->assembly = (struct semel_rabbit_assembly){ 0 };
	if (parcel->needless) {
		semel_rabbit_parcel_free(rabbit, parcel);
		return;
	}
	semel_rabbit_share_keep(share, parcel);
	semel_rabbit_stage_add(rabbit, parcel);
}
