/* SPDX-License-Identifier: Apache-2.0 */
/* PostgreSQL as an engine of the statement layer. A statement's rows come all at once; so tables
 * that may be large are read in pages. Leases go by the server's clock. */
#include "store/postgres/postgres.h"

#include <stdlib.h>

#define PAGE_ROWS 5000

static void add(struct semel_pg_params *params, const struct semel_sql_value *value)
{
	switch (value->type) {
	case SEMEL_SQL_TEXT:
	case SEMEL_SQL_ANY_TEXT:
		semel_pg_add_text(params, value->text);
		return;
	case SEMEL_SQL_BYTES:
		semel_pg_add_bytes(params, value->text);
		return;
	case SEMEL_SQL_INT:
		semel_pg_add_int(params, value->number);
		return;
	case SEMEL_SQL_BOOL:
		semel_pg_add_bool(params, value->number != 0);
		return;
	case SEMEL_SQL_TIME:
		semel_pg_add_time(params, value->number);
	}
}

static semel_status run(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			size_t count, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++)
		add(&params, &values[i]);
	semel_status status =
		semel_pg_run_shared(rows->tx, rows->statement, &params, &result, error);
	rows->native = result;
	rows->row = -1;
	return status;
}

static semel_status next(struct semel_sql_rows *rows, bool *row_out, semel_error *error)
{
	(void)error;
	*row_out = ++rows->row < semel_pg_rows(rows->native);
	return SEMEL_OK;
}

static semel_status finish(struct semel_sql_rows *rows, semel_error *error)
{
	(void)error;
	if (rows->native != NULL)
		rows->changes = strtoull(semel_libpq.cmdTuples(rows->native), NULL, 10);
	semel_pg_clear(rows->native);
	return SEMEL_OK;
}

static bool is_null(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_is_null(rows->native, rows->row, column);
}

static struct semel_text peek(const struct semel_sql_rows *rows, int column)
{
	if (is_null(rows, column))
		return (struct semel_text){ NULL, 0 };
	return semel_text_from(semel_pg_value(rows->native, rows->row, column),
			       (size_t)semel_libpq.getlength(rows->native, rows->row, column));
}

static struct semel_text text(const struct semel_sql_rows *rows, int column,
			      struct semel_arena *arena)
{
	return semel_pg_text(rows->native, rows->row, column, arena);
}

static int64_t integer(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_int(rows->native, rows->row, column);
}

static bool boolean(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_bool(rows->native, rows->row, column);
}

static struct semel_text bytes(const struct semel_sql_rows *rows, int column, int raw,
			       struct semel_arena *arena)
{
	size_t length = 0;
	if (!is_null(rows, column) || is_null(rows, raw))
		return text(rows, column, arena);
	unsigned char *data = semel_libpq.unescapeBytea(
		(const unsigned char *)semel_pg_value(rows->native, rows->row, raw), &length);
	struct semel_text copy = semel_arena_text(arena, data, length);
	semel_libpq.freemem(data);
	return copy;
}

const struct semel_sql_engine semel_pg_engine = {
	.dialect = SEMEL_SQL_POSTGRES,
	.page_rows = PAGE_ROWS,
	.demand_transaction = semel_pg_demand_transaction,
	.run = run,
	.next = next,
	.finish = finish,
	.is_null = is_null,
	.peek = peek,
	.text = text,
	.integer = integer,
	.boolean = boolean,
	.time = integer, /* every statement selects it in milliseconds */
	.bytes = bytes,
	.to_server_ms = semel_pg_clock_to_server,
	.to_local_ms = semel_pg_clock_to_local,
};
