/* SPDX-License-Identifier: Apache-2.0 */
/* Moments and durations, against the C library's calendar within its range. */
#include "base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DAY_MS INT64_C(86400000)

static void every_day_of_the_calendar_goes_there_and_back(void **state)
{
	(void)state;
	for (int64_t day = -719162; day <= 2932896; day += 13) { /* the years 1 to 9999 */
		char text[SEMEL_TIME_SIZE], expected[64];
		int64_t time_ms = day * DAY_MS + 3723004, parsed;
		semel_time_format(time_ms, text);
		time_t seconds = (time_t)(day * 86400 + 3723);
		struct tm broken;
		gmtime_r(&seconds, &broken);
		snprintf(expected, sizeof(expected), "%04d-%02d-%02dT01:02:03.004Z",
			 broken.tm_year + 1900, broken.tm_mon + 1, broken.tm_mday);
		assert_string_equal(text, expected);
		assert_true(semel_time_parse(text, &parsed));
		assert_true(parsed == time_ms);
	}
}

static void parsed_as(const char *text, int64_t expected)
{
	int64_t found = -1;
	if (!semel_time_parse(text, &found))
		fail_msg("%s was refused", text);
	if (found != expected)
		fail_msg("%s is %lld, not %lld", text, (long long)found, (long long)expected);
}

static void times_are_read_as_people_write_them(void **state)
{
	(void)state;
	parsed_as("1970-01-01", 0);
	parsed_as("2026-11-15", INT64_C(1794700800000));
	parsed_as("2026-11-15T12:00:00Z", INT64_C(1794744000000));
	parsed_as("2026-11-15t12:00:00z", INT64_C(1794744000000));
	parsed_as("2026-11-15 12:00:00Z", INT64_C(1794744000000));
	parsed_as("2026-11-15T13:30:00+01:30", INT64_C(1794744000000));
	parsed_as("2026-11-15T11:00:00-01:00", INT64_C(1794744000000));
	parsed_as("1970-01-01T00:00:00.5Z", 500);
	parsed_as("1970-01-01T00:00:00.0019999999Z", 1);
	parsed_as("1969-12-31T23:59:59.999Z", -1);
	parsed_as("2024-02-29T00:00:00Z", INT64_C(1709164800000));
	parsed_as("2000-02-29", INT64_C(951782400000));
	parsed_as("2016-12-31T23:59:60Z", INT64_C(1483228800000));
	parsed_as("2017-01-01T00:59:60+01:00", INT64_C(1483228800000));
	parsed_as("0001-01-01", INT64_C(-62135596800000));
	parsed_as("9999-12-31T23:59:59.999Z", INT64_C(253402300799999));
}

static void impossible_times_are_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = {
		"",
		"now",
		"2026",
		"2026-1-1",
		"2026-02-30",
		"2023-02-29",
		"1900-02-29",
		"2026-13-01",
		"2026-00-01",
		"2026-01-00",
		"2026-04-31",
		"2026-11-15T",
		"2026-11-15T12:00",
		"2026-11-15T12:00:00",
		"2026-11-15T24:00:00Z",
		"2026-11-15T12:60:00Z",
		"2026-11-15T12:00:60Z",
		"2026-11-15T12:00:61Z",
		"2026-11-15T12:00:00.Z",
		"2026-11-15T12:00:00+0100",
		"2026-11-15T12:00:00+24:00",
		"2026-11-15T12:00:00+01:60",
		"2026-11-15T12:00:00Z ",
		" 2026-11-15T12:00:00Z",
		"+026-11-15",
		"12026-11-15",
		"0000-12-31",
		"0001-01-01T00:00:00+00:01",
		"9999-12-31T23:59:59-00:01",
	};
	int64_t ignored;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (semel_time_parse(wrong[i], &ignored))
			fail_msg("%s was accepted", wrong[i]);
	assert_false(semel_time_parse(NULL, &ignored));
}

static void a_week_begins_on_monday_also_before_1970(void **state)
{
	(void)state;
	static const struct {
		const char *moment, *monday;
	} weeks[] = {
		{ "2026-11-15T23:59:59.999Z", "2026-11-09" }, /* a Sunday */
		{ "2026-11-16T00:00:00Z", "2026-11-16" },
		{ "1970-01-01T00:00:00Z", "1969-12-29" },
		{ "1969-12-29T00:00:00Z", "1969-12-29" },
		{ "1969-12-28T23:59:59.999Z", "1969-12-22" },
		{ "0001-01-01T00:00:00Z", "0001-01-01" },
	};
	for (size_t i = 0; i < sizeof(weeks) / sizeof(weeks[0]); i++) {
		int64_t moment, monday;
		char date[SEMEL_DATE_SIZE];
		assert_true(semel_time_parse(weeks[i].moment, &moment));
		assert_true(semel_time_parse(weeks[i].monday, &monday));
		assert_true(semel_time_week_start(moment) == monday);
		semel_time_format_date(semel_time_week_start(moment), date);
		assert_string_equal(date, weeks[i].monday);
	}
}

static void the_ends_of_time_do_not_overflow(void **state)
{
	(void)state;
	char text[SEMEL_TIME_SIZE], date[SEMEL_DATE_SIZE];
	semel_time_format(INT64_MAX, text);
	assert_string_equal(text, "292278994-08-17T07:12:55.807Z");
	semel_time_format(INT64_MIN, text);
	assert_string_equal(text, "-292275055-05-16T16:47:04.192Z");
	assert_true(semel_time_week_start(INT64_MIN) == INT64_MIN);
	assert_true(semel_time_week_start(INT64_MAX) > 0);
	semel_time_format_date(INT64_MIN, date);
	assert_true(strlen(date) < SEMEL_DATE_SIZE);
}

static void durations_are_read_and_written_in_their_shortest_form(void **state)
{
	(void)state;
	static const struct {
		const char *given;
		int64_t ms;
		const char *shortest;
	} durations[] = {
		{ "500ms", 500, "500ms" },
		{ "30s", 30000, "30s" },
		{ "5m", 300000, "5m" },
		{ "24h", DAY_MS, "1d" },
		{ "14d", 14 * DAY_MS, "14d" },
		{ "90", 90000, "90s" },
		{ "0", 0, "0s" },
		{ "0ms", 0, "0s" },
		{ "168h", 7 * DAY_MS, "7d" },
		{ "1500ms", 1500, "1500ms" },
		{ "9223372036854775807ms", INT64_MAX, "9223372036854775807ms" },
	};
	for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
		int64_t ms;
		char text[SEMEL_TIME_SIZE];
		assert_true(semel_duration_parse(durations[i].given, &ms));
		assert_true(ms == durations[i].ms);
		semel_duration_format(ms, text);
		assert_string_equal(text, durations[i].shortest);
	}
}

static void wrong_durations_are_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = { "",
					     "s",
					     "-1s",
					     "+1s",
					     " 1s",
					     "1s ",
					     "1 s",
					     "1S",
					     "1.5s",
					     "1w",
					     "1mss",
					     "9223372036854775808ms",
					     "9223372036854776s",
					     "99999999999999999999d",
					     "106751991168d" };
	int64_t ignored;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (semel_duration_parse(wrong[i], &ignored))
			fail_msg("%s was accepted", wrong[i]);
	assert_false(semel_duration_parse(NULL, &ignored));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_day_of_the_calendar_goes_there_and_back),
		cmocka_unit_test(times_are_read_as_people_write_them),
		cmocka_unit_test(impossible_times_are_refused),
		cmocka_unit_test(a_week_begins_on_monday_also_before_1970),
		cmocka_unit_test(the_ends_of_time_do_not_overflow),
		cmocka_unit_test(durations_are_read_and_written_in_their_shortest_form),
		cmocka_unit_test(wrong_durations_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
