/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/consume/outside_support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER(verdict) "printf '{\"id\":\"" EVENT_ID "\",\"verdict\":\"" verdict "\"%s}\\n' "

static struct semel_outcome run_program(const char *command)
{
	struct semel_event event = sample_event();
	return run_once(&semel_outside_pipe, command, &event);
}

static void verdicts_are_taken_with_their_reasons(void **state)
{
	(void)state;
	struct semel_outcome outcome = run_program("while read x; do " ANSWER("done") "; done");
	assert_int_equal(outcome.status, SEMEL_OK);
	outcome = run_program("while read x; do " ANSWER("retry") "',\"reason\":\"busy\"'; done");
	assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
	assert_string_equal(outcome.reason, "busy");
	outcome = run_program("while read x; do " ANSWER("reject") "',\"reason\":null'; done");
	assert_int_equal(outcome.status, SEMEL_HANDLER_REJECT);
	assert_says(&outcome, "no reason");
}

static void the_envelope_is_one_line_with_the_attempt(void **state)
{
	(void)state;
	char path[] = "/tmp/semel-pipe-XXXXXX", command[512];
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	snprintf(command, sizeof command,
		 "while read -r x; do printf '%%s\\n' \"$x\" >> %s; %s; done", path,
		 "printf '{\"id\":\"" EVENT_ID "\",\"verdict\":\"done\"}\\n'");
	struct semel_event event = sample_event();
	event.payload = SEMEL_TEXT("{\n\"total\": 5\n}");
	struct semel_outcome outcome = run_once(&semel_outside_pipe, command, &event);
	assert_int_equal(outcome.status, SEMEL_OK);
	json_t *envelope = json_load_file(path, 0, NULL);
	assert_non_null(envelope);
	assert_string_equal(json_string_value(json_object_get(envelope, "id")), EVENT_ID);
	assert_int_equal(json_integer_value(json_object_get(envelope, "attempt")), 2);
	json_t *total = json_object_get(json_object_get(envelope, "payload"), "total");
	assert_int_equal(json_integer_value(total), 5);
	json_decref(envelope);
	close(fd);
	unlink(path);
}

/* Counts its starts in the reason: the shell's own process id. */
#define TELL_PID "while read x; do " ANSWER("retry") "\",\\\"reason\\\":\\\"$$\\\"\"; done"

static void one_program_serves_many_events(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_outcome first, later;
	struct semel_outside *outside = open_handler(&semel_outside_pipe, TELL_PID, 20000);
	semel_outside_pipe.run(outside, &event, 1, &first);
	for (uint32_t i = 2; i < 20; i++) {
		semel_outside_pipe.run(outside, &event, i, &later);
		assert_string_equal(first.reason, later.reason);
	}
	semel_outside_pipe.close(outside);
}

static void a_program_that_ends_over_an_event_costs_an_attempt_and_is_started_again(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_outcome outcome;
	struct semel_outside *outside =
		open_handler(&semel_outside_pipe, "read x; echo boom $$ >&2; exit 65", 20000);
	semel_outside_pipe.run(outside, &event, 1, &outcome);
	assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
	assert_says(&outcome, "boom");
	struct semel_outcome again;
	semel_outside_pipe.run(outside, &event, 2, &again);
	assert_int_equal(again.status, SEMEL_HANDLER_RETRY);
	assert_says(&again, "boom");
	assert_string_not_equal(outcome.reason, again.reason);
	semel_outside_pipe.close(outside);
}

static bool has_ended(const char *pid)
{
	char path[64], word[16] = "X";
	snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return true;
	if (fscanf(file, "%*s %*s %1s", word) != 1)
		word[0] = 'X';
	fclose(file);
	return word[0] == 'Z' || word[0] == 'X';
}

static void a_program_that_ended_between_events_costs_nothing(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_outcome outcome;
	struct semel_outside *outside =
		open_handler(&semel_outside_pipe,
			     "read x; " ANSWER("done") "\",\\\"reason\\\":\\\"$$\\\"\"", 20000);
	for (uint32_t i = 1; i < 4; i++) {
		semel_outside_pipe.run(outside, &event, i, &outcome);
		assert_int_equal(outcome.status, SEMEL_OK);
		while (!has_ended(outcome.reason))
			usleep(1000);
	}
	semel_outside_pipe.close(outside);
}

static void a_bad_answer_is_a_retry_with_another_program(void **state)
{
	(void)state;
	static const struct {
		const char *command, *says;
	} cases[] = {
		{ "while read x; do echo $$ nonsense; done", "no line of JSON" },
		{ "while read x; do echo '{\"verdict\":\"done\"}'; done", "instead of this event" },
		{ "while read x; do echo '{\"id\":\"1\",\"verdict\":\"done\"}'; done", "\"1\"" },
		{ "while read x; do " ANSWER("perhaps") "; done", "no verdict" },
		{ "while read x; do echo '[]'; done", "instead of this event" },
		{ "while :; do printf xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "longer" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct semel_outcome outcome = run_program(cases[i].command);
		assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
		assert_says(&outcome, cases[i].says);
	}
	struct semel_event event = sample_event();
	struct semel_outcome first, second;
	struct semel_outside *outside = open_handler(&semel_outside_pipe, cases[0].command, 20000);
	semel_outside_pipe.run(outside, &event, 1, &first);
	semel_outside_pipe.run(outside, &event, 2, &second);
	assert_string_not_equal(first.reason, second.reason);
	semel_outside_pipe.close(outside);
}

static void an_answer_that_comes_too_late_does_not_reach_the_next_event(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_outcome outcome;
	struct semel_outside *outside = open_handler(
		&semel_outside_pipe,
		"while read -r x; do case $x in *order.slow*) sleep 1000;; esac; " ANSWER(
			"done") "; done",
		5000);
	event.type = SEMEL_TEXT("order.slow");
	semel_outside_pipe.run(outside, &event, 1, &outcome);
	assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
	assert_true(outcome.timed_out);
	event.type = SEMEL_TEXT("order.created.v1");
	semel_outside_pipe.run(outside, &event, 1, &outcome);
	assert_int_equal(outcome.status, SEMEL_OK);
	semel_outside_pipe.close(outside);
}

static void a_large_event_passes_while_the_program_talks(void **state)
{
	(void)state;
	size_t size = 300000;
	char *payload = malloc(size + 1);
	memset(payload, 'x', size);
	payload[0] = payload[size - 1] = '"';
	payload[size] = '\0';
	struct semel_event event = sample_event();
	event.payload = semel_text_from(payload, size);
	struct semel_outcome outcome =
		run_once(&semel_outside_pipe,
			 "seq 99999 >&2; read -r x; seq 99999 >&2;"
			 "[ ${#x} -gt 300000 ] && " ANSWER("done") "; cat > /dev/null",
			 &event);
	if (outcome.status != SEMEL_OK)
		fail_msg("%s", outcome.reason);
	free(payload);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verdicts_are_taken_with_their_reasons),
		cmocka_unit_test(the_envelope_is_one_line_with_the_attempt),
		cmocka_unit_test(one_program_serves_many_events),
		cmocka_unit_test(
			a_program_that_ends_over_an_event_costs_an_attempt_and_is_started_again),
		cmocka_unit_test(a_program_that_ended_between_events_costs_nothing),
		cmocka_unit_test(a_bad_answer_is_a_retry_with_another_program),
		cmocka_unit_test(an_answer_that_comes_too_late_does_not_reach_the_next_event),
		cmocka_unit_test(a_large_event_passes_while_the_program_talks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
