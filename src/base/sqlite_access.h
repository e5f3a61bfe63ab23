/* SPDX-License-Identifier: Apache-2.0 */
/* Who may open a SQLite file and the files beside it (-wal, -shm, -journal, lock files).
 *
 * - A file that is created here gets the mode of the URL, or 0600; the umask does not change it.
 *   SQLite gives its own files beside it the same mode. An existing file keeps its mode.
 * - A symbolic link is followed at the path itself, unless another user created it in a
 *   world-writable folder; links beside the file are never followed.
 * - In a world-writable folder a file beside the database that belongs to another user may have
 *   been planted: SQLite would read a planted WAL, so the database is not opened.
 */
#ifndef SEMEL_BASE_SQLITE_ACCESS_H
#define SEMEL_BASE_SQLITE_ACCESS_H

#include "base/sqlite_file.h"
#include "base/url.h"

#include <semel/status.h>

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#define SEMEL_FILE_MODE 0600

/* CONFIG unless ?mode= is 0600 or 0660; SEMEL_FILE_MODE when it is absent. */
semel_status semel_sqlite_mode_of(const struct semel_url *url, mode_t *mode_out,
				  semel_error *error);

/* Creates the file if it is missing and `create` is set, and checks the files beside it. *path_out
 * has no symbolic link in it; freed by the caller. *empty_out: the file is empty. */
semel_status semel_sqlite_prepare_file(const struct semel_sqlite_open *how, char **path_out,
				       bool *empty_out, semel_error *error);

/* Pure: users who may write the database may also open its lock file. */
mode_t semel_sqlite_lock_mode(mode_t database_mode);
/* Opens or creates the lock file with this suffix beside an existing database, and gives it the
 * mode above if possible. OUTAGE: it cannot be opened, or cannot be trusted. */
semel_status semel_sqlite_open_lock(const char *database_path, const char *suffix, int *fd_out,
				    semel_error *error);
/* The process that holds flock on this file; 0: none, or unknown. */
pid_t semel_flock_owner(int fd);
/* The holder of SQLite's write lock on this database: "process 4711", or "another process" if
 * unknown. */
#define SEMEL_WRITER_SIZE 32
void semel_sqlite_describe_writer(const char *path, char out[SEMEL_WRITER_SIZE]);

/* The folder that the path is in, cut to size; "." when the path names none. */
void semel_sqlite_folder_of(const char *path, char *out, size_t size);

#endif
