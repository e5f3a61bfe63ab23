/* SPDX-License-Identifier: Apache-2.0 */
/* One line on a terminal's stderr, drawn over itself. */
#include "cli/progress.h"

#include "base/env.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define DRAW_EVERY_MS 100
#define BAR_WIDTH     30

static int64_t drawn_at_ms;
static bool drawn;

static bool is_time(void)
{
	if (!isatty(STDERR_FILENO))
		return false;
	int64_t now_ms = semel_steady_ms(semel_env_system());
	if (now_ms - drawn_at_ms < DRAW_EVERY_MS)
		return false;
	drawn_at_ms = now_ms;
	drawn = true;
	return true;
}

void semel_progress_show(const char *what, uint64_t count)
{
	if (is_time())
		fprintf(stderr, "\r\033[K%" PRIu64 " %s", count, what);
}

void semel_progress_show_of(const char *what, uint64_t count, uint64_t total)
{
	if (total == 0 || !is_time())
		return;
	uint64_t part = count > total ? total : count;
	int filled = (int)(part * BAR_WIDTH / total);
	fprintf(stderr, "\r\033[K[%.*s%*s] %3d%% %" PRIu64 " %s", filled,
		"##############################", BAR_WIDTH - filled, "", (int)(part * 100 / total),
		count, what);
}

void semel_progress_end(void)
{
	if (drawn)
		fputs("\r\033[K", stderr);
	drawn = false;
}
