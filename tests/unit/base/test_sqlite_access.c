/* SPDX-License-Identifier: Apache-2.0 */
/* How the files of a database are made and who can take their locks. Other users: tests/e2e. */
#include "base/sqlite_access.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static char folder[64], path[128];

static int make_folder(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "/tmp/semel-access-XXXXXX");
	if (mkdtemp(folder) == NULL)
		return 1;
	snprintf(path, sizeof(path), "%s/file.db", folder);
	return 0;
}

static int drop_folder(void **state)
{
	(void)state;
	static const char *const suffixes[] = { "", "-wal", "-shm", "-journal", "-turn" };
	char name[160];
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
		unlink(name);
	}
	return rmdir(folder);
}

static sqlite3 *open_file(void)
{
	const struct semel_sqlite_open how = { .path = path, .what = "store", .create = true };
	sqlite3 *db = NULL;
	semel_error error = { 0 };
	if (semel_sqlite_open(&how, &db, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	return db;
}

static void those_who_may_write_the_database_may_take_its_lock(void **state)
{
	(void)state;
	static const mode_t table[][2] = {
		{ 0600, 0600 }, { 0644, 0600 }, { 0640, 0600 },
		{ 0660, 0660 }, { 0664, 0660 }, { 0666, 0666 },
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		assert_int_equal(semel_sqlite_lock_mode(S_IFREG | table[i][0]), table[i][1]);
}

static void a_mode_is_the_owners_or_the_groups_and_never_everybodys(void **state)
{
	(void)state;
	static const struct {
		const char *url;
		semel_status status;
		mode_t mode;
	} table[] = {
		{ "sqlite:x", SEMEL_OK, 0600 },
		{ "sqlite:x?mode=0600", SEMEL_OK, 0600 },
		{ "sqlite:x?mode=0660", SEMEL_OK, 0660 },
		{ "sqlite:x?mode=0666", SEMEL_CONFIG, 0 },
		{ "sqlite:x?mode=0644", SEMEL_CONFIG, 0 },
		{ "sqlite:x?mode=432", SEMEL_CONFIG, 0 },
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct semel_url url;
		semel_error error = { 0 };
		mode_t mode = 0;
		assert_int_equal(semel_url_parse(table[i].url, &url, &error), SEMEL_OK);
		assert_int_equal(semel_sqlite_mode_of(&url, &mode, &error), table[i].status);
		if (table[i].status == SEMEL_OK)
			assert_int_equal(mode, table[i].mode);
		else
			assert_non_null(strstr(error.text, "0660"));
		semel_url_free(&url);
	}
}

/* Asks the kernel: a child that was forked has SQLite's own memory of the lock, too. */
static bool another_process_can_write(void)
{
	pid_t child = fork();
	if (child == 0) {
		char name[160];
		struct flock write_lock = {
			.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 120, .l_len = 1
		};
		snprintf(name, sizeof(name), "%s-shm", path);
		int fd = open(name, O_RDWR | O_CLOEXEC);
		bool asked = fd >= 0 && fcntl(fd, F_GETLK, &write_lock) == 0;
		_exit(asked && write_lock.l_type != F_UNLCK ? 0 : 1);
	}
	int ended = -1;
	assert_int_equal(waitpid(child, &ended, 0), child);
	return ended != 0;
}

/* POSIX locks go with any descriptor of the file that the process closes. */
static void opening_a_file_again_does_not_lose_the_locks_on_it(void **state)
{
	(void)state;
	sqlite3 *writer = open_file();
	assert_int_equal(semel_sqlite_exec(writer, "BEGIN IMMEDIATE", NULL), SEMEL_OK);
	sqlite3 *second = open_file();
	assert_false(another_process_can_write());
	semel_sqlite_close(second);
	semel_sqlite_close(writer);
}

static void a_lock_file_that_is_the_database_by_another_name_does_not_lose_them_either(void **state)
{
	(void)state;
	static const char *const suffixes[] = { "", "-wal", "-shm" };
	char lock_name[160], name[160];
	sqlite3 *writer = open_file();
	assert_int_equal(semel_sqlite_exec(writer, "CREATE TABLE t(x); BEGIN IMMEDIATE", NULL),
			 SEMEL_OK);
	snprintf(lock_name, sizeof(lock_name), "%s-turn", path);
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		int fd = -1;
		semel_error error = { 0 };
		snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
		assert_int_equal(link(name, lock_name), 0);
		assert_int_equal(semel_sqlite_open_lock(path, "-turn", &fd, &error), SEMEL_OUTAGE);
		assert_non_null(strstr(error.text, "has more than one hard link"));
		assert_int_equal(unlink(lock_name), 0);
		assert_false(another_process_can_write());
	}
	semel_sqlite_close(writer);
}

static void who_holds_a_lock_file_is_known(void **state)
{
	(void)state;
	int fd = -1, other = -1;
	semel_sqlite_close(open_file());
	assert_int_equal(semel_sqlite_open_lock(path, "-turn", &fd, NULL), SEMEL_OK);
	assert_int_equal(semel_flock_owner(fd), 0);
	assert_int_equal(semel_sqlite_open_lock(path, "-turn", &other, NULL), SEMEL_OK);
	assert_int_equal(flock(other, LOCK_EX), 0);
	pid_t holder = semel_flock_owner(fd);
	assert_true(holder == getpid() || holder == 0); /* a file system with numbers of its own */
	close(other);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(those_who_may_write_the_database_may_take_its_lock),
		cmocka_unit_test(a_mode_is_the_owners_or_the_groups_and_never_everybodys),
		cmocka_unit_test_setup_teardown(opening_a_file_again_does_not_lose_the_locks_on_it,
						make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(
			a_lock_file_that_is_the_database_by_another_name_does_not_lose_them_either,
			make_folder, drop_folder),
		cmocka_unit_test_setup_teardown(who_holds_a_lock_file_is_known, make_folder,
						drop_folder),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
