/* SPDX-License-Identifier: Apache-2.0 */
/* What is hidden of an event, path by path, and what is shown all the same. */
#include "admin/redact.h"

#include "event/event.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static struct semel_arena *arena;
static struct semel_buffer text;

static const char *show(const char *path, const char *payload, const char *reason)
{
	const char *const paths[] = { path, NULL };
	struct semel_redaction *redaction = NULL;
	const struct semel_event event = { .content_type = SEMEL_TEXT_CONST("application/json"),
					   .headers = SEMEL_TEXT_CONST("{\"token\":\"abcdef\"}"),
					   .payload = semel_text_of(payload) };
	const semel_dead_letter letter = { .event = &event, .failure_reason = reason };

	assert_int_equal(semel_redaction_make(paths, &redaction, NULL), SEMEL_OK);
	semel_buffer_clear(&text);
	assert_int_equal(semel_redaction_show(redaction, &letter, arena, &text), SEMEL_OK);
	semel_redaction_free(redaction);
	return text.data;
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
	      "{\"card\": {\"number\": \"[hidden]\", \"kind\": \"x\"}, \"a\": 1.1}");
	shows("$['a b'][1]", "{\"a b\":[1,2,3]}", "[1, \"[hidden]\", 3]");
	shows("$.items[*].name", "{\"items\":[{\"name\":{\"x\":1}},{\"no\":2}]}",
	      "[{\"name\": \"[hidden]\"}, {\"no\": 2}]");
	shows("$.*", "{\"a\":1,\"b\":2}", "{\"a\": \"[hidden]\", \"b\": \"[hidden]\"}");
	shows("$..pin", "{\"pin\":1,\"x\":[{\"pin\":{\"pin\":2}},{\"y\":{\"pin\":3}}]}",
	      "{\"pin\": \"[hidden]\", \"x\": [{\"pin\": \"[hidden]\"}, {\"y\": {\"pin\": "
	      "\"[hidden]\"}}]}");
	shows("$..a[0]", "{\"a\":[1,{\"a\":[2,3]}]}",
	      "{\"a\": [\"[hidden]\", {\"a\": [\"[hidden]\", 3]}]}");
	shows("$", "{\"a\":1}", "\"payload\":\"[hidden]\"");
	shows("headers.token", "{\"a\":1}", "\"headers\":{\"token\":\"[hidden]\"}");
	shows("$.nothing", "{\"a\":\"abcdef\"}", "{\"token\":\"abcdef\"}");
}

static void a_payload_that_cannot_be_followed_is_hidden_whole(void **state)
{
	static const char *const payloads[] = { "{\"card\":", "plain words", "{\"a\":1,\"a\":2}",
						"{\"a\":1e999}", "\xff\xfe" };

	(void)state;
	for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++)
		shows("$.card", payloads[i], "\"payload\":\"[hidden]\"");
	shows("headers.token", "plain words", "plain words");
}

static void what_was_hidden_is_taken_out_of_the_reason(void **state)
{
	(void)state;
	assert_non_null(strstr(show("$.card", "{\"card\":{\"n\":\"4111-2\",\"pin\":99887,\"s\":1}}",
				    "no card 4111-2 (99887), 1 try"),
			       "\"failureReason\":\"no card [hidden] ([hidden]), 1 try\""));
	assert_non_null(strstr(show("$.card", "{\"a\":1}", "no card"), "\"no card\""));
}

static void paths_that_cannot_be_right_are_refused(void **state)
{
	static const char *const wrong[] = { "",        "card", "$card", "$.",     "$..",
					     "$[",      "$[]",  "$[x]",  "$['a]",  "$['']",
					     "$.a[-1]", "$.a.", "$.a[0", "$['a'b", "headers." };
	static const char *const right[] = { "$",          "$.a",      "$.a[0].b",
					     "$['x y'].b", "$[\"a\"]", "$..a",
					     "$..[0]",     "$[*]",     "headers.Authorization" };

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		if (semel_redaction_fits(wrong[i]))
			fail_msg("%s is taken", wrong[i]);
	for (size_t i = 0; i < sizeof right / sizeof *right; i++)
		if (!semel_redaction_fits(right[i]))
			fail_msg("%s is refused", right[i]);
}

static int open_up(void **state)
{
	(void)state;
	arena = semel_arena_new(4096);
	return arena ? 0 : -1;
}

static int close_down(void **state)
{
	(void)state;
	semel_arena_free(arena);
	semel_buffer_free(&text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_hidden_by_name_index_star_and_at_any_depth),
		cmocka_unit_test(a_payload_that_cannot_be_followed_is_hidden_whole),
		cmocka_unit_test(what_was_hidden_is_taken_out_of_the_reason),
		cmocka_unit_test(paths_that_cannot_be_right_are_refused),
	};

	return cmocka_run_group_tests(tests, open_up, close_down);
}
