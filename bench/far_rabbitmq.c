/* SPDX-License-Identifier: Apache-2.0 */
/* latency.c's far end at RabbitMQ. */
#include "far.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>

#include <sys/time.h>

#define CHANNEL 1

static void need(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die(what);
}

static amqp_connection_state_t open_broker(const struct run *run)
{
	amqp_connection_state_t broker = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(broker);
	if (!socket || amqp_socket_open(socket, run->host, run->port) != AMQP_STATUS_OK)
		die("connecting");
	need(amqp_login(broker, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
	     "logging in");
	amqp_channel_open(broker, CHANNEL);
	need(amqp_get_rpc_reply(broker), "opening a channel");
	return broker;
}

void *far_receive(void *user)
{
	struct run *run = user;
	amqp_connection_state_t broker = open_broker(run);
	amqp_basic_qos(broker, CHANNEL, 0, 1000, 0);
	need(amqp_get_rpc_reply(broker), "setting the prefetch");
	amqp_basic_consume(broker, CHANNEL, amqp_cstring_bytes(run->queue), amqp_empty_bytes, 0, 0,
			   0, amqp_empty_table);
	need(amqp_get_rpc_reply(broker), "consuming");
	atomic_store(&run->listening, true);
	while (atomic_load(&run->arrived) < run->events) {
		struct timeval timeout = { .tv_sec = TIMEOUT_S };
		amqp_envelope_t envelope;
		amqp_maybe_release_buffers(broker);
		need(amqp_consume_message(broker, &envelope, &timeout, 0), "waiting for messages");
		note_arrival(run, envelope.message.body.bytes, envelope.message.body.len);
		amqp_basic_ack(broker, CHANNEL, envelope.delivery_tag, 0);
		amqp_destroy_envelope(&envelope);
	}
	amqp_connection_close(broker, AMQP_REPLY_SUCCESS);
	return NULL;
}

void *far_open(const struct run *run)
{
	return open_broker(run);
}

void far_publish(void *broker, const struct run *run, const char *payload)
{
	amqp_basic_properties_t properties = { ._flags = AMQP_BASIC_DELIVERY_MODE_FLAG,
					       .delivery_mode = 2 };
	if (amqp_basic_publish(broker, CHANNEL, amqp_cstring_bytes(run->exchange),
			       amqp_cstring_bytes(run->key), 1, 0, &properties,
			       amqp_cstring_bytes(payload)) != AMQP_STATUS_OK)
		die("publishing");
}
