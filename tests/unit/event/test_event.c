/* SPDX-License-Identifier: Apache-2.0 */
/* What is accepted as an event, what is completed, and what each refusal says. */
#include "base/json.h"
#include "base/uuid.h"
#include "event/event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define NOW_MS INT64_C(1794744000123)

static struct semel_arena *arena;
static struct semel_event event;
static semel_error error;

static int64_t fixed_clock(void *user)
{
	(void)user;
	return NOW_MS;
}

static uint64_t fixed_chance(void *user)
{
	(void)user;
	return 7;
}

static const struct semel_env env = { .now_ms = fixed_clock,
				      .steady_ms = fixed_clock,
				      .random = fixed_chance };

static const semel_event_input good = { .type = "order.created.v1",
					.aggregate_type = "order",
					.aggregate_id = "ord-1",
					.payload = "{\"total\": 5}" };

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
	return 0;
}

static semel_status take(const semel_event_input *input)
{
	semel_arena_reset(arena);
	return semel_event_from_input(input, &env, arena, &event, &error);
}

static void refused(const semel_event_input *input, semel_status status, const char *words)
{
	assert_int_equal(take(input), status);
	assert_int_equal(error.status, status);
	if (!strstr(error.text, words))
		fail_msg("\"%s\" does not contain \"%s\"", error.text, words);
}

static void what_is_left_out_is_completed(void **state)
{
	(void)state;
	assert_int_equal(take(&good), SEMEL_OK);
	assert_true(semel_uuid_is_valid(semel_event_id(&event)));
	assert_string_equal(semel_event_type(&event), "order.created.v1");
	assert_string_equal(semel_event_aggregate_type(&event), "order");
	assert_string_equal(semel_event_aggregate_id(&event), "ord-1");
	assert_string_equal(semel_event_topic(&event), "order.events");
	assert_string_equal(semel_event_routing_key(&event), "order.created.v1");
	assert_string_equal(semel_event_content_type(&event), "application/json");
	assert_string_equal(semel_event_headers(&event), "{}");
	assert_true(semel_event_time_ms(&event) == NOW_MS);
	size_t size;
	assert_string_equal(semel_event_payload(&event, &size), "{\"total\": 5}");
	assert_int_equal(size, 12);
	assert_ptr_equal(semel_event_payload(&event, NULL), good.payload);
	assert_int_equal(semel_event_check(&event, &error), SEMEL_OK);
}

static void what_is_given_is_kept(void **state)
{
	(void)state;
	char type[] = "invoice.paid";
	semel_event_input input = { .type = type,
				    .aggregate_type = "invoice",
				    .aggregate_id = "caf\xC3\xA9 7",
				    .payload = "a\0\xFF",
				    .payload_size = 3,
				    .content_type = "application/octet-stream",
				    .topic = "money",
				    .routing_key = "eu.invoice",
				    .headers = " {\"tenantId\":\"4\\u0032\"}",
				    .id = "legacy-id 17",
				    .time_ms = -5 };
	assert_int_equal(take(&input), SEMEL_OK);
	memset(type, 'x', sizeof(type) - 1);
	assert_string_equal(event.type.data, "invoice.paid");
	assert_string_equal(event.id.data, "legacy-id 17");
	assert_string_equal(event.topic.data, "money");
	assert_string_equal(event.routing_key.data, "eu.invoice");
	assert_string_equal(event.headers.data, " {\"tenantId\":\"4\\u0032\"}");
	assert_int_equal(event.payload.length, 3);
	assert_true(event.time_ms == -5);
	assert_string_equal(semel_event_header(&event, "tenantId", arena).data, "42");
	assert_null(semel_event_header(&event, "sagaId", arena).data);
}

static void names_that_are_missing_or_wrong_are_named(void **state)
{
	(void)state;
	static const struct {
		size_t offset;
		const char *name;
		bool needed;
	} fields[] = {
		{ offsetof(semel_event_input, type), "type", true },
		{ offsetof(semel_event_input, aggregate_type), "aggregate type", true },
		{ offsetof(semel_event_input, aggregate_id), "aggregate id", true },
		{ offsetof(semel_event_input, topic), "topic", false },
		{ offsetof(semel_event_input, routing_key), "routing key", false },
		{ offsetof(semel_event_input, content_type), "content type", false },
		{ offsetof(semel_event_input, id), "id", false },
	};
	char too_long[SEMEL_NAME_MAX + 2] = { 0 };
	memset(too_long, 'n', SEMEL_NAME_MAX + 1);
	const char *const wrong[] = { "", " \t ", "  ", "a\nb", "a\x7f", "\xFF", too_long };
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		semel_event_input input = good;
		const char **field = (const char **)(void *)((char *)&input + fields[i].offset);
		*field = NULL;
		if (fields[i].needed)
			refused(&input, SEMEL_INVALID, fields[i].name);
		else
			assert_int_equal(take(&input), SEMEL_OK);
		for (size_t j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++) {
			*field = wrong[j];
			refused(&input, SEMEL_INVALID, fields[i].name);
		}
	}
}

static void a_name_may_have_its_full_length(void **state)
{
	(void)state;
	char longest[SEMEL_NAME_MAX + 1] = { 0 };
	memset(longest, 'n', SEMEL_NAME_MAX);
	semel_event_input input = good;
	input.aggregate_id = input.id = input.type = longest;
	assert_int_equal(take(&input), SEMEL_OK);
	input.aggregate_type = longest;
	refused(&input, SEMEL_INVALID, "give a topic");
	input.topic = longest;
	assert_int_equal(take(&input), SEMEL_OK);
}

static void an_id_has_no_blanks_at_its_ends(void **state)
{
	(void)state;
	semel_event_input input = good;
	input.id = " a";
	refused(&input, SEMEL_INVALID, "id has a leading or trailing blank");
	input.id = "a ";
	refused(&input, SEMEL_INVALID, "id has a leading or trailing blank");
}

static void headers_are_an_object_of_texts(void **state)
{
	(void)state;
	static const struct {
		const char *headers, *words;
	} wrong[] = {
		{ "", "not valid JSON at byte 0" },
		{ "{\"a\":}", "not valid JSON at byte 5" },
		{ "[]", "not a JSON object" },
		{ " \"a\"", "not a JSON object" },
		{ "{\"a\":5}", "header a is not a string" },
		{ "{\"a\":\"x\",\"b\":null}", "header b is not a string" },
		{ "{\"two words\":\"x\"}", "\"two words\" is not a token" },
		{ "{\"\":\"x\"}", "not a token" },
		{ "{\"a\":\"x\\ny\"}", "header a has a control character" },
		{ "{\"a\":\"\\u0000\"}", "header a has a control character" },
	};
	semel_event_input input = good;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		input.headers = wrong[i].headers;
		refused(&input, SEMEL_INVALID, wrong[i].words);
	}
}

static void headers_have_a_limit(void **state)
{
	(void)state;
	char *headers = malloc(SEMEL_HEADERS_MAX + 2);
	memset(headers, ' ', SEMEL_HEADERS_MAX);
	memcpy(headers, "{}", 2);
	headers[SEMEL_HEADERS_MAX] = '\0';
	semel_event_input input = good;
	input.headers = headers;
	assert_int_equal(take(&input), SEMEL_OK);
	memcpy(headers + SEMEL_HEADERS_MAX, " ", 2);
	refused(&input, SEMEL_TOO_LARGE, "headers");
	free(headers);
}

static void a_payload_is_what_its_content_type_says(void **state)
{
	(void)state;
	static const struct {
		const char *content_type, *payload;
		bool accepted;
	} cases[] = {
		{ NULL, "null", true },
		{ NULL, "", false },
		{ NULL, "{\"a\":1,}", false },
		{ NULL, "\"\xFF\"", false },
		{ "Application/JSON; charset=utf-8", "{", false },
		{ "Application/JSON ;charset=utf-8", "{}", true },
		{ "application/cloudevents+json", "{", false },
		{ "application/VND.x+JSON;v=1", "x", false },
		{ "application/jsonlines", "{\n{", true },
		{ "+json", "{", true },
		{ "text/plain", "any text", true },
		{ "text/plain", "", true },
		{ "TEXT/plain", "\xFF", false },
		{ "application/octet-stream", "\xFF", true },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		semel_event_input input = good;
		input.content_type = cases[i].content_type;
		input.payload = cases[i].payload;
		if (cases[i].accepted)
			assert_int_equal(take(&input), SEMEL_OK);
		else
			refused(&input, SEMEL_INVALID, "payload");
	}
	semel_event_input input = good;
	input.payload = "{\"a\":1,}";
	refused(&input, SEMEL_INVALID, "at byte 7 of 8");
	input.payload = NULL;
	refused(&input, SEMEL_INVALID, "payload is missing");
}

static void a_payload_has_a_limit(void **state)
{
	(void)state;
	char *payload = calloc(1, SEMEL_PAYLOAD_MAX + 1);
	semel_event_input input = good;
	input.content_type = "application/octet-stream";
	input.payload = payload;
	input.payload_size = SEMEL_PAYLOAD_MAX;
	assert_int_equal(take(&input), SEMEL_OK);
	input.payload_size++;
	refused(&input, SEMEL_TOO_LARGE, "payload is 16777217 bytes");
	free(payload);
}

static void a_time_is_within_the_calendar(void **state)
{
	(void)state;
	semel_event_input input = good;
	input.time_ms = INT64_C(253402300799999);
	assert_int_equal(take(&input), SEMEL_OK);
	input.time_ms++;
	refused(&input, SEMEL_INVALID, "time");
	input.time_ms = INT64_MIN;
	refused(&input, SEMEL_INVALID, "time");
}

static void broken(struct semel_event delivery, const char *words)
{
	assert_int_equal(semel_event_check(&delivery, &error), SEMEL_CONTRACT);
	if (!strstr(error.text, words))
		fail_msg("\"%s\" does not contain \"%s\"", error.text, words);
}

static void a_broken_delivery_is_known(void **state)
{
	(void)state;
	assert_int_equal(take(&good), SEMEL_OK);
	struct semel_event delivery = event;
	delivery.id = (struct semel_text){ NULL, 0 };
	broken(delivery, "no id");
	delivery.id = SEMEL_TEXT(" ");
	broken(delivery, "no id");
	delivery = event;
	delivery.type = SEMEL_TEXT("");
	broken(delivery, "no type");
	delivery = event;
	delivery.aggregate_id = SEMEL_TEXT("");
	broken(delivery, "no aggregate id");
	delivery = event;
	delivery.headers = SEMEL_TEXT("[]");
	broken(delivery, "headers");
	delivery.headers = SEMEL_TEXT("{");
	broken(delivery, "headers");
	delivery = event;
	delivery.payload = SEMEL_TEXT("{");
	broken(delivery, "payload");
	delivery.payload = SEMEL_TEXT("");
	broken(delivery, "payload");
}

static void a_name_that_no_store_can_keep_breaks_the_contract(void **state)
{
	(void)state;
	static char longest[SEMEL_FOREIGN_NAME_MAX + 1];
	memset(longest, 'x', sizeof(longest));
	assert_int_equal(take(&good), SEMEL_OK);
	struct semel_event delivery = event;
	delivery.aggregate_id = semel_text_from(longest, SEMEL_FOREIGN_NAME_MAX);
	delivery.id = SEMEL_TEXT("\xc3\xa4\t");
	assert_int_equal(semel_event_check(&delivery, &error), SEMEL_OK);
	delivery.aggregate_id.length++;
	broken(delivery, "aggregate id is 1025 bytes long");
	delivery = event;
	delivery.id = SEMEL_TEXT("a\xff");
	broken(delivery, "id is not valid UTF-8");
	delivery = event;
	delivery.type = SEMEL_TEXT("a\0b");
	broken(delivery, "type has a NUL byte");
	delivery = event;
	delivery.routing_key = SEMEL_TEXT("\xff");
	broken(delivery, "routing key is not valid UTF-8");
	delivery = event;
	delivery.content_type = SEMEL_TEXT("\xff");
	broken(delivery, "content type is not valid UTF-8");
}

static void mended_names_can_be_kept_and_stay_different(void **state)
{
	(void)state;
	static char endless[6001];
	for (size_t i = 0; i + 1 < sizeof(endless); i += 2)
		memcpy(endless + i, "\xc3\xa4", 2);
	assert_int_equal(take(&good), SEMEL_OK);
	struct semel_event one = event, other = event, same;
	one.id = SEMEL_TEXT("a\xff\0b");
	other.id = SEMEL_TEXT("a\xfe\0b");
	one.aggregate_id = semel_text_from(endless, 6000);
	other.aggregate_id = semel_text_from(endless, 5998);
	same = one;
	semel_event_make_storable(&one, arena);
	semel_event_make_storable(&other, arena);
	semel_event_make_storable(&same, arena);
	assert_int_equal(semel_event_check(&one, &error), SEMEL_OK);
	assert_int_equal(semel_event_check(&other, &error), SEMEL_OK);
	assert_memory_equal(one.id.data,
			    "a\xef\xbf\xbd\xef\xbf\xbd"
			    "b~",
			    9);
	assert_false(semel_text_equal(one.id, other.id));
	assert_false(semel_text_equal(one.aggregate_id, other.aggregate_id));
	assert_true(one.aggregate_id.length < SEMEL_NAME_MAX);
	assert_true(semel_text_equal(one.id, same.id));
	assert_true(semel_text_equal(one.aggregate_id, same.aggregate_id));
	assert_true(semel_text_equal(one.type, event.type));
}

static void a_tombstone_is_an_event(void **state)
{
	(void)state;
	assert_int_equal(take(&good), SEMEL_OK);
	event.payload = (struct semel_text){ NULL, 0 };
	assert_int_equal(semel_event_check(&event, &error), SEMEL_OK);
}

static void a_follow_up_carries_the_flow_on(void **state)
{
	(void)state;
	semel_event_input input = good;
	input.id = "e-1";
	assert_int_equal(take(&input), SEMEL_OK);
	assert_string_equal(semel_event_flow_headers(&event, arena).data,
			    "{\"correlationId\":\"e-1\",\"causationId\":\"e-1\"}");

	input.headers =
		"{\"traceparent\":\"00-x\",\"correlationId\":\"c-1\",\"causationId\":\"e-0\","
		"\"producer\":\"shop\",\"sagaId\":\"s\",\"tenantId\":\"t\","
		"\"idempotencyKey\":\"k\",\"tracestate\":\"v=1\"}";
	assert_int_equal(take(&input), SEMEL_OK);
	assert_string_equal(semel_event_flow_headers(&event, arena).data,
			    "{\"correlationId\":\"c-1\",\"causationId\":\"e-1\",\"tenantId\":\"t\","
			    "\"sagaId\":\"s\",\"traceparent\":\"00-x\",\"tracestate\":\"v=1\"}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_left_out_is_completed),
		cmocka_unit_test(what_is_given_is_kept),
		cmocka_unit_test(names_that_are_missing_or_wrong_are_named),
		cmocka_unit_test(a_name_may_have_its_full_length),
		cmocka_unit_test(an_id_has_no_blanks_at_its_ends),
		cmocka_unit_test(headers_are_an_object_of_texts),
		cmocka_unit_test(headers_have_a_limit),
		cmocka_unit_test(a_payload_is_what_its_content_type_says),
		cmocka_unit_test(a_payload_has_a_limit),
		cmocka_unit_test(a_time_is_within_the_calendar),
		cmocka_unit_test(a_broken_delivery_is_known),
		cmocka_unit_test(a_name_that_no_store_can_keep_breaks_the_contract),
		cmocka_unit_test(mended_names_can_be_kept_and_stay_different),
		cmocka_unit_test(a_tombstone_is_an_event),
		cmocka_unit_test(a_follow_up_carries_the_flow_on),
	};
	return cmocka_run_group_tests(tests, make, drop);
}
