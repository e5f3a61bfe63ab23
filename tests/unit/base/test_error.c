/* SPDX-License-Identifier: Apache-2.0 */
/* Errors are bounded, readable and may be left out. */
#include "base/error.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void the_status_comes_back_and_the_text_is_kept(void **state)
{
	(void)state;
	semel_error error;
	assert_int_equal(semel_error_set(&error, SEMEL_BUSY, "held by %d", 7), SEMEL_BUSY);
	assert_int_equal(error.status, SEMEL_BUSY);
	assert_string_equal(error.text, "held by 7");
}

static void an_error_is_optional(void **state)
{
	(void)state;
	assert_int_equal(semel_error_set(NULL, SEMEL_BUSY, "x"), SEMEL_BUSY);
	semel_error_clear(NULL);
	semel_error_prefix(NULL, "x");
}

static void a_prefix_goes_before_the_text(void **state)
{
	(void)state;
	semel_error error;
	semel_error_set(&error, SEMEL_INVALID, "payload is missing");
	assert_int_equal(semel_error_prefix(&error, "line %d", 3), SEMEL_INVALID);
	assert_string_equal(error.text, "line 3: payload is missing");
}

static void an_error_may_be_made_of_its_own_text(void **state)
{
	(void)state;
	semel_error error;
	semel_error_set(&error, SEMEL_OUTAGE, "inner");
	semel_error_set(&error, SEMEL_CONFIG, "outer (%s)", error.text);
	assert_string_equal(error.text, "outer (inner)");
}

static void a_long_text_is_cut_between_characters(void **state)
{
	(void)state;
	char text[2 * SEMEL_ERROR_TEXT_MAX];
	for (size_t lead = 0; lead < 4; lead++) {
		memset(text, 'x', lead);
		for (size_t i = lead; i + 4 < sizeof(text); i += 3)
			memcpy(text + i, "\xE2\x82\xAC", 4);
		semel_error error;
		semel_error_set(&error, SEMEL_INVALID, "%s", text);
		assert_true(strlen(error.text) > SEMEL_ERROR_TEXT_MAX - 5);
		assert_true(semel_text_is_utf8(semel_text_of(error.text)));
		semel_error_prefix(&error, "prefix %s", text);
		assert_true(semel_text_is_utf8(semel_text_of(error.text)));
	}
}

static void clearing_leaves_nothing(void **state)
{
	(void)state;
	semel_error error;
	semel_error_set(&error, SEMEL_INVALID, "x");
	semel_error_clear(&error);
	assert_int_equal(error.status, SEMEL_OK);
	assert_string_equal(error.text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_status_comes_back_and_the_text_is_kept),
		cmocka_unit_test(an_error_is_optional),
		cmocka_unit_test(a_prefix_goes_before_the_text),
		cmocka_unit_test(an_error_may_be_made_of_its_own_text),
		cmocka_unit_test(a_long_text_is_cut_between_characters),
		cmocka_unit_test(clearing_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
