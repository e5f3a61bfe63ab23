/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/log_limit.h"

#include <stddef.h>

static bool is_over(const struct semel_log_limit_entry *line, int64_t now_ms)
{
	return now_ms - line->since_ms >= SEMEL_LOG_LIMIT_WINDOW_MS;
}

/* The entry of the line, or the one to replace: an unused one; otherwise the oldest of those
 * without omitted lines to report, or else the oldest of all. */
static struct semel_log_limit_entry *entry_of(struct semel_log_limiter *repeats, uint64_t hash)
{
	struct semel_log_limit_entry *spare = &repeats->lines[0];

	for (size_t i = 0; i < SEMEL_LOG_LIMIT_ENTRIES; i++) {
		struct semel_log_limit_entry *line = &repeats->lines[i];
		if (line->hash == hash)
			return line;
		if (line->hash == 0 || (line->omitted == 0) > (spare->omitted == 0) ||
		    ((line->omitted == 0) == (spare->omitted == 0) &&
		     line->since_ms < spare->since_ms && spare->hash != 0))
			spare = line;
	}
	return spare;
}

bool semel_log_limiter_admit(struct semel_log_limiter *repeats,
			     const struct semel_log_limit_entry *line, int64_t now_ms,
			     uint32_t *omitted_out)
{
	struct semel_log_limit_entry *known = entry_of(repeats, line->hash);

	*omitted_out = 0;
	if (known->hash == line->hash && !is_over(known, now_ms)) {
		bool admitted = known->written < SEMEL_LOG_LIMIT_BURST;
		known->written += admitted;
		known->omitted += !admitted;
		return admitted;
	}
	if (known->hash == line->hash)
		*omitted_out = known->omitted;
	*known = *line;
	known->since_ms = now_ms;
	known->written = 1;
	known->omitted = 0;
	return true;
}

bool semel_log_limiter_take_overdue(struct semel_log_limiter *repeats, int64_t now_ms, bool all,
				    struct semel_log_limit_entry *line_out)
{
	for (size_t i = 0; i < SEMEL_LOG_LIMIT_ENTRIES; i++) {
		struct semel_log_limit_entry *line = &repeats->lines[i];
		if (line->omitted == 0 || (!all && !is_over(line, now_ms)))
			continue;
		*line_out = *line;
		line->omitted = 0;
		return true;
	}
	return false;
}
