/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on an eventfd, file changes (inotify), other descriptors and time.
 *
 * The directory of the files is watched, not the files themselves, because -wal and -journal files
 * are created and deleted. The eventfd is never read, so that a notification also ends every later
 * sleep. */
#include "base/wake.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

enum { FILES_MAX = 16, OTHERS_MAX = 16, AT_EVENT = 0, AT_FILES = 1, AT_OTHERS = 2 };

struct watched_file {
	int directory; /* inotify's watch descriptor */
	char *name;    /* of the database, without its directory */
};

struct semel_wake {
	struct pollfd polled[AT_OTHERS + OTHERS_MAX];
	nfds_t polled_count;
	struct watched_file files[FILES_MAX];
	size_t file_count;
	size_t retry; /* the next short sleep after a write; RETRIES: none remains */
	const struct semel_env *env;
	atomic_bool notified;
};

/* A write is noticed before its commit is visible, because the writer syncs the file first. So a
 * sleep that a write has ended, perhaps too early, is followed by a few shorter ones. */
static const int64_t retries_ms[] = { 2, 8, 30, 100 };

#define RETRIES (sizeof(retries_ms) / sizeof(retries_ms[0]))

semel_status semel_wake_new(struct semel_wake **wake_out, semel_error *error)
{
	*wake_out = NULL;
	struct semel_wake *wake = calloc(1, sizeof(*wake));
	if (!wake)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (event_fd < 0) {
		free(wake);
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot create an eventfd: %s (too many open files? raise "
				       "ulimit -n)",
				       strerror(errno));
	}
	wake->polled[AT_EVENT] = (struct pollfd){ .fd = event_fd, .events = POLLIN };
	wake->polled[AT_FILES] = (struct pollfd){ .fd = -1, .events = POLLIN }; /* ignored */
	wake->polled_count = AT_OTHERS;
	wake->retry = RETRIES;
	wake->env = semel_env_system();
	atomic_init(&wake->notified, false);
	*wake_out = wake;
	return SEMEL_OK;
}

void semel_wake_set_env(struct semel_wake *wake, const struct semel_env *env)
{
	wake->env = env;
}

/* SQLite keeps its other files in the folder to which a symbolic link points. */
static char *real_path(const char *path)
{
	char *real = realpath(path, NULL);
	return real ? real : strdup(path);
}

static bool is_watched(const struct semel_wake *wake, int directory, const char *name)
{
	for (size_t i = 0; i < wake->file_count; i++)
		if (wake->files[i].directory == directory && strcmp(wake->files[i].name, name) == 0)
			return true;
	return false;
}

void semel_wake_watch_database(struct semel_wake *wake, const char *database_path)
{
	struct pollfd *files = &wake->polled[AT_FILES];
	if (files->fd < 0)
		files->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	char *path = real_path(database_path);
	if (files->fd < 0 || !path || wake->file_count == FILES_MAX) {
		free(path);
		return;
	}
	char *slash = strrchr(path, '/');
	char *name = strdup(slash ? slash + 1 : path);
	if (slash)
		slash[slash == path] = '\0';
	int directory =
		inotify_add_watch(files->fd, slash ? path : ".", IN_MODIFY | IN_CREATE | IN_DELETE);
	free(path);
	if (directory < 0 || !name || is_watched(wake, directory, name)) {
		free(name);
		return;
	}
	wake->files[wake->file_count++] = (struct watched_file){ directory, name };
}

void semel_wake_watch_fd(struct semel_wake *wake, int fd)
{
	if (wake->polled_count < AT_OTHERS + OTHERS_MAX)
		wake->polled[wake->polled_count++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

void semel_wake_unwatch_fd(struct semel_wake *wake, int fd)
{
	for (nfds_t i = AT_OTHERS; i < wake->polled_count; i++)
		if (wake->polled[i].fd == fd)
			wake->polled[i--] = wake->polled[--wake->polled_count];
}

void semel_wake_watch_writable(struct semel_wake *wake, int fd, bool awaited)
{
	for (nfds_t i = AT_OTHERS; i < wake->polled_count; i++)
		if (wake->polled[i].fd == fd)
			wake->polled[i].events = (short)(awaited ? POLLIN | POLLOUT : POLLIN);
}

static bool is_of_database(const char *name, const char *database)
{
	size_t length = strlen(database);
	if (strncmp(name, database, length) != 0)
		return false;
	const char *rest = name + length;
	return *rest == '\0' || strcmp(rest, "-wal") == 0 || strcmp(rest, "-journal") == 0;
}

static bool is_of_interest(const struct semel_wake *wake, const struct inotify_event *event)
{
	if (event->mask & IN_Q_OVERFLOW)
		return true;
	for (size_t i = 0; i < wake->file_count && event->len > 0; i++) {
		const struct watched_file *file = &wake->files[i];
		if (file->directory == event->wd && is_of_database(event->name, file->name))
			return true;
	}
	return false;
}

/* Empties the queue: many writes cause one wakeup. */
static bool drain_files(struct semel_wake *wake)
{
	_Alignas(struct inotify_event) char bytes[4096];
	bool found = false;
	ssize_t length;
	while ((length = read(wake->polled[AT_FILES].fd, bytes, sizeof(bytes))) > 0) {
		for (const char *at = bytes; at < bytes + length;) {
			const struct inotify_event *event = (const void *)at;
			found = found || is_of_interest(wake, event);
			at += sizeof(*event) + event->len;
		}
	}
	return found;
}

static bool has_event(struct semel_wake *wake)
{
	bool happened = false;
	for (nfds_t i = 0; i < wake->polled_count; i++)
		if (i != AT_FILES && wake->polled[i].revents != 0)
			happened = true;
	if (wake->polled[AT_FILES].revents != 0 && drain_files(wake)) {
		happened = true;
		wake->retry = 0;
	}
	return happened;
}

bool semel_wake_sleep(struct semel_wake *wake, int64_t wait_ms)
{
	const struct semel_env *env = wake->env;
	if (wait_ms < 0)
		wait_ms = 0;
	if (env->advance) {
		env->advance(env->user, wait_ms);
		return false;
	}
	bool is_retry = wake->retry < RETRIES && retries_ms[wake->retry] < wait_ms;
	if (is_retry)
		wait_ms = retries_ms[wake->retry++];
	int64_t now = semel_steady_ms(env);
	int64_t until = wait_ms < INT64_MAX - now ? now + wait_ms : INT64_MAX;
	for (;;) {
		int64_t left = until - now;
		int ready = poll(wake->polled, wake->polled_count,
				 left < INT_MAX ? (int)left : INT_MAX);
		if (ready < 0)
			return true; /* a signal */
		if (ready > 0 && has_event(wake))
			return true;
		now = semel_steady_ms(env);
		if (now >= until)
			return is_retry;
	}
}

void semel_wake_notify(struct semel_wake *wake)
{
	int saved = errno;
	uint64_t one = 1;
	atomic_store(&wake->notified, true);
	ssize_t written = write(wake->polled[AT_EVENT].fd, &one, sizeof(one));
	(void)written; /* it fails only when the count is full, so it is readable already */
	errno = saved;
}

bool semel_wake_is_notified(const struct semel_wake *wake)
{
	return atomic_load(&wake->notified);
}

void semel_wake_free(struct semel_wake *wake)
{
	if (!wake)
		return;
	close(wake->polled[AT_EVENT].fd);
	if (wake->polled[AT_FILES].fd >= 0)
		close(wake->polled[AT_FILES].fd);
	for (size_t i = 0; i < wake->file_count; i++)
		free(wake->files[i].name);
	free(wake);
}
