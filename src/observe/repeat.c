/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/repeat.h"

#include <stddef.h>

static bool is_over(const struct semel_repeat *line, int64_t now_ms)
{
	return now_ms - line->since_ms >= SEMEL_REPEAT_MS;
}

/* The line itself, or the place that can best be spared: one whose count nobody waits for, and of
 * those the oldest. */
static struct semel_repeat *place_of(struct semel_repeats *repeats, uint64_t hash)
{
	struct semel_repeat *spare = &repeats->lines[0];

	for (size_t i = 0; i < SEMEL_REPEAT_LINES; i++) {
		struct semel_repeat *line = &repeats->lines[i];
		if (line->hash == hash)
			return line;
		if (line->hash == 0 || (line->omitted == 0) > (spare->omitted == 0) ||
		    ((line->omitted == 0) == (spare->omitted == 0) &&
		     line->since_ms < spare->since_ms && spare->hash != 0))
			spare = line;
	}
	return spare;
}

bool semel_repeats_admit(struct semel_repeats *repeats, const struct semel_repeat *line,
			 int64_t now_ms, uint32_t *omitted_out)
{
	struct semel_repeat *known = place_of(repeats, line->hash);

	*omitted_out = 0;
	if (known->hash == line->hash && !is_over(known, now_ms)) {
		bool admitted = known->written < SEMEL_REPEAT_BURST;
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

bool semel_repeats_overdue(struct semel_repeats *repeats, int64_t now_ms, bool all,
			   struct semel_repeat *line_out)
{
	for (size_t i = 0; i < SEMEL_REPEAT_LINES; i++) {
		struct semel_repeat *line = &repeats->lines[i];
		if (line->omitted == 0 || (!all && !is_over(line, now_ms)))
			continue;
		*line_out = *line;
		line->omitted = 0;
		return true;
	}
	return false;
}
