/* SPDX-License-Identifier: Apache-2.0 */
/* Opening SQLite files, how failures are reported, and checkpoints under the write lock. */
#include "base/sqlite_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define PAGES 100

static char folder[64], path[128];

static int make_folder(void **state)
{
	(void)state;
	snprintf(folder, sizeof(folder), "/tmp/semel-file-XXXXXX");
	if (mkdtemp(folder) == NULL)
		return 1;
	snprintf(path, sizeof(path), "%s/file.db", folder);
	return 0;
}

static int drop_folder(void **state)
{
	(void)state;
	static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };
	char name[160];
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
		unlink(name);
	}
	return rmdir(folder);
}

static struct semel_sqlite_open how(bool create)
{
	return (struct semel_sqlite_open){ .path = path,
					   .what = "store",
					   .create = create,
					   .checkpoint_pages = PAGES,
					   .busy_timeout_ms = 20 };
}

static sqlite3 *open_new(void)
{
	const struct semel_sqlite_open create = how(true);
	sqlite3 *db = NULL;
	semel_error error = { 0 };
	if (semel_sqlite_open(&create, &db, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	return db;
}

static int64_t size_of_log(void)
{
	char name[160];
	struct stat file;
	snprintf(name, sizeof(name), "%s-wal", path);
	return stat(name, &file) == 0 ? (int64_t)file.st_size : -1;
}

static void run(sqlite3 *db, const char *sql)
{
	semel_error error = { 0 };
	if (semel_sqlite_exec(db, sql, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
}

static int64_t number(sqlite3 *db, const char *sql)
{
	int64_t value = -1;
	assert_int_equal(semel_sqlite_int(db, sql, -1, &value, NULL), SEMEL_OK);
	return value;
}

static void write_pages(sqlite3 *db, int count)
{
	for (int i = 0; i < count; i++)
		run(db, "INSERT INTO t VALUES (randomblob(3000))");
}

/* ---- opening --------------------------------------------------------------------------------- */

static void a_missing_file_is_named_and_not_made(void **state)
{
	(void)state;
	const struct semel_sqlite_open open = how(false);
	sqlite3 *db = NULL;
	semel_error error = { 0 };
	assert_int_equal(semel_sqlite_open(&open, &db, &error), SEMEL_OUTAGE);
	assert_null(db);
	assert_non_null(strstr(error.text, path));
	assert_int_not_equal(access(path, F_OK), 0);
}

static void a_folder_is_no_file(void **state)
{
	(void)state;
	struct semel_sqlite_open open = how(true);
	sqlite3 *db = NULL;
	semel_error error = { 0 };
	open.path = folder;
	assert_int_equal(semel_sqlite_open(&open, &db, &error), SEMEL_NOT_A_DATABASE);
	assert_non_null(strstr(error.text, "folder"));
}

static void a_file_in_a_missing_folder_says_what_must_be_there(void **state)
{
	(void)state;
	struct semel_sqlite_open open = how(true);
	char deep[160];
	sqlite3 *db = NULL;
	semel_error error = { 0 };
	snprintf(deep, sizeof(deep), "%s/none/file.db", folder);
	open.path = deep;
	assert_int_equal(semel_sqlite_open(&open, &db, &error), SEMEL_OUTAGE);
	assert_non_null(strstr(error.text, deep));
	assert_non_null(strstr(error.text, "folder must exist"));
}

static void no_path_is_a_bad_configuration(void **state)
{
	(void)state;
	struct semel_sqlite_open open = how(true);
	sqlite3 *db = NULL;
	open.path = "";
	assert_int_equal(semel_sqlite_open(&open, &db, NULL), SEMEL_CONFIG);
}

static void a_name_that_means_memory_to_sqlite_is_a_file_here(void **state)
{
	(void)state;
	struct semel_sqlite_open open = how(true);
	char before[256];
	sqlite3 *db = NULL;
	assert_non_null(getcwd(before, sizeof(before)));
	assert_int_equal(chdir(folder), 0);
	open.path = ":memory:";
	assert_int_equal(semel_sqlite_open(&open, &db, NULL), SEMEL_OK);
	run(db, "CREATE TABLE t (a)");
	semel_sqlite_close(db);
	assert_int_equal(access(":memory:", F_OK), 0);
	unlink(":memory:");
	unlink(":memory:-wal");
	unlink(":memory:-shm");
	assert_int_equal(chdir(before), 0);
}

static void a_connection_is_durable_and_never_checkpoints_by_itself(void **state)
{
	(void)state;
	sqlite3 *db = open_new();
	assert_int_equal(number(db, "SELECT journal_mode = 'wal' FROM pragma_journal_mode"), 1);
	assert_int_equal(number(db, "PRAGMA synchronous"), 2);
	assert_int_equal(number(db, "PRAGMA foreign_keys"), 1);
	run(db, "CREATE TABLE t (a)");
	write_pages(db, PAGES / 4);
	int64_t size = size_of_log();
	assert_true(size > 0);
	semel_sqlite_close(db);
	assert_int_equal(size_of_log(), size); /* not on close either */
	db = open_new();
	assert_int_equal(number(db, "SELECT count(*) FROM t"), PAGES / 4);
	semel_sqlite_close(db);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void the_log_stays_short_while_commits_go_on(void **state)
{
	(void)state;
	sqlite3 *db = open_new();
	run(db, "CREATE TABLE t (a)");
	write_pages(db, 10 * PAGES);
	assert_true(size_of_log() < 2 * PAGES * (4096 + 24));
	assert_int_equal(number(db, "SELECT count(*) FROM t"), 10 * PAGES);
	semel_sqlite_close(db);
}

static int64_t size_of_file(void)
{
	struct stat file;
	assert_int_equal(stat(path, &file), 0);
	return (int64_t)file.st_size;
}

static void no_checkpoint_runs_while_another_connection_writes(void **state)
{
	(void)state;
	sqlite3 *db = open_new(), *writer = open_new();
	run(db, "CREATE TABLE t (a)");
	write_pages(db, PAGES / 2);
	int64_t size = size_of_file();
	run(writer, "BEGIN IMMEDIATE");
	semel_sqlite_checkpoint(db);
	assert_int_equal(size_of_file(), size);
	run(writer, "ROLLBACK");
	semel_sqlite_checkpoint(db);
	assert_true(size_of_file() > size);
	semel_sqlite_close(writer);
	semel_sqlite_close(db);
}

static void a_reader_that_pins_the_log_blocks_no_writer(void **state)
{
	(void)state;
	sqlite3 *db = open_new(), *reader = open_new();
	run(db, "CREATE TABLE t (a)");
	run(reader, "BEGIN");
	assert_int_equal(number(reader, "SELECT count(*) FROM t"), 0);
	write_pages(db, 3 * PAGES);
	assert_true(size_of_log() > 3 * PAGES * 4096);
	assert_int_equal(number(reader, "SELECT count(*) FROM t"), 0);
	run(reader, "COMMIT");
	write_pages(db, PAGES);
	int64_t size = size_of_log();
	write_pages(db, PAGES);
	assert_int_equal(size_of_log(), size); /* it is used again from its start */
	semel_sqlite_close(reader);
	semel_sqlite_close(db);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void a_lock_of_another_connection_is_busy_and_the_wait_is_reported(void **state)
{
	(void)state;
	sqlite3 *db = open_new(), *other = open_new();
	semel_error error = { 0 };
	run(db, "CREATE TABLE t (a)");
	run(other, "BEGIN IMMEDIATE");
	assert_int_equal(semel_sqlite_exec(db, "INSERT INTO t VALUES (1)", &error), SEMEL_BUSY);
	assert_non_null(strstr(error.text, "waited 20 ms"));
	semel_sqlite_close(other);
	semel_sqlite_close(db);
}

static void a_transaction_that_read_before_another_wrote_should_begin_immediate(void **state)
{
	(void)state;
	sqlite3 *db = open_new(), *other = open_new();
	semel_error error = { 0 };
	run(db, "CREATE TABLE t (a)");
	run(db, "BEGIN");
	assert_int_equal(number(db, "SELECT count(*) FROM t"), 0);
	run(other, "INSERT INTO t VALUES (1)");
	int code = sqlite3_exec(db, "INSERT INTO t VALUES (2)", NULL, NULL, NULL);
	assert_int_equal(semel_sqlite_error(db, code, "insert", &error), SEMEL_BUSY);
	assert_non_null(strstr(error.text, "BEGIN IMMEDIATE"));
	semel_sqlite_close(other);
	semel_sqlite_close(db);
}

static void every_kind_of_trouble_has_its_status(void **state)
{
	(void)state;
	static const struct {
		int code;
		semel_status status;
	} expected[] = {
		{ SQLITE_FULL, SEMEL_STORAGE_FULL },       { SQLITE_NOTADB, SEMEL_NOT_A_DATABASE },
		{ SQLITE_READONLY_DBMOVED, SEMEL_OUTAGE }, { SQLITE_CANTOPEN_ISDIR, SEMEL_OUTAGE },
		{ SQLITE_CORRUPT, SEMEL_OUTAGE },          { SQLITE_IOERR_FSYNC, SEMEL_OUTAGE },
		{ SQLITE_TOOBIG, SEMEL_TOO_LARGE },        { SQLITE_NOMEM, SEMEL_INTERNAL },
		{ SQLITE_ERROR, SEMEL_INTERNAL },          { SQLITE_LOCKED, SEMEL_BUSY }
	};
	sqlite3 *db = open_new();
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		semel_error error = { 0 };
		assert_int_equal(semel_sqlite_error(db, expected[i].code, "test it", &error),
				 expected[i].status);
		assert_non_null(strstr(error.text, "cannot test it"));
	}
	semel_sqlite_close(db);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void texts_and_blobs_are_read_with_every_byte(void **state)
{
	(void)state;
	sqlite3 *db = open_new();
	struct semel_arena *arena = semel_arena_new(256);
	sqlite3_stmt *statement = NULL;
	assert_int_equal(sqlite3_prepare_v2(db, "SELECT x'ff00fe', 'text', NULL, 5, x'', ?", -1,
					    &statement, NULL),
			 SQLITE_OK);
	semel_sqlite_bind_text(statement, 1, SEMEL_TEXT("bound"));
	assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
	assert_int_equal(semel_sqlite_text(statement, 0, arena).length, 3);
	assert_string_equal(semel_sqlite_text(statement, 1, arena).data, "text");
	assert_null(semel_sqlite_text(statement, 2, arena).data);
	assert_string_equal(semel_sqlite_text(statement, 3, arena).data, "5");
	assert_string_equal(semel_sqlite_text(statement, 4, arena).data, "");
	assert_string_equal(semel_sqlite_text(statement, 5, arena).data, "bound");
	sqlite3_reset(statement);
	semel_sqlite_bind_text(statement, 1, (struct semel_text){ NULL, 0 });
	assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
	assert_null(semel_sqlite_text(statement, 5, arena).data);
	sqlite3_finalize(statement);
	semel_arena_free(arena);
	semel_sqlite_close(db);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_missing_file_is_named_and_not_made),
		TEST(a_folder_is_no_file),
		TEST(a_file_in_a_missing_folder_says_what_must_be_there),
		TEST(no_path_is_a_bad_configuration),
		TEST(a_name_that_means_memory_to_sqlite_is_a_file_here),
		TEST(a_connection_is_durable_and_never_checkpoints_by_itself),
		TEST(the_log_stays_short_while_commits_go_on),
		TEST(no_checkpoint_runs_while_another_connection_writes),
		TEST(a_reader_that_pins_the_log_blocks_no_writer),
		TEST(a_lock_of_another_connection_is_busy_and_the_wait_is_reported),
		TEST(a_transaction_that_read_before_another_wrote_should_begin_immediate),
		TEST(every_kind_of_trouble_has_its_status),
		TEST(texts_and_blobs_are_read_with_every_byte),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
