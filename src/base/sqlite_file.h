/* SPDX-License-Identifier: Apache-2.0 */
/* What the SQLite store and the local broker share: opening a file safely, saying what went wrong,
 * statements, and the one rule for checkpoints.
 *
 * SQLite before 3.51.3 can corrupt a file in WAL mode when a checkpoint runs while the commit of
 * another connection resets the WAL. So our connections never checkpoint on their own (neither
 * automatically nor on close); our checkpoint runs while a second connection holds the write lock,
 * so no commit can come in between.
 */
#ifndef SEMEL_BASE_SQLITE_FILE_H
#define SEMEL_BASE_SQLITE_FILE_H

#include "base/arena.h"
#include "base/text.h"

#include <semel/status.h>

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct semel_sqlite_open {
	const char *path;
	const char *what;        /* for messages: "store", "broker" */
	bool create;             /* create the file, in WAL mode, when it is missing */
	mode_t mode;             /* of a file that is created; 0: only for its owner */
	int checkpoint_pages;    /* checkpoint when the WAL has this many pages after a commit */
	int64_t busy_timeout_ms; /* how long to wait for another connection's lock */
};

/* OUTAGE (missing, unreadable, read-only folder), NOT_A_DATABASE, BUSY, … each with what to do.
 * Foreign keys on, synchronous FULL, no automatic checkpoints, none on close, extended codes. */
semel_status semel_sqlite_open(const struct semel_sqlite_open *how, sqlite3 **db_out,
			       semel_error *error);
void semel_sqlite_close(sqlite3 *db);

/* The status for SQLite's last error on db, with its message and what to do. what: "mark events".
 */
semel_status semel_sqlite_error(sqlite3 *db, int code, const char *what, semel_error *error);

/* OUTAGE if the path under which the file was opened now names another file, or none. Cheap. */
semel_status semel_sqlite_check_moved(sqlite3 *db, semel_error *error);

/* Runs statements without results. */
semel_status semel_sqlite_exec(sqlite3 *db, const char *sql, semel_error *error);
/* One integer from one row; fallback when there is no row or it is NULL. */
semel_status semel_sqlite_int(sqlite3 *db, const char *sql, int64_t fallback, int64_t *value_out,
			      semel_error *error);

/* Checkpoints now, under the write lock; does nothing while another connection writes. For tests:
 * the WAL hook does the same after commits. */
void semel_sqlite_checkpoint(sqlite3 *db);

/* A column as text in the arena; data NULL for SQL NULL. Blobs keep their bytes. */
struct semel_text semel_sqlite_text(sqlite3_stmt *statement, int column, struct semel_arena *arena);
/* Binds NULL when data is NULL. The text must outlive the step. */
void semel_sqlite_bind_text(sqlite3_stmt *statement, int at, struct semel_text text);

#endif
