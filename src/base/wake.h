/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until something happens: a file of a SQLite database was written, a descriptor is ready,
 * the wake was notified, or time has passed. One wake belongs to one thread; semel_wake_notify may
 * be called from any thread and from a signal handler, and is remembered: the next sleep returns at
 * once, and so does every later one (it stops a run). */
#ifndef SEMEL_BASE_WAKE_H
#define SEMEL_BASE_WAKE_H

#include "base/env.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_wake;

semel_status semel_wake_new(struct semel_wake **wake_out, semel_error *error);
/* Sleeps in this environment instead of the machine's. It must outlive the wake. */
void semel_wake_set_env(struct semel_wake *wake, const struct semel_env *env);
/* Watches a database file with its -wal and -journal. If the system has no inotify instance left,
 * only the caller's polling interval remains; that is not an error. May be repeated. */
void semel_wake_watch_database(struct semel_wake *wake, const char *database_path);
/* Also wakes when this descriptor is readable. */
void semel_wake_watch_fd(struct semel_wake *wake, int fd);
/* For a watched descriptor: while `awaited` is true, also wakes when it is writable. */
void semel_wake_watch_writable(struct semel_wake *wake, int fd, bool awaited);
/* Call it before the descriptor is closed. */
void semel_wake_unwatch_fd(struct semel_wake *wake, int fd);
/* True: something may have happened; false: wait_ms have passed. */
bool semel_wake_sleep(struct semel_wake *wake, int64_t wait_ms);
void semel_wake_notify(struct semel_wake *wake);
bool semel_wake_is_notified(const struct semel_wake *wake);
void semel_wake_free(struct semel_wake *wake);

#endif
