/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/consume/outside_support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER(verdict) "printf '{\"id\":\"" EVENT_ID "\",\"verdict\":\"" verdict "\"%s}\\n' "

/* ---- exec ------------------------------------------------------------------------------------ */

static struct semel_outcome run_command(const char *command)
{
	struct semel_event event = sample_event();
	return run_once(&semel_outside_exec, command, &event);
}

static void exit_0_is_done(void **state)
{
	(void)state;
	struct semel_outcome outcome = run_command("echo all is well >&2; exit 0");
	assert_int_equal(outcome.status, SEMEL_OK);
	assert_string_equal(outcome.reason, "");
}

static void exit_65_is_a_rejection_with_the_complaint_as_its_reason(void **state)
{
	(void)state;
	struct semel_outcome outcome = run_command("echo no such customer >&2; exit 65");
	assert_int_equal(outcome.status, SEMEL_HANDLER_REJECT);
	assert_string_equal(outcome.reason, "no such customer");
}

static void any_other_exit_is_a_retry(void **state)
{
	(void)state;
	static const char *const commands[] = { "exit 1",   "exit 75",      "exit 127",
						"exit 255", "kill -9 $$",   "kill -TERM $$",
						"false",    "/no/program/x" };
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		struct semel_outcome outcome = run_command(commands[i]);
		assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
		assert_false(outcome.timed_out);
		assert_true(strlen(outcome.reason) > 0);
	}
}

static void a_silent_failure_is_described(void **state)
{
	(void)state;
	struct semel_outcome outcome = run_command("exit 3");
	assert_says(&outcome, "exited with status 3");
}

static void the_event_is_passed_by_stdin_and_environment(void **state)
{
	(void)state;
	setenv("SEMEL_EVENT_ID", "another event's", 1);
	struct semel_outcome outcome = run_command(
		"[ \"$(cat)\" = '{\"total\":5}' ] && [ $SEMEL_EVENT_ID = " EVENT_ID " ] &&"
		"[ $SEMEL_EVENT_TYPE = order.created.v1 ] && [ $SEMEL_AGGREGATE_TYPE = order ] &&"
		"[ $SEMEL_AGGREGATE_ID = ord-1 ] && [ $SEMEL_TOPIC = order.events ] &&"
		"[ $SEMEL_ATTEMPT = 2 ] && [ $SEMEL_SCOPE = billing ] &&"
		"[ $SEMEL_EVENT_TIME = 2026-01-01T00:00:00.123Z ] &&"
		"[ \"$SEMEL_HEADERS\" = '{\"correlationId\":\"c-1\",\"producer\":\"/shop\"}' ] &&"
		"[ $(env | grep -c ^SEMEL_EVENT_ID=) = 1 ] && [ -n \"$PATH\" ] || { env >&2; exit "
		"1; }");
	unsetenv("SEMEL_EVENT_ID");
	if (outcome.status != SEMEL_OK)
		fail_msg("%s", outcome.reason);
}

static const char *const withheld[] = {
	"SEMEL_STORE",  "SEMEL_STORE_FILE",       "SEMEL_BROKER",    "SEMEL_KAFKA_PASSWORD_FILE",
	"SEMEL_CONFIG", "SEMEL_ADMIN_TOKEN_FILE", "SEMEL_FAILPOINT", "OTEL_EXPORTER_OTLP_HEADERS",
	"PGPASSWORD",   "NOTIFY_SOCKET",          "WATCHDOG_USEC",   "WATCHDOG_PID",
	"LISTEN_FDS",   "CREDENTIALS_DIRECTORY",
};

static void what_is_the_operators_for_semel_is_withheld_from_programs(void **state)
{
	(void)state;
	const char *const passed[] = { "SEMEL_STORE", "MISSING", NULL };
	for (size_t i = 0; i < sizeof withheld / sizeof *withheld; i++)
		setenv(withheld[i], "sesame", 1);
	setenv("SHOP_KEY", "mine", 1);
	struct semel_outcome outcome =
		run_command("[ $SHOP_KEY = mine ] && env | grep sesame >&2; exit 1");
	assert_string_equal(outcome.reason, "the program exited with status 1 and wrote nothing to "
					    "stderr");
	const struct semel_outside_options options = { .target = "env | grep sesame >&2; exit 1",
						       .timeout_ms = 20000,
						       .passed = passed };
	struct semel_outside *outside = NULL;
	semel_error error = { 0 };
	struct semel_event event = sample_event();
	assert_int_equal(semel_outside_exec.open(&options, &outside, &error), SEMEL_OK);
	semel_outside_exec.run(outside, &event, 1, &outcome);
	semel_outside_exec.close(outside);
	assert_string_equal(outcome.reason, "SEMEL_STORE=sesame");
	for (size_t i = 0; i < sizeof withheld / sizeof *withheld; i++)
		unsetenv(withheld[i]);
	unsetenv("SHOP_KEY");
}

/* Headers are one variable, whatever their names are. */
static void headers_of_an_event_are_no_variables(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	event.headers =
		SEMEL_TEXT("{\"PATH\":\"evil\",\"LD_PRELOAD\":\"evil\",\"x\":\"a\\nPATH=evil\","
			   "\"SEMEL_EVENT_ID\":\"evil\"}");
	struct semel_outcome outcome = run_once(
		&semel_outside_exec,
		"tr '\\0' '\\n' < /proc/self/environ | grep -v ^SEMEL_HEADERS= | grep evil >&2; "
		"exit 1",
		&event);
	assert_says(&outcome, "wrote nothing");
}

static void a_second_event_replaces_the_first(void **state)
{
	(void)state;
	struct semel_outcome outcome;
	struct semel_event event = sample_event();
	struct semel_outside *outside = open_handler(
		&semel_outside_exec, "echo $SEMEL_AGGREGATE_ID $SEMEL_ATTEMPT >&2; exit 1", 20000);
	semel_outside_exec.run(outside, &event, 1, &outcome);
	assert_string_equal(outcome.reason, "ord-1 1");
	event.aggregate_id = SEMEL_TEXT("ord-2");
	semel_outside_exec.run(outside, &event, 7, &outcome);
	assert_string_equal(outcome.reason, "ord-2 7");
	semel_outside_exec.close(outside);
}

static void a_value_with_a_zero_byte_is_rejected_and_not_cut(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	event.aggregate_id = SEMEL_TEXT("ord\0-1");
	struct semel_outcome outcome = run_once(&semel_outside_exec, "exit 0", &event);
	assert_int_equal(outcome.status, SEMEL_HANDLER_REJECT);
	assert_says(&outcome, "SEMEL_AGGREGATE_ID");
}

static void headers_that_no_environment_holds_are_rejected(void **state)
{
	(void)state;
	size_t size = 1 << 20;
	char *headers = malloc(size);
	memset(headers, ' ', size);
	headers[0] = '{';
	headers[size - 2] = '}';
	headers[size - 1] = '\0';
	struct semel_event event = sample_event();
	event.headers = semel_text_from(headers, size - 1);
	struct semel_outcome outcome = run_once(&semel_outside_exec, "exit 0", &event);
	assert_int_equal(outcome.status, SEMEL_HANDLER_REJECT);
	free(headers);
}

static void a_program_that_takes_too_long_is_ended_and_retried(void **state)
{
	(void)state;
	struct semel_outcome outcome;
	struct semel_event event = sample_event();
	struct semel_outside *outside =
		open_handler(&semel_outside_exec, "echo nearly there >&2; exec sleep 1000", 3000);
	semel_outside_exec.run(outside, &event, 1, &outcome);
	semel_outside_exec.close(outside);
	assert_int_equal(outcome.status, SEMEL_HANDLER_RETRY);
	assert_true(outcome.timed_out);
	assert_says(&outcome, "3s");
	assert_says(&outcome, "nearly there");
}

static void *interrupt(void *outside)
{
	semel_outside_exec.interrupt(outside);
	return NULL;
}

static void an_interrupted_run_is_an_outage(void **state)
{
	(void)state;
	struct semel_outcome outcome;
	struct semel_event event = sample_event();
	struct semel_outside *outside = open_handler(&semel_outside_exec, "exec sleep 1000", 0);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, interrupt, outside), 0);
	semel_outside_exec.run(outside, &event, 1, &outcome);
	pthread_join(thread, NULL);
	semel_outside_exec.close(outside);
	assert_int_equal(outcome.status, SEMEL_OUTAGE);
	assert_true(outcome.interrupted);
}

static void a_blank_command_is_refused(void **state)
{
	(void)state;
	assert_refuses(&semel_outside_exec, NULL, "no command");
	assert_refuses(&semel_outside_exec, " ", "no command");
}

/* ---- pipe ------------------------------------------------------------------------------------ */

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
#define REPLY_PID "while read x; do " ANSWER("retry") "\",\\\"reason\\\":\\\"$$\\\"\"; done"

static void one_program_serves_many_events(void **state)
{
	(void)state;
	struct semel_event event = sample_event();
	struct semel_outcome first, later;
	struct semel_outside *outside = open_handler(&semel_outside_pipe, REPLY_PID, 20000);
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
		{ "while read x; do echo $$ nonsense; done", "not a line of JSON" },
		{ "while read x; do echo '{\"verdict\":\"done\"}'; done", "has no id" },
		{ "while read x; do echo '{\"id\":\"1\",\"verdict\":\"done\"}'; done",
		  "has the id \"1\"" },
		{ "while read x; do " ANSWER("perhaps") "; done", "no verdict" },
		{ "while read x; do echo '[]'; done", "has no id" },
		{ "while :; do printf xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "too long" },
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

static void a_large_event_passes_while_the_program_writes(void **state)
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
		cmocka_unit_test(exit_0_is_done),
		cmocka_unit_test(exit_65_is_a_rejection_with_the_complaint_as_its_reason),
		cmocka_unit_test(any_other_exit_is_a_retry),
		cmocka_unit_test(a_silent_failure_is_described),
		cmocka_unit_test(the_event_is_passed_by_stdin_and_environment),
		cmocka_unit_test(what_is_the_operators_for_semel_is_withheld_from_programs),
		cmocka_unit_test(headers_of_an_event_are_no_variables),
		cmocka_unit_test(a_second_event_replaces_the_first),
		cmocka_unit_test(a_value_with_a_zero_byte_is_rejected_and_not_cut),
		cmocka_unit_test(headers_that_no_environment_holds_are_rejected),
		cmocka_unit_test(a_program_that_takes_too_long_is_ended_and_retried),
		cmocka_unit_test(an_interrupted_run_is_an_outage),
		cmocka_unit_test(a_blank_command_is_refused),
		cmocka_unit_test(verdicts_are_taken_with_their_reasons),
		cmocka_unit_test(the_envelope_is_one_line_with_the_attempt),
		cmocka_unit_test(one_program_serves_many_events),
		cmocka_unit_test(
			a_program_that_ends_over_an_event_costs_an_attempt_and_is_started_again),
		cmocka_unit_test(a_program_that_ended_between_events_costs_nothing),
		cmocka_unit_test(a_bad_answer_is_a_retry_with_another_program),
		cmocka_unit_test(an_answer_that_comes_too_late_does_not_reach_the_next_event),
		cmocka_unit_test(a_large_event_passes_while_the_program_writes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
