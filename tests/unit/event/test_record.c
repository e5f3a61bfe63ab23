/* SPDX-License-Identifier: Apache-2.0 */
/* An event as a line of JSON, and a line as an event. */
#include "base/json.h"
#include "event/event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static struct semel_arena *arena;
static struct semel_buffer buffer;
static semel_event_input input;
static semel_error error;

static int make(void **state)
{
	(void)state;
	arena = semel_arena_new(4096);
	return arena ? 0 : -1;
}

static int drop(void **state)
{
	(void)state;
	semel_arena_free(arena);
	semel_buffer_free(&buffer);
	return 0;
}

static struct semel_event sample(void)
{
	return (struct semel_event){ .id = SEMEL_TEXT("id-1"),
				     .type = SEMEL_TEXT("order.created.v1"),
				     .aggregate_type = SEMEL_TEXT("order"),
				     .aggregate_id = SEMEL_TEXT("ord \"1\""),
				     .topic = SEMEL_TEXT("order.events"),
				     .routing_key = SEMEL_TEXT("order.created.v1"),
				     .content_type = SEMEL_TEXT("application/json"),
				     .headers = SEMEL_TEXT("{\"tenantId\":\"42\"}"),
				     .payload = SEMEL_TEXT("{\"total\":\n12345678901234567890.10}"),
				     .time_ms = INT64_C(1794744000123) };
}

static const char *line_of(struct semel_event event)
{
	semel_buffer_clear(&buffer);
	semel_event_to_json(&event, &buffer);
	assert_true(semel_json_is_valid(semel_buffer_text(&buffer)));
	assert_null(strpbrk(buffer.data, "\r\n"));
	return buffer.data;
}

static semel_status read_line(const char *line)
{
	semel_arena_reset(arena);
	return semel_event_input_from_json(semel_text_of(line), arena, &input, &error);
}

static void refused(const char *line, const char *words)
{
	assert_int_equal(read_line(line), SEMEL_INVALID);
	if (!strstr(error.text, words))
		fail_msg("\"%s\" does not contain \"%s\"", error.text, words);
}

static void an_event_is_one_line(void **state)
{
	(void)state;
	assert_string_equal(
		line_of(sample()),
		"{\"id\":\"id-1\",\"type\":\"order.created.v1\",\"aggregateType\":\"order\","
		"\"aggregateId\":\"ord \\\"1\\\"\",\"topic\":\"order.events\","
		"\"routingKey\":\"order.created.v1\",\"time\":\"2026-11-15T12:00:00.123Z\","
		"\"contentType\":\"application/json\",\"headers\":{\"tenantId\":\"42\"},"
		"\"payload\":{\"total\": 12345678901234567890.10}}");
}

static void a_payload_is_shown_as_what_it_is(void **state)
{
	(void)state;
	struct semel_event event = sample();
	event.content_type = SEMEL_TEXT("text/plain");
	event.payload = SEMEL_TEXT("17\n");
	assert_non_null(strstr(line_of(event), "\"payload\":\"17\\n\"}"));
	event.payload = SEMEL_TEXT("\xFF\0>a");
	assert_non_null(strstr(line_of(event), "\"payloadBase64\":\"/wA+YQ==\"}"));
	event.payload = (struct semel_text){ NULL, 0 };
	assert_non_null(strstr(line_of(event), "\"payload\":null}"));
}

static void a_broken_delivery_still_makes_a_valid_line(void **state)
{
	(void)state;
	struct semel_event event = sample();
	event.id = (struct semel_text){ NULL, 0 };
	event.headers = SEMEL_TEXT("{broken");
	event.payload = SEMEL_TEXT("{\"total\":");
	const char *line = line_of(event);
	assert_non_null(strstr(line, "{\"id\":null,"));
	assert_non_null(strstr(line, "\"headers\":\"{broken\""));
	assert_non_null(strstr(line, "\"payload\":\"{\\\"total\\\":\"}"));
	line_of((struct semel_event){ 0 });
}

static void an_unknown_time_is_null_in_a_record(void **state)
{
	(void)state;
	struct semel_event event = sample();
	event.time_ms = 0;
	assert_non_null(strstr(line_of(event), "\"time\":\"1970-01-01T00:00:00.000Z\","));
	semel_buffer_clear(&buffer);
	semel_event_to_record(&event, &buffer);
	assert_non_null(strstr(buffer.data, "\"time\":null,\"contentType\":"));
	assert_int_equal(read_line(buffer.data), SEMEL_OK);
	assert_true(input.time_ms == 0);
	event.time_ms = 1000;
	semel_buffer_clear(&buffer);
	semel_event_to_record(&event, &buffer);
	assert_non_null(strstr(buffer.data, "\"time\":\"1970-01-01T00:00:01.000Z\","));
}

static void a_line_is_read_member_by_member(void **state)
{
	(void)state;
	assert_int_equal(
		read_line(" {\"payload\": {\"n\": 1.00, \"m\":[ ]} ,\"id\":\"i\\u0064\","
			  "\"type\":\"t\",\"aggregateType\":\"a\",\"aggregateId\":\"1\","
			  "\"topic\":\"p\",\"routingKey\":\"r\",\"time\":\"1970-01-01T00:00:01Z\","
			  "\"contentType\":\"application/json\",\"headers\":{\"k\": \"v\"}} "),
		SEMEL_OK);
	assert_string_equal(input.id, "id");
	assert_string_equal(input.type, "t");
	assert_string_equal(input.aggregate_type, "a");
	assert_string_equal(input.aggregate_id, "1");
	assert_string_equal(input.topic, "p");
	assert_string_equal(input.routing_key, "r");
	assert_string_equal(input.content_type, "application/json");
	assert_string_equal(input.headers, "{\"k\": \"v\"}");
	assert_true(input.time_ms == 1000);
	assert_string_equal(input.payload, "{\"n\": 1.00, \"m\":[ ]}");
	assert_int_equal(input.payload_size, strlen(input.payload));
}

static void null_is_as_good_as_absent(void **state)
{
	(void)state;
	assert_int_equal(read_line("{\"id\":null,\"topic\":null,\"time\":null,\"headers\":null,"
				   "\"payload\":null}"),
			 SEMEL_OK);
	assert_null(input.id);
	assert_null(input.topic);
	assert_null(input.headers);
	assert_true(input.time_ms == 0);
	assert_string_equal(input.payload, "null"); /* a JSON value like any other */
}

static void a_text_payload_means_what_the_content_type_says(void **state)
{
	(void)state;
	assert_int_equal(read_line("{\"payload\":\"a\\u0062\"}"), SEMEL_OK);
	assert_string_equal(input.payload, "\"a\\u0062\"");
	assert_int_equal(read_line("{\"payload\":\"a\\u0062\",\"contentType\":\"text/plain\"}"),
			 SEMEL_OK);
	assert_string_equal(input.payload, "ab");
	assert_int_equal(read_line("{\"payload\":[1],\"contentType\":\"text/plain\"}"), SEMEL_OK);
	assert_string_equal(input.payload, "[1]");
	assert_int_equal(read_line("{\"payload\":\"\",\"contentType\":\"text/plain\"}"), SEMEL_OK);
	assert_string_equal(input.payload, "");
	assert_int_equal(input.payload_size, 0);
	assert_int_equal(read_line("{\"payload\":\"\\u0000x\",\"contentType\":\"text/plain\"}"),
			 SEMEL_OK);
	assert_int_equal(input.payload_size, 2);
	assert_memory_equal(input.payload, "\0x", 3);
}

static void base64_is_decoded_strictly(void **state)
{
	(void)state;
	static const struct {
		const char *line;
		size_t size;
	} right[] = {
		{ "{\"payloadBase64\":\"\"}", 0 },         { "{\"payloadBase64\":\"/w==\"}", 1 },
		{ "{\"payloadBase64\":\"/wA=\"}", 2 },     { "{\"payloadBase64\":\"\\/wA+\"}", 3 },
		{ "{\"payloadBase64\":\"/wA+YQ==\"}", 4 },
	};
	for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
		assert_int_equal(read_line(right[i].line), SEMEL_OK);
		assert_int_equal(input.payload_size, right[i].size);
		assert_memory_equal(input.payload, "\xFF\0>a", right[i].size);
	}
	refused("{\"payloadBase64\":\"/w\"}", "Base64");
	refused("{\"payloadBase64\":\"/w=a\"}", "Base64");
	refused("{\"payloadBase64\":\"====\"}", "Base64");
	refused("{\"payloadBase64\":\"a===\"}", "Base64");
	refused("{\"payloadBase64\":\"_w==\"}", "Base64");
	refused("{\"payloadBase64\":\"/w==\",\"payload\":1}", "both");
}

static void wrong_lines_say_what_to_do(void **state)
{
	(void)state;
	refused("", "not valid JSON at byte 0");
	refused("{\"id\":", "not valid JSON at byte 6");
	refused("[1]", "not a JSON object");
	refused("17", "not a JSON object");
	refused("{\"aggregateTyp\":\"x\"}", "\"aggregateTyp\" (did you mean \"aggregateType\"?)");
	refused("{\"xyzzyxyzzy\":1}", "\"xyzzyxyzzy\"");
	refused("{\"id\":\"a\",\"id\":\"b\"}", "\"id\" occurs twice");
	refused("{\"id\":5}", "\"id\" must be a string");
	refused("{\"topic\":\"a\\u0000b\"}", "\"topic\" has a NUL byte");
	refused("{\"time\":\"yesterday\"}", "2026-11-15T12:00:00Z");
	refused("{\"time\":1794744000}", "\"time\" must be a string");
	refused("{\"time\":\"1970-01-01T00:00:00Z\"}", "1970");
}

static void what_was_written_is_read_again(void **state)
{
	(void)state;
	const struct semel_text payloads[] = { SEMEL_TEXT("{\"a\":[1.0,2e400]}"),
					       SEMEL_TEXT("\"text\""), SEMEL_TEXT("a\nb\"c"),
					       SEMEL_TEXT("\xFE\xFF\0") };
	const struct semel_text types[] = { SEMEL_TEXT("application/json"),
					    SEMEL_TEXT("application/x+json"),
					    SEMEL_TEXT("text/plain"),
					    SEMEL_TEXT("application/octet-stream") };
	for (size_t i = 0; i < 4; i++) {
		struct semel_event event = sample();
		event.payload = payloads[i];
		event.content_type = types[i];
		assert_int_equal(read_line(line_of(event)), SEMEL_OK);
		assert_string_equal(input.id, event.id.data);
		assert_string_equal(input.aggregate_id, event.aggregate_id.data);
		assert_string_equal(input.headers, event.headers.data);
		assert_true(input.time_ms == event.time_ms);
		assert_int_equal(input.payload_size, event.payload.length);
		assert_memory_equal(input.payload, event.payload.data, event.payload.length);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_event_is_one_line),
		cmocka_unit_test(a_payload_is_shown_as_what_it_is),
		cmocka_unit_test(a_broken_delivery_still_makes_a_valid_line),
		cmocka_unit_test(an_unknown_time_is_null_in_a_record),
		cmocka_unit_test(a_line_is_read_member_by_member),
		cmocka_unit_test(null_is_as_good_as_absent),
		cmocka_unit_test(a_text_payload_means_what_the_content_type_says),
		cmocka_unit_test(base64_is_decoded_strictly),
		cmocka_unit_test(wrong_lines_say_what_to_do),
		cmocka_unit_test(what_was_written_is_read_again),
	};
	return cmocka_run_group_tests(tests, make, drop);
}
