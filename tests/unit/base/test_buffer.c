/* SPDX-License-Identifier: Apache-2.0 */
/* Growing bytes and what is written into them. */
#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static struct semel_buffer buffer;

static int drop(void **state)
{
	(void)state;
	semel_buffer_free(&buffer);
	return 0;
}

static void appends_add_up_and_end_with_a_nul(void **state)
{
	(void)state;
	assert_string_equal(semel_buffer_text(&buffer).data, "");
	for (int i = 0; i < 1000; i++) {
		semel_buffer_append(&buffer, "a\0", 2);
		semel_buffer_string(&buffer, "bc");
		semel_buffer_printf(&buffer, "%03d", i);
	}
	assert_false(buffer.failed);
	assert_int_equal(buffer.length, 7000);
	assert_memory_equal(buffer.data + 6993, "a\0bc999", 8);
	semel_buffer_clear(&buffer);
	assert_int_equal(buffer.length, 0);
	assert_string_equal(buffer.data, "");
}

static void a_failure_is_remembered_until_cleared(void **state)
{
	(void)state;
	semel_buffer_append(&buffer, "x", SIZE_MAX - 1);
	assert_true(buffer.failed);
	semel_buffer_string(&buffer, "more");
	assert_true(buffer.failed);
	assert_int_equal(buffer.length, 0);
	semel_buffer_clear(&buffer);
	semel_buffer_string(&buffer, "again");
	assert_false(buffer.failed);
	assert_string_equal(buffer.data, "again");
}

static const char *quoted(struct semel_text text)
{
	semel_buffer_clear(&buffer);
	semel_buffer_json(&buffer, text);
	return buffer.data;
}

static void text_is_quoted_for_json(void **state)
{
	(void)state;
	assert_string_equal(quoted(SEMEL_TEXT("")), "\"\"");
	assert_string_equal(quoted(SEMEL_TEXT("a\"b\\c/")), "\"a\\\"b\\\\c/\"");
	assert_string_equal(quoted(SEMEL_TEXT("\b\f\n\r\t")), "\"\\b\\f\\n\\r\\t\"");
	assert_string_equal(quoted(SEMEL_TEXT("\0\x1f\x7f")), "\"\\u0000\\u001f\x7f\"");
	assert_string_equal(quoted(SEMEL_TEXT("\xE2\x82\xAC")), "\"\xE2\x82\xAC\"");
}

static void bytes_that_are_no_text_are_replaced(void **state)
{
	(void)state;
	assert_string_equal(quoted(SEMEL_TEXT("a\xFFz")), "\"a\xEF\xBF\xBDz\"");
	assert_string_equal(quoted(SEMEL_TEXT("\xE2\x82")), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void no_text_is_null(void **state)
{
	(void)state;
	semel_buffer_json_or_null(&buffer, (struct semel_text){ NULL, 0 });
	semel_buffer_json_or_null(&buffer, SEMEL_TEXT("x"));
	assert_string_equal(buffer.data, "null\"x\"");
}

static void base64_has_its_padding(void **state)
{
	(void)state;
	static const char *const expected[] = { "", "/w==", "/wA=", "/wA+", "/wA+YQ==" };
	for (size_t i = 0; i < 5; i++) {
		semel_buffer_clear(&buffer);
		semel_buffer_base64(&buffer, "\xFF\0>a", i);
		assert_string_equal(buffer.data, expected[i]);
		assert_int_equal(buffer.length, strlen(expected[i]));
	}
}

static void what_moves_a_cursor_or_turns_the_writing_is_made_visible(void **state)
{
	struct semel_buffer shown = { 0 };
	(void)state;
	semel_buffer_visible(&shown, SEMEL_TEXT("a\tb\n\x1b[2J\r\x7f\xc2\x9b"
						"31m\xe2\x80\xae\xe2\x81\xa6\0"
						"\xc3\xa9\xe2\x80\xa6\xf0\x9f\x98\x80\xff\x9b."));
	assert_string_equal(shown.data,
			    "a\tb\n\\u001b[2J\\u000d\\u007f\\u009b31m\\u202e\\u2066\\u0000"
			    "\xc3\xa9\xe2\x80\xa6\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd.");
	semel_buffer_free(&shown);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(appends_add_up_and_end_with_a_nul, drop),
		cmocka_unit_test_teardown(a_failure_is_remembered_until_cleared, drop),
		cmocka_unit_test_teardown(text_is_quoted_for_json, drop),
		cmocka_unit_test_teardown(bytes_that_are_no_text_are_replaced, drop),
		cmocka_unit_test_teardown(no_text_is_null, drop),
		cmocka_unit_test_teardown(base64_has_its_padding, drop),
		cmocka_unit_test(what_moves_a_cursor_or_turns_the_writing_is_made_visible),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
