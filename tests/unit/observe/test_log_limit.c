/* SPDX-License-Identifier: Apache-2.0 */
/* Which repeated lines are written, and how many are reported as omitted. */
#include "observe/log_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct semel_log_limiter repeats;
static uint32_t omitted;

static bool admit(uint64_t hash, int64_t now_ms)
{
	const struct semel_log_limit_entry line = { .hash = hash, .text = "x" };

	return semel_log_limiter_admit(&repeats, &line, now_ms, &omitted);
}

static int forget(void **state)
{
	(void)state;
	repeats = (struct semel_log_limiter){ 0 };
	return 0;
}

static void a_few_are_written_and_the_next_window_has_the_count_of_the_omitted(void **state)
{
	(void)state;
	for (int i = 0; i < SEMEL_LOG_LIMIT_BURST; i++)
		assert_true(admit(7, 100 + i));
	for (int i = 0; i < 5; i++)
		assert_false(admit(7, 200));
	assert_true(admit(8, 200)); /* another one is not its fault */
	assert_true(admit(7, 100 + SEMEL_LOG_LIMIT_WINDOW_MS));
	assert_int_equal(omitted, 5);
	assert_true(admit(7, 101 + SEMEL_LOG_LIMIT_WINDOW_MS));
	assert_int_equal(omitted, 0);
}

static void one_that_stops_is_counted_once_after_its_window_or_at_the_end(void **state)
{
	struct semel_log_limit_entry line;

	(void)state;
	for (int i = 0; i < SEMEL_LOG_LIMIT_BURST + 2; i++)
		(void)admit(7, 100);
	assert_false(semel_log_limiter_take_overdue(&repeats, 200, false, &line));
	assert_true(semel_log_limiter_take_overdue(&repeats, 200, true, &line));
	assert_int_equal(line.omitted, 2);
	assert_string_equal(line.text, "x");
	(void)admit(7, 300);
	assert_true(semel_log_limiter_take_overdue(&repeats, 100 + SEMEL_LOG_LIMIT_WINDOW_MS, false,
						   &line));
	assert_int_equal(line.omitted, 1);
	assert_false(semel_log_limiter_take_overdue(&repeats, 100 + SEMEL_LOG_LIMIT_WINDOW_MS, true,
						    &line));
}

static void many_different_lines_are_all_written_and_a_count_is_kept_longest(void **state)
{
	struct semel_log_limit_entry line;

	(void)state;
	for (int i = 0; i < SEMEL_LOG_LIMIT_BURST + 1; i++)
		(void)admit(7, 100);
	for (uint64_t hash = 1000; hash < 1000 + 5 * SEMEL_LOG_LIMIT_ENTRIES; hash++)
		assert_true(admit(hash, 200));
	assert_true(semel_log_limiter_take_overdue(&repeats, 300, true, &line));
	assert_int_equal(line.hash, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			a_few_are_written_and_the_next_window_has_the_count_of_the_omitted, forget),
		cmocka_unit_test_setup(
			one_that_stops_is_counted_once_after_its_window_or_at_the_end, forget),
		cmocka_unit_test_setup(
			many_different_lines_are_all_written_and_a_count_is_kept_longest, forget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
