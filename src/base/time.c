/* SPDX-License-Identifier: Apache-2.0 */
/* Civil dates without the C library: its functions know locales and time zones, and event times
 * must mean the same everywhere. Years are counted from March, so that the leap day comes last. */
#include "base/time.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define DAY_MS INT64_C(86400000)

enum {
	ERA_YEARS = 400,
	ERA_DAYS = 146097,
	EPOCH_DAY = 719468,  /* 1970-01-01, counted from 0000-03-01 */
	FIRST_DAY = -719162, /* 0001-01-01, counted from 1970 like all days below */
	END_DAY = 2932897,   /* 10000-01-01 */
};

struct date {
	int64_t year;
	int month, day; /* from 1 */
};

static int64_t floor_div(int64_t number, int64_t by)
{
	return number / by - (number % by < 0);
}

static int64_t floor_rest(int64_t number, int64_t by)
{
	int64_t rest = number % by;
	return rest < 0 ? rest + by : rest;
}

/* Of the year that begins with March: month 0 is March, 11 is February. */
static int days_before_month(int month)
{
	return (153 * month + 2) / 5;
}

static int64_t day_of(struct date date)
{
	int64_t year = date.month > 2 ? date.year : date.year - 1;
	int64_t era = floor_div(year, ERA_YEARS);
	int64_t year_of_era = year - era * ERA_YEARS;
	int64_t day_of_year = days_before_month((date.month + 9) % 12) + date.day - 1;
	int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
	return era * ERA_DAYS + day_of_era - EPOCH_DAY;
}

static struct date date_of(int64_t day)
{
	day += EPOCH_DAY;
	int64_t era = floor_div(day, ERA_DAYS);
	int64_t day_of_era = day - era * ERA_DAYS;
	/* Subtracts the leap days so far, so that every year has 365 days. */
	int64_t year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 -
			day_of_era / (ERA_DAYS - 1)) /
		       365;
	int day_of_year = (int)(day_of_era - (year * 365 + year / 4 - year / 100));
	int month = (5 * day_of_year + 2) / 153;
	struct date date = { .year = year + era * ERA_YEARS,
			     .month = month < 10 ? month + 3 : month - 9,
			     .day = day_of_year - days_before_month(month) + 1 };
	date.year += date.month <= 2;
	return date;
}

/* This runs for every event, and printf is slow, so the digits are written directly. */
static char *put_digits(char *at, int number, int count)
{
	for (int i = count - 1; i >= 0; i--) {
		at[i] = (char)('0' + number % 10);
		number /= 10;
	}
	return at + count;
}

static char *put_part(char *at, int number, char behind)
{
	at = put_digits(at, number, 2);
	*at = behind;
	return at + 1;
}

void semel_time_format(int64_t time_ms, char text_out[SEMEL_TIME_SIZE])
{
	struct date date = date_of(floor_div(time_ms, DAY_MS));
	int ms = (int)floor_rest(time_ms, DAY_MS);
	char *at = text_out;
	if (date.year >= 0 && date.year <= 9999)
		at = put_digits(at, (int)date.year, 4);
	else
		at += snprintf(at, SEMEL_TIME_SIZE / 2, "%04lld", (long long)date.year);
	*at++ = '-';
	at = put_part(at, date.month, '-');
	at = put_part(at, date.day, 'T');
	at = put_part(at, ms / 3600000, ':');
	at = put_part(at, ms / 60000 % 60, ':');
	at = put_part(at, ms / 1000 % 60, '.');
	at = put_digits(at, ms % 1000, 3);
	*at++ = 'Z';
	*at = '\0';
}

void semel_time_format_date(int64_t time_ms, char text_out[SEMEL_DATE_SIZE])
{
	struct date date = date_of(floor_div(time_ms, DAY_MS));
	snprintf(text_out, SEMEL_DATE_SIZE, "%04lld-%02d-%02d", (long long)date.year, date.month,
		 date.day);
}

bool semel_time_is_in_calendar(int64_t time_ms)
{
	return time_ms >= FIRST_DAY * DAY_MS && time_ms < END_DAY * DAY_MS;
}

int64_t semel_time_week_start(int64_t time_ms)
{
	int64_t since_thursday = floor_rest(time_ms, 7 * DAY_MS); /* 1970-01-01 was one */
	int64_t since_monday = (since_thursday + 3 * DAY_MS) % (7 * DAY_MS);
	return time_ms >= INT64_MIN + since_monday ? time_ms - since_monday : INT64_MIN;
}

/* Reads exactly this many digits; the cursor moves past them. */
static bool read_digits(const char **cursor, int digits, int *number_out)
{
	int number = 0;
	for (int i = 0; i < digits; i++) {
		char c = (*cursor)[i];
		if (c < '0' || c > '9')
			return false;
		number = number * 10 + (c - '0');
	}
	*cursor += digits;
	*number_out = number;
	return true;
}

static bool read_character(const char **cursor, const char *allowed)
{
	if (**cursor == '\0' || !strchr(allowed, **cursor))
		return false;
	(*cursor)++;
	return true;
}

static bool is_leap(int64_t year)
{
	return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static bool read_date(const char **cursor, struct date *date_out)
{
	static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	int year;
	bool read = read_digits(cursor, 4, &year) && read_character(cursor, "-") &&
		    read_digits(cursor, 2, &date_out->month) && read_character(cursor, "-") &&
		    read_digits(cursor, 2, &date_out->day);
	if (!read || date_out->month < 1 || date_out->month > 12)
		return false;
	date_out->year = year;
	int last = days[date_out->month - 1] + (date_out->month == 2 && is_leap(year));
	return date_out->day >= 1 && date_out->day <= last;
}

/* "12:30:05.25" as milliseconds of the day. A leap second is accepted; the caller knows the offset,
 * and so whether one is possible. */
static bool read_clock(const char **cursor, int64_t *ms_out, bool *leap_second_out)
{
	int hour, minute, second, ms = 0;
	bool read = read_digits(cursor, 2, &hour) && read_character(cursor, ":") &&
		    read_digits(cursor, 2, &minute) && read_character(cursor, ":") &&
		    read_digits(cursor, 2, &second);
	if (!read || hour > 23 || minute > 59 || second > 60)
		return false;
	if (read_character(cursor, ".")) {
		int digit, scale = 100;
		if (!read_digits(cursor, 1, &digit))
			return false;
		do {
			ms += digit * scale;
			scale /= 10;
		} while (read_digits(cursor, 1, &digit));
	}
	*leap_second_out = second == 60;
	*ms_out = ((hour * 60 + minute) * 60 + second) * INT64_C(1000) + ms;
	return true;
}

static bool read_offset(const char **cursor, int64_t *offset_ms_out)
{
	*offset_ms_out = 0;
	if (read_character(cursor, "Zz"))
		return true;
	int sign = **cursor == '-' ? -1 : 1;
	int hours, minutes;
	bool read = read_character(cursor, "+-") && read_digits(cursor, 2, &hours) &&
		    read_character(cursor, ":") && read_digits(cursor, 2, &minutes);
	if (!read || hours > 23 || minutes > 59)
		return false;
	*offset_ms_out = sign * (hours * 60 + minutes) * INT64_C(60000);
	return true;
}

bool semel_time_parse(const char *text, int64_t *time_ms_out)
{
	struct date date;
	if (!text || !read_date(&text, &date))
		return false;
	int64_t time_ms = day_of(date) * DAY_MS;
	if (*text == '\0') {
		*time_ms_out = time_ms;
		return semel_time_is_in_calendar(time_ms);
	}
	int64_t clock_ms, offset_ms;
	bool leap_second;
	bool read = read_character(&text, "Tt ") && read_clock(&text, &clock_ms, &leap_second) &&
		    read_offset(&text, &offset_ms) && *text == '\0';
	if (!read)
		return false;
	time_ms += clock_ms - offset_ms;
	/* A leap second ends a day in UTC; here it is the first second of the next day. */
	if (leap_second && floor_rest(time_ms, DAY_MS) >= 1000)
		return false;
	*time_ms_out = time_ms;
	return semel_time_is_in_calendar(time_ms);
}

/* Largest first: the first that divides a duration gives its shortest form. */
static const struct unit {
	const char *name;
	int64_t ms;
} units[] = { { "d", DAY_MS }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 } };

enum { UNIT_COUNT = sizeof(units) / sizeof(units[0]) };

static int64_t unit_ms(const char *name)
{
	if (*name == '\0')
		return 1000;
	for (size_t i = 0; i < UNIT_COUNT; i++)
		if (strcmp(units[i].name, name) == 0)
			return units[i].ms;
	return 0;
}

bool semel_duration_parse(const char *text, int64_t *duration_ms_out)
{
	if (!text || *text < '0' || *text > '9')
		return false;
	int64_t number = 0;
	int digit;
	while (read_digits(&text, 1, &digit)) {
		if (number > (INT64_MAX - digit) / 10)
			return false;
		number = number * 10 + digit;
	}
	int64_t unit = unit_ms(text);
	if (unit == 0 || number > INT64_MAX / unit)
		return false;
	*duration_ms_out = number * unit;
	return true;
}

void semel_duration_format(int64_t duration_ms, char text_out[SEMEL_TIME_SIZE])
{
	size_t i = 0;
	while (duration_ms % units[i].ms != 0)
		i++;
	if (duration_ms == 0)
		i = 3;
	snprintf(text_out, SEMEL_TIME_SIZE, "%lld%s", (long long)(duration_ms / units[i].ms),
		 units[i].name);
}
