/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of spans before a collector that accepts every connection and never answers. */
#include "observe/span.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define QUEUE    2048 /* what waits */
#define BATCH    256  /* what is being sent, at most */
#define FLUSH_MS 60000

/* The system accepts connections for it; no process serves them. */
static int listen_in_silence(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(address);
	char url[64];
	int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(silent >= 0);
	assert_int_equal(bind(silent, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(silent, 16), 0);
	assert_int_equal(getsockname(silent, (struct sockaddr *)&address, &size), 0);
	snprintf(url, sizeof(url), "http://127.0.0.1:%d/v1/traces", ntohs(address.sin_port));
	setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url, 1);
	return silent;
}

static void be_alone(void)
{
	unsetenv("OTEL_SDK_DISABLED");
	unsetenv("OTEL_TRACES_EXPORTER");
	setenv("no_proxy", "*", 1);
}

static void end_spans(unsigned count)
{
	const struct semel_span_context parent = { .trace = { 1 }, .span = { 1 }, .sampled = true };
	struct semel_span span =
		semel_span_make("test", SEMEL_SPAN_INTERNAL, &parent, semel_env_system());
	for (unsigned i = 0; i < count; i++)
		semel_span_end(&span);
}

/* However the thread is scheduled: what neither waits nor is being sent was dropped. */
static void what_a_full_queue_has_no_room_for_is_dropped_and_counted(void **state)
{
	(void)state;
	const unsigned all = BATCH + QUEUE + 1;
	be_alone();
	int silent = listen_in_silence();
	assert_true(semel_spans_are_enabled());
	assert_int_equal(semel_spans_dropped(), 0);
	end_spans(all);
	assert_in_range(semel_spans_dropped(), 1, all);
	close(silent); /* resets connections, and accepts no others */
	semel_spans_flush(FLUSH_MS);
	assert_int_equal(semel_spans_dropped(), all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_full_queue_has_no_room_for_is_dropped_and_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
