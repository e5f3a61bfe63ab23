/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite as an engine of the statement layer. A statement is stepped row by row; one that changes
 * rows is run to its end before it is given back, since only then its change is complete. */
#include "store/sqlite/sqlite.h"

/* How far a statement has come. */
enum { BOUND = -1, ENDED, AT_ROW };

static sqlite3_stmt *of(const struct semel_sql_rows *rows)
{
	return rows->native;
}

static struct semel_sqlite_query query_of(const struct semel_sql_rows *rows)
{
	return (struct semel_sqlite_query){
		.id = rows->statement->often ? SEMEL_SQLITE_SHARED : SEMEL_SQLITE_ONCE,
		.what = rows->statement->what,
		.sql = rows->statement->text[SEMEL_SQL_SQLITE],
	};
}

static void bind(sqlite3_stmt *statement, int at, const struct semel_sql_value *value)
{
	char time[SEMEL_TIME_SIZE];
	switch (value->type) {
	case SEMEL_SQL_TEXT:
		semel_sqlite_bind_text(statement, at, value->text);
		return;
	case SEMEL_SQL_ANY_TEXT:
	case SEMEL_SQL_BYTES:
		semel_sqlite_bind_bytes(statement, at, value->text);
		return;
	case SEMEL_SQL_INT:
	case SEMEL_SQL_BOOL:
		sqlite3_bind_int64(statement, at, value->number);
		return;
	case SEMEL_SQL_TIME:
		if (value->number == 0) {
			sqlite3_bind_null(statement, at);
			return;
		}
		semel_time_format(value->number, time);
		sqlite3_bind_text(statement, at, time, -1, SQLITE_TRANSIENT);
	}
}

static semel_status run(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			size_t count, semel_error *error)
{
	struct semel_sqlite_query query = query_of(rows);
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(rows->tx, &query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++)
		bind(statement, (int)i + 1, &values[i]);
	rows->native = statement;
	rows->row = BOUND;
	return SEMEL_OK;
}

static semel_status next(struct semel_sql_rows *rows, bool *row_out, semel_error *error)
{
	struct semel_sqlite_query query = query_of(rows);
	*row_out = false;
	if (rows->row == ENDED)
		return SEMEL_OK;
	semel_status status = semel_sqlite_step(rows->tx, &query, of(rows), row_out, error);
	rows->row = *row_out ? AT_ROW : ENDED;
	return status;
}

static semel_status finish(struct semel_sql_rows *rows, semel_error *error)
{
	struct semel_sqlite_query query = query_of(rows);
	semel_status status = SEMEL_OK;
	if (rows->native == NULL)
		return SEMEL_OK;
	bool changes = sqlite3_stmt_readonly(of(rows)) == 0;
	if (rows->row == BOUND || (rows->row == AT_ROW && changes))
		status = semel_sqlite_run(rows->tx, &query, of(rows), error);
	if (changes)
		rows->changes = (uint64_t)semel_sqlite_changes(rows->tx);
	sqlite3_blob_close(rows->aid);
	semel_sqlite_give(rows->tx, &query, of(rows));
	return status;
}

static bool is_null(const struct semel_sql_rows *rows, int column)
{
	return sqlite3_column_type(of(rows), column) == SQLITE_NULL;
}

static struct semel_text peek(const struct semel_sql_rows *rows, int column)
{
	const char *data = (const char *)sqlite3_column_text(of(rows), column);
	return semel_text_from(data, (size_t)sqlite3_column_bytes(of(rows), column));
}

static struct semel_text text(const struct semel_sql_rows *rows, int column,
			      struct semel_arena *arena)
{
	return semel_sqlite_text(of(rows), column, arena);
}

static int64_t integer(const struct semel_sql_rows *rows, int column)
{
	return sqlite3_column_int64(of(rows), column);
}

static bool boolean(const struct semel_sql_rows *rows, int column)
{
	return sqlite3_column_int64(of(rows), column) != 0;
}

static int64_t time_ms(const struct semel_sql_rows *rows, int column)
{
	return semel_sqlite_time(of(rows), column);
}

/* Asks for the size only: no byte of the payload is read. Without one there is nothing to open. */
static uint64_t payload_size(struct semel_sql_rows *rows, int column)
{
	sqlite3_int64 position = sqlite3_column_int64(of(rows), column);
	sqlite3_blob *blob = rows->aid;
	int found = blob ? sqlite3_blob_reopen(blob, position)
			 : sqlite3_blob_open(sqlite3_db_handle(of(rows)), "main",
					     "semel_dead_letter", "payload", position, 0, &blob);
	rows->aid = blob;
	if (found == SQLITE_OK)
		return (uint64_t)sqlite3_blob_bytes(blob);
	sqlite3_blob_close(blob);
	rows->aid = NULL;
	return 0;
}

const struct semel_sql_engine semel_sqlite_engine = {
	.dialect = SEMEL_SQL_SQLITE,
	.demand_transaction = semel_sqlite_demand_transaction,
	.run = run,
	.next = next,
	.finish = finish,
	.is_null = is_null,
	.peek = peek,
	.text = text,
	.integer = integer,
	.boolean = boolean,
	.time = time_ms,
	.payload_size = payload_size,
};
