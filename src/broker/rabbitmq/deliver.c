/* SPDX-License-Identifier: Apache-2.0 */
/* A message becomes a delivery: its properties and headers are read into an event (message.c),
 * which joins the unacked list when its body is complete. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#define BODY_MAX ((uint64_t)1 << 30) /* RabbitMQ itself takes half of it at most */

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
}

static bool read_message(struct semel_rabbit *rabbit, struct semel_rabbit_unacked *unacked,
			 const amqp_basic_properties_t *properties)
{
	struct semel_delivery *delivery = &unacked->delivery;
	struct semel_wire_reading reading;
	struct semel_text tier;
	semel_wire_read_begin(&reading, &semel_wire_amqp, semel_rabbit_unacked_arena(unacked),
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
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	struct semel_rabbit_unacked *unacked = semel_rabbit_unacked_make(rabbit);
	if (!unacked)
		return no_memory(error);
	unacked->assignment = at;
	unacked->delivery = (struct semel_delivery){
		.event = { .topic = semel_text_of(assignment->topic) },
		.partition = assignment->partition,
		.offset = (int64_t)deliver->delivery_tag,
		.redelivered = deliver->redelivered,
		.tag = own_tag(at, assignment->epoch, deliver->delivery_tag),
	};
	assignment->assembly =
		(struct semel_rabbit_assembly){ .expects_header = true, .unacked = unacked };
	unacked->delivery.event.routing_key =
		semel_arena_text(semel_rabbit_unacked_arena(unacked),
				 deliver->routing_key.bytes ? deliver->routing_key.bytes : "",
				 deliver->routing_key.len);
	if (!unacked->delivery.event.routing_key.data ||
	    !semel_rabbit_assignment_add_tag(assignment, deliver->delivery_tag))
		return no_memory(error);
	assignment->active = true;
	return SEMEL_OK;
}

semel_status semel_rabbit_deliver_header(struct semel_rabbit *rabbit,
					 struct semel_rabbit_assignment *assignment,
					 const amqp_basic_properties_t *properties,
					 uint64_t body_size, semel_error *error)
{
	struct semel_rabbit_assembly *assembly = &assignment->assembly;
	struct semel_rabbit_unacked *unacked = assembly->unacked;
	struct semel_delivery *delivery = &unacked->delivery;
	struct semel_arena *arena = semel_rabbit_unacked_arena(unacked);
	size_t before = semel_arena_used(arena);
	char *body = body_size > BODY_MAX ? NULL : semel_arena_alloc(arena, body_size + 1);
	if (rabbit->settings.stream) {
		delivery->offset = semel_rabbit_offset_of(properties);
		delivery->offset_in_store = true;
		semel_rabbit_stream_received(assignment, unacked,
					     semel_rabbit_is_marker(properties, body_size));
	}
	if (!body || !read_message(rabbit, unacked, properties))
		return no_memory(error);
	semel_rabbit_unacked_grew(rabbit, unacked, semel_arena_used(arena) - before);
	body[body_size] = '\0';
	delivery->event.payload = semel_text_from(body, body_size);
	assembly->body_at = body;
	assembly->body_left = body_size;
	assembly->expects_header = false;
	return SEMEL_OK;
}

void semel_rabbit_deliver_end(struct semel_rabbit *rabbit,
			      struct semel_rabbit_assignment *assignment)
{
	struct semel_rabbit_unacked *unacked = assignment->assembly.unacked;
	assignment->assembly = (struct semel_rabbit_assembly){ 0 };
	if (unacked->skip) {
		semel_rabbit_unacked_free(rabbit, unacked);
		return;
	}
	semel_rabbit_assignment_add_unacked(assignment, unacked);
	semel_rabbit_unacked_list_add(rabbit, unacked);
}
