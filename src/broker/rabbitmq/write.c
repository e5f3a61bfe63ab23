/* SPDX-License-Identifier: Apache-2.0 */
/* Sending without waiting: messages, acks and heartbeats are put into frames in `out`, and the
 * socket takes as much of it as it can; many of them go in one call. A broker that reads no more
 * (an alarm) therefore never stops this thread.
 *
 * With TLS the library alone can write, so there every frame is written at once, by it. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define FRAME_HEAD   7
#define FRAME_EXTRA  (FRAME_HEAD + 1) /* with the byte at its end */
#define METHOD_ROOM  1024
#define UNSENT_BYTES (1024 * 1024)
#define FIELD_ROOM   16

/* ---- frames ---------------------------------------------------------------------------------- */

static bool make_room(struct semel_rabbit *rabbit, size_t room)
{
	if (rabbit->out.at > 0 && rabbit->out.at == rabbit->out.length)
		rabbit->out.at = rabbit->out.length = 0;
	size_t needed = rabbit->out.length + room;
	if (needed <= rabbit->out.capacity)
		return true;
	size_t capacity = rabbit->out.capacity ? rabbit->out.capacity : 65536;
	while (capacity < needed)
		capacity *= 2;
	char *data = realloc(rabbit->out.data, capacity);
	if (!data)
		return false;
	rabbit->out.data = data;
	rabbit->out.capacity = capacity;
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
	return rabbit->out.data + rabbit->out.length + FRAME_HEAD;
}

static void close_frame(struct semel_rabbit *rabbit, uint8_t type, uint16_t channel, size_t size)
{
	char *head = rabbit->out.data + rabbit->out.length;
	head[0] = (char)type;
	put_number(head + 1, channel, 2);
	put_number(head + 3, size, 4);
	head[FRAME_HEAD + size] = (char)AMQP_FRAME_END;
	rabbit->out.length += size + FRAME_EXTRA;
}

/* False: the method cannot be encoded. There must be room. */
static bool put_method(struct semel_rabbit *rabbit, uint16_t channel, amqp_method_number_t id,
		       void *method)
{
	char *payload = frame_payload(rabbit);
	amqp_bytes_t room = { .len = METHOD_ROOM - FRAME_EXTRA - 4, .bytes = payload + 4 };
	put_number(payload, id, 4);
	int size = rabbit->library->encode_method(id, method, room);
	if (size < 0)
		return false;
	close_frame(rabbit, AMQP_FRAME_METHOD, channel, (size_t)size + 4);
	return true;
}

static bool put_header(struct semel_rabbit *rabbit, uint16_t channel,
		       amqp_basic_properties_t *properties, size_t room, size_t body_size)
{
	char *payload = frame_payload(rabbit);
	put_number(payload, AMQP_BASIC_CLASS, 2);
	put_number(payload + 2, 0, 2);
	put_number(payload + 4, body_size, 8);
	amqp_bytes_t encoded = { .len = room - FRAME_EXTRA - 12, .bytes = payload + 12 };
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
		return; /* the header has it */
	*property = semel_rabbit_bytes(text);
	properties->_flags |= flag;
}

static amqp_table_entry_t text_entry(struct semel_text name, struct semel_text value)
{
	return (amqp_table_entry_t){ .key = semel_rabbit_bytes(name),
				     .value = { .kind = AMQP_FIELD_KIND_UTF8,
						.value.bytes = semel_rabbit_bytes(value) } };
}

/* AMQP writes the length of a name into one byte. The library does not look: a longer one would
 * make the broker close the connection, or read the rest of it as further headers. */
static semel_status check_short(const char *what, struct semel_text name, semel_error *error)
{
	if (name.length <= SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_INVALID, "%s is %zu bytes long: AMQP takes at most %d",
			       what, name.length, SEMEL_RABBIT_NAME_MAX);
}

static semel_status check_names(const struct semel_rabbit_post *post,
				const struct semel_wire_message *message, semel_error *error)
{
	semel_status status = check_short("the topic", post->exchange, error);
	if (status == SEMEL_OK)
		status = check_short("the routing key", post->key, error);
	for (size_t i = 0; i < message->count && status == SEMEL_OK; i++)
		status = check_short("the name of a header", message->fields[i].name, error);
	return status;
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "no memory for a message");
}

/* The event as properties and headers; room_out is enough for their encoded form. */
static semel_status make_properties(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_post *post,
				    amqp_basic_properties_t *properties, size_t *room_out,
				    semel_error *error)
{
	const struct semel_event *event = post->event;
	struct semel_wire_message message;
	if (!semel_wire_write(event, post->metadata, &semel_wire_amqp, rabbit->scratch, &message))
		return no_memory(error);
	semel_status status = check_names(post, &message, error);
	if (status != SEMEL_OK)
		return status;
	amqp_table_entry_t *entries =
		semel_arena_alloc(rabbit->scratch, (message.count + 2) * sizeof(entries[0]));
	if (!entries)
		return no_memory(error);
	int count = 0;
	*room_out = METHOD_ROOM * 3;
	for (size_t i = 0; i <= message.count; i++) {
		struct semel_wire_field field =
			i < message.count ? message.fields[i] : semel_wire_routing_key(event);
		if (i == message.count && (!post->keeps_key || !field.value.data))
			break;
		if (post->keeps_no_lane && semel_text_equal(field.name, SEMEL_TEXT("semel-lane")))
			continue;
		entries[count++] = text_entry(field.name, field.value);
		*room_out += field.name.length + field.value.length + FIELD_ROOM;
	}
	if (post->reason) {
		entries[count++] =
			text_entry(SEMEL_TEXT("semel-reason"), semel_text_of(post->reason));
		*room_out += strlen(post->reason) + FIELD_ROOM * 2;
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

static semel_status post_by_library(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_post *post,
				    const amqp_basic_properties_t *properties, semel_error *error)
{
	int code = rabbit->library->basic_publish(rabbit->connection, post->channel,
						  semel_rabbit_bytes(post->exchange),
						  semel_rabbit_bytes(post->key), 1, 0, properties,
						  semel_rabbit_bytes(post->event->payload));
	if (code == AMQP_STATUS_TABLE_TOO_BIG || code == AMQP_STATUS_BAD_AMQP_DATA)
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "the event's headers do not fit into a frame of %zu bytes",
				       rabbit->frame_max);
	return code == AMQP_STATUS_OK ? SEMEL_OK : semel_rabbit_lost(rabbit, code, error);
}

semel_status semel_rabbit_post(struct semel_rabbit *rabbit, const struct semel_rabbit_post *post,
			       semel_error *error)
{
	struct semel_text body = post->event->payload;
	amqp_basic_properties_t properties;
	size_t header_room = 0;
	semel_arena_reset(rabbit->scratch);
	semel_status status = make_properties(rabbit, post, &properties, &header_room, error);
	if (status != SEMEL_OK)
		return status;
	if (rabbit->settings.tls)
		return post_by_library(rabbit, post, &properties, error);

	size_t frames = body.length / (rabbit->frame_max - FRAME_EXTRA) + 1;
	if (!make_room(rabbit, METHOD_ROOM + header_room + body.length + frames * FRAME_EXTRA))
		return no_memory(error);
	amqp_basic_publish_t method = { .exchange = semel_rabbit_bytes(post->exchange),
					.routing_key = semel_rabbit_bytes(post->key),
					.mandatory = 1 };
	size_t before = rabbit->out.length;
	if (!put_method(rabbit, post->channel, AMQP_BASIC_PUBLISH_METHOD, &method) ||
	    !put_header(rabbit, post->channel, &properties, header_room, body.length)) {
		rabbit->out.length = before;
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "the event's headers do not fit into a frame of %zu bytes",
				       rabbit->frame_max);
	}
	put_body(rabbit, post->channel, body);
	return SEMEL_OK;
}

semel_status semel_rabbit_send_ack(struct semel_rabbit *rabbit, uint16_t channel, uint64_t tag,
				   bool multiple, semel_error *error)
{
	amqp_basic_ack_t ack = { .delivery_tag = tag, .multiple = multiple };
	if (rabbit->settings.tls) {
		int code = rabbit->library->basic_ack(rabbit->connection, channel, tag, multiple);
		return code == AMQP_STATUS_OK ? SEMEL_OK : semel_rabbit_lost(rabbit, code, error);
	}
	if (!make_room(rabbit, METHOD_ROOM) ||
	    !put_method(rabbit, channel, AMQP_BASIC_ACK_METHOD, &ack))
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for an ack");
	return SEMEL_OK;
}

/* ---- the socket ------------------------------------------------------------------------------ */

size_t semel_rabbit_unsent(const struct semel_rabbit *rabbit)
{
	return rabbit->out.length - rabbit->out.at;
}

/* The library would wait for a socket that is full, and meanwhile nothing could be heard. */
bool semel_rabbit_has_room(const struct semel_rabbit *rabbit)
{
	struct pollfd writable = { .fd = rabbit->fd, .events = POLLOUT };
	if (!rabbit->settings.tls)
		return semel_rabbit_unsent(rabbit) < UNSENT_BYTES;
	return poll(&writable, 1, 0) > 0;
}

semel_status semel_rabbit_flush(struct semel_rabbit *rabbit, semel_error *error)
{
	while (semel_rabbit_unsent(rabbit) > 0) {
		ssize_t sent = send(rabbit->fd, rabbit->out.data + rabbit->out.at,
				    semel_rabbit_unsent(rabbit), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return SEMEL_OK;
		if (sent < 0)
			return semel_rabbit_lost(rabbit, AMQP_STATUS_SOCKET_ERROR, error);
		rabbit->out.at += (size_t)sent;
		rabbit->sent_ms = semel_steady_ms(rabbit->env);
	}
	rabbit->out.at = rabbit->out.length = 0;
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
		int64_t left_ms = until_ms - semel_steady_ms(rabbit->env);
		if (left_ms <= 0)
			return semel_rabbit_lost(rabbit, AMQP_STATUS_TIMEOUT, error);
		struct pollfd writable = { .fd = rabbit->fd, .events = POLLOUT };
		(void)poll(&writable, 1, (int)left_ms);
	}
}

/* With TLS the library's own count of them is left alone: one too many does no harm. A socket that
 * is full (an alarm) would make it wait, and needs no sign of life. */
static semel_status beat_by_library(struct semel_rabbit *rabbit, semel_error *error)
{
	const amqp_frame_t frame = { .frame_type = AMQP_FRAME_HEARTBEAT };
	if (!semel_rabbit_has_room(rabbit))
		return SEMEL_OK;
	int code = rabbit->library->send_frame(rabbit->connection, &frame);
	return code == AMQP_STATUS_OK ? SEMEL_OK : semel_rabbit_lost(rabbit, code, error);
}

/* Half the agreed time, so that one may be late. */
semel_status semel_rabbit_send_beat(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (now_ms - rabbit->sent_ms < rabbit->heartbeat_ms / 2)
		return SEMEL_OK;
	rabbit->sent_ms = now_ms;
	if (rabbit->settings.tls)
		return beat_by_library(rabbit, error);
	if (!make_room(rabbit, FRAME_EXTRA))
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a heartbeat");
	close_frame(rabbit, AMQP_FRAME_HEARTBEAT, 0, 0);
	return semel_rabbit_flush(rabbit, error);
}

semel_status semel_rabbit_beat(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t silent_ms = semel_steady_ms(rabbit->env) - rabbit->heard_ms;
	if (rabbit->settings.tls || rabbit->heartbeat_ms == 0)
		return SEMEL_OK;
	if (silent_ms > rabbit->heartbeat_ms * 2)
		return semel_rabbit_lost(rabbit, AMQP_STATUS_HEARTBEAT_TIMEOUT, error);
	return semel_rabbit_send_beat(rabbit, error);
}
