/* SPDX-License-Identifier: Apache-2.0 */
/* Which connection has to go when there are too many, and which is overdue. */
#include "admin/connections.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 8, PER_ADDRESS = 6, OLD_MS = 10000, STALL_MS = 20000 };

/* What the library would know of a connection. */
struct client {
	int fd, peer;
	struct sockaddr_storage address;
	void *context;
};

static struct client clients[32];
static size_t client_count;
static _Atomic int64_t clock_ms;
static struct semel_connections *connections;

static int64_t read_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static const union MHD_ConnectionInfo *connection_info(struct MHD_Connection *connection,
						       enum MHD_ConnectionInfoType type, ...)
{
	static union MHD_ConnectionInfo info;
	struct client *client = (struct client *)connection;

	if (type == MHD_CONNECTION_INFO_CONNECTION_FD)
		info.connect_fd = client->fd;
	else if (type == MHD_CONNECTION_INFO_CLIENT_ADDRESS)
		info.client_addr = (struct sockaddr *)&client->address;
	else
		info.socket_context = client->context;
	return &info;
}

static const struct semel_env env = { .now_ms = read_clock, .steady_ms = read_clock };
static const struct semel_microhttpd library = { .get_connection_info = connection_info };

static int start(void **state)
{
	struct semel_connections_options options = {
		.library = &library,
		.env = &env,
		.count_max = PLACES,
		.per_address_max = PER_ADDRESS,
		.waiting_per_address_max = 2,
		.requests_max = 3,
		.response_bytes_max = 1000,
		.request_ms = 30000,
		.idle_ms = 60000,
		.response_ms = 300000,
		.stall_ms = STALL_MS,
	};

	(void)state;
	clock_ms = 1000000;
	client_count = 0;
	if (semel_connections_start(&options, &connections, NULL) != SEMEL_OK)
		return -1;
	semel_connections_stop(connections); /* the test checks by itself */
	return 0;
}

static void leave(struct client *client)
{
	semel_connections_notice(connections, (struct MHD_Connection *)client, &client->context,
				 MHD_CONNECTION_NOTIFY_CLOSED);
	close(client->fd);
	close(client->peer);
}

static int stop(void **state)
{
	(void)state;
	for (size_t i = 0; i < client_count; i++)
		leave(&clients[i]);
	semel_connections_free(connections);
	return 0;
}

static struct client *arrive(struct client *client, const char *address)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&client->address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&client->address;

	memset(&client->address, 0, sizeof client->address);
	if (strchr(address, ':')) {
		six->sin6_family = AF_INET6;
		assert_int_equal(inet_pton(AF_INET6, address, &six->sin6_addr), 1);
	} else {
		four->sin_family = AF_INET;
		assert_int_equal(inet_pton(AF_INET, address, &four->sin_addr), 1);
	}
	semel_connections_notice(connections, (struct MHD_Connection *)client, &client->context,
				 MHD_CONNECTION_NOTIFY_STARTED);
	clock_ms++;
	return client;
}

static struct client *connect_from(const char *address)
{
	struct client *client = &clients[client_count++];
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	client->fd = ends[0];
	client->peer = ends[1];
	return arrive(client, address);
}

static void move(struct client *client, enum semel_connection_state state)
{
	semel_connection_move(connections, (struct MHD_Connection *)client, state, 0);
}

/* It had its first answer. */
static struct client *connect_and_get(const char *address, bool trusted)
{
	struct client *client = connect_from(address);

	move(client, SEMEL_CONNECTION_RECEIVES);
	semel_connection_trust(connections, (struct MHD_Connection *)client, trusted);
	move(client, SEMEL_CONNECTION_SENDS);
	move(client, SEMEL_CONNECTION_IDLE);
	return client;
}

static bool is_cut(const struct client *client)
{
	char byte;
	return recv(client->fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static size_t count_cut(void)
{
	size_t count = 0;

	for (size_t i = 0; i < client_count; i++)
		count += is_cut(&clients[i]);
	return count;
}

static void the_response_stalled_for_longest_is_aborted_first(void **state)
{
	struct client *held[PLACES];

	(void)state;
	for (int i = 0; i < PLACES; i++) {
		held[i] = connect_from(i % 2 ? "192.0.2.1" : "192.0.2.2");
		move(held[i], SEMEL_CONNECTION_RECEIVES);
		move(held[i], SEMEL_CONNECTION_SENDS);
	}
	assert_int_equal(count_cut(), 0);
	clock_ms += OLD_MS;
	struct client *newcomer = connect_from("192.0.2.3");
	assert_true(is_cut(held[0]));
	assert_false(is_cut(newcomer));
	assert_int_equal(count_cut(), 1);
}

static void connections_with_a_token_are_evicted_last(void **state)
{
	(void)state;
	struct client *operator= connect_and_get("192.0.2.1", true);
	for (int i = 0; i < 20; i++)
		connect_and_get(i % 2 ? "192.0.2.1" : "192.0.2.2", false);
	assert_false(is_cut(operator));
	assert_int_equal(count_cut(), 21 - PLACES);
}

static void the_address_with_most_connections_is_evicted_first(void **state)
{
	(void)state;
	struct client *first = connect_and_get("192.0.2.1", false);
	for (int i = 0; i < 20; i++)
		connect_and_get("198.51.100.1", false);
	connect_from("198.51.100.2");
	assert_false(is_cut(first));
}

static void one_address_has_its_quota_and_no_more(void **state)
{
	(void)state;
	struct client *first = connect_and_get("2001:db8::1", false);
	for (int i = 0; i < PER_ADDRESS - 1; i++)
		connect_and_get("2001:db8::ffff:2", false);
	assert_int_equal(count_cut(), 0);
	struct client *newcomer = connect_from("2001:db8::3"); /* the same /64 */
	assert_true(is_cut(first));
	assert_false(is_cut(newcomer));
	connect_from("2001:db8:0:1::1");
	connect_from("::ffff:192.0.2.1");
	assert_int_equal(count_cut(), 1);
}

static void an_ipv4_address_is_one_however_it_is_written(void **state)
{
	char one[SEMEL_CLIENT_ADDRESS_SIZE], other[SEMEL_CLIENT_ADDRESS_SIZE];

	(void)state;
	semel_connection_address(connections, (struct MHD_Connection *)connect_from("192.0.2.1"),
				 one);
	semel_connection_address(connections,
				 (struct MHD_Connection *)connect_from("::ffff:192.0.2.1"), other);
	assert_string_equal(one, "::ffff:192.0.2.1");
	assert_string_equal(one, other);
}

static void running_requests_and_streams_are_never_evicted(void **state)
{
	struct client *held[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		held[i] = connect_from("192.0.2.1");
		move(held[i], i % 2 ? SEMEL_CONNECTION_WAITS : SEMEL_CONNECTION_STREAMS);
	}
	clock_ms += OLD_MS;
	for (int i = 0; i < 20; i++)
		connect_from("192.0.2.1");
	for (int i = 0; i < 4; i++)
		assert_false(is_cut(held[i]));
}

static void a_quarter_is_for_connections_without_a_response(void **state)
{
	(void)state;
	for (int i = 0; i < PLACES - 2; i++)
		connect_and_get(i % 2 ? "192.0.2.1" : "192.0.2.2", true);
	struct client *probe = connect_from("192.0.2.3");
	connect_and_get("192.0.2.4", true);
	connect_and_get("192.0.2.5", true);
	assert_int_equal(count_cut(), 1);
	assert_false(is_cut(probe));
	clock_ms += OLD_MS; /* it has had its time, and has no priority any more */
	connect_from("192.0.2.6");
	assert_true(is_cut(probe));
}

static void a_request_has_its_time_to_arrive(void **state)
{
	(void)state;
	struct client *client = connect_from("192.0.2.1");
	clock_ms += 29000;
	semel_connections_check(connections);
	assert_false(is_cut(client));
	clock_ms += 2000;
	semel_connections_check(connections);
	assert_true(is_cut(client));
}

/* Over TCP: only there the kernel reports how much the peer has received. */
static struct client *connect_over_tcp(void)
{
	struct client *client = &clients[client_count++];
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), little = 4096;

	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(listener, 1), 0);
	getsockname(listener, (struct sockaddr *)&address, &size);
	client->peer = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(client->peer, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
	assert_int_equal(connect(client->peer, (struct sockaddr *)&address, sizeof address), 0);
	client->fd = accept(listener, NULL, NULL);
	close(listener);
	return arrive(client, "127.0.0.1");
}

static int unacknowledged(const struct client *client)
{
	int bytes = 0;

	assert_int_equal(ioctl(client->fd, SIOCOUTQ, &bytes), 0);
	return bytes;
}

/* As much as the kernel holds, until nothing is on its way any more: what arrives late is progress,
 * too. */
static void send_much(const struct client *client)
{
	static const char much[65536];
	int before;

	do {
		while (send(client->fd, much, sizeof much, MSG_DONTWAIT) > 0)
			;
		before = unacknowledged(client);
		poll(NULL, 0, 50);
	} while (unacknowledged(client) != before);
}

static void take_some(const struct client *client)
{
	static char some[65536];
	struct pollfd ready = { .fd = client->peer, .events = POLLIN };

	for (int i = 0; i < 8 && poll(&ready, 1, 1000) == 1; i++)
		assert_true(recv(client->peer, some, sizeof some, 0) > 0);
}

static void a_response_without_progress_is_aborted(void **state)
{
	struct client *stalled = connect_over_tcp(), *slow = connect_over_tcp();

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct client *client = i ? slow : stalled;
		move(client, SEMEL_CONNECTION_RECEIVES);
		move(client, SEMEL_CONNECTION_SENDS);
		send_much(client);
	}
	semel_connections_check(connections);
	for (int i = 0; i < 3; i++) {
		clock_ms += STALL_MS / 2 - 1;
		take_some(slow);
		semel_connections_check(connections);
		assert_int_equal(is_cut(stalled), i == 2);
		assert_false(is_cut(slow));
		send_much(slow);
	}
}

static void responses_in_memory_are_bounded(void **state)
{
	struct client *first = connect_from("192.0.2.1"), *second = connect_from("192.0.2.2");

	(void)state;
	semel_connection_move(connections, (struct MHD_Connection *)first, SEMEL_CONNECTION_SENDS,
			      600);
	clock_ms++;
	semel_connection_move(connections, (struct MHD_Connection *)second, SEMEL_CONNECTION_SENDS,
			      2000); /* more than all, and still the newest */
	assert_true(is_cut(first));
	assert_false(is_cut(second));
	move(second, SEMEL_CONNECTION_IDLE);
	struct client *third = connect_from("192.0.2.3");
	semel_connection_move(connections, (struct MHD_Connection *)third, SEMEL_CONNECTION_SENDS,
			      900);
	assert_int_equal(count_cut(), 1);
}

static void one_address_has_half_of_the_waiting_requests(void **state)
{
	(void)state;
	struct client *client = NULL;
	for (int i = 0; i < 2; i++) {
		client = connect_from("192.0.2.1");
		assert_true(
			semel_connection_can_wait(connections, (struct MHD_Connection *)client));
		move(client, SEMEL_CONNECTION_WAITS);
	}
	struct client *third = connect_from("192.0.2.1"), *other = connect_from("192.0.2.2");
	assert_false(semel_connection_can_wait(connections, (struct MHD_Connection *)third));
	assert_true(semel_connection_can_wait(connections, (struct MHD_Connection *)other));
	move(client, SEMEL_CONNECTION_SENDS);
	assert_true(semel_connection_can_wait(connections, (struct MHD_Connection *)third));
}

static bool is_last(struct client *client)
{
	return semel_connection_is_last_response(connections, (struct MHD_Connection *)client);
}

static void a_connection_ends_after_its_requests_or_when_capacity_is_scarce(void **state)
{
	(void)state;
	struct client *client = connect_and_get("192.0.2.1", true);
	assert_false(is_last(client));
	for (int i = 0; i < 2; i++)
		move(client, SEMEL_CONNECTION_RECEIVES);
	assert_true(is_last(client));
	struct client *untrusted = connect_and_get("192.0.2.2", false);
	assert_false(is_last(untrusted));
	for (int i = 0; i < PLACES - 2; i++)
		connect_from("192.0.2.3");
	assert_true(is_last(untrusted));
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, start, stop)
	const struct CMUnitTest tests[] = {
		ROW(the_response_stalled_for_longest_is_aborted_first),
		ROW(connections_with_a_token_are_evicted_last),
		ROW(the_address_with_most_connections_is_evicted_first),
		ROW(one_address_has_its_quota_and_no_more),
		ROW(an_ipv4_address_is_one_however_it_is_written),
		ROW(running_requests_and_streams_are_never_evicted),
		ROW(a_quarter_is_for_connections_without_a_response),
		ROW(a_request_has_its_time_to_arrive),
		ROW(a_response_without_progress_is_aborted),
		ROW(responses_in_memory_are_bounded),
		ROW(one_address_has_half_of_the_waiting_requests),
		ROW(a_connection_ends_after_its_requests_or_when_capacity_is_scarce),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
