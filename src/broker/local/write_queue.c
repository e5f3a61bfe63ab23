/* SPDX-License-Identifier: Apache-2.0 */
/* A queue for the write lock.
 *
 * SQLite's write lock has no queue: a writer that commits and begins again at once keeps out the
 * others, which sleep, retry, and sleep longer. So a writer first locks a file beside the broker's
 * file, and unlocks it as soon as it has the write lock. A writer that has just committed has to
 * wait for the lock file until the writer that holds it has the write lock. The queue is for
 * fairness, not for safety: if it cannot be entered, the write lock alone decides. So an untrusted
 * lock file is not used, and a process that keeps the file locked costs one wait from time to time,
 * not one for each transaction.
 */
#include "base/error.h"
#include "base/sqlite_access.h"
#include "broker/local/local.h"
#include "observe/log.h"

#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define SUFFIX "-turn"

#define FIRST_RETRIES  100 /* at first, in quick succession */
#define FIRST_RETRY_US 100
#define RETRY_US       1000
#define SKIP_MS        30000
#define EXAMINE_MS     1000

/* Sleeps before retry `count`, and returns how long all retries before it took. */
static int64_t sleep_before(int count)
{
	int64_t sleep_us = count < FIRST_RETRIES ? FIRST_RETRY_US : RETRY_US;
	semel_sleep_us(sleep_us);
	int64_t first = count < FIRST_RETRIES ? count : FIRST_RETRIES;
	return (first * FIRST_RETRY_US + (count - first) * RETRY_US) / 1000;
}

/* SQLite's busy handler: the write lock is taken; try again? */
static int retry_lock(void *user, int count)
{
	const struct semel_local *local = user;
	return sleep_before(count) < local->settings.busy_timeout_ms;
}

/* Links are resolved: a process with another name for the file uses the same queue. */
static const char *path_of(const struct semel_local *local)
{
	const char *path = sqlite3_db_filename(local->db, "main");
	return path == NULL ? local->path : path;
}

void semel_local_write_queue_open(struct semel_local *local)
{
	semel_error error = { 0 };
	sqlite3_busy_handler(local->db, retry_lock, local);
	if (semel_sqlite_open_lock(path_of(local), SUFFIX, &local->queue_fd, &error) != SEMEL_OK)
		semel_log(SEMEL_LOG_WARN, "lock file of the local broker not used",
			  &(struct semel_log_fields){ .error = error.text });
}

void semel_local_write_queue_close(struct semel_local *local)
{
	if (local->queue_fd >= 0)
		close(local->queue_fd);
}

static void describe_holder(const struct semel_local *local, char *out, size_t size)
{
	pid_t holder = semel_flock_owner(local->queue_fd);
	if (holder > 0)
		snprintf(out, size, "process %d holds the lock on %.300s" SUFFIX, (int)holder,
			 path_of(local));
	else
		snprintf(out, size, "a process holds the lock on %.300s" SUFFIX, path_of(local));
}

static void log_timeout(struct semel_local *local)
{
	char text[512];
	local->queue_skip_until_ms = semel_steady_ms(local->env) + SKIP_MS;
	describe_holder(local, text, sizeof(text));
	semel_log(SEMEL_LOG_WARN, "lock file of the local broker held too long, not waiting for it",
		  &(struct semel_log_fields){ .error = text });
}

/* Waits for half of the busy timeout at most: the rest is for the write lock itself. */
bool semel_local_write_queue_enter(struct semel_local *local)
{
	if (local->queue_fd < 0)
		return false;
	bool may_wait = semel_steady_ms(local->env) >= local->queue_skip_until_ms;
	for (int count = 0; flock(local->queue_fd, LOCK_EX | LOCK_NB) != 0; count++) {
		if (!may_wait)
			return false;
		if (sleep_before(count) < local->settings.busy_timeout_ms / 2)
			continue;
		log_timeout(local);
		return false;
	}
	local->queue_skip_until_ms = 0;
	return true;
}

void semel_local_write_queue_leave(struct semel_local *local)
{
	flock(local->queue_fd, LOCK_UN);
}

/* The file is locked for a moment only, unless something is wrong. */
void semel_local_write_queue_examine(struct semel_local *local,
				     const struct semel_examination *examination)
{
	char text[512], remedy[512];
	if (local->queue_fd < 0) {
		semel_error error = { 0 };
		if (semel_sqlite_open_lock(path_of(local), SUFFIX, &local->queue_fd, &error) !=
		    SEMEL_OK) {
			semel_examination_failed(examination, SEMEL_CHECK_BROKER_FILES, &error);
			return;
		}
	}
	for (int count = 0; flock(local->queue_fd, LOCK_EX | LOCK_NB) != 0; count++) {
		if (sleep_before(count) < EXAMINE_MS)
			continue;
		describe_holder(local, text, sizeof(text));
		snprintf(remedy, sizeof(remedy),
			 "end that process (fuser -v %.300s" SUFFIX " shows it); until then "
			 "delivery is slower",
			 path_of(local));
		semel_examination_report(examination, SEMEL_CHECK_BROKER_FILES,
					 SEMEL_SEVERITY_PROBLEM, text, remedy);
		return;
	}
	semel_local_write_queue_leave(local);
}
