/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines, read back from a pipe that stands in for stderr. */
#include "observe/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ends[2], real_stderr;
static char written[2 * PIPE_BUF];

static void catch_stderr(void)
{
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	real_stderr = dup(STDERR_FILENO);
	dup2(ends[1], STDERR_FILENO);
}

/* What was written since catch_stderr, up to the size of one read. */
static const char *release_stderr(void)
{
	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
	ssize_t length = read(ends[0], written, sizeof(written) - 1);
	written[length > 0 ? length : 0] = '\0';
	close(ends[0]);
	close(ends[1]);
	return written;
}

static void setup(const char *format, const char *level)
{
	setenv("SEMEL_LOG", format, 1);
	setenv("SEMEL_LOG_LEVEL", level, 1);
	assert_int_equal(semel_log_setup(SEMEL_LOG_INFO, NULL), SEMEL_OK);
}

static const char *log_one(const char *message, const struct semel_log_fields *fields)
{
	catch_stderr();
	semel_log(SEMEL_LOG_WARN, message, fields);
	return release_stderr();
}

/* Must come first: nothing has been set up yet. */
static void a_library_writes_warnings_only(void **state)
{
	(void)state;
	unsetenv("SEMEL_LOG");
	unsetenv("SEMEL_LOG_LEVEL");
	assert_false(semel_log_is_enabled(SEMEL_LOG_INFO));
	assert_true(semel_log_is_enabled(SEMEL_LOG_WARN));
}

static void json_has_every_field_under_its_name(void **state)
{
	(void)state;
	setup("json", "");
	const struct semel_log_fields fields = {
		.message_id = "id-1",
		.correlation_id = "cor-1",
		.topic = "order.events",
		.routing_key = "order.created.v1",
		.queue = "billing.order.events",
		.consumer = "billing",
		.dedup_status = "claimed",
		.ack_decision = "retry",
		.error = "line\nbreak \"quoted\"",
		.partition = 0,
		.offset = INT64_C(9007199254740993),
		.has_position = true,
		.redelivered = true,
		.attempt = 3,
	};
	json_t *line = json_loads(log_one("retry later", &fields), JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(line);
	const char *time, *level, *text, *id, *correlation, *topic, *key, *queue, *consumer;
	const char *dedup, *ack, *error;
	json_int_t partition, offset, attempt;
	int redelivered;
	assert_int_equal(json_unpack(line,
				     "{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,"
				     "s:b!}",
				     "time", &time, "level", &level, "msg", &text, "messageId", &id,
				     "correlationId", &correlation, "topic", &topic, "routingKey",
				     &key, "queue", &queue, "consumer", &consumer, "dedupStatus",
				     &dedup, "ackDecision", &ack, "error", &error, "partition",
				     &partition, "offset", &offset, "attempt", &attempt,
				     "redelivered", &redelivered),
			 0);
	assert_string_equal(level, "warn");
	assert_string_equal(text, "retry later");
	assert_string_equal(id, "id-1");
	assert_string_equal(queue, "billing.order.events");
	assert_string_equal(ack, "retry");
	assert_string_equal(error, fields.error);
	assert_true(offset == fields.offset);
	assert_int_equal(strlen(time), 24);
	json_decref(line);
}

static void what_is_not_set_is_left_out(void **state)
{
	(void)state;
	setup("json", "");
	const struct semel_log_fields fields = { .topic = "t" };
	json_t *line = json_loads(log_one("m", &fields), 0, NULL);
	assert_int_equal(json_object_size(line), 4);
	json_decref(line);
	line = json_loads(log_one("m", NULL), 0, NULL);
	assert_int_equal(json_object_size(line), 3);
	json_decref(line);
}

static void a_text_line_is_one_line_whatever_is_in_it(void **state)
{
	(void)state;
	setup("text", "");
	const struct semel_log_fields fields = { .message_id = "id-1",
						 .error = "a\nb \x1b[31m",
						 .attempt = 2 };
	const char *line = log_one("first\nsecond\x1b[2J", &fields);
	assert_string_equal(line + 24, " warn  first second [2J messageId=id-1 "
				       "error=\"a\\nb \\u001b[31m\" attempt=2\n");
}

static void the_longest_line_is_valid_and_one_atomic_write(void **state)
{
	(void)state;
	setup("json", "");
	char longest[5000];
	for (size_t i = 0; i + 4 < sizeof(longest); i += 4)
		memcpy(longest + i, "\x01\xE2\x82\xAC", 5);
	const struct semel_log_fields fields = { .message_id = longest,
						 .correlation_id = longest,
						 .exchange = longest,
						 .topic = longest,
						 .routing_key = longest,
						 .queue = longest,
						 .consumer = longest,
						 .dedup_status = longest,
						 .ack_decision = longest,
						 .error = longest,
						 .partition = INT32_MIN,
						 .offset = INT64_MIN,
						 .has_position = true,
						 .delivery_tag = INT64_MAX,
						 .redelivered = true,
						 .attempt = UINT32_MAX };
	const char *text = log_one(longest, &fields);
	assert_in_range(strlen(text), 100, PIPE_BUF);
	assert_int_equal(text[strlen(text) - 1], '\n');
	json_t *line = json_loads(text, 0, NULL);
	assert_non_null(line);
	assert_null(strstr(text, "\xEF\xBF\xBD")); /* cut between characters */
	json_decref(line);
}

static void the_level_holds_back_what_is_below_it(void **state)
{
	(void)state;
	setup("json", "error");
	assert_string_equal(log_one("m", NULL), "");
	setup("json", "debug");
	catch_stderr();
	semel_log_detail(SEMEL_LOG_DEBUG, "m", "number %d", 7);
	assert_non_null(strstr(release_stderr(),
			       "\"level\":\"debug\",\"msg\":\"m\",\"detail\":\"number 7\"}\n"));
	assert_true(semel_log_is_enabled(SEMEL_LOG_DEBUG));
}

static void invalid_settings_are_reported_with_the_choices(void **state)
{
	(void)state;
	semel_error error;
	setenv("SEMEL_LOG", "xml", 1);
	setenv("SEMEL_LOG_LEVEL", "", 1);
	assert_int_equal(semel_log_setup(SEMEL_LOG_INFO, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "SEMEL_LOG=xml"));
	setenv("SEMEL_LOG_LEVEL", "loud", 1);
	assert_int_equal(semel_log_setup(SEMEL_LOG_INFO, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "SEMEL_LOG_LEVEL=loud"));
	assert_non_null(strstr(error.text, "debug"));
	assert_true(semel_log_is_enabled(SEMEL_LOG_INFO));
	assert_false(semel_log_is_enabled(SEMEL_LOG_DEBUG));
}

static int count_of(const char *text, const char *part)
{
	int count = 0;
	for (; (text = strstr(text, part)) != NULL; text += strlen(part))
		count++;
	return count;
}

static void a_line_that_repeats_itself_is_left_out_and_counted(void **state)
{
	(void)state;
	setup("json", "");
	catch_stderr();
	for (int i = 0; i < 10; i++)
		semel_log(SEMEL_LOG_WARN, "again and again", NULL);
	semel_log_flush();
	semel_log_flush();
	const char *shown = release_stderr();
	assert_int_equal(count_of(shown, "\"msg\":\"again and again\""), 4);
	assert_int_equal(count_of(shown, "\"omitted\":7}\n"), 1);
}

static void the_count_of_omitted_lines_has_the_fields_of_the_line(void **state)
{
	struct semel_log_fields fields = { .service = "subscription billing", .detail = "12 s" };
	char endless[2000];

	(void)state;
	memset(endless, 'x', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = '\0';
	setup("json", "");
	catch_stderr();
	for (int i = 0; i < 5; i++) {
		semel_log(SEMEL_LOG_WARN, "again and again", &fields);
		semel_log(SEMEL_LOG_WARN, "long", &(struct semel_log_fields){ .detail = endless });
	}
	semel_log_flush();
	const char *shown = release_stderr();
	assert_int_equal(count_of(shown, "\"msg\":\"again and again\",\"service\":"
					 "\"subscription billing\",\"detail\":\"12 s\","
					 "\"omitted\":2}\n"),
			 1);
	assert_int_equal(count_of(shown, "\"msg\":\"long\",\"omitted\":2}\n"), 1);
}

static void a_decision_about_an_event_is_always_written(void **state)
{
	(void)state;
	setup("text", "");
	catch_stderr();
	for (int i = 0; i < 10; i++)
		semel_log(SEMEL_LOG_WARN, "it comes again",
			  &(struct semel_log_fields){ .message_id = "id-1" });
	assert_int_equal(count_of(release_stderr(), "it comes again"), 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_library_writes_warnings_only),
		cmocka_unit_test(json_has_every_field_under_its_name),
		cmocka_unit_test(what_is_not_set_is_left_out),
		cmocka_unit_test(a_text_line_is_one_line_whatever_is_in_it),
		cmocka_unit_test(the_longest_line_is_valid_and_one_atomic_write),
		cmocka_unit_test(the_level_holds_back_what_is_below_it),
		cmocka_unit_test(invalid_settings_are_reported_with_the_choices),
		cmocka_unit_test(a_line_that_repeats_itself_is_left_out_and_counted),
		cmocka_unit_test(the_count_of_omitted_lines_has_the_fields_of_the_line),
		cmocka_unit_test(a_decision_about_an_event_is_always_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
