/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker's file and its URL. */
#include "contract/broker_steps.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char url[256];

static int make_folder(void **state)
{
	(void)state;
	steps_folder_make("", url, sizeof(url));
	return 0;
}

static int drop_folder(void **state)
{
	(void)state;
	steps_folder_drop();
	return 0;
}

static void run_sql(const char *sql)
{
	sqlite3 *db = NULL;
	assert_int_equal(sqlite3_open(steps_file(), &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

/* The status of opening; the text must contain the words. */
static semel_status open_expecting(const char *broker_url, const char *words)
{
	semel_error error = { 0 };
	struct semel_broker *broker = NULL;
	semel_status status = semel_broker_open(broker_url, steps_env(), 10, &broker, &error);
	assert_null(broker);
	if (strstr(error.text, words) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", error.text, words);
	return status;
}

static semel_status open_with(const char *parameters, const char *words)
{
	char text[512];
	snprintf(text, sizeof(text), "%s%s", url, parameters);
	return open_expecting(text, words);
}

static void a_url_that_cannot_be_right_is_a_wrong_configuration(void **state)
{
	(void)state;
	assert_int_equal(open_expecting("local:", "names no file"), SEMEL_CONFIG);
	assert_int_equal(open_expecting("locl:x", "did you mean local"), SEMEL_CONFIG);
	assert_int_equal(open_with("?partition=4", "partitions"), SEMEL_CONFIG);
	assert_int_equal(open_with("?partitions=0", "partitions"), SEMEL_CONFIG);
	assert_int_equal(open_with("?partitions=65", "partitions"), SEMEL_CONFIG);
	assert_int_equal(open_with("?max-message=lots", "max-message"), SEMEL_CONFIG);
	assert_int_equal(open_with("?busy-timeout=-1", "busy-timeout"), SEMEL_CONFIG);
	assert_int_equal(access(steps_file(), F_OK), -1); /* and nothing was made */
}

static void a_missing_folder_is_an_outage(void **state)
{
	(void)state;
	assert_int_equal(open_expecting("local:/nowhere/at/all/broker.db", "/nowhere/at/all"),
			 SEMEL_OUTAGE);
}

static void a_file_that_is_no_database_is_refused_and_left_alone(void **state)
{
	(void)state;
	FILE *file = fopen(steps_file(), "w");
	assert_non_null(file);
	for (int i = 0; i < 1000; i++)
		fputs("this is a letter, no database\n", file);
	fclose(file);
	assert_int_equal(open_expecting(url, steps_file()), SEMEL_NOT_A_DATABASE);
	struct stat after;
	assert_int_equal(stat(steps_file(), &after), 0);
	assert_int_equal(after.st_size, 30000);
}

static void a_database_of_another_application_is_refused(void **state)
{
	(void)state;
	run_sql("CREATE TABLE orders (id)");
	assert_int_equal(open_expecting(url, "a file of its own"), SEMEL_CONFIG);
}

static void a_file_of_a_newer_semel_is_refused(void **state)
{
	(void)state;
	semel_broker_close(steps_open(url));
	run_sql("PRAGMA user_version = 99");
	assert_int_equal(open_expecting(url, "upgrade Semel"), SEMEL_SCHEMA_NEWER);
}

static void open_in_child(const char *broker_url, int argument, int ready_fd)
{
	char aggregate[2] = { (char)('a' + argument), '\0' };
	(void)ready_fd;
	struct semel_broker *broker = steps_open(broker_url);
	steps_publish(broker, aggregate, 1, 1);
	semel_broker_close(broker);
}

static void many_processes_may_come_first_at_once(void **state)
{
	(void)state;
	enum { CHILDREN = 8 };
	int children[CHILDREN], fd;
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = steps_fork(open_in_child, url, i, &fd);
		close(fd);
	}
	for (int i = 0; i < CHILDREN; i++)
		steps_reap(children[i], false);
	steps_consume(url, "billing", CHILDREN);
}

static void the_file_is_in_wal_mode(void **state)
{
	(void)state;
	semel_broker_close(steps_open(url));
	sqlite3 *db = NULL;
	sqlite3_stmt *statement = NULL;
	assert_int_equal(sqlite3_open(steps_file(), &db), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA journal_mode", -1, &statement, NULL),
			 SQLITE_OK);
	assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
	assert_string_equal((const char *)sqlite3_column_text(statement, 0), "wal");
	sqlite3_finalize(statement);
	sqlite3_close(db);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_url_that_cannot_be_right_is_a_wrong_configuration),
		TEST(a_missing_folder_is_an_outage),
		TEST(a_file_that_is_no_database_is_refused_and_left_alone),
		TEST(a_database_of_another_application_is_refused),
		TEST(a_file_of_a_newer_semel_is_refused),
		TEST(many_processes_may_come_first_at_once),
		TEST(the_file_is_in_wal_mode),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
