/* SPDX-License-Identifier: Apache-2.0 */
/* The table of statuses is complete, and agrees with the contract of the program. Errors are
 * bounded, readable and may be left out. */
#include "base/error.h"
#include "base/text.h"

#include <semel/status.h>
#include <semel/version.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void every_status_has_a_name_of_its_own_and_a_sentence(void **state)
{
	(void)state;
	for (int i = 0; i < SEMEL_STATUS_COUNT; i++) {
		const char *name = semel_status_name((semel_status)i);
		assert_non_null(name);
		assert_true(strlen(semel_status_sentence((semel_status)i)) > 0);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(name, semel_status_name((semel_status)j));
	}
}

static void exit_codes_are_those_of_the_contract(void **state)
{
	(void)state;
	static const struct {
		semel_status status;
		int code;
	} expected[SEMEL_STATUS_COUNT] = {
		{ SEMEL_OK, 0 },
		{ SEMEL_STOPPED, 0 },
		{ SEMEL_PROBLEM_FOUND, 1 },
		{ SEMEL_USAGE, 64 },
		{ SEMEL_INVALID, 65 },
		{ SEMEL_TOO_LARGE, 65 },
		{ SEMEL_DUPLICATE_ID, 65 },
		{ SEMEL_CONTRACT, 65 },
		{ SEMEL_NOT_FOUND, 65 },
		{ SEMEL_NOT_PENDING, 65 },
		{ SEMEL_REPLAY_LIMIT, 65 },
		{ SEMEL_NOT_A_DATABASE, 65 },
		{ SEMEL_HANDLER_REJECT, 65 },
		{ SEMEL_OUTAGE, 69 },
		{ SEMEL_NO_TRANSACTION, 70 },
		{ SEMEL_INTERNAL, 70 },
		{ SEMEL_BUSY, 75 },
		{ SEMEL_STORAGE_FULL, 75 },
		{ SEMEL_NOT_FINISHED, 75 },
		{ SEMEL_LEASE_LOST, 75 },
		{ SEMEL_NACKED, 75 },
		{ SEMEL_UNROUTABLE, 75 },
		{ SEMEL_FULL, 75 },
		{ SEMEL_HANDLER_RETRY, 75 },
		{ SEMEL_CONFIG, 78 },
		{ SEMEL_NO_SCHEMA, 78 },
		{ SEMEL_SCHEMA_NEWER, 78 },
	};
	for (int i = 0; i < SEMEL_STATUS_COUNT; i++)
		assert_int_equal(semel_status_exit_code(expected[i].status), expected[i].code);
}

static void an_outage_is_not_a_failure_of_the_event(void **state)
{
	(void)state;
	const semel_status outages[] = { SEMEL_OUTAGE, SEMEL_BUSY, SEMEL_STORAGE_FULL,
					 SEMEL_LEASE_LOST };
	for (size_t i = 0; i < sizeof(outages) / sizeof(outages[0]); i++)
		assert_int_equal(semel_status_class(outages[i]), SEMEL_CLASS_OUTAGE);
	assert_int_equal(semel_status_class(SEMEL_NACKED), SEMEL_CLASS_RETRY);
	assert_int_equal(semel_status_class(SEMEL_HANDLER_RETRY), SEMEL_CLASS_RETRY);
	assert_int_equal(semel_status_class(SEMEL_HANDLER_REJECT), SEMEL_CLASS_REJECT);
	assert_int_equal(semel_status_class(SEMEL_CONTRACT), SEMEL_CLASS_REJECT);
	assert_int_equal(semel_status_class(SEMEL_NO_TRANSACTION), SEMEL_CLASS_BUG);
	assert_int_equal(semel_status_class(SEMEL_OK), SEMEL_CLASS_OK);
}

static void a_number_that_is_no_status_is_a_bug(void **state)
{
	(void)state;
	assert_string_equal(semel_status_name((semel_status)999), "internal");
	assert_int_equal(semel_status_class(SEMEL_STATUS_COUNT), SEMEL_CLASS_BUG);
}

static void the_library_has_the_version_of_its_headers(void **state)
{
	(void)state;
	assert_string_equal(semel_version(), SEMEL_VERSION);
}

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
		cmocka_unit_test(every_status_has_a_name_of_its_own_and_a_sentence),
		cmocka_unit_test(exit_codes_are_those_of_the_contract),
		cmocka_unit_test(an_outage_is_not_a_failure_of_the_event),
		cmocka_unit_test(a_number_that_is_no_status_is_a_bug),
		cmocka_unit_test(the_library_has_the_version_of_its_headers),
		cmocka_unit_test(the_status_comes_back_and_the_text_is_kept),
		cmocka_unit_test(an_error_is_optional),
		cmocka_unit_test(a_prefix_goes_before_the_text),
		cmocka_unit_test(an_error_may_be_made_of_its_own_text),
		cmocka_unit_test(a_long_text_is_cut_between_characters),
		cmocka_unit_test(clearing_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
