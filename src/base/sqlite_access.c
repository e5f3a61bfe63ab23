/* SPDX-License-Identifier: Apache-2.0 */
/* A database is never opened here, not even to inspect it: when a process closes any descriptor of
 * a file, it loses all its POSIX locks on the file, and SQLite uses POSIX locks. So a file is
 * created with mknod and inspected with lstat. */
#include "base/sqlite_access.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define OTHERS (S_IROTH | S_IWOTH)
#define BITS   (S_IRWXU | S_IRWXG | S_IRWXO)

static const char *const companions[] = { "-wal", "-shm", "-journal" };

#define COMPANION_COUNT (sizeof(companions) / sizeof(companions[0]))

semel_status semel_sqlite_mode_of(const struct semel_url *url, mode_t *mode_out, semel_error *error)
{
	const char *text = semel_url_param(url, "mode");
	*mode_out = SEMEL_FILE_MODE;
	if (text == NULL || strcmp(text, "0600") == 0)
		return SEMEL_OK;
	*mode_out = 0660;
	if (strcmp(text, "0660") == 0)
		return SEMEL_OK;
	return semel_error_set(
		error, SEMEL_CONFIG,
		"mode=%s is not a mode for a database (use 0600 for its owner alone, "
		"or 0660 to share it with its group)",
		text);
}

/* ---- who created a file ---------------------------------------------------------------------- */

void semel_sqlite_folder_of(const char *path, char *out, size_t size)
{
	const char *slash = strrchr(path, '/');
	if (slash == NULL)
		snprintf(out, size, ".");
	else
		snprintf(out, size, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* In any other folder the owner has decided who may create files. */
static bool is_in_world_writable_folder(const char *path)
{
	char folder[PATH_MAX];
	struct stat found;
	semel_sqlite_folder_of(path, folder, sizeof(folder));
	return stat(folder, &found) == 0 && (found.st_mode & S_IWOTH) != 0;
}

/* True if the file belongs to us, to root, or to a user who may write the database anyway. */
static bool is_of_a_writer(const struct stat *file, const struct stat *database)
{
	if (file->st_uid == geteuid() || file->st_uid == 0 || file->st_uid == database->st_uid)
		return true;
	if ((database->st_mode & S_IWOTH) != 0)
		return true;
	return (database->st_mode & S_IWGRP) != 0 && file->st_gid == database->st_gid;
}

static bool may_be_planted(const char *path, const struct stat *file, const struct stat *database)
{
	return !is_of_a_writer(file, database) && is_in_world_writable_folder(path);
}

/* Returns why the file cannot be trusted; NULL: it can. */
static const char *untrusted_reason(const char *path, const struct stat *file,
				    const struct stat *database)
{
	if (S_ISLNK(file->st_mode))
		return "is a symbolic link";
	if (!S_ISREG(file->st_mode))
		return "is not a regular file";
	if (may_be_planted(path, file, database))
		return "belongs to another user, in a world-writable folder";
	return NULL;
}

static semel_status check_companion_files(const char *what, const char *path, semel_error *error)
{
	struct stat database, file;
	char name[PATH_MAX + 16];
	if (lstat(path, &database) != 0)
		return SEMEL_OK; /* it was deleted meanwhile: SQLite reports that */
	for (size_t i = 0; i < COMPANION_COUNT; i++) {
		snprintf(name, sizeof(name), "%s%s", path, companions[i]);
		if (lstat(name, &file) != 0)
			continue;
		const char *reason = untrusted_reason(name, &file, &database);
		if (reason != NULL)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "cannot open the %s %s: %s %s (find out who created "
					       "it, remove it, and keep the file in a folder that "
					       "only its users may write)",
					       what, path, name, reason);
	}
	return SEMEL_OK;
}

/* ---- the database ---------------------------------------------------------------------------- */

static semel_status error_of_file(const struct semel_sqlite_open *how, int reason,
				  semel_error *error)
{
	bool full = reason == ENOSPC || reason == EDQUOT;
	return semel_error_set(
		error, full ? SEMEL_STORAGE_FULL : SEMEL_OUTAGE, "cannot open the %s %s: %s (%s)",
		how->what, how->path, strerror(reason),
		full ? "free disk space, then try again"
		     : "the folder must exist, and this user must be allowed to write the file and "
		       "the folder");
}

/* mknod neither follows a link nor opens the file. The umask may have narrowed the mode. */
static semel_status make_file(const struct semel_sqlite_open *how, semel_error *error)
{
	mode_t mode = how->mode != 0 ? how->mode : SEMEL_FILE_MODE;
	struct stat made;
	if (mknod(how->path, S_IFREG | mode, 0) != 0)
		return errno == EEXIST ? SEMEL_OK : error_of_file(how, errno, error);
	if (lstat(how->path, &made) == 0 && S_ISREG(made.st_mode) &&
	    (made.st_mode & BITS) != mode &&
	    fchmodat(AT_FDCWD, how->path, mode, AT_SYMLINK_NOFOLLOW) != 0 && errno != EOPNOTSUPP)
		return error_of_file(how, errno, error);
	return SEMEL_OK;
}

static semel_status follow_link(const struct semel_sqlite_open *how, struct stat *file,
				semel_error *error)
{
	const struct stat link = *file;
	if (stat(how->path, file) != 0)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot open the %s %s: it is a symbolic link, and what it "
				       "points to cannot be reached: %s (name the file itself)",
				       how->what, how->path, strerror(errno));
	if (may_be_planted(how->path, &link, file))
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot open the %s %s: it is a symbolic link of another "
				       "user, in a world-writable folder (name the file "
				       "itself)",
				       how->what, how->path);
	return SEMEL_OK;
}

/* *file_out: the database, or the target if the path is a symbolic link. */
static semel_status find_or_make(const struct semel_sqlite_open *how, struct stat *file_out,
				 semel_error *error)
{
	int found = lstat(how->path, file_out);
	if (found != 0 && errno == ENOENT && how->create) {
		semel_status status = make_file(how, error);
		if (status != SEMEL_OK)
			return status;
		/* Read in any case: another process may have created the file first. */
		found = lstat(how->path, file_out);
	}
	if (found == 0)
		return S_ISLNK(file_out->st_mode) ? follow_link(how, file_out, error) : SEMEL_OK;
	if (errno != ENOENT)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot open the %s %s: %s", how->what,
				       how->path, strerror(errno));
	return semel_error_set(error, SEMEL_OUTAGE,
			       "cannot open the %s %s: no such file (check the path, or run: semel "
			       "--store sqlite:%s init)",
			       how->what, how->path, how->path);
}

/* The path without links must lead to the file that was checked. */
static semel_status check_path(const struct semel_sqlite_open *how, const char *path,
			       const struct stat *file, semel_error *error)
{
	struct stat found;
	if (path == NULL || lstat(path, &found) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot open the %s %s: %s", how->what,
				       how->path, strerror(errno));
	if (S_ISDIR(found.st_mode))
		return semel_error_set(error, SEMEL_NOT_A_DATABASE,
				       "cannot open the %s %s: it is a folder (name a file in it)",
				       how->what, how->path);
	if (found.st_dev != file->st_dev || found.st_ino != file->st_ino)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot open the %s %s: it was replaced meanwhile (try "
				       "again)",
				       how->what, how->path);
	return check_companion_files(how->what, path, error);
}

semel_status semel_sqlite_prepare_file(const struct semel_sqlite_open *how, char **path_out,
				       bool *empty_out, semel_error *error)
{
	struct stat file;
	*path_out = NULL;
	semel_status status = find_or_make(how, &file, error);
	if (status != SEMEL_OK)
		return status;
	char *path = realpath(how->path, NULL);
	status = check_path(how, path, &file, error);
	if (status != SEMEL_OK) {
		free(path);
		return status;
	}
	*empty_out = file.st_size == 0;
	*path_out = path;
	return SEMEL_OK;
}

/* ---- lock files ------------------------------------------------------------------------------ */

mode_t semel_sqlite_lock_mode(mode_t database_mode)
{
	return S_IRUSR | S_IWUSR | ((database_mode & S_IWGRP) ? S_IRGRP | S_IWGRP : 0) |
	       ((database_mode & S_IWOTH) ? OTHERS : 0);
}

/* A second hard link may be another file of ours, whose mode must not be changed. */
static semel_status check_lock(const char *name, const struct stat *file,
			       const struct stat *database, semel_error *error)
{
	const char *reason = untrusted_reason(name, file, database);
	if (reason == NULL && file->st_nlink != 1)
		reason = "has more than one hard link";
	if (reason == NULL)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "%s %s (find out who created it, and remove it)", name, reason);
}

static semel_status prepare_lock(int fd, const char *name, const struct stat *database,
				 semel_error *error)
{
	mode_t mode = semel_sqlite_lock_mode(database->st_mode);
	struct stat file;
	if (fstat(fd, &file) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot inspect %s: %s", name,
				       strerror(errno));
	semel_status status = check_lock(name, &file, database, error);
	if (status != SEMEL_OK)
		return status;
	/* Like SQLite with its own files: a file that root creates gets the database's owner. */
	if (geteuid() == 0 && file.st_uid != database->st_uid &&
	    fchown(fd, database->st_uid, database->st_gid) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot change the owner of %s: %s",
				       name, strerror(errno));
	if ((file.st_mode & BITS) != mode && (file.st_uid == geteuid() || geteuid() == 0))
		(void)fchmod(fd, mode); /* it fails on a file system without modes */
	return SEMEL_OK;
}

semel_status semel_sqlite_open_lock(const char *database_path, const char *suffix, int *fd_out,
				    semel_error *error)
{
	char name[PATH_MAX + 16];
	struct stat database, there;
	semel_status status = SEMEL_OK;
	*fd_out = -1;
	snprintf(name, sizeof(name), "%s%s", database_path, suffix);
	if (stat(database_path, &database) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot inspect %s: %s", database_path,
				       strerror(errno));
	/* Checked first: if it were the database by another name, closing it would give up
	 * SQLite's locks. */
	if (lstat(name, &there) == 0)
		status = check_lock(name, &there, &database, error);
	if (status != SEMEL_OK)
		return status;
	/* O_NONBLOCK: opening a FIFO must not block. */
	int fd = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
		      semel_sqlite_lock_mode(database.st_mode));
	if (fd < 0)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot open %s: %s (it must be a regular file that this "
				       "user may write)",
				       name, strerror(errno));
	status = prepare_lock(fd, name, &database, error);
	if (status != SEMEL_OK) {
		close(fd);
		return status;
	}
	*fd_out = fd;
	return SEMEL_OK;
}

/* ---- who holds a lock ------------------------------------------------------------------------ */

/* The bytes that SQLite locks: the write lock of WAL in -shm, that of a rollback journal in the
 * file. */
#define LOG_WRITE_BYTE UINT64_C(120)
#define RESERVED_BYTE  UINT64_C(0x40000001)

/* "1: POSIX  ADVISORY  WRITE 4711 fe:01:1234 120 120"; a waiting process has an arrow before the
 * kind. The end may be "EOF". */
static bool line_is_of(const char *line, const char *kind, const struct stat *file, uint64_t byte,
		       pid_t *holder_out)
{
	unsigned major_number = 0, minor_number = 0;
	uint64_t inode = 0, first = 0;
	char found[16], mode[16], end[32];
	int pid = 0;
	if (sscanf(line, "%*s %15s %*s %15s %d %x:%x:%" SCNu64 " %" SCNu64 " %31s", found, mode,
		   &pid, &major_number, &minor_number, &inode, &first, end) != 8)
		return false;
	*holder_out = pid;
	return strcmp(found, kind) == 0 && strcmp(mode, "WRITE") == 0 && pid > 0 &&
	       inode == file->st_ino && makedev(major_number, minor_number) == file->st_dev &&
	       first <= byte && (strcmp(end, "EOF") == 0 || strtoull(end, NULL, 10) >= byte);
}

static pid_t find_holder(const char *kind, const struct stat *file, uint64_t byte)
{
	char line[256];
	pid_t holder = 0;
	bool known = false;
	FILE *locks = fopen("/proc/locks", "re");
	if (locks == NULL)
		return 0;
	while (!known && fgets(line, sizeof(line), locks) != NULL)
		known = line_is_of(line, kind, file, byte, &holder);
	fclose(locks);
	return known ? holder : 0;
}

pid_t semel_flock_owner(int fd)
{
	struct stat file;
	return fstat(fd, &file) == 0 ? find_holder("FLOCK", &file, 0) : 0;
}

void semel_sqlite_describe_writer(const char *path, char out[SEMEL_WRITER_SIZE])
{
	char name[PATH_MAX + 16];
	struct stat file;
	snprintf(name, sizeof(name), "%s-shm", path);
	pid_t writer = stat(name, &file) == 0 ? find_holder("POSIX", &file, LOG_WRITE_BYTE) : 0;
	if (writer == 0 && stat(path, &file) == 0)
		writer = find_holder("POSIX", &file, RESERVED_BYTE);
	if (writer > 0)
		snprintf(out, SEMEL_WRITER_SIZE, "process %d", (int)writer);
	else
		snprintf(out, SEMEL_WRITER_SIZE, "another process");
}
