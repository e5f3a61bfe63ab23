/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's checks of a SQLite file: its modes, its folder, its lock and its log. */
#include "diagnose/sqlite.h"

#include "base/error.h"
#include "base/sqlite_access.h"
#include "base/sqlite_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define OTHERS (S_IROTH | S_IWOTH)
#define BITS   (S_IRWXU | S_IRWXG | S_IRWXO)

#define LOCK_MS 1000
#define LOG_MAX (INT64_C(64) << 20)

/* ---- files ----------------------------------------------------------------------------------- */

/* Can users who are neither the owner nor in a group reach the file's folder? */
static bool can_be_reached(const char *path)
{
	char folder[PATH_MAX];
	struct stat found;
	semel_sqlite_folder_of(path, folder, sizeof(folder));
	for (;;) {
		if (stat(folder, &found) != 0 || (found.st_mode & S_IXOTH) == 0)
			return false;
		if (strcmp(folder, "/") == 0 || strchr(folder, '/') == NULL)
			return true;
		char up[PATH_MAX];
		semel_sqlite_folder_of(folder, up, sizeof(up));
		memcpy(folder, up, sizeof(folder));
	}
}

static bool report_folder(const char *path, enum semel_check check,
			  const struct semel_examination *examination)
{
	char folder[PATH_MAX], text[512], remedy[512];
	struct stat found;
	semel_sqlite_folder_of(path, folder, sizeof(folder));
	if (stat(folder, &found) != 0 || (found.st_mode & S_IWOTH) == 0)
		return false;
	snprintf(text, sizeof(text), "every user may create files in %.300s, beside %.100s", folder,
		 path + strlen(folder) + (strcmp(folder, "/") != 0));
	snprintf(remedy, sizeof(remedy),
		 "move the files to a folder that only their users may write, or: chmod o-w %.300s",
		 folder);
	semel_examination_report(examination, check,
				 (found.st_mode & S_ISVTX) ? SEMEL_SEVERITY_ADVICE
							   : SEMEL_SEVERITY_PROBLEM,
				 text, remedy);
	return true;
}

/* A user who may read a file may also hold SQLite's read locks, and flock. */
static bool report_others(const char *path, enum semel_check check,
			  const struct semel_examination *examination)
{
	static const char *const all[] = { "", "-wal", "-shm", "-journal", "-turn" };
	mode_t bits = 0;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		char name[PATH_MAX + 16];
		struct stat file;
		snprintf(name, sizeof(name), "%s%s", path, all[i]);
		if (lstat(name, &file) == 0 && S_ISREG(file.st_mode))
			bits |= file.st_mode & OTHERS;
	}
	if (bits == 0 || !can_be_reached(path))
		return false;
	char text[512], remedy[512];
	snprintf(text, sizeof(text), "every user of this machine may %s %.300s",
		 (bits & S_IWOTH) ? "write" : "read and lock", path);
	snprintf(remedy, sizeof(remedy), "chmod o-rwx %.200s %.200s-*", path, path);
	semel_examination_report(examination, check,
				 (bits & S_IWOTH) ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE,
				 text, remedy);
	return true;
}

/* The mode in the URL is for a new file; an existing file keeps its own. */
static bool report_group(const char *path, mode_t mode, enum semel_check check,
			 const struct semel_examination *examination)
{
	char text[512], remedy[512];
	struct stat file;
	if (mode != 0660 || stat(path, &file) != 0 || (file.st_mode & mode) == mode)
		return false;
	snprintf(text, sizeof(text), "%.300s has the mode %04o, and the URL asks for %04o", path,
		 (unsigned)(file.st_mode & BITS), (unsigned)mode);
	snprintf(remedy, sizeof(remedy), "chmod g+rw %.200s %.200s-*", path, path);
	semel_examination_report(examination, check, SEMEL_SEVERITY_ADVICE, text, remedy);
	return true;
}

static void examine_modes(const char *path, mode_t mode, enum semel_check check,
			  const struct semel_examination *examination)
{
	struct stat file;
	bool reported = report_folder(path, check, examination);
	reported = report_others(path, check, examination) || reported;
	reported = report_group(path, mode, check, examination) || reported;
	if (!reported && stat(path, &file) == 0)
		semel_examination_fine(examination, check, "mode %04o",
				       (unsigned)(file.st_mode & BITS));
}

/* ---- the lock -------------------------------------------------------------------------------- */

/* A log that cannot be emptied is held by a reader whose transaction does not end. */
static void examine_log(const char *path, enum semel_check check,
			const struct semel_examination *examination)
{
	struct stat log;
	char name[4096], text[512];

	snprintf(name, sizeof name, "%s-wal", path);
	if (stat(name, &log) != 0 || log.st_size < LOG_MAX) {
		semel_examination_fine(examination, check, "the write lock is free");
		return;
	}
	snprintf(text, sizeof text,
		 "%.300s has %lld MB: a reader holds an old snapshot of the file", name,
		 (long long)(log.st_size >> 20));
	semel_examination_report(
		examination, check, SEMEL_SEVERITY_ADVICE, text,
		"end the long read transaction; the log is then reused from its start");
}

/* The URL was checked when the file was opened. */
static void examine_files(sqlite3 *db, const struct semel_url *url, enum semel_check check,
			  const struct semel_examination *examination)
{
	mode_t mode = SEMEL_FILE_MODE;
	const char *path = sqlite3_db_filename(db, "main");
	(void)semel_sqlite_mode_of(url, &mode, NULL);
	examine_modes(path == NULL ? url->path : path, mode, check, examination);
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
		examine_log(path, checks->lock, examination);
	} else if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED) {
		char writer[SEMEL_WRITER_SIZE];
		semel_sqlite_describe_writer(path, writer);
		snprintf(text, sizeof text,
			 "%.300s: %s holds the write lock for more than "
			 "%d ms",
			 path, writer, LOCK_MS);
		semel_examination_report(examination, checks->lock, SEMEL_SEVERITY_PROBLEM, text,
					 "end the open transaction (fuser shows who has the "
					 "file open)");
	} else {
		semel_error error = { .status = SEMEL_OK };
		(void)semel_sqlite_error(db, code, "write", &error);
		semel_examination_failed(examination, checks->rights, &error);
	}
	examine_files(db, url, checks->files, examination);
	semel_examination_disk(examination, checks->disk, path);
}
