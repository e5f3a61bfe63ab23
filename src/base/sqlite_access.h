/* SPDX-License-Identifier: Apache-2.0 */
/* Who may open a SQLite file and the files beside it (-wal, -shm, -journal, lock files).
 *
 * - A file that is made here gets the mode that the URL asks for, 0600 otherwise; no umask widens
 *   or narrows it. SQLite gives its own files beside it the same mode. A file that exists keeps its
 *   mode.
 * - A symbolic link is followed at the path itself, unless another user made it in a world-writable
 *   folder; beside the file none is followed.
 * - In a world-writable folder a file beside the database that belongs to another user may have
 *   been planted: SQLite would read a planted log, so the database is not opened.
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

/* Makes the file where that is asked for and it is missing, and checks what is beside it. The path
 * has no symbolic link in it; freed by the caller. empty: it holds nothing yet. */
semel_status semel_sqlite_prepare_file(const struct semel_sqlite_open *how, char **path_out,
				       bool *empty_out, semel_error *error);

/* Pure: those who may write the database may take its lock file. */
mode_t semel_sqlite_lock_mode(mode_t database_mode);
/* Opens, or makes, the lock file of this name beside a database that is there. A mode that lets in
 * others than those is narrowed. OUTAGE: it cannot be had, or is not to be trusted. */
semel_status semel_sqlite_open_lock(const char *database_path, const char *suffix, int *fd_out,
				    semel_error *error);
/* The process that holds flock on this file; 0: none does, or it is not known. */
pid_t semel_flock_owner(int fd);
/* "process 4711", who holds SQLite's write lock on this database; or "another process". */
#define SEMEL_WRITER_SIZE 32
void semel_sqlite_describe_writer(const char *path, char out[SEMEL_WRITER_SIZE]);

/* The folder that the path is in, cut to size; "." when the path names none. */
void semel_sqlite_folder_of(const char *path, char *out, size_t size);

#endif
