/* SPDX-License-Identifier: Apache-2.0 */
#include "diagnose/sqlite.h"

#include "base/error.h"
#include "base/sqlite_access.h"
#include "base/sqlite_file.h"

#include <stdio.h>
#include <sys/stat.h>

#define LOCK_MS 1000
#define LOG_MAX (INT64_C(64) << 20)

/* A log that cannot be emptied belongs to a reader who does not end. */
static void look_at_log(const char *path, enum semel_check check,
			const struct semel_examination *examination)
{
	struct stat log;
	char name[4096], text[512];

	snprintf(name, sizeof name, "%s-wal", path);
	if (stat(name, &log) != 0 || log.st_size < LOG_MAX) {
		semel_examination_fine(examination, check, "the write lock is free");
		return;
	}
	snprintf(text, sizeof text, "%.300s has %lld MB: somebody reads an old state of the file",
		 name, (long long)(log.st_size >> 20));
	semel_examination_report(examination, check, SEMEL_SEVERITY_ADVICE, text,
				 "end the transaction that has read for long; the log is emptied "
				 "then");
}

/* The URL was checked when the file was opened. */
static void look_at_files(sqlite3 *db, const struct semel_url *url, enum semel_check check,
			  const struct semel_examination *examination)
{
	mode_t mode = SEMEL_FILE_MODE;
	const char *path = sqlite3_db_filename(db, "main");
	(void)semel_sqlite_mode_of(url, &mode, NULL);
	semel_sqlite_examine_files(path == NULL ? url->path : path, mode, check, examination);
}

void semel_sqlite_examine(sqlite3 *db, const struct semel_url *url,
			  const struct semel_sqlite_checks *checks,
			  const struct semel_examination *examination)
{
	const char *path = url->path;
	char text[512];

	sqlite3_busy_timeout(db, LOCK_MS);
	int code = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	int primary = code & 0xff;
	if (code == SQLITE_OK) {
		sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
		semel_examination_fine(examination, checks->rights, "the file can be written");
		look_at_log(path, checks->lock, examination);
	} else if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED) {
		char writer[SEMEL_WRITER_SIZE];
		semel_sqlite_describe_writer(path, writer);
		snprintf(text, sizeof text,
			 "%.300s: %s holds the write lock for more than "
			 "%d ms",
			 path, writer, LOCK_MS);
		semel_examination_report(
			examination, checks->lock, SEMEL_SEVERITY_PROBLEM, text,
			"end the transaction that is open (fuser shows who has the "
			"file open)");
	} else {
		semel_error error = { .status = SEMEL_OK };
		(void)semel_sqlite_error(db, code, "write", &error);
		semel_examination_failed(examination, checks->rights, &error);
	}
	look_at_files(db, url, checks->files, examination);
	semel_examination_disk(examination, checks->disk, path);
}
