/* SPDX-License-Identifier: Apache-2.0 */
/* Sending without waiting: messages, acks and heartbeats are put into frames in `output`, and the
 * socket (or TLS above it) takes as much of it as it can; many frames go in one call. A broker that
 * reads no more (an alarm) therefore never stops this thread. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define FRAME_HEAD      7
#define FRAME_EXTRA     (FRAME_HEAD + 1) /* with the byte at the frame's end */
#define METHOD_SIZE_MAX 1024
#define UNSENT_BYTES    (1024 * 1024)
#define FIELD_SIZE_MAX  16

/* ---- frames ---------------------------------------------------------------------------------- */

static bool reserve_output(struct semel_rabbit *rabbit, size_t more)
{
	if (rabbit->output.at > 0 && rabbit->output.at == rabbit->output.length)
		rabbit->output.at = rabbit->output.length = 0;
	size_t needed = rabbit->output.length + more;
	if (needed <= rabbit->output.capacity)
		return true;
	size_t capacity = rabbit->output.capacity ? rabbit->output.capacity : 65536;
	while (capacity < needed)
		capacity *= 2;
	char *data = realloc(rabbit->output.data, capacity);
	if (!data)
		return false;
	rabbit->output.data = data;
	rabbit->output.capacity = capacity;
	return true;
}

static void put_number(char *at, uint64_t number, size_t size)
{
	for (size_t i = 0; i < size; i++)
		at[i] = (char)(number >> (8 * (size - 1 - i)));
}

/* Where the payload of the next frame belongs. */
static char *frame_payload(struct semel_rabbit *rabbit)
{
	return rabbit->output.data + rabbit->output.length + FRAME_HEAD;
}

static void close_frame(struct semel_rabbit *rabbit, uint8_t type, uint16_t channel, size_t size)
{
	char *head = rabbit->output.data + rabbit->output.length;
	head[0] = (char)type;
	put_number(head + 1, channel, 2);
	put_number(head + 3, size, 4);
	head[FRAME_HEAD + size] = (char)AMQP_FRAME_END;
	rabbit->output.length += size + FRAME_EXTRA;
}

/* False: the method cannot be encoded. The output must have capacity for it. */
static bool put_method(struct semel_rabbit *rabbit, uint16_t channel, amqp_method_number_t id,
		       void *method)
{
	char *payload = frame_payload(rabbit);
	amqp_bytes_t encoded = { .len = METHOD_SIZE_MAX - FRAME_EXTRA - 4, .bytes = payload + 4 };
	put_number(payload, id, 4);
	int size = rabbit->library->encode_method(id, method, encoded);
	if (size < 0)
		return false;
	close_frame(rabbit, AMQP_FRAME_METHOD, channel, (size_t)size + 4);
	return true;
}

static bool put_header(struct semel_rabbit *rabbit, uint16_t channel,
		       amqp_basic_properties_t *properties, size_t size_max, size_t body_size)
{
	char *payload = frame_payload(rabbit);
	put_number(payload, AMQP_BASIC_CLASS, 2);
	put_number(payload + 2, 0, 2);
	put_number(payload + 4, body_size, 8);
	amqp_bytes_t encoded = { .len = size_max - FRAME_EXTRA - 12, .bytes = payload + 12 };
	int size = rabbit->library->encode_properties(AMQP_BASIC_CLASS, properties, encoded);
	if (size < 0 || (size_t)size + 12 + FRAME_EXTRA > rabbit->frame_max)
		return false;
	close_frame(rabbit, AMQP_FRAME_HEADER, channel, (size_t)size + 12);
	return true;
}

static void put_body(struct semel_rabbit *rabbit, uint16_t channel, struct semel_text body)
{
	size_t most = rabbit->frame_max - FRAME_EXTRA;
	for (size_t at = 0; at < body.length;) {
		size_t size = body.length - at < most ? body.length - at : most;
		memcpy(frame_payload(rabbit), body.data + at, size);
		close_frame(rabbit, AMQP_FRAME_BODY, channel, size);
		at += size;
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

static void set_text(amqp_basic_properties_t *properties, amqp_flags_t flag, amqp_bytes_t *property,
		     struct semel_text text)
{
	if (!text.data || text.length > SEMEL_RABBIT_NAME_MAX)
		return; /* it is in the header */
	*property = semel_rabbit_bytes(text);
	properties->_flags |= flag;
}

static amqp_table_entry_t text_entry(struct semel_text name, struct semel_text value)
{
	return (amqp_table_entry_t){ .key = semel_rabbit_bytes(name),
				     .value = { .kind = AMQP_FIELD_KIND_UTF8,
						.value.bytes = semel_rabbit_bytes(value) } };
}

/* AMQP writes the length of a name into one byte. The library does not check it: a longer one would
 * make the broker close the connection, or read the rest of it as further headers. */
static semel_status check_short(const char *what, struct semel_text name, semel_error *error)
{
	if (name.length <= SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_INVALID, "%s is %zu bytes long: AMQP allows at most %d",
			       what, name.length, SEMEL_RABBIT_NAME_MAX);
}

static semel_status check_names(const struct semel_rabbit_outgoing *outgoing,
				const struct semel_wire_message *message, semel_error *error)
{
	semel_status status = check_short("the topic", outgoing->exchange, error);
	if (status != SEMEL_OK)
		return status;
	status = check_short("the routing key", outgoing->key, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < message->count; i++) {
		status = check_short("the name of a header", message->fields[i].name, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a message");
}

/* The event as properties and headers; size_out is enough for their encoded form. */
static semel_status make_properties(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_outgoing *outgoing,
				    amqp_basic_properties_t *properties, size_t *size_out,
				    semel_error *error)
{
	const struct semel_event *event = outgoing->event;
	struct semel_wire_message message;
	if (!semel_wire_write(event, outgoing->metadata, &semel_wire_amqp, rabbit->scratch,
			      &message))
		return no_memory(error);
	semel_status status = check_names(outgoing, &message, error);
	if (status != SEMEL_OK)
		return status;
	amqp_table_entry_t *entries =
		semel_arena_alloc(rabbit->scratch, (message.count + 2) * sizeof(entries[0]));
	if (!entries)
		return no_memory(error);
	int count = 0;
	*size_out = METHOD_SIZE_MAX * 3;
	for (size_t i = 0; i <= message.count; i++) {
		struct semel_wire_field field =
			i < message.count ? message.fields[i] : semel_wire_routing_key(event);
		if (i == message.count && (!outgoing->keeps_routing_key || !field.value.data))
			break;
		if (outgoing->omits_lane && semel_text_equal(field.name, SEMEL_TEXT("semel-lane")))
			continue;
		entries[count++] = text_entry(field.name, field.value);
		*size_out += field.name.length + field.value.length + FIELD_SIZE_MAX;
	}
	if (outgoing->reason) {
		entries[count++] =
			text_entry(SEMEL_TEXT("semel-reason"), semel_text_of(outgoing->reason));
		*size_out += strlen(outgoing->reason) + FIELD_SIZE_MAX * 2;
	}
	*properties = (amqp_basic_properties_t){
		._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG,
		.delivery_mode = AMQP_DELIVERY_PERSISTENT,
		.headers = { .num_entries = count, .entries = entries },
	};
	set_text(properties, AMQP_BASIC_MESSAGE_ID_FLAG, &properties->message_id, event->id);
	set_text(properties, AMQP_BASIC_TYPE_FLAG, &properties->type, event->type);
	set_text(properties, AMQP_BASIC_APP_ID_FLAG, &properties->app_id, message.producer);
	set_text(properties, AMQP_BASIC_CORRELATION_ID_FLAG, &properties->correlation_id,
		 message.correlation);
	set_text(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, &properties->content_type,
		 event->content_type);
	if (event->time_ms >= 0) {
		properties->timestamp = (uint64_t)event->time_ms / 1000;
		properties->_flags |= AMQP_BASIC_TIMESTAMP_FLAG;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_write_message(struct semel_rabbit *rabbit,
					const struct semel_rabbit_outgoing *outgoing,
					semel_error *error)
{
	struct semel_text body = outgoing->event->payload;
	amqp_basic_properties_t properties;
	size_t header_size_max = 0;
	semel_arena_reset(rabbit->scratch);
	semel_status status =
		make_properties(rabbit, outgoing, &properties, &header_size_max, error);
	if (status != SEMEL_OK)
		return status;

	size_t frames = body.length / (rabbit->frame_max - FRAME_EXTRA) + 1;
	if (!reserve_output(rabbit,
			    METHOD_SIZE_MAX + header_size_max + body.length + frames * FRAME_EXTRA))
		return no_memory(error);
	amqp_basic_publish_t method = { .exchange = semel_rabbit_bytes(outgoing->exchange),
					.routing_key = semel_rabbit_bytes(outgoing->key),
					.mandatory = 1 };
	size_t before = rabbit->output.length;
	if (!put_method(rabbit, outgoing->channel, AMQP_BASIC_PUBLISH_METHOD, &method) ||
	    !put_header(rabbit, outgoing->channel, &properties, header_size_max, body.length)) {
		rabbit->output.length = before;
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "the event's headers do not fit into a frame of %zu bytes",
				       rabbit->frame_max);
	}
	put_body(rabbit, outgoing->channel, body);
	return SEMEL_OK;
}

semel_status semel_rabbit_write_ack(struct semel_rabbit *rabbit, uint16_t channel, uint64_t tag,
				    bool multiple, semel_error *error)
{
	amqp_basic_ack_t ack = { .delivery_tag = tag, .multiple = multiple };
	if (!reserve_output(rabbit, METHOD_SIZE_MAX) ||
	    !put_method(rabbit, channel, AMQP_BASIC_ACK_METHOD, &ack))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an ack");
	return SEMEL_OK;
}

bool semel_rabbit_write_heartbeat(struct semel_rabbit *rabbit)
{
	if (!reserve_output(rabbit, FRAME_EXTRA))
		return false;
	close_frame(rabbit, AMQP_FRAME_HEARTBEAT, 0, 0);
	return true;
}

/* ---- the socket ------------------------------------------------------------------------------ */

size_t semel_rabbit_unsent(const struct semel_rabbit *rabbit)
{
	return rabbit->output.length - rabbit->output.at;
}

bool semel_rabbit_has_capacity(const struct semel_rabbit *rabbit)
{
	return semel_rabbit_unsent(rabbit) < UNSENT_BYTES;
}

/* Bytes that were written; 0: await_socket, then try again; -1: the connection is broken. */
static ssize_t send_some(struct semel_rabbit *rabbit, const char *data, size_t length)
{
	ssize_t sent;
	if (rabbit->tls_session)
		return semel_rabbit_tls_write(rabbit, data, length);
	do
		sent = send(rabbit->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	return sent;
}

/* TLS may have to read before it can write (a new key); the socket is writable meanwhile. */
static void await_socket(const struct semel_rabbit *rabbit, int64_t wait_ms)
{
	bool for_reading = rabbit->tls_session && rabbit->tls_wants_read;
	struct pollfd socket = { .fd = rabbit->fd, .events = for_reading ? POLLIN : POLLOUT };
	(void)poll(&socket, 1, (int)wait_ms);
}

semel_status semel_rabbit_flush(struct semel_rabbit *rabbit, semel_error *error)
{
	if (rabbit->lost)
		return semel_rabbit_error_lost(rabbit, error);
	while (semel_rabbit_unsent(rabbit) > 0) {
		ssize_t sent = send_some(rabbit, rabbit->output.data + rabbit->output.at,
					 semel_rabbit_unsent(rabbit));
		if (sent == 0)
			return SEMEL_OK;
		if (sent < 0)
			return semel_rabbit_set_lost(rabbit, AMQP_STATUS_SOCKET_ERROR, error);
		rabbit->output.at += (size_t)sent;
		rabbit->sent_ms = semel_steady_ms(rabbit->env);
	}
	rabbit->output.at = rabbit->output.length = 0;
	return SEMEL_OK;
}

semel_status semel_rabbit_flush_all(struct semel_rabbit *rabbit, int64_t wait_ms,
				    semel_error *error)
{
	int64_t until_ms = semel_steady_ms(rabbit->env) + wait_ms;
	for (;;) {
		semel_status status = semel_rabbit_flush(rabbit, error);
		if (status != SEMEL_OK || semel_rabbit_unsent(rabbit) == 0)
			return status;
		int64_t remaining_ms = until_ms - semel_steady_ms(rabbit->env);
		if (remaining_ms <= 0)
			return semel_rabbit_set_lost(rabbit, AMQP_STATUS_TIMEOUT, error);
		await_socket(rabbit, remaining_ms);
	}
}
