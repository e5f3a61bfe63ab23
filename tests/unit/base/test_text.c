/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about text. */
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <string.h>

static bool utf8(const char *bytes)
{
	return semel_text_is_utf8(semel_text_of(bytes));
}

static void no_text_differs_from_an_empty_one(void **state)
{
	(void)state;
	assert_null(semel_text_of(NULL).data);
	assert_false(semel_text_equal(semel_text_of(NULL), SEMEL_TEXT("")));
	assert_true(semel_text_equal(semel_text_of(NULL), semel_text_of(NULL)));
	assert_true(semel_text_equal(SEMEL_TEXT("a\0b"), SEMEL_TEXT("a\0b")));
	assert_false(semel_text_equal(SEMEL_TEXT("a\0b"), SEMEL_TEXT("a\0c")));
	assert_false(semel_text_equal(SEMEL_TEXT("ab"), SEMEL_TEXT("abc")));
}

static void a_text_is_compared_beyond_a_zero_byte(void **state)
{
	(void)state;
	struct semel_text cut = SEMEL_TEXT("order\0placed");
	assert_false(semel_text_equals_string(cut, "order"));
	assert_true(semel_text_equals_string(SEMEL_TEXT("order"), "order"));
	assert_false(semel_text_equals_string(semel_text_of(NULL), ""));
	assert_false(semel_text_equals_caseless(cut, "ORDER"));
	assert_true(semel_text_equals_caseless(SEMEL_TEXT("Order-1"), "oRDER-1"));
	assert_true(semel_text_starts_with(cut, "order"));
	assert_false(semel_text_starts_with(SEMEL_TEXT("ord"), "order"));
	assert_ptr_equal(semel_text_find(cut, SEMEL_TEXT("placed")), cut.data + 6);
	assert_ptr_equal(semel_text_find(cut, SEMEL_TEXT("r\0p")), cut.data + 4);
	assert_null(semel_text_find(cut, SEMEL_TEXT("")));
	assert_null(semel_text_find(semel_text_of(NULL), SEMEL_TEXT("a")));
}

static void a_text_with_a_zero_byte_is_no_string(void **state)
{
	(void)state;
	assert_true(semel_text_has_nul(SEMEL_TEXT("a\0b")));
	assert_true(semel_text_has_nul(SEMEL_TEXT("a\0")));
	assert_false(semel_text_has_nul(SEMEL_TEXT("ab")));
	assert_false(semel_text_has_nul(semel_text_of(NULL)));
	assert_false(semel_text_has_nul((struct semel_text){ NULL, 1 })); /* out of memory */
	assert_null(semel_text_to_string(SEMEL_TEXT("a\0b")));
	assert_null(semel_text_to_string(semel_text_of(NULL)));
	assert_string_equal(semel_text_to_string(SEMEL_TEXT("ab")), "ab");
	assert_string_equal(semel_text_shown_or(semel_text_of(NULL), "-"), "-");
}

static void white_space_alone_is_blank(void **state)
{
	(void)state;
	assert_true(semel_string_is_blank(NULL));
	assert_true(semel_string_is_blank(""));
	assert_true(semel_string_is_blank(" \t\r\n\v\f"));
	assert_false(semel_string_is_blank(" x "));
	assert_false(semel_text_is_blank(SEMEL_TEXT("\0")));
}

static void utf8_is_taken_strictly(void **state)
{
	(void)state;
	assert_true(utf8(""));
	assert_true(utf8("plain words that are longer than one machine word"));
	assert_true(utf8("\xC2\x80 \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80"));
	assert_true(utf8("\xF4\x8F\xBF\xBF"));
	assert_true(semel_text_is_utf8(SEMEL_TEXT("zero \0 bytes are characters")));

	assert_false(utf8("\x80"));
	assert_false(utf8("\xC0\x80"));
	assert_false(utf8("\xC1\xBF"));
	assert_false(utf8("\xE0\x9F\xBF"));
	assert_false(utf8("\xED\xA0\x80"));
	assert_false(utf8("\xF0\x8F\xBF\xBF"));
	assert_false(utf8("\xF4\x90\x80\x80"));
	assert_false(utf8("\xF5\x80\x80\x80"));
	assert_false(utf8("\xFF"));
	assert_false(utf8("12345678\xE2\x82"));
	assert_false(utf8("\xE2\x82x"));
}

static void control_characters_are_seen(void **state)
{
	(void)state;
	assert_false(semel_text_has_control(SEMEL_TEXT("caf\xC3\xA9 ~")));
	assert_true(semel_text_has_control(SEMEL_TEXT("a\nb")));
	assert_true(semel_text_has_control(SEMEL_TEXT("a\x7f")));
	assert_true(semel_text_has_control(SEMEL_TEXT("a\0")));
}

static void a_header_name_is_a_token(void **state)
{
	(void)state;
	assert_true(semel_text_is_token(SEMEL_TEXT("x-Tenant_1.!#$%&'*+^`|~")));
	assert_false(semel_text_is_token(SEMEL_TEXT("")));
	assert_false(semel_text_is_token(SEMEL_TEXT("two words")));
	assert_false(semel_text_is_token(SEMEL_TEXT("a:b")));
	assert_false(semel_text_is_token(SEMEL_TEXT("a\0")));
	assert_false(semel_text_is_token(SEMEL_TEXT("caf\xC3\xA9")));
}

static void a_mistyped_word_finds_its_neighbour(void **state)
{
	(void)state;
	const char *const words[] = { "publish", "relay", "consume", "dlq", "replay" };
	const size_t count = sizeof(words) / sizeof(words[0]);
	assert_string_equal(semel_text_nearest("pulbish", words, count), "publish");
	assert_string_equal(semel_text_nearest("publsh", words, count), "publish");
	assert_string_equal(semel_text_nearest("RELAY", words, count), "relay");
	assert_string_equal(semel_text_nearest("replai", words, count), "replay");
	assert_string_equal(semel_text_nearest("dql", words, count), "dlq");
	assert_null(semel_text_nearest("xyzzy", words, count));
	assert_null(semel_text_nearest("", words, count));
	char long_word[300];
	memset(long_word, 'a', sizeof(long_word) - 1);
	long_word[sizeof(long_word) - 1] = '\0';
	assert_null(semel_text_nearest(long_word, words, count));
	assert_null(semel_text_nearest("x", words, 0));
}

static bool number(const char *text, long long min, long long max, long long expected)
{
	long long found = -77;
	return semel_text_to_int64(text, min, max, &found) && found == expected;
}

static void numbers_are_taken_whole_and_within_bounds(void **state)
{
	(void)state;
	assert_true(number("0", 0, 9, 0));
	assert_true(number("-12", -100, 9, -12));
	assert_true(number("9223372036854775807", LLONG_MIN, LLONG_MAX, LLONG_MAX));
	assert_true(number("-9223372036854775808", LLONG_MIN, LLONG_MAX, LLONG_MIN));
	const char *const wrong[] = { "",   " 1",   "1 ", "+1",  "-",
				      "1x", "0x10", "10", "1.0", "9223372036854775808" };
	long long ignored;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_false(semel_text_to_int64(wrong[i], 0, 9, &ignored));
	assert_false(semel_text_to_int64("9223372036854775808", LLONG_MIN, LLONG_MAX, &ignored));
	assert_false(semel_text_to_int64(NULL, 0, 9, &ignored));
}

static void a_name_that_stands_before_is_repeated(void **state)
{
	(void)state;
	static const char *const names[] = { "a", "b", "a", "ab", NULL };
	assert_false(semel_string_is_repeated(names, 0));
	assert_false(semel_string_is_repeated(names, 1));
	assert_true(semel_string_is_repeated(names, 2));
	assert_false(semel_string_is_repeated(names, 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_that_stands_before_is_repeated),
		cmocka_unit_test(no_text_differs_from_an_empty_one),
		cmocka_unit_test(a_text_is_compared_beyond_a_zero_byte),
		cmocka_unit_test(a_text_with_a_zero_byte_is_no_string),
		cmocka_unit_test(white_space_alone_is_blank),
		cmocka_unit_test(utf8_is_taken_strictly),
		cmocka_unit_test(control_characters_are_seen),
		cmocka_unit_test(a_header_name_is_a_token),
		cmocka_unit_test(a_mistyped_word_finds_its_neighbour),
		cmocka_unit_test(numbers_are_taken_whole_and_within_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
