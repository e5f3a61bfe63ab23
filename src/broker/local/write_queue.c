/* SPDX-License-Identifier: Apache-2.0 */
/* Taking turns at the write lock.
 *
 * SQLite's write lock has no queue: a writer that commits and begins again at once keeps the others
 * out, for they sleep and look, and sleep longer. So a writer takes the turn first, a lock on a
 * file beside the broker's, and keeps it only until it has the write lock. Whoever has just
 * committed has to line up for the turn behind the one that waits with it. The turn is courtesy,
 * not safety: when it cannot be had, the write lock alone decides. So a lock file that is not to be
 * trusted is not used, and a process that keeps the turn costs one wait in a while, not one for
 * each transaction.
 */
#include "base/error.h"
#include "base/sqlite_access.h"
#include "broker/local/local.h"
#include "observe/log.h"

#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define SUFFIX "-turn"

#define BRISK_TRIES 100 /* so many at first, close together */
#define BRISK_US    100
#define CALM_US     1000
#define SKIP_MS     30000
#define EXAMINE_MS  1000

/* Sleeps before look number count, and tells how long the looks before it took in all. */
static int64_t sleep_before(int count)
{
	int64_t sleep_us = count < BRISK_TRIES ? BRISK_US : CALM_US;
	semel_sleep_us(sleep_us);
	int64_t brisk = count < BRISK_TRIES ? count : BRISK_TRIES;
	return (brisk * BRISK_US + (count - brisk) * CALM_US) / 1000;
}

/* SQLite asks: somebody has the lock, shall it look again? */
static int retry_lock(void *user, int count)
{
	const struct semel_local *local = user;
	return sleep_before(count) < local->settings.busy_timeout_ms;
}

/* Where links lead to: whoever has another name for the file queues in the same place. */
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
		semel_log(SEMEL_LOG_WARN, "the lock file of the local broker is not used",
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
	semel_log(SEMEL_LOG_WARN, "the lock file of the local broker is held for long",
		  &(struct semel_log_fields){ .error = text });
}

/* Half of the patience at most: the rest is for the write lock itself. */
bool semel_local_write_queue_enter(struct semel_local *local)
{
	if (local->queue_fd < 0)
		return false;
	bool patient = semel_steady_ms(local->env) >= local->queue_skip_until_ms;
	for (int count = 0; flock(local->queue_fd, LOCK_EX | LOCK_NB) != 0; count++) {
		if (!patient)
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

/* Who has the turn keeps it for a moment only. */
void semel_local_write_queue_examine(struct semel_local *local,
				     const struct semel_examination *examination)
{
	char text[512], remedy[512];
	if (local->queue_fd < 0) {
		semel_error error = { 0 };
		if (semel_sqlite_open_lock(path_of(local), SUFFIX, &local->queue_fd, &error) !=
		    SEMEL_OK)
			semel_examination_failed(examination, SEMEL_CHECK_BROKER_FILES, &error);
		return;
	}
	for (int count = 0; flock(local->queue_fd, LOCK_EX | LOCK_NB) != 0; count++) {
		if (sleep_before(count) < EXAMINE_MS)
			continue;
		describe_holder(local, text, sizeof(text));
		snprintf(remedy, sizeof(remedy),
			 "end that process (fuser -v %.300s" SUFFIX " shows it); delivery goes on "
			 "meanwhile, slower",
			 path_of(local));
		semel_examination_report(examination, SEMEL_CHECK_BROKER_FILES,
					 SEMEL_SEVERITY_PROBLEM, text, remedy);
		return;
	}
	semel_local_write_queue_leave(local);
}
