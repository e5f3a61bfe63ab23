/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a connection whose TLS session is played: what a write that cannot go on waits for. */
#include "broker/rabbitmq/rabbitmq.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { WANT_READ = 2, WANT_WRITE = 3, WAIT_MS = 50 };

static struct {
	int answers[4]; /* what the first writes want; 0: they write */
	unsigned calls;
} session;

static int write_played(void *given, const void *data, int length)
{
	(void)data;
	assert_ptr_equal(given, &session);
	unsigned call = session.calls++;
	return call < 4 && session.answers[call] == 0 ? length : -1;
}

static int error_played(const void *given, int result)
{
	(void)given;
	(void)result;
	return session.answers[session.calls <= 4 ? session.calls - 1 : 3];
}

static void clear_nothing(void)
{
}

static const char *name_error(int code)
{
	return code == AMQP_STATUS_TIMEOUT ? "timed out" : "broken";
}

static const struct semel_rabbit_library library = { .tls_write = write_played,
						     .tls_error = error_played,
						     .tls_clear_errors = clear_nothing,
						     .error_string2 = name_error };

/* Writes four bytes with these answers, while the peer has sent something, or nothing. */
static semel_status flush(const int answers[4], bool peer_sent, semel_error *error)
{
	int ends[2];
	char bytes[] = "data";
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	struct semel_rabbit rabbit = { .library = &library,
				       .env = semel_env_system(),
				       .fd = ends[0],
				       .tls_session = &session };
	rabbit.output.data = bytes;
	rabbit.output.length = rabbit.output.capacity = 4;
	memcpy(session.answers, answers, sizeof(session.answers));
	session.calls = 0;
	if (peer_sent)
		assert_int_equal(write(ends[1], "x", 1), 1);
	semel_status status = semel_rabbit_flush_all(&rabbit, WAIT_MS, error);
	close(ends[0]);
	close(ends[1]);
	return status;
}

static void a_full_socket_is_waited_for(void **state)
{
	semel_error error = { 0 };
	(void)state;
	assert_int_equal(flush((const int[4]){ WANT_WRITE, 0 }, false, &error), SEMEL_OK);
	assert_int_equal(session.calls, 2);
}

static void a_session_that_wants_to_read_waits_for_the_peer_and_does_not_spin(void **state)
{
	semel_error error = { 0 };
	const int reads[4] = { WANT_READ, WANT_READ, WANT_READ, WANT_READ };
	(void)state;
	assert_int_equal(flush((const int[4]){ WANT_READ, 0 }, true, &error), SEMEL_OK);
	assert_int_equal(session.calls, 2);
	assert_int_equal(flush(reads, false, &error), SEMEL_OUTAGE);
	assert_in_range(session.calls, 1, 3); /* the socket is writable all the time */
	assert_non_null(strstr(error.text, "timed out"));
}

static void a_write_after_that_waits_for_the_socket_again(void **state)
{
	semel_error error = { 0 };
	(void)state;
	assert_int_equal(flush((const int[4]){ WANT_READ, WANT_WRITE, 0 }, true, &error), SEMEL_OK);
	assert_int_equal(session.calls, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_socket_is_waited_for),
		cmocka_unit_test(a_session_that_wants_to_read_waits_for_the_peer_and_does_not_spin),
		cmocka_unit_test(a_write_after_that_waits_for_the_socket_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
