/* SPDX-License-Identifier: Apache-2.0 */
/* Times as milliseconds since 1970 in UTC, and their text forms. */
#ifndef SEMEL_BASE_TIME_H
#define SEMEL_BASE_TIME_H

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_TIME_SIZE 32 /* "2026-11-15T12:00:00.000Z" and more */
#define SEMEL_DATE_SIZE 16 /* "2026-11-09" */

/* The years 1 to 9999: times that every store can keep, and that sort as text. */
bool semel_time_is_in_calendar(int64_t time_ms);
/* RFC 3339 in UTC with milliseconds. Sorts as text within the calendar. */
void semel_time_format(int64_t time_ms, char text_out[SEMEL_TIME_SIZE]);
/* RFC 3339 with any offset, fraction optional (cut to milliseconds); a bare date is its midnight
 * in UTC. Impossible dates (30 February) and what is outside the calendar are refused. */
bool semel_time_parse(const char *text, int64_t *time_ms_out);
/* Monday 00:00 UTC of the week, also before 1970. */
int64_t semel_time_week_start(int64_t time_ms);
void semel_time_format_date(int64_t time_ms, char text_out[SEMEL_DATE_SIZE]);
/* "500ms", "30s", "5m", "24h", "14d"; a bare number is seconds. Not negative, no overflow. */
bool semel_duration_parse(const char *text, int64_t *duration_ms_out);
/* The shortest exact form: "14d", "90s". */
void semel_duration_format(int64_t duration_ms, char text_out[SEMEL_TIME_SIZE]);

#endif
