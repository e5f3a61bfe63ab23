/* SPDX-License-Identifier: Apache-2.0 */
/* Taking turns at the write lock.
 *
 * SQLite's write lock has no queue: a writer that commits and begins again at once keeps the others
 * out, for they sleep and look, and sleep longer. So a writer takes the turn first, a lock on a
 * file beside the broker's, and keeps it only until it has the write lock. Whoever has just
 * committed has to line up for the turn behind the one that waits with it. The turn is courtesy,
 * not safety: when it cannot be had, the write lock alone decides.
 */
#include "broker/local/local.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#define BRISK_LOOKS 100 /* so many at first, close together */
#define BRISK_US    100
#define CALM_US     1000

/* Sleeps before look number count, and tells how long the looks before it took in all. */
static int64_t sleep_before(int count)
{
	int64_t sleep_us = count < BRISK_LOOKS ? BRISK_US : CALM_US;
	semel_wake_pause_us(sleep_us);
	int64_t brisk = count < BRISK_LOOKS ? count : BRISK_LOOKS;
	return (brisk * BRISK_US + (count - brisk) * CALM_US) / 1000;
}

/* SQLite asks: somebody has the lock, shall it look again? */
static int look_again(void *user, int count)
{
	const struct semel_local *local = user;
	return sleep_before(count) < local->settings.busy_timeout_ms;
}

void semel_local_turn_open(struct semel_local *local)
{
	sqlite3_busy_handler(local->db, look_again, local);
	char *path = sqlite3_mprintf("%s-turn", local->path);
	local->turn_fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	sqlite3_free(path);
}

void semel_local_turn_close(struct semel_local *local)
{
	if (local->turn_fd >= 0)
		close(local->turn_fd);
}

/* Half of the patience at most: the rest is for the write lock itself. */
bool semel_local_turn_take(struct semel_local *local)
{
	if (local->turn_fd < 0)
		return false;
	for (int count = 0; flock(local->turn_fd, LOCK_EX | LOCK_NB) != 0; count++)
		if (sleep_before(count) >= local->settings.busy_timeout_ms / 2)
			return false;
	return true;
}

void semel_local_turn_pass(struct semel_local *local)
{
	flock(local->turn_fd, LOCK_UN);
}
