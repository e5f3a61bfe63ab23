/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in: each goes to the concern whose channel it arrived on. Calls that wait for an answer
 * leave the frames of other channels in the library's queue; they are read here, in order. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

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
		 "no queue takes it from exchange %.*s with routing key %.*s (%.*s)",
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
		return semel_rabbit_deliver_begin(rabbit, at, method->decoded, error);
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
		semel_status status = semel_rabbit_deliver_header(
			rabbit, assignment, frame->payload.properties.decoded,
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
		semel_rabbit_deliver_end(rabbit, assignment);
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
		return semel_rabbit_probe_frame(rabbit, frame);
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

/* Waits here and not in the library, which swallows heartbeats: to receive one is to know that the
 * broker lives. With TLS too: the library reads whole records, so what it has not read is in the
 * socket. */
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
