/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a stream without consuming it, on a channel of its own that is closed afterwards: no
 * reader's offset moves.
 *
 * The broker does not say where a stream ends; its count of messages is some seconds old. But a
 * reader to whom something was delivered can find out: an ack makes the broker read on at once, and
 * what there is is sent before its next answer on that channel. So the probe starts where something
 * is sure to arrive, and acks until nothing more does.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#define PREFETCH 1000
#define SHORT_MS 2000
#define LONG_MS  30000
#define WAIT_MS  50

static void record_message(struct semel_rabbit_probe *probe,
			   const amqp_basic_properties_t *properties, uint64_t body_size)
{
	int64_t offset = semel_rabbit_offset_of(properties);
	/* As in a delivery: an empty one is none. */
	bool named =
		properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG && properties->message_id.len > 0;
	if (probe->first < 0) {
		probe->first = offset;
		probe->first_has_id = named;
		probe->first_hash =
			named ? semel_event_hash_id(semel_rabbit_text(properties->message_id)) : 0;
	}
	probe->last = offset;
	if (offset < probe->count_from || semel_rabbit_is_marker(properties, body_size))
		return;
	probe->count++;
	if (probe->event_id.data && named &&
	    semel_text_equal(semel_rabbit_text(properties->message_id), probe->event_id))
		probe->found = true;
}

semel_status semel_rabbit_probe_frame(struct semel_rabbit *rabbit, const amqp_frame_t *frame)
{
	struct semel_rabbit_probe *probe = rabbit->probe;
	if (frame->frame_type == AMQP_FRAME_HEADER) {
		if (probe && probe->expects_header)
			record_message(probe, frame->payload.properties.decoded,
				       frame->payload.properties.body_size);
		if (probe)
			probe->expects_header = false;
		return SEMEL_OK;
	}
	if (frame->frame_type != AMQP_FRAME_METHOD)
		return SEMEL_OK;
	const amqp_method_t *method = &frame->payload.method;
	if (method->id == AMQP_BASIC_DELIVER_METHOD && probe) {
		const amqp_basic_deliver_t *deliver = method->decoded;
		probe->tag = deliver->delivery_tag;
		probe->expects_header = true;
	} else if (method->id == AMQP_BASIC_CANCEL_METHOD && probe) {
		probe->cancelled = true;
	} else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
		(void)semel_rabbit_channel_closed(rabbit, SEMEL_RABBIT_PROBE, method->decoded,
						  NULL);
		if (probe)
			probe->cancelled = true;
	}
	return SEMEL_OK;
}

/* ---- one run --------------------------------------------------------------------------------- */

static semel_status begin(struct semel_rabbit *rabbit, const char *queue, int64_t from,
			  semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	amqp_table_entry_t offset = { .key = semel_rabbit_string("x-stream-offset"),
				      .value = semel_rabbit_stream_offset(from) };
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_PROBE, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_qos(rabbit->connection, SEMEL_RABBIT_PROBE, 0, PREFETCH, 0);
	status = semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, SEMEL_RABBIT_PROBE, semel_rabbit_string(queue),
			       SEMEL_RABBIT_NO_BYTES, 0, 0, 0,
			       (amqp_table_t){ .num_entries = 1, .entries = &offset });
	return semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
}

static semel_status await_first(struct semel_rabbit *rabbit, int64_t timeout_ms, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	int64_t until_ms = semel_steady_ms(rabbit->env) + timeout_ms;
	while (probe->first < 0 && !probe->cancelled && semel_steady_ms(rabbit->env) < until_ms) {
		semel_status status = semel_rabbit_pump_all(rabbit, WAIT_MS, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status count_messages(struct semel_rabbit *rabbit, const char *queue,
				   uint64_t *count_out, semel_error *error)
{
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	const amqp_queue_declare_ok_t *ok = rabbit->library->queue_declare(
		rabbit->connection, SEMEL_RABBIT_PROBE, semel_rabbit_string(queue), 1, 0, 0, 0,
		SEMEL_RABBIT_NO_TABLE);
	if (ok)
		*count_out = ok->message_count;
	status = semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
	return status == SEMEL_OK ? semel_rabbit_pump_all(rabbit, 0, error) : status;
}

static semel_status read_on(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	uint64_t acked = 0, count = 0;
	while (probe->tag > acked && probe->count < probe->limit && !probe->found &&
	       !probe->cancelled) {
		acked = probe->tag;
		semel_status status =
			semel_rabbit_write_ack(rabbit, SEMEL_RABBIT_PROBE, acked, true, error);
		if (status != SEMEL_OK)
			return status;
		status = count_messages(rabbit, queue, &count, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status read_stream(struct semel_rabbit *rabbit, const char *queue, int64_t timeout_ms,
				uint64_t *messages_out, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	semel_status status = begin(rabbit, queue, probe->from, error);
	if (status != SEMEL_OK)
		return status;
	status = await_first(rabbit, timeout_ms, error);
	if (status != SEMEL_OK || probe->cancelled)
		return status;
	return probe->first < 0 ? count_messages(rabbit, queue, messages_out, error)
				: read_on(rabbit, queue, error);
}

static semel_status end(struct semel_rabbit *rabbit, semel_error *error)
{
	if (rabbit->lost || !rabbit->open_channels[SEMEL_RABBIT_PROBE])
		return SEMEL_OK;
	rabbit->open_channels[SEMEL_RABBIT_PROBE] = false;
	return semel_rabbit_close_channel(rabbit, SEMEL_RABBIT_PROBE, error);
}

/* messages_out: as the broker counts them. */
static semel_status run_once(struct semel_rabbit *rabbit, const char *queue,
			     struct semel_rabbit_probe *probe, int64_t timeout_ms,
			     uint64_t *messages_out, semel_error *error)
{
	probe->first = probe->last = -1;
	probe->tag = probe->count = 0;
	probe->expects_header = probe->cancelled = false;
	rabbit->probe = probe;
	semel_status status = read_stream(rabbit, queue, timeout_ms, messages_out, error);
	rabbit->probe = NULL;
	semel_status ended = end(rabbit, status == SEMEL_OK ? error : NULL);
	semel_rabbit_signal_ready(rabbit);
	if (status != SEMEL_OK)
		return status;
	if (probe->cancelled)
		return semel_error_set(error, SEMEL_OUTAGE, "queue %s not found on %s", queue,
				       rabbit->address);
	return ended;
}

/* An offset beyond the end of the stream: nothing will arrive. */
static semel_status is_beyond(struct semel_rabbit *rabbit, const char *queue, int64_t offset,
			      bool *beyond_out, semel_error *error)
{
	struct semel_rabbit_probe probe = { .from = SEMEL_RABBIT_LAST, .limit = UINT64_MAX };
	uint64_t messages = 0;
	semel_status status = run_once(rabbit, queue, &probe, LONG_MS, &messages, error);
	*beyond_out = probe.last < offset;
	return status;
}

semel_status semel_rabbit_probe_run(struct semel_rabbit *rabbit, const char *queue,
				    struct semel_rabbit_probe *probe, semel_error *error)
{
	uint64_t messages = 0;
	semel_status status = run_once(rabbit, queue, probe, SHORT_MS, &messages, error);
	if (status != SEMEL_OK || probe->first >= 0 || (probe->may_be_empty && messages == 0))
		return status;
	if (probe->from >= 0) {
		bool beyond = false;
		status = is_beyond(rabbit, queue, probe->from, &beyond, error);
		if (status != SEMEL_OK || beyond)
			return status;
	}
	status = run_once(rabbit, queue, probe, LONG_MS, &messages, error);
	if (status == SEMEL_OK && probe->first < 0)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "%s does not let us read the stream %s (has this node a "
				       "replica of it?)",
				       rabbit->address, queue);
	return status;
}
