/* SPDX-License-Identifier: Apache-2.0 */
/* stdout is borrowed for the time of a run: a pipe stands in its place. */
#include "consume/workers.h"
#include "unit/consume/outside_support.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int real_stdout;

static int borrow_stdout(void)
{
	int ends[2];
	fflush(stdout);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	real_stdout = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	assert_true(dup2(ends[1], STDOUT_FILENO) >= 0);
	close(ends[1]);
	return ends[0];
}

static void give_stdout_back(void)
{
	fflush(stdout);
	dup2(real_stdout, STDOUT_FILENO);
	close(real_stdout);
}

static void an_event_is_one_line(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	event.payload = SEMEL_TEXT("{\n \"total\" : 5\n}");
	int reader = borrow_stdout();
	struct semel_outcome outcome = run_once(&semel_outside_print, NULL, &event);
	give_stdout_back();
	char line[4096];
	ssize_t length = read(reader, line, sizeof line);
	close(reader);
	assert_int_equal(outcome.status, SEMEL_OK);
	assert_true(length > 1);
	assert_ptr_equal(memchr(line, '\n', (size_t)length), line + length - 1);
	json_t *envelope = json_loadb(line, (size_t)length, 0, NULL);
	assert_non_null(envelope);
	assert_string_equal(json_string_value(json_object_get(envelope, "id")), EVENT_ID);
	json_decref(envelope);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

static void a_closed_stdout_is_an_outage_and_no_signal(void **state)
{
	(void)state;
	struct sigaction before, action = { .sa_handler = count_signal };
	sigaction(SIGPIPE, &action, &before);
	struct semel_event event = sample_event();
	close(borrow_stdout());
	struct semel_outcome outcome = run_once(&semel_outside_print, NULL, &event);
	give_stdout_back();
	assert_int_equal(outcome.status, SEMEL_OUTAGE);
	assert_says(&outcome, "cannot write to stdout: Broken pipe");
	assert_int_equal(signals, 0);
	sigaction(SIGPIPE, &before, NULL);
}

enum { WORKERS = 4, CALLS = 40, PAYLOAD = 20000 };

/* Reads slowly and all: lines longer than a pipe's atomic size would mix if they could. */
static void *read_all(void *fd)
{
	struct semel_buffer *text = calloc(1, sizeof *text);
	char chunk[997];
	ssize_t got;
	while ((got = read(*(int *)fd, chunk, sizeof chunk)) > 0)
		semel_buffer_append(text, chunk, (size_t)got);
	return text;
}

static uint32_t take_all(struct semel_worker_pool *pool)
{
	struct pollfd wait = { .fd = semel_worker_pool_fd(pool), .events = POLLIN };
	uint32_t taken = 0;
	poll(&wait, 1, -1);
	while (semel_workers_take(pool) != NULL)
		taken++;
	return taken;
}

static void print_by_a_pool(struct semel_call calls[CALLS])
{
	const struct semel_outside_options options = { .timeout_ms = 20000, .scope = "billing" };
	struct semel_worker_pool *pool = NULL;
	uint32_t taken = 0;
	assert_int_equal(semel_workers_start(&semel_outside_print, &options, WORKERS, &pool, NULL),
			 SEMEL_OK);
	for (int i = 0; i < CALLS; i++)
		while (!semel_workers_submit(pool, &calls[i]))
			taken += take_all(pool);
	while (taken < CALLS)
		taken += take_all(pool);
	semel_worker_pool_free(pool);
}

static void lines_of_several_workers_do_not_mix(void **state)
{
	(void)state;
	char *payload = malloc(PAYLOAD + 1);
	memset(payload, 'x', PAYLOAD);
	payload[0] = payload[PAYLOAD - 1] = '"';
	payload[PAYLOAD] = '\0';
	struct semel_event events[CALLS];
	struct semel_call *calls = calloc(CALLS, sizeof *calls);
	char ids[CALLS][16];
	for (int i = 0; i < CALLS; i++) {
		events[i] = sample_event();
		events[i].payload = semel_text_from(payload, PAYLOAD);
		snprintf(ids[i], sizeof ids[i], "ord-%d", i);
		events[i].aggregate_id = semel_text_of(ids[i]);
		calls[i].event = &events[i];
	}
	int reader = borrow_stdout();
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, read_all, &reader), 0);
	print_by_a_pool(calls);
	give_stdout_back();
	void *result;
	pthread_join(thread, &result);
	struct semel_buffer *text = result;
	int lines = 0;
	for (char *line = strtok(text->data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		json_t *envelope = json_loads(line, 0, NULL);
		assert_non_null(envelope);
		json_decref(envelope);
		lines++;
	}
	assert_int_equal(lines, CALLS);
	close(reader);
	semel_buffer_free(text);
	free(text);
	free(calls);
	free(payload);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_event_is_one_line),
		cmocka_unit_test(a_closed_stdout_is_an_outage_and_no_signal),
		cmocka_unit_test(lines_of_several_workers_do_not_mix),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
