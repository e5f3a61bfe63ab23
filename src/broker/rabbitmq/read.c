/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in: each goes to the concern whose channel it arrived on. Calls that wait for an answer
 * leave the frames of other channels in the library's queue; they are read here, in order.
 *
 * A message becomes a delivery in three steps, its method, its header and its body: its properties
 * and headers are read into an event (message.c), which joins the unacked list when its body is
 * complete. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define BODY_MAX ((uint64_t)1 << 30) /* RabbitMQ itself accepts half of it at most */

/* ---- deliveries ------------------------------------------------------------------------------ */

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a delivery");
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

/* Which queue, which opening of it, and the broker's tag (consume.c). */
static uint64_t own_tag(uint32_t at, uint16_t epoch, uint64_t tag)
{
	return (uint64_t)at << 56 | (uint64_t)epoch << 40 | (tag & 0xffffffffff);
}

static semel_status begin_delivery(struct semel_rabbit *rabbit, uint32_t at,
				   const amqp_basic_deliver_t *deliver, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	struct semel_rabbit_unacked *unacked = semel_rabbit_unacked_new(rabbit);
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

static semel_status read_header(struct semel_rabbit *rabbit,
				struct semel_rabbit_assignment *assignment,
				const amqp_basic_properties_t *properties, uint64_t body_size,
				semel_error *error)
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

static void end_delivery(struct semel_rabbit *rabbit, struct semel_rabbit_assignment *assignment)
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

/* ---- the connection -------------------------------------------------------------------------- */

static semel_status connection_frame(struct semel_rabbit *rabbit, const amqp_method_t *method,
				     semel_error *error)
{
	if (method->id == AMQP_CONNECTION_BLOCKED_METHOD) {
		const amqp_connection_blocked_t *blocked = method->decoded;
		snprintf(rabbit->blocked, sizeof(rabbit->blocked), "%s is blocked: %.*s",
			 rabbit->settings.host, (int)blocked->reason.len,
			 (const char *)blocked->reason.bytes);
		semel_log(SEMEL_LOG_WARN, "broker blocked publishing (an alarm)",
			  &(struct semel_log_fields){ .error = rabbit->blocked });
	} else if (method->id == AMQP_CONNECTION_UNBLOCKED_METHOD) {
		rabbit->blocked[0] = '\0';
		semel_log(SEMEL_LOG_INFO, "broker unblocked publishing", NULL);
	} else if (method->id == AMQP_CONNECTION_CLOSE_METHOD) {
		const amqp_connection_close_t *close = method->decoded;
		rabbit->lost = true;
		return semel_error_set(error, SEMEL_OUTAGE, "%s closed the connection: %.*s",
				       rabbit->address, (int)close->reply_text.len,
				       (const char *)close->reply_text.bytes);
	}
	return SEMEL_OK;
}

/* ---- channels with confirms ------------------------------------------------------------------ */

static void returned_frame(struct semel_rabbit *rabbit, uint16_t channel,
			   const amqp_basic_return_t *method)
{
	snprintf(rabbit->returned_text, sizeof(rabbit->returned_text),
		 "no queue receives it from exchange %.*s with routing key %.*s (%.*s)",
		 (int)method->exchange.len, (const char *)method->exchange.bytes,
		 (int)method->routing_key.len, (const char *)method->routing_key.bytes,
		 (int)method->reply_text.len, (const char *)method->reply_text.bytes);
	if (channel == SEMEL_RABBIT_PUBLISH)
		rabbit->returned.expects_header = true;
	else
		semel_rabbit_requeue_returned(rabbit, rabbit->returned_text);
}

static void confirm_received(struct semel_rabbit *rabbit, uint16_t channel, uint64_t tag,
			     bool multiple, bool nacked)
{
	if (channel == SEMEL_RABBIT_PUBLISH)
		semel_rabbit_confirmed(rabbit, tag, multiple, nacked);
	else
		semel_rabbit_requeue_confirmed(rabbit, tag, multiple, nacked);
}

static semel_status confirm_frame(struct semel_rabbit *rabbit, uint16_t channel,
				  const amqp_frame_t *frame, semel_error *error)
{
	if (frame->frame_type == AMQP_FRAME_HEADER) {
		const amqp_basic_properties_t *properties = frame->payload.properties.decoded;
		if (channel == SEMEL_RABBIT_PUBLISH && rabbit->returned.expects_header)
			semel_rabbit_event_returned(rabbit,
						    semel_rabbit_text(properties->message_id),
						    rabbit->returned_text);
		rabbit->returned.expects_header = false;
		return SEMEL_OK;
	}
	if (frame->frame_type != AMQP_FRAME_METHOD)
		return SEMEL_OK;
	const amqp_method_t *method = &frame->payload.method;
	if (method->id == AMQP_BASIC_ACK_METHOD) {
		const amqp_basic_ack_t *ack = method->decoded;
		confirm_received(rabbit, channel, ack->delivery_tag, ack->multiple, false);
	} else if (method->id == AMQP_BASIC_NACK_METHOD) {
		const amqp_basic_nack_t *nack = method->decoded;
		confirm_received(rabbit, channel, nack->delivery_tag, nack->multiple, true);
	} else if (method->id == AMQP_BASIC_RETURN_METHOD) {
		returned_frame(rabbit, channel, method->decoded);
	} else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
		if (channel == SEMEL_RABBIT_PUBLISH)
			return semel_rabbit_publish_closed(rabbit, method->decoded, error);
		return semel_rabbit_channel_closed(rabbit, channel, method->decoded, error);
	}
	return SEMEL_OK;
}

/* ---- queues consumed ------------------------------------------------------------------------- */

/* An ack was late, or the node of the queue stopped: the queue is opened again at the next fetch,
 * and what was not acked is delivered again. */
static void assignment_closed(struct semel_rabbit *rabbit, uint32_t at,
			      const amqp_channel_close_t *close)
{
	semel_error why = { 0 };
	(void)semel_rabbit_channel_closed(rabbit, (uint16_t)(SEMEL_RABBIT_ASSIGNMENTS + at), close,
					  &why);
	semel_log(SEMEL_LOG_WARN, "broker closed the channel; unacked events will be redelivered",
		  &(struct semel_log_fields){ .queue = rabbit->assignments[at].queue,
					      .error = why.text });
	semel_rabbit_assignment_reset(rabbit, at);
}

static semel_status assignment_method(struct semel_rabbit *rabbit, uint32_t at,
				      const amqp_method_t *method, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	if (method->id == AMQP_QUEUE_DECLARE_OK_METHOD)
		semel_rabbit_count_received(rabbit, (uint16_t)(SEMEL_RABBIT_ASSIGNMENTS + at),
					    method->decoded);
	if (method->id == AMQP_BASIC_DELIVER_METHOD)
		return begin_delivery(rabbit, at, method->decoded, error);
	if (method->id == AMQP_BASIC_CANCEL_METHOD)
		return semel_error_set(
			error, SEMEL_OUTAGE,
			"%s cancelled the consumer of the queue %s (it was deleted, or "
			"its node stopped)",
			rabbit->address, assignment->queue);
	/* Under a consumer time-out the broker repeats this until it is answered; but it accepts
	 * one answer only. */
	if (method->id == AMQP_CHANNEL_CLOSE_METHOD && assignment->open)
		assignment_closed(rabbit, at, method->decoded);
	return SEMEL_OK;
}

static semel_status assignment_frame(struct semel_rabbit *rabbit, uint32_t at,
				     const amqp_frame_t *frame, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	struct semel_rabbit_assembly *assembly = &assignment->assembly;
	if (frame->frame_type == AMQP_FRAME_METHOD)
		return assignment_method(rabbit, at, &frame->payload.method, error);
	if (frame->frame_type == AMQP_FRAME_HEADER && assembly->expects_header) {
		semel_status status =
			read_header(rabbit, assignment, frame->payload.properties.decoded,
				    frame->payload.properties.body_size, error);
		if (status != SEMEL_OK)
			return status;
	} else if (frame->frame_type == AMQP_FRAME_BODY && assembly->unacked) {
		amqp_bytes_t part = frame->payload.body_fragment;
		if (part.len > assembly->body_left)
			return semel_rabbit_set_lost(rabbit, AMQP_STATUS_BAD_AMQP_DATA, error);
		memcpy(assembly->body_at, part.bytes, part.len);
		assembly->body_at += part.len;
		assembly->body_left -= part.len;
	}
	if (assembly->unacked && !assembly->expects_header && assembly->body_left == 0)
		end_delivery(rabbit, assignment);
	return SEMEL_OK;
}

/* ---- control --------------------------------------------------------------------------------- */

static void control_method(struct semel_rabbit *rabbit, const amqp_method_t *method)
{
	semel_error why = { 0 };
	if (method->id == AMQP_QUEUE_DECLARE_OK_METHOD)
		semel_rabbit_count_received(rabbit, SEMEL_RABBIT_CONTROL, method->decoded);
	else if (method->id == AMQP_CHANNEL_CLOSE_METHOD)
		(void)semel_rabbit_channel_closed(rabbit, SEMEL_RABBIT_CONTROL, method->decoded,
						  &why);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static semel_status take_frame(struct semel_rabbit *rabbit, const amqp_frame_t *frame,
			       semel_error *error)
{
	uint16_t channel = frame->channel;
	if (channel == 0)
		return frame->frame_type == AMQP_FRAME_METHOD
			       ? connection_frame(rabbit, &frame->payload.method, error)
			       : SEMEL_OK;
	if (channel == SEMEL_RABBIT_PUBLISH || channel == SEMEL_RABBIT_REQUEUE)
		return confirm_frame(rabbit, channel, frame, error);
	if (channel == SEMEL_RABBIT_CONTROL && frame->frame_type == AMQP_FRAME_METHOD)
		control_method(rabbit, &frame->payload.method);
	if (channel == SEMEL_RABBIT_PROBE)
		semel_rabbit_probe_frame(rabbit, frame);
	if (channel == SEMEL_RABBIT_MEMBERS && frame->frame_type == AMQP_FRAME_METHOD &&
	    frame->payload.method.id == AMQP_CHANNEL_CLOSE_METHOD)
		(void)semel_rabbit_channel_closed(rabbit, channel, frame->payload.method.decoded,
						  NULL);
	if (channel >= SEMEL_RABBIT_ASSIGNMENTS &&
	    channel - SEMEL_RABBIT_ASSIGNMENTS < (int)rabbit->assignment_count)
		return assignment_frame(rabbit, (uint32_t)(channel - SEMEL_RABBIT_ASSIGNMENTS),
					frame, error);
	return SEMEL_OK;
}

static void clear_ready(struct semel_rabbit *rabbit)
{
	uint64_t count;
	if (!rabbit->ready_signalled)
		return;
	rabbit->ready_signalled = false;
	ssize_t got = read(rabbit->ready_fd, &count, sizeof(count));
	(void)got; /* it was signalled, so it cannot fail */
}

/* Waits here and not in the library, which drops heartbeats: receiving one shows that the broker is
 * alive. This is correct with TLS too: the library reads whole records, so what it has not read is
 * in the socket. */
static void await_frames(struct semel_rabbit *rabbit, int64_t wait_ms)
{
	struct pollfd readable = { .fd = rabbit->fd, .events = POLLIN };
	if (rabbit->library->frames_enqueued(rabbit->connection) ||
	    rabbit->library->data_in_buffer(rabbit->connection))
		wait_ms = 0;
	if (poll(&readable, 1, (int)wait_ms) > 0)
		rabbit->heard_ms = semel_steady_ms(rabbit->env);
}

static semel_status pump(struct semel_rabbit *rabbit, int64_t wait_ms, bool all, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	semel_status status = semel_rabbit_flush(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	clear_ready(rabbit);
	await_frames(rabbit, wait_ms);
	while (all || !semel_rabbit_unacked_list_is_full(rabbit)) {
		struct timeval no_wait = { 0 };
		amqp_frame_t frame;
		int code = library->simple_wait_frame_noblock(rabbit->connection, &frame, &no_wait);
		if (code == AMQP_STATUS_TIMEOUT)
			break;
		if (code != AMQP_STATUS_OK)
			return semel_rabbit_set_lost(rabbit, code, error);
		rabbit->heard_ms = semel_steady_ms(rabbit->env);
		status = take_frame(rabbit, &frame, error);
		library->maybe_release_buffers_on_channel(rabbit->connection, frame.channel);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_rabbit_check_heartbeat(rabbit, error);
}

semel_status semel_rabbit_pump(struct semel_rabbit *rabbit, int64_t wait_ms, semel_error *error)
{
	return pump(rabbit, wait_ms, false, error);
}

semel_status semel_rabbit_pump_all(struct semel_rabbit *rabbit, int64_t wait_ms, semel_error *error)
{
	return pump(rabbit, wait_ms, true, error);
}
