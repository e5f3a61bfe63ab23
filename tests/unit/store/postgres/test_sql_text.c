/* SPDX-License-Identifier: Apache-2.0 */
/* Finding statements and parameters in SQL that a user wrote. */
#include "store/postgres/sql_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The first statement of sql, rewritten. */
static void assert_read(const char *sql, const char *expected, int placeholders)
{
	struct semel_pg_user_statement statement;
	const char *rest = NULL;
	assert_int_equal(semel_pg_user_statement_read(sql, &statement, &rest, NULL), SEMEL_OK);
	assert_string_equal(statement.sql.data == NULL ? "" : statement.sql.data, expected);
	assert_int_equal(statement.placeholder_count, placeholders);
	semel_pg_user_statement_free(&statement);
}

static void every_place_has_a_number_of_its_own(void **state)
{
	(void)state;
	assert_read("INSERT INTO t VALUES (:id, :payload::jsonb, :id)",
		    "INSERT INTO t VALUES ($1, $2::jsonb, $3)", 3);
}

static void casts_and_assignments_are_no_parameters(void **state)
{
	(void)state;
	assert_read("SELECT '5'::int, now()::date, f(a := 1)",
		    "SELECT '5'::int, now()::date, f(a := 1)", 0);
	assert_read("SELECT a[1:2]", "SELECT a[1:2]", 0);
}

static void what_is_quoted_is_left_alone(void **state)
{
	(void)state;
	assert_read("SELECT ':id; it''s', \":id;\"", "SELECT ':id; it''s', \":id;\"", 0);
	assert_read("SELECT E'a\\':id;', :type", "SELECT E'a\\':id;', $1", 1);
	assert_read("SELECT 'a\\', :id", "SELECT 'a\\', $1", 1);
	assert_read("SELECT $$:id;$$, $a$ $$ ; :id $a$, :id",
		    "SELECT $$:id;$$, $a$ $$ ; :id $a$, $1", 1);
}

static void comments_are_left_out(void **state)
{
	(void)state;
	assert_read("SELECT 1 -- :id; it's\n, :id", "SELECT 1  \n, $1", 1);
	assert_read("SELECT /* :id /* ; */ ' */ :id", "SELECT   $1", 1);
}

/* PostgreSQL ends a line comment at a carriage return, too. */
static void a_comment_ends_at_any_end_of_line(void **state)
{
	(void)state;
	assert_read("-- it's\rSELECT :id", " \rSELECT $1", 1);
	assert_read("SELECT 1 -- x\r\n, :id", "SELECT 1  \r\n, $1", 1);
}

/* Where a string with escapes continues on the next line, a backslash still escapes. */
static void a_string_that_goes_on_on_another_line_is_one_string(void **state)
{
	(void)state;
	assert_read("SELECT E'a'\n 'b\\':id', :type", "SELECT E'a'\n 'b\\':id', $1", 1);
	assert_read("SELECT E'a' -- it's\n'b\\':id', :type", "SELECT E'a' -- it's\n'b\\':id', $1",
		    1);
	assert_read("SELECT E'a''b\\':id', :type", "SELECT E'a''b\\':id', $1", 1);
	assert_read("SELECT E'a' 'b\\', :type", "SELECT E'a' 'b\\', $1", 1);
	assert_read("SELECT 'a'\n'b\\', :type", "SELECT 'a'\n'b\\', $1", 1);
}

static void statements_are_split_at_semicolons(void **state)
{
	(void)state;
	struct semel_pg_user_statement statement;
	const char *rest = "select 1; -- and\n INSERT INTO t VALUES (2) ;  ";
	static const char *const keywords[] = { "SELECT", "INSERT", "" };
	for (int i = 0; i < 3; i++) {
		assert_int_equal(semel_pg_user_statement_read(rest, &statement, &rest, NULL),
				 SEMEL_OK);
		assert_string_equal(statement.keyword, keywords[i]);
		semel_pg_user_statement_free(&statement);
	}
	assert_string_equal(rest, "");
}

static void an_unknown_parameter_is_answered_with_the_nearest(void **state)
{
	(void)state;
	struct semel_pg_user_statement statement;
	const char *rest = NULL;
	semel_error error = { 0 };
	assert_int_equal(semel_pg_user_statement_read("SELECT :payloda", &statement, &rest, &error),
			 SEMEL_INVALID);
	assert_non_null(strstr(error.text, "mean :payload"));
	semel_pg_user_statement_free(&statement);
}

static void control_of_the_transaction_is_refused_however_it_is_written(void **state)
{
	(void)state;
	static const char *const control[] = { "commit",
					       " /* x */ COMMIT",
					       "-- x\nRollback",
					       "begin;",
					       "START TRANSACTION",
					       "savepoint a",
					       "COPY t FROM STDIN",
					       "end",
					       "ABORT" };
	for (size_t i = 0; i < sizeof(control) / sizeof(control[0]); i++) {
		struct semel_pg_user_statement statement;
		const char *rest = NULL;
		assert_int_equal(semel_pg_user_statement_read(control[i], &statement, &rest, NULL),
				 SEMEL_INVALID);
		semel_pg_user_statement_free(&statement);
	}
}

static void text_that_ends_too_early_is_read_to_its_end(void **state)
{
	(void)state;
	assert_read("SELECT 'a", "SELECT 'a", 0);
	assert_read("SELECT $a$ ;", "SELECT $a$ ;", 0);
	assert_read("SELECT E'\\", "SELECT E'\\", 0);
	assert_read("/*", " ", 0);
	assert_read(":", ":", 0);
	assert_read("", "", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_place_has_a_number_of_its_own),
		cmocka_unit_test(casts_and_assignments_are_no_parameters),
		cmocka_unit_test(what_is_quoted_is_left_alone),
		cmocka_unit_test(comments_are_left_out),
		cmocka_unit_test(a_comment_ends_at_any_end_of_line),
		cmocka_unit_test(a_string_that_goes_on_on_another_line_is_one_string),
		cmocka_unit_test(statements_are_split_at_semicolons),
		cmocka_unit_test(an_unknown_parameter_is_answered_with_the_nearest),
		cmocka_unit_test(control_of_the_transaction_is_refused_however_it_is_written),
		cmocka_unit_test(text_that_ends_too_early_is_read_to_its_end),
	};
	return cmocka_run_group_tests_name("store/postgres: sql_text", tests, NULL, NULL);
}
