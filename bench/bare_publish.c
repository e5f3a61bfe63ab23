/* SPDX-License-Identifier: Apache-2.0 */
/* The limit that the relay is measured against: publishes to RabbitMQ with librabbitmq alone,
 * persistent, mandatory, with confirms and a window, and nothing else.
 *
 *     bare_publish HOST PORT EXCHANGE KEY EVENTS BYTES WINDOW HEADERS
 *
 * EXCHANGE "" is the default one. HEADERS: so many headers of 40 bytes go with each message, as
 * a tool that sends metadata has some. Prints events per second. */
#include <amqp.h>
#include <amqp_tcp_socket.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define CHANNEL     1
#define HEADERS_MAX 32
#define BURST       64 /* publishes between two reads of the confirms */

struct run {
	amqp_connection_state_t connection;
	const char *exchange, *key;
	uint64_t events, window;
	amqp_basic_properties_t properties;
	amqp_bytes_t body;
	uint64_t sent, confirmed; /* confirmed: how many */
	uint8_t *answered;        /* by tag */
	uint64_t low;             /* everything up to here is answered */
};

static void die(const char *what)
{
	fprintf(stderr, "bare_publish: %s failed\n", what);
	exit(1);
}

static void need(amqp_connection_state_t connection, const char *what)
{
	if (amqp_get_rpc_reply(connection).reply_type != AMQP_RESPONSE_NORMAL)
		die(what);
}

static void open_connection(struct run *run, const char *host, int port)
{
	run->connection = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(run->connection);
	if (!socket || amqp_socket_open(socket, host, port) != AMQP_STATUS_OK)
		die("connecting");
	amqp_rpc_reply_t reply = amqp_login(run->connection, "/", 0, 131072, 0,
					    AMQP_SASL_METHOD_PLAIN, "guest", "guest");
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die("logging in");
	amqp_channel_open(run->connection, CHANNEL);
	need(run->connection, "opening a channel");
	amqp_confirm_select(run->connection, CHANNEL);
	need(run->connection, "asking for confirms");
}

static void add_headers(struct run *run, int count)
{
	static amqp_table_entry_t entries[HEADERS_MAX];
	static char names[HEADERS_MAX][16];

	run->properties = (amqp_basic_properties_t){
		._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_CONTENT_TYPE_FLAG,
		.delivery_mode = 2,
		.content_type = amqp_cstring_bytes("application/json"),
	};
	for (int i = 0; i < count; i++) {
		snprintf(names[i], sizeof names[i], "header-number-%d", i % 10);
		entries[i] = (amqp_table_entry_t){
			.key = amqp_cstring_bytes(names[i]),
			.value = { .kind = AMQP_FIELD_KIND_UTF8,
				   .value.bytes = amqp_cstring_bytes("some twenty letters") },
		};
	}
	if (count > 0)
		run->properties._flags |= AMQP_BASIC_HEADERS_FLAG;
	run->properties.headers = (amqp_table_t){ .num_entries = count, .entries = entries };
}

static void answer(struct run *run, uint64_t tag)
{
	if (run->answered[tag])
		return;
	run->answered[tag] = 1;
	run->confirmed++;
}

static void handle_frame(struct run *run, const amqp_frame_t *frame)
{
	if (frame->frame_type != AMQP_FRAME_METHOD)
		return;
	if (frame->payload.method.id != AMQP_BASIC_ACK_METHOD)
		die("a publish (it was returned or refused)");
	const amqp_basic_ack_t *ack = frame->payload.method.decoded;
	if (!ack->multiple)
		answer(run, ack->delivery_tag);
	while (ack->multiple && run->low < ack->delivery_tag)
		answer(run, ++run->low);
}

/* Everything that is there; waits for the first when the window is full. */
static void read_confirms(struct run *run, int wait)
{
	for (;;) {
		struct timeval timeout = { .tv_sec = wait ? 30 : 0 };
		amqp_frame_t frame;
		int code = amqp_simple_wait_frame_noblock(run->connection, &frame, &timeout);
		if (code == AMQP_STATUS_TIMEOUT && !wait)
			return;
		if (code != AMQP_STATUS_OK)
			die("waiting for confirms");
		wait = 0;
		handle_frame(run, &frame);
		amqp_maybe_release_buffers(run->connection);
	}
}

static void publish_all(struct run *run)
{
	while (run->confirmed < run->events) {
		int burst = 0;
		while (run->sent < run->events && run->sent - run->confirmed < run->window &&
		       burst++ < BURST) {
			int code = amqp_basic_publish(
				run->connection, CHANNEL, amqp_cstring_bytes(run->exchange),
				amqp_cstring_bytes(run->key), 1, 0, &run->properties, run->body);
			if (code != AMQP_STATUS_OK)
				die("publishing");
			run->sent++;
		}
		read_confirms(run, run->sent == run->events ||
					   run->sent - run->confirmed >= run->window);
	}
}

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **words)
{
	if (count != 9) {
		fprintf(stderr,
			"bare_publish HOST PORT EXCHANGE KEY EVENTS BYTES WINDOW HEADERS\n");
		return 64;
	}
	struct run run = { .exchange = words[3],
			   .key = words[4],
			   .events = strtoull(words[5], NULL, 10),
			   .window = strtoull(words[7], NULL, 10) };
	size_t bytes = strtoull(words[6], NULL, 10);
	int headers = atoi(words[8]);
	char *body = malloc(bytes);
	run.answered = calloc(run.events + 1, 1);
	if (!body || !run.answered || headers > HEADERS_MAX)
		die("getting memory");
	memset(body, 'x', bytes);
	run.body = (amqp_bytes_t){ .len = bytes, .bytes = body };
	add_headers(&run, headers);
	open_connection(&run, words[1], atoi(words[2]));
	double begin = now_s();
	publish_all(&run);
	printf("%.0f\n", (double)run.events / (now_s() - begin));
	free(run.answered);
	free(body);
	return 0;
}
