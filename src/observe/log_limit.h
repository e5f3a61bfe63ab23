/* SPDX-License-Identifier: Apache-2.0 */
/* Limits equal log lines: a few are written in each window of time, the others are counted, and the
 * count is written. Pure except for its memory; the caller holds the mutex and passes the time. */
#ifndef SEMEL_OBSERVE_LOG_LIMIT_H
#define SEMEL_OBSERVE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_LOG_LIMIT_BURST     3
#define SEMEL_LOG_LIMIT_WINDOW_MS 10000
#define SEMEL_LOG_LIMIT_ENTRIES   64 /* different lines that are remembered */
#define SEMEL_LOG_LIMIT_TEXT_SIZE 640

struct semel_log_limit_entry {
	uint64_t hash; /* of the line; 0: none */
	int64_t since_ms;
	uint32_t written, omitted;            /* since since_ms */
	char text[SEMEL_LOG_LIMIT_TEXT_SIZE]; /* what is written again with the count */
};

struct semel_log_limiter {
	struct semel_log_limit_entry lines[SEMEL_LOG_LIMIT_ENTRIES];
};

/* May the line be written? *omitted_out: how many equal lines were omitted since the last one. */
bool semel_log_limiter_admit(struct semel_log_limiter *repeats,
			     const struct semel_log_limit_entry *line, int64_t now_ms,
			     uint32_t *omitted_out);
/* Takes a line that was omitted and not repeated within its window (all: at any time), so that its
 * count was not written; resets the count. False: there is none. */
bool semel_log_limiter_take_overdue(struct semel_log_limiter *repeats, int64_t now_ms, bool all,
				    struct semel_log_limit_entry *line_out);

#endif
