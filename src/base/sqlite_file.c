/* SPDX-License-Identifier: Apache-2.0 */
/* Opens SQLite files, explains what went wrong, and runs checkpoints that cannot overlap a commit.
 *
 * - Our connections never checkpoint automatically, nor when they are closed.
 * - A checkpoint runs only while our second connection holds the write lock, so no commit can reset
 *   the WAL meanwhile.
 * - If the write lock is taken, the checkpoint is left to the next commit.
 */
#include "base/sqlite_file.h"

#include "base/error.h"
#include "base/sqlite_access.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CACHE_KIB 1000 /* a batch fits; more made the process larger, but nothing faster */

/* The state of the WAL hook; freed when the connection closes. */
struct checkpoints {
	int pages;     /* the threshold */
	int attempted; /* length of the WAL at the last attempt, so that a reader who pins the WAL
			* does not cost an attempt per commit */
};

static bool is_space_missing(int system_errno)
{
	return system_errno == ENOSPC || system_errno == EDQUOT || system_errno == EFBIG;
}

static bool is_descriptor_missing(int system_errno)
{
	return system_errno == EMFILE || system_errno == ENFILE;
}

/* ---- what went wrong ------------------------------------------------------------------------ */

struct failure {
	int code; /* primary result code */
	semel_status status;
	const char *advice;
};

static const struct failure failures[] = {
	{ SQLITE_FULL, SEMEL_STORAGE_FULL, "free disk space, then try again" },
	{ SQLITE_NOTADB, SEMEL_NOT_A_DATABASE,
	  "the file is not a SQLite database; name another one, or move it" },
	{ SQLITE_READONLY, SEMEL_OUTAGE,
	  "this user must be allowed to write the file and the folder it is in" },
	{ SQLITE_CANTOPEN, SEMEL_OUTAGE,
	  "the folder must exist, and this user must be allowed to write the file and the folder" },
	{ SQLITE_PERM, SEMEL_OUTAGE, "this user must be allowed to read and write the file" },
	{ SQLITE_CORRUPT, SEMEL_OUTAGE,
	  "the file is damaged: stop every process that uses it, run PRAGMA integrity_check, "
	  "restore a backup" },
	{ SQLITE_IOERR, SEMEL_OUTAGE, "the disk reports errors: see the system's log" },
	{ SQLITE_PROTOCOL, SEMEL_OUTAGE, "too many processes use the file at once; try again" },
	{ SQLITE_INTERRUPT, SEMEL_OUTAGE, "the connection was interrupted; try again" },
	{ SQLITE_TOOBIG, SEMEL_TOO_LARGE, "the value exceeds SQLite's size limit" },
};

static const struct failure no_descriptor = {
	SQLITE_CANTOPEN, SEMEL_OUTAGE, "no more files can be opened: raise the limit (ulimit -n)"
};

/* The path; empty for a database in memory, and for a file that could not be opened. */
static const char *file_of(sqlite3 *db)
{
	const char *file = sqlite3_db_filename(db, "main");
	return file == NULL ? "" : file;
}

static semel_status error_busy(sqlite3 *db, const char *what, semel_error *error)
{
	int64_t waited_ms = 0;
	if (semel_sqlite_int(db, "PRAGMA busy_timeout", 0, &waited_ms, NULL) != SEMEL_OK)
		waited_ms = 0;
	char writer[SEMEL_WRITER_SIZE];
	semel_sqlite_describe_writer(file_of(db), writer);
	return semel_error_set(error, SEMEL_BUSY,
			       "cannot %s: %s holds the lock on %s, waited %lld ms "
			       "(end its transaction, or wait longer with ?busy-timeout=MS)",
			       what, writer, file_of(db), (long long)waited_ms);
}

static semel_status error_snapshot(const char *what, semel_error *error)
{
	return semel_error_set(error, SEMEL_BUSY,
			       "cannot %s: another connection wrote since this transaction first "
			       "read (roll it back, and begin it with BEGIN IMMEDIATE)",
			       what);
}

static const struct failure *failure_of(int code)
{
	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
		if (failures[i].code == (code & 0xff))
			return &failures[i];
	return NULL;
}

semel_status semel_sqlite_error(sqlite3 *db, int code, const char *what, semel_error *error)
{
	int primary = code & 0xff;
	if (primary == SQLITE_NOMEM || db == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "cannot %s: out of memory", what);
	if (code == SQLITE_BUSY_SNAPSHOT)
		return error_snapshot(what, error);
	if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED)
		return error_busy(db, what, error);

	const char *file = file_of(db);
	const char *colon = file[0] == '\0' ? "" : ": ";
	const struct failure *failure = failure_of(code);
	if (primary == SQLITE_IOERR && is_space_missing(sqlite3_system_errno(db)))
		failure = failure_of(SQLITE_FULL);
	if (primary == SQLITE_CANTOPEN && is_descriptor_missing(sqlite3_system_errno(db)))
		failure = &no_descriptor;
	if (failure == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "cannot %s: %s%s%s (code %d)", what,
				       file, colon, sqlite3_errmsg(db), code);
	return semel_error_set(error, failure->status, "cannot %s: %s%s%s (%s)", what, file, colon,
			       sqlite3_errmsg(db), failure->advice);
}

/* SQLite keeps using a file whose name was removed or taken over by another file, and no other
 * process would see what it writes. */
semel_status semel_sqlite_check_moved(sqlite3 *db, semel_error *error)
{
	int moved = 0;
	if (sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) != SQLITE_OK || !moved)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "the file %s was deleted or replaced while it was open (to find "
			       "what was lost: semel verify)",
			       file_of(db));
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

/* True: the checkpoint ran, as far as readers allowed. */
static bool checkpoint_locked(sqlite3 *db)
{
	const char *path = file_of(db);
	sqlite3 *lock = NULL;
	bool done = false;
	if (path[0] == '\0')
		return false;
	if (sqlite3_open_v2(path, &lock, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) !=
	    SQLITE_OK)
		goto close_lock;
	sqlite3_db_config(lock, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	if (sqlite3_exec(lock, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
		goto close_lock;

	done = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL) ==
	       SQLITE_OK;
	sqlite3_exec(lock, "ROLLBACK", NULL, NULL, NULL);
close_lock:
	sqlite3_close(lock);
	return done;
}

void semel_sqlite_checkpoint(sqlite3 *db)
{
	(void)checkpoint_locked(db); /* left to the next commit */
}

static int checkpoint_when_long(void *user, sqlite3 *db, const char *schema, int pages)
{
	struct checkpoints *checkpoints = user;
	if (strcmp(schema, "main") != 0)
		return SQLITE_OK;
	if (pages < checkpoints->attempted)
		checkpoints->attempted = 0; /* the WAL was reset */
	if (pages < checkpoints->pages ||
	    (checkpoints->attempted > 0 && pages - checkpoints->attempted < checkpoints->pages / 4))
		return SQLITE_OK;
	if (checkpoint_locked(db))
		checkpoints->attempted = pages;
	return SQLITE_OK;
}

static semel_status watch_wal(sqlite3 *db, int pages, semel_error *error)
{
	struct checkpoints *checkpoints = calloc(1, sizeof(*checkpoints));
	if (checkpoints == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	checkpoints->pages = pages > 0 ? pages : INT_MAX;
	sqlite3_wal_hook(db, checkpoint_when_long, checkpoints);
	return SEMEL_OK;
}

/* ---- opening -------------------------------------------------------------------------------- */

static semel_status error_of_opening(sqlite3 *db, int code, const struct semel_sqlite_open *how,
				     semel_error *error)
{
	char what[32];
	sqlite3_snprintf((int)sizeof(what), what, "open the %s", how->what);
	semel_status status = semel_sqlite_error(db, code, what, error);
	if (error != NULL && strstr(error->text, how->path) == NULL)
		return semel_error_prefix(error, "%s", how->path);
	return status;
}

/* SQLite's busy timeout does not cover the change of the journal mode. */
static semel_status switch_to_wal(sqlite3 *db, int64_t timeout_ms, semel_error *error)
{
	const struct timespec pause = { .tv_nsec = 5000000 };
	int64_t waited_ms = 0;
	for (;;) {
		int code = sqlite3_exec(db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
		if (code == SQLITE_OK)
			return SEMEL_OK;
		if ((code & 0xff) != SQLITE_BUSY || waited_ms >= timeout_ms)
			return semel_sqlite_error(db, code, "switch the file to WAL", error);
		nanosleep(&pause, NULL);
		waited_ms += 5;
	}
}

static semel_status configure(sqlite3 *db, const struct semel_sqlite_open *how, bool empty,
			      semel_error *error)
{
	if (sqlite3_db_readonly(db, "main") == 1)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot open the %s %s: it is read-only (this user must be "
				       "allowed to write the file and the folder it is in)",
				       how->what, how->path);
	int64_t timeout_ms = how->busy_timeout_ms > INT_MAX ? INT_MAX : how->busy_timeout_ms;
	sqlite3_busy_timeout(db, (int)timeout_ms);
	sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
	semel_status status = watch_wal(db, how->checkpoint_pages, error);
	if (status != SEMEL_OK)
		return status;
	if (how->create && empty) {
		status = switch_to_wal(db, timeout_ms, error);
		if (status != SEMEL_OK)
			return status;
	}
	char settings[160];
	sqlite3_snprintf((int)sizeof(settings), settings,
			 "PRAGMA foreign_keys=ON; PRAGMA synchronous=FULL; PRAGMA mmap_size=0; "
			 "PRAGMA cache_size=-%d; PRAGMA schema_version",
			 CACHE_KIB);
	/* The last pragma reads the file: a file that is not a database is detected here, not
	 * later. */
	int code = sqlite3_exec(db, settings, NULL, NULL, NULL);
	if (code == SQLITE_OK)
		return SEMEL_OK;
	return error_of_opening(db, code, how, error);
}

semel_status semel_sqlite_open(const struct semel_sqlite_open *how, sqlite3 **db_out,
			       semel_error *error)
{
	*db_out = NULL;
	if (how->path == NULL || how->path[0] == '\0')
		return semel_error_set(error, SEMEL_CONFIG,
				       "the %s's URL has no file name (write one after the colon)",
				       how->what);
	char *path = NULL;
	bool empty = false;
	semel_status status = semel_sqlite_prepare_file(how, &path, &empty, error);
	if (status != SEMEL_OK)
		return status;

	/* The path has no links: a link that is put in its place meanwhile is refused. */
	int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
		    SQLITE_OPEN_NOFOLLOW;
	sqlite3 *db = NULL;
	int code = sqlite3_open_v2(path, &db, flags, NULL);
	if (db != NULL)
		sqlite3_wal_hook(db, NULL, NULL); /* SQLite's own hook: we must not free its data */
	if (code != SQLITE_OK) {
		status = error_of_opening(db, code, how, error);
		goto close_db;
	}
	status = configure(db, how, empty, error);
	if (status != SEMEL_OK)
		goto close_db;
	free(path);
	*db_out = db;
	return SEMEL_OK;

close_db:
	free(path);
	semel_sqlite_close(db);
	return status;
}

void semel_sqlite_close(sqlite3 *db)
{
	if (db == NULL)
		return;
	free(sqlite3_wal_hook(db, NULL, NULL));
	sqlite3_close_v2(db);
}

/* ---- statements ----------------------------------------------------------------------------- */

static semel_status error_of_sql(sqlite3 *db, int code, const char *sql, semel_error *error)
{
	char what[64];
	sqlite3_snprintf((int)sizeof(what), what, "run %.50s", sql);
	return semel_sqlite_error(db, code, what, error);
}

semel_status semel_sqlite_exec(sqlite3 *db, const char *sql, semel_error *error)
{
	int code = sqlite3_exec(db, sql, NULL, NULL, NULL);
	return code == SQLITE_OK ? SEMEL_OK : error_of_sql(db, code, sql, error);
}

semel_status semel_sqlite_int(sqlite3 *db, const char *sql, int64_t fallback, int64_t *value_out,
			      semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	*value_out = fallback;
	int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_step(statement);
	if (code == SQLITE_ROW && sqlite3_column_type(statement, 0) != SQLITE_NULL)
		*value_out = sqlite3_column_int64(statement, 0);
	semel_status status = SEMEL_OK;
	if (code != SQLITE_ROW && code != SQLITE_DONE)
		status = error_of_sql(db, code, sql, error);
	sqlite3_finalize(statement);
	return status;
}

struct semel_text semel_sqlite_text(sqlite3_stmt *statement, int column, struct semel_arena *arena)
{
	int type = sqlite3_column_type(statement, column);
	if (type == SQLITE_NULL)
		return (struct semel_text){ NULL, 0 };
	/* Only a blob is read as raw bytes: a text may be stored in UTF-16. */
	const void *data = type == SQLITE_BLOB
				   ? sqlite3_column_blob(statement, column)
				   : (const void *)sqlite3_column_text(statement, column);
	int length = sqlite3_column_bytes(statement, column);
	return semel_arena_text(arena, data == NULL ? "" : data, (size_t)length);
}

void semel_sqlite_bind_text(sqlite3_stmt *statement, int at, struct semel_text text)
{
	if (text.data == NULL)
		sqlite3_bind_null(statement, at);
	else
		sqlite3_bind_text64(statement, at, semel_text_chars(text), text.length,
				    SQLITE_STATIC, SQLITE_UTF8);
}
