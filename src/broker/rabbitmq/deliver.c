/* SPDX-License-Identifier: Apache-2.0 */
/* A message becomes a delivery: the properties and headers are read into an event (message.c), in
 * the stage, where it waits to be fetched. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#define BODY_MAX ((uint64_t)1 << 30) /* RabbitMQ itself takes half of it at most */

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
}

static bool read_message(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel,
			 const amqp_basic_properties_t *properties)
{
	struct semel_delivery *delivery = &parcel->delivery;
	struct semel_wire_reading reading;
	struct semel_text tier;
	semel_wire_read_begin(&reading, &semel_wire_amqp, semel_rabbit_parcel_arena(parcel),
			      &rabbit->header_text);
	reading.event = delivery->event;
	bool read =
		semel_rabbit_properties_read(properties, rabbit->settings.stream, &reading, &tier);
	if (tier.data)
		semel_rabbit_tier_arrived(rabbit, tier);
	if (!read || !semel_wire_read_end(&reading))
		return false;
	delivery->event = reading.event;
	delivery->metadata = reading.metadata;
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
		delivery->offset_in_store = true;
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
