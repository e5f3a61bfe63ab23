/* SPDX-License-Identifier: Apache-2.0 */
#include "diagnose/finding.h"

#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <setjmp.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static char seen_text[512], seen_remedy[512];
static enum semel_severity seen_severity;

static void see(const struct semel_finding *finding, void *user)
{
	(void)user;
	snprintf(seen_text, sizeof seen_text, "%s", finding->text);
	snprintf(seen_remedy, sizeof seen_remedy, "%s", finding->remedy ? finding->remedy : "");
	seen_severity = finding->severity;
}

static const struct semel_examination examination = { .report = see };

static void little_room_is_advice_and_hardly_any_is_a_problem(void **state)
{
	(void)state;
	assert_int_equal(semel_disk_space_severity(255 * MIB, 300 * MIB), SEMEL_SEVERITY_PROBLEM);
	assert_int_equal(semel_disk_space_severity(1000 * MIB, 20000 * MIB), SEMEL_SEVERITY_ADVICE);
	assert_int_equal(semel_disk_space_severity(1000 * MIB, 4000 * MIB), SEMEL_SEVERITY_FINE);
	assert_int_equal(semel_disk_space_severity(3000 * MIB, 1000000 * MIB), SEMEL_SEVERITY_FINE);
	semel_examination_disk_space(&examination, SEMEL_CHECK_STORE_DISK, "/var", MIB, 100 * MIB);
	assert_string_equal(seen_text, "/var: 1 MB free");
	assert_int_not_equal(seen_remedy[0], '\0');
}

static void clocks_may_differ_by_a_second_either_way(void **state)
{
	(void)state;
	assert_int_equal(semel_clock_skew_severity(1000), SEMEL_SEVERITY_FINE);
	assert_int_equal(semel_clock_skew_severity(-1000), SEMEL_SEVERITY_FINE);
	assert_int_equal(semel_clock_skew_severity(-1001), SEMEL_SEVERITY_ADVICE);
	assert_int_equal(semel_clock_skew_severity(60000), SEMEL_SEVERITY_PROBLEM);
}

static void what_stands_in_brackets_at_the_end_of_an_error_is_what_to_do(void **state)
{
	semel_error error = { .text = "cannot (now) reach it: refused (is it running?)" };

	(void)state;
	semel_examination_failed(&examination, SEMEL_CHECK_STORE_REACHED, &error);
	assert_string_equal(seen_text, "cannot (now) reach it: refused");
	assert_string_equal(seen_remedy, "is it running?");
	assert_int_equal(seen_severity, SEMEL_SEVERITY_PROBLEM);
	snprintf(error.text, sizeof error.text, "it broke (twice) today");
	semel_examination_failed(&examination, SEMEL_CHECK_STORE_REACHED, &error);
	assert_string_equal(seen_text, "it broke (twice) today");
	assert_int_not_equal(seen_remedy[0], '\0');
}

static void every_check_has_a_name_and_an_aim(void **state)
{
	(void)state;
	for (int check = 0; check < SEMEL_CHECK_COUNT; check++) {
		assert_non_null(semel_check_name((enum semel_check)check));
		assert_non_null(semel_check_description((enum semel_check)check));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(little_room_is_advice_and_hardly_any_is_a_problem),
		cmocka_unit_test(clocks_may_differ_by_a_second_either_way),
		cmocka_unit_test(what_stands_in_brackets_at_the_end_of_an_error_is_what_to_do),
		cmocka_unit_test(every_check_has_a_name_and_an_aim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
