/* SPDX-License-Identifier: Apache-2.0 */
/* What is hidden of an event, path by path, and what is shown all the same. */
#include "admin/redact.h"

#include "event/event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct semel_buffer text;

static const char *show_event(const char *const *paths, const char *headers, const char *payload,
			      const char *reason)
{
	struct semel_redaction *redaction = NULL;
	const struct semel_event event = { .content_type = SEMEL_TEXT_CONST("application/json"),
					   .headers = semel_text_of(headers),
					   .payload = semel_text_of(payload) };
	const semel_dead_letter letter = { .event = &event,
					   .failure_reason = reason,
					   .saga_id = "saga-77",
					   .correlation_id = "flow-88" };

	assert_int_equal(semel_redaction_new(paths, &redaction, NULL), SEMEL_OK);
	semel_buffer_clear(&text);
	assert_int_equal(semel_redaction_write_json(redaction, &letter, true, &text), SEMEL_OK);
	semel_redaction_free(redaction);
	return text.data;
}

static const char *show(const char *path, const char *payload, const char *reason)
{
	const char *const paths[] = { path, NULL };

	return show_event(paths, "{\"token\":\"abcdef\"}", payload, reason);
}

static void shows(const char *path, const char *payload, const char *wanted)
{
	if (!strstr(show(path, payload, NULL), wanted))
		fail_msg("%s of %s: %s, not %s", path, payload, text.data, wanted);
}

static void members_are_hidden_by_name_index_star_and_at_any_depth(void **state)
{
	(void)state;
	shows("$.card.number", "{\"card\":{\"number\":\"4111\",\"kind\":\"x\"},\"a\":1.10}",
	      "{\"card\":{\"number\":\"[hidden]\",\"kind\":\"x\"},\"a\":1.10}");
	shows("$['a b'][1]", "{\"a b\":[1,2,3]}", "[1,\"[hidden]\",3]");
	shows("$.items[*].name", "{\"items\":[{\"name\":{\"x\":1}},{\"no\":2}]}",
	      "[{\"name\":\"[hidden]\"},{\"no\":2}]");
	shows("$.*", "{\"a\":1,\"b\":2}", "{\"a\":\"[hidden]\",\"b\":\"[hidden]\"}");
	shows("$..pin", "{\"pin\":1,\"x\":[{\"pin\":{\"pin\":2}},{\"y\":{\"pin\":3}}]}",
	      "{\"pin\":\"[hidden]\",\"x\":[{\"pin\":\"[hidden]\"},{\"y\":{\"pin\":\"[hidden]\"}}]"
	      "}");
	shows("$..a[0]", "{\"a\":[1,{\"a\":[2,3]}]}",
	      "{\"a\":[\"[hidden]\",{\"a\":[\"[hidden]\",3]}]}");
	shows("$", "{\"a\":1}", "\"payload\":\"[hidden]\"");
	shows("headers.token", "{\"a\":1}", "\"headers\":{\"token\":\"[hidden]\"}");
	shows("$.nothing", "{\"a\":\"abcdef\"}", "{\"token\":\"abcdef\"}");
}

static void names_are_compared_by_what_they_mean_and_as_often_as_they_stand_there(void **state)
{
	(void)state;
	shows("$.card", "{\"c\\u0061rd\":\"4111\",\"card\":[5500],\"x\":1e999}",
	      "{\"c\\u0061rd\":\"[hidden]\",\"card\":\"[hidden]\",\"x\":1e999}");
	shows("$..pin", "[{\"a\":[[{\"pin\":{\"b\":[\"]}\",{}]} , \"c\":2}]]}]",
	      "[{\"a\":[[{\"pin\":\"[hidden]\" , \"c\":2}]]}]");
}

static void headers_of_any_type_are_hidden_and_as_often_as_they_stand_there(void **state)
{
	const char *const paths[] = { "headers.token", "headers.sagaid", NULL };

	(void)state;
	const char *shown = show_event(paths,
				       "{\"token\":12345,\"Token\":{\"a\":[\"678901\"]},"
				       "\"t\\u006fken\":true,\"token\":\"abcdef\",\"b\":1}",
				       "{}", "wrote 678901");
	assert_non_null(strstr(shown, "\"headers\":{\"token\":\"[hidden]\",\"Token\":\"[hidden]\","
				      "\"t\\u006fken\":\"[hidden]\",\"token\":\"[hidden]\","
				      "\"b\":1}"));
	assert_non_null(strstr(shown, "\"failureReason\":\"[hidden]\""));
	assert_non_null(strstr(shown, "\"sagaId\":\"[hidden]\",\"correlationId\":\"flow-88\""));
	shown = show_event(paths, "[\"token\",\"abcdef\"]", "{}", "wrote nothing");
	assert_non_null(strstr(shown, "\"headers\":\"[hidden]\""));
	assert_non_null(strstr(shown, "\"failureReason\":\"[hidden]\""));
}

static void a_payload_that_cannot_be_followed_is_hidden_whole(void **state)
{
	static const char *const payloads[] = { "{\"card\":", "plain words", "\xff\xfe" };

	(void)state;
	for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
		shows("$.card", payloads[i], "\"payload\":\"[hidden]\"");
		assert_non_null(strstr(show("$.card", payloads[i], "other words"),
				       "\"failureReason\":\"[hidden]\""));
	}
	shows("headers.token", "plain words", "plain words");
}

/* Exactly the reason, or nothing of it. */
static void reason_is(const char *value, const char *reason, bool is_shown)
{
	struct semel_buffer payload = { 0 };

	semel_buffer_printf(&payload, "{\"card\":%s}", value);
	bool hidden = strstr(show("$.card", payload.data, reason),
			     "\"failureReason\":\"[hidden]\"") != NULL;
	if (hidden == is_shown)
		fail_msg("%s of %s is %s", reason, value, hidden ? "hidden" : "shown");
	semel_buffer_free(&payload);
}

static void a_reason_that_repeats_what_is_hidden_is_hidden_whole(void **state)
{
	static const char *const repeats[][2] = {
		{ "\"4111-2222\"", "no card 4111-2222, 1 try" },
		{ "\"4111-2222\"", "no card 41112222" },
		{ "\"4111-2222\"", "2222: the begin of the text is cut" },
		{ "\"4111-2222\"", "the end of the text is cut: 41-11" },
		{ "\"4111-2222\"", "\\u0034\\u0031\\u0031\\u0031" },
		{ "\"4111-2222\"", "\\x34\\x31\\x31\\x31" },
		{ "\"4111-2222\"", "%34%31%31%31" },
		{ "\"4111-2222\"", "%2534%2531%2531%2531" },
		{ "\"4111-2222\"", "too many layers: %2525252534" },
		{ "\"4111-2222\"", "&#52;&#x31;&#49;&#49;" },
		{ "\"4111-2222\"", "Basic bm9ib2R5OjQxMTEtMjIyMg==" },
		{ "\"4111-2222\"", "cut: dXNlOjQxMTEtMjIyMg" },
		{ "\"4111-2222\"", "<Buffer 34 31 31 31 2d 32>" },
		{ "\"\\u0050\\u0061ssW\\u006frt\"", "PASSWORT is wrong" },
		{ "\"NDExMS0yMjIy\"", "4111-2222 was decoded" },
		{ "\"34313131\"", "4111 was decoded" },
		{ "\"{\\\"n\\\":\\\"\\\\u00344455\\\"}\"", "44455" },
		{ "\"Gr\\u00fc\\u00dfe\"", "GR\xc3\x9c\xe1\xba\x9e"
					   "E" },
		{ "\"\\u5c71\\u7530\"", "no \\u5c71" },
		{ "\"\\u5c71\\u7530\"", "no 5bGx55Sw here" },
		{ "\"\\u5c71\\u7530\"", "the end is cut: 5bGx55Sw5a" },
		{ "\"\\u5c71\\u7530\\u592a\\u90ce\"", "so is the begin: x5bGx55Sw5aSq6YOO" },
		{ "\"\\u5c71\\u7530\"", "<Buffer e5 b1 b1 e7 94 b0>" },
		{ "\"42\"", "age 42y" },
		{ "\"XL\"", "sizeXL is out" },
		{ "\"#!$%\"", "nothing" },
		{ "1234567", "1,234,567 is too much" },
		{ "1.234567e6", "1234567 is too much" },
		{ "1000.0", "1000" },
		{ "7", "7 of them" },
		{ "true", "it was true" },
		{ "{\"DE12 3456\":{}}", "no account DE123456" },
		{ "[[[[\"deep-down\"]]]]", "down" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof repeats / sizeof *repeats; i++)
		reason_is(repeats[i][0], repeats[i][1], false);
}

/* Read as base64, they have characters beyond ASCII by accident. */
static const char *const ordinary[] = {
	"the program exited with status 1 and wrote nothing to stderr",
	"HTTP 500: {\"error\":\"internal server error\"}",
	"null value in column \"total\" of relation \"invoice\" violates not-null constraint "
	"[23502]",
	"Traceback (most recent call last):\n  File \"/app/handler.py\", line 42, in <module>\n"
	"    charge(order)\nValueError: insufficient funds",
	"duplicate key value violates unique constraint \"invoice_pkey\"",
	"payment gateway timeout after 3 attempts at 2026-11-16T20:01:02Z",
};

static void a_reason_that_repeats_nothing_is_shown(void **state)
{
	(void)state;
	reason_is("\"4111-2222\"", "http://127.0.0.1/charge answered 503: out of service", true);
	reason_is("[\"DE\",5,\"\",\" \"]", "the card was declined 3 times, decided by the bank",
		  true);
	reason_is("\"4111-2222\"", "Grüße: 41 1", true);
	for (size_t i = 0; i < sizeof ordinary / sizeof *ordinary; i++) {
		reason_is("\"J\\u00f6rg \\u00d8\"", ordinary[i], true);
		reason_is("\"\\u5c71\\u7530\"", ordinary[i], true);
	}
	assert_non_null(strstr(show("$.card", "{\"a\":\"abcd\"}", "abcd"), "\"abcd\""));
	assert_non_null(strstr(show("reasons", "{\"a\":\"abcd\"}", "words"),
			       "\"failureReason\":\"[hidden]\""));
}

static void what_semel_itself_says_of_a_broken_event_is_shown(void **state)
{
	const char *const all[] = { "$.card", "reasons", NULL };

	(void)state;
	assert_non_null(strstr(show("$.card", "{\"card\":", "the event has no id"),
			       "\"the event has no id\""));
	assert_null(strstr(show_event(all, "{}", "{\"card\":", "the event has no id"),
			   "the event has no id"));
}

/* A hostile event: the work grows with its size, and not with the product of its parts. */
static void many_hidden_values_and_a_long_reason_take_no_time(void **state)
{
	struct semel_buffer payload = { 0 }, reason = { 0 };

	(void)state;
	semel_buffer_string(&payload, "{\"card\":[0");
	for (int i = 0; i < 100000; i++)
		semel_buffer_printf(&payload, ",\"%08d\"", i);
	semel_buffer_string(&payload, "]}");
	while (reason.length < 4000)
		semel_buffer_string(&reason, "vwxyz\\%& ");
	assert_non_null(strstr(show("$..card", payload.data, reason.data), "vwxyz"));
	semel_buffer_string(&reason, "00099999");
	assert_null(strstr(show("$..card", payload.data, reason.data), "vwxyz"));
	semel_buffer_clear(&payload);
	semel_buffer_string(&payload, "{\"card\":[0");
	for (int i = 0; i < 300000; i++)
		semel_buffer_string(&payload, i % 2 ? ",1.5" : ",-1");
	semel_buffer_string(&payload, "]}");
	assert_null(strstr(show("$..card", payload.data, "vwxyz"), "vwxyz"));
	semel_buffer_clear(&payload);
	for (int i = 0; i < 510; i++)
		semel_buffer_string(&payload, "{\"a\":");
	semel_buffer_string(&payload, "4711");
	for (int i = 0; i < 510; i++)
		semel_buffer_string(&payload, "}");
	shows("$..a..a..a..a..a..a..a..a..a..a..a..a..a..a..a..a", payload.data, "[hidden]");
	semel_buffer_free(&payload);
	semel_buffer_free(&reason);
}

/* What stands behind a NUL byte counts, and the text ends where it ends. */
static void a_zero_byte_in_a_hidden_value_reads_nothing_behind_the_reason(void **state)
{
	static const size_t sizes[] = { 20000, 900000 };
	static const char before[] = "{\"card\":\"no\\u0000";

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct semel_buffer payload = { 0 };
		semel_buffer_string(&payload, before);
		for (size_t at = 0; at < sizes[i]; at++)
			semel_buffer_append(&payload, "x", 1);
		semel_buffer_string(&payload, "\"}");
		char *reason = strdup("no");
		assert_non_null(strstr(show("$.card", payload.data, reason), "\"no\""));
		free(reason);
		semel_buffer_free(&payload);
	}
}

static void paths_that_cannot_be_right_are_refused(void **state)
{
	static const char *const wrong[] = { "",      "card",   "$card",    "$.",
					     "$..",   "$[",     "$[]",      "$[x]",
					     "$['a]", "$['']",  "$.a[-1]",  "$.a.",
					     "$.a[0", "$['a'b", "headers.", "reason" };
	static const char *const right[] = { "$",          "$.a",      "$.a[0].b",
					     "$['x y'].b", "$[\"a\"]", "$..a",
					     "$..[0]",     "$[*]",     "headers.Authorization",
					     "reasons" };

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (semel_redaction_path_is_valid(wrong[i]))
			fail_msg("%s is taken", wrong[i]);
	for (size_t i = 0; i < sizeof right / sizeof *right; i++)
		if (!semel_redaction_path_is_valid(right[i]))
			fail_msg("%s is refused", right[i]);
}

static int close_down(void **state)
{
	(void)state;
	semel_buffer_free(&text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_hidden_by_name_index_star_and_at_any_depth),
		cmocka_unit_test(
			names_are_compared_by_what_they_mean_and_as_often_as_they_stand_there),
		cmocka_unit_test(headers_of_any_type_are_hidden_and_as_often_as_they_stand_there),
		cmocka_unit_test(a_payload_that_cannot_be_followed_is_hidden_whole),
		cmocka_unit_test(a_reason_that_repeats_what_is_hidden_is_hidden_whole),
		cmocka_unit_test(a_reason_that_repeats_nothing_is_shown),
		cmocka_unit_test(what_semel_itself_says_of_a_broken_event_is_shown),
		cmocka_unit_test(many_hidden_values_and_a_long_reason_take_no_time),
		cmocka_unit_test(a_zero_byte_in_a_hidden_value_reads_nothing_behind_the_reason),
		cmocka_unit_test(paths_that_cannot_be_right_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, close_down);
}
