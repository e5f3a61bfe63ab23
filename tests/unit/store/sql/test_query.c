/* SPDX-License-Identifier: Apache-2.0 */
/* A query has one status: after the first failure nothing more is done, and finish returns it. */
#include "store/sql/sql.h"

#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* An engine that has so many rows, and fails where the test sets it. */
static struct {
	semel_status in_transaction, run, next, finish;
	int rows, stepped;
	int runs, finishes;
	size_t values;
	int64_t last_number;
} engine;

static semel_status require_transaction(semel_tx tx, const char *what, semel_error *error)
{
	(void)tx, (void)what, (void)error;
	return engine.in_transaction;
}

static semel_status run(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			size_t count, semel_error *error)
{
	(void)rows, (void)error;
	engine.runs++;
	engine.values = count;
	engine.last_number = count > 0 ? values[count - 1].number : 0;
	return engine.run;
}

static semel_status next(struct semel_sql_rows *rows, bool *row_out, semel_error *error)
{
	(void)rows, (void)error;
	*row_out = engine.next == SEMEL_OK && engine.stepped < engine.rows;
	engine.stepped += *row_out;
	return engine.next;
}

static semel_status finish(struct semel_sql_rows *rows, semel_error *error)
{
	(void)error;
	engine.finishes++;
	rows->changes = 7;
	return engine.finish;
}

static int64_t integer(const struct semel_sql_rows *rows, int column)
{
	(void)rows;
	return engine.stepped * 10 + column;
}

static int64_t one_hour_later(semel_tx tx, int64_t time_ms)
{
	(void)tx;
	return time_ms + 3600000;
}

static const struct semel_sql_engine functions = { .require_transaction = require_transaction,
						   .run = run,
						   .next = next,
						   .finish = finish,
						   .integer = integer,
						   .to_server_ms = one_hour_later };
static const struct semel_store_driver driver = { .scheme = "test", .sql = &functions };
static const struct semel_sql_statement statement = { .what = "test",
						      .text = SEMEL_SQL_SAME("SELECT 1") };
static const struct semel_sql_statement in_transaction = { .what = "test",
							   .in_transaction = true,
							   .text = SEMEL_SQL_SAME("SELECT 1") };

static struct semel_sql_query prepared(const struct semel_sql_statement *of)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, (semel_tx){ .driver = &driver }, of, NULL);
	return query;
}

static int reset(void **state)
{
	(void)state;
	memset(&engine, 0, sizeof(engine));
	return 0;
}

static void every_row_is_read_and_the_query_is_finished_once(void **state)
{
	struct semel_sql_query query = prepared(&statement);
	int64_t sum = 0;
	(void)state;
	engine.rows = 3;
	semel_sql_bind_int(&query, 5);
	while (semel_sql_next(&query))
		sum += semel_sql_int(&query, 1);
	assert_int_equal(semel_sql_finish(&query), SEMEL_OK);
	assert_int_equal(sum, 11 + 21 + 31);
	assert_int_equal(engine.runs, 1);
	assert_int_equal(engine.finishes, 1);
	assert_int_equal(semel_sql_changes(&query), 7);
}

static void a_query_that_was_not_stepped_runs_when_it_is_finished(void **state)
{
	struct semel_sql_query query = prepared(&statement);
	(void)state;
	assert_int_equal(semel_sql_finish(&query), SEMEL_OK);
	assert_int_equal(engine.runs, 1);
	assert_int_equal(engine.finishes, 1);
}

static void outside_of_a_transaction_it_does_not_run(void **state)
{
	(void)state;
	engine.in_transaction = SEMEL_NO_TRANSACTION;
	struct semel_sql_query query = prepared(&in_transaction);
	semel_sql_bind_int(&query, 1);
	assert_false(semel_sql_next(&query));
	assert_int_equal(semel_sql_finish(&query), SEMEL_NO_TRANSACTION);
	assert_int_equal(engine.runs, 0);
	assert_int_equal(engine.finishes, 0);
}

static void the_first_failure_is_the_result(void **state)
{
	struct semel_sql_query query = prepared(&statement);
	(void)state;
	engine.rows = 1;
	engine.next = SEMEL_BUSY;
	engine.finish = SEMEL_OUTAGE;
	assert_false(semel_sql_next(&query));
	assert_int_equal(semel_sql_finish(&query), SEMEL_BUSY);
	assert_int_equal(engine.finishes, 1);

	query = prepared(&statement);
	engine.run = SEMEL_NO_SCHEMA;
	assert_int_equal(semel_sql_finish(&query), SEMEL_NO_SCHEMA);
	assert_int_equal(engine.finishes, 2);
}

static void a_visitor_that_stops_ends_the_reading(void **state)
{
	struct semel_sql_query query = prepared(&statement);
	int seen = 0;
	(void)state;
	engine.rows = 5;
	while (semel_sql_next(&query))
		semel_sql_stop(&query, ++seen == 2 ? SEMEL_STOPPED : SEMEL_OK);
	assert_int_equal(seen, 2);
	assert_int_equal(semel_sql_finish(&query), SEMEL_STOPPED);
	assert_int_equal(engine.finishes, 1);
}

static void a_lease_is_compared_by_the_clock_of_the_database(void **state)
{
	struct semel_sql_query query = prepared(&statement);
	(void)state;
	semel_sql_bind_lease(&query, 1000);
	assert_int_equal(semel_sql_finish(&query), SEMEL_OK);
	assert_int_equal(engine.values, 1);
	assert_int_equal(engine.last_number, 3601000);
}

static void assert_translated(const char *sql, const char *expected)
{
	struct semel_buffer buffer = { 0 };
	semel_sql_translate(&buffer, sql, '$');
	assert_string_equal(buffer.data, expected);
	semel_buffer_free(&buffer);
}

static void parameters_are_written_as_the_engine_wants_them(void **state)
{
	(void)state;
	assert_translated("?1", "$1");
	assert_translated("SELECT ?2, f(?12) WHERE a=?2", "SELECT $2, f($12) WHERE a=$2");
	assert_translated("SELECT 1", "SELECT 1");
	assert_translated("a ? b AND c ?| ?1", "a ? b AND c ?| $1");
}

static void literals_and_quoted_names_are_left_alone(void **state)
{
	(void)state;
	assert_translated("SELECT 'is it ?1', ?1", "SELECT 'is it ?1', $1");
	assert_translated("SELECT 'it''s ?1' || ?1", "SELECT 'it''s ?1' || $1");
	assert_translated("SELECT \"a?1\", `b?2`, ?3", "SELECT \"a?1\", `b?2`, $3");
	assert_translated("SELECT '\"', ?1, '\"'", "SELECT '\"', $1, '\"'");
	assert_translated("SELECT ?1, 'no end ?1", "SELECT $1, 'no end ?1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(every_row_is_read_and_the_query_is_finished_once, reset),
		cmocka_unit_test_setup(a_query_that_was_not_stepped_runs_when_it_is_finished,
				       reset),
		cmocka_unit_test_setup(outside_of_a_transaction_it_does_not_run, reset),
		cmocka_unit_test_setup(the_first_failure_is_the_result, reset),
		cmocka_unit_test_setup(a_visitor_that_stops_ends_the_reading, reset),
		cmocka_unit_test_setup(a_lease_is_compared_by_the_clock_of_the_database, reset),
		cmocka_unit_test(parameters_are_written_as_the_engine_wants_them),
		cmocka_unit_test(literals_and_quoted_names_are_left_alone),
	};
	return cmocka_run_group_tests_name("store: queries", tests, NULL, NULL);
}
