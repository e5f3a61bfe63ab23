/* SPDX-License-Identifier: Apache-2.0 */
/* The line has no newline, so that the next one is drawn over it; the log clears it before it
 * writes a line. */
#include "cli/process/progress.h"

#include "base/env.h"
#include "observe/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
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
	semel_log_clear_line_first(true);
	return true;
}

void semel_progress_show(const char *what, uint64_t count)
{
	if (is_time())
		fprintf(stderr, SEMEL_LOG_CLEAR_LINE "%" PRIu64 " %s", count, what);
}

void semel_progress_show_of(const char *what, uint64_t count, uint64_t total)
{
	if (total == 0 || !is_time())
		return;
	uint64_t part = count > total ? total : count;
	int filled = (int)(part * BAR_WIDTH / total);
	fprintf(stderr, SEMEL_LOG_CLEAR_LINE "[%.*s%*s] %3d%% %" PRIu64 " %s", filled,
		"##############################", BAR_WIDTH - filled, "", (int)(part * 100 / total),
		count, what);
}

/* ---- a counter that is followed -------------------------------------------------------------- */

static struct ticker {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t stop_condition;
	bool running, stopping;
	const char *what, *second;
	enum semel_metric metric;
} ticker = { .mutex = PTHREAD_MUTEX_INITIALIZER, .stop_condition = PTHREAD_COND_INITIALIZER };

static void pause_or_end(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += DRAW_EVERY_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000L;
	}
	(void)pthread_cond_timedwait(&ticker.stop_condition, &ticker.mutex, &until);
}

static void *run_ticker(void *user)
{
	int64_t count = 0;
	(void)user;
	pthread_mutex_lock(&ticker.mutex);
	do {
		if (!ticker.stopping)
			pause_or_end();
		if (semel_metric_sum(ticker.metric, ticker.second, &count) && count > 0)
			semel_progress_show(ticker.what, (uint64_t)count);
	} while (!ticker.stopping);
	pthread_mutex_unlock(&ticker.mutex);
	return NULL;
}

void semel_progress_follow(const char *what, enum semel_metric metric, const char *second)
{
	if (!isatty(STDERR_FILENO))
		return;
	ticker.what = what;
	ticker.metric = metric;
	ticker.second = second;
	ticker.running = pthread_create(&ticker.thread, NULL, run_ticker, NULL) == 0;
}

static void stop_ticker(void)
{
	if (!ticker.running)
		return;
	pthread_mutex_lock(&ticker.mutex);
	ticker.stopping = true;
	pthread_cond_signal(&ticker.stop_condition);
	pthread_mutex_unlock(&ticker.mutex);
	pthread_join(ticker.thread, NULL);
	ticker.running = false;
	ticker.stopping = false;
}

void semel_progress_end(void)
{
	stop_ticker();
	if (drawn)
		fputs(SEMEL_LOG_CLEAR_LINE, stderr);
	drawn = false;
	semel_log_clear_line_first(false);
}
