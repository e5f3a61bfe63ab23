/* SPDX-License-Identifier: Apache-2.0 */
/* The shop on SQLite: a file, and sqlite3's own calls. */
#include "base/sqlite_file.h"
#include "cli/plays/shop/shop.h"

#include <sqlite3.h>
#include <string.h>

#define PATIENCE_MS 10000

static semel_status open_file(const char *store, void **connection_out, semel_error *error)
{
	sqlite3 *connection = NULL;
	int code = sqlite3_open(store + strlen("sqlite:"), &connection);
	*connection_out = connection;
	if (code != SQLITE_OK)
		return semel_sqlite_error(connection, code, "open the shop", error);
	sqlite3_busy_timeout(connection, PATIENCE_MS);
	return SEMEL_OK;
}

static void close_file(void *connection)
{
	sqlite3_close(connection);
}

/* One step of one statement; a row's first column is the number. */
static semel_status step(sqlite3 *connection, const char *sql, const char *const *parameters,
			 int64_t *number_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	int code = sqlite3_prepare_v2(connection, sql, -1, &statement, NULL);
	for (int i = 0; code == SQLITE_OK && parameters && parameters[i]; i++)
		code = sqlite3_bind_text(statement, i + 1, parameters[i], -1, SQLITE_STATIC);
	if (code == SQLITE_OK)
		code = sqlite3_step(statement);
	semel_status status = SEMEL_OK;
	if (code == SQLITE_ROW && number_out)
		*number_out = sqlite3_column_int64(statement, 0);
	else if (code != SQLITE_DONE)
		status = semel_sqlite_error(connection, code, "use the shop's tables", error);
	sqlite3_finalize(statement);
	return status;
}

static semel_status execute(void *connection, const char *sql, const char *const *parameters,
			    semel_error *error)
{
	return parameters ? step(connection, sql, parameters, NULL, error)
			  : semel_sqlite_exec(connection, sql, error);
}

static semel_status ask(void *connection, const char *sql, const char *const *parameters,
			int64_t *number_out, semel_error *error)
{
	*number_out = 0;
	return step(connection, sql, parameters, number_out, error);
}

static semel_tx borrow(void *connection)
{
	return semel_borrow_sqlite(connection);
}

const struct semel_shop_engine semel_shop_sqlite = {
	.preparation = "PRAGMA synchronous = FULL",
	.fail_first = "SELECT json(iif(:attempt = 1, '{', '{}'))",
	.open = open_file,
	.close = close_file,
	.execute = execute,
	.ask = ask,
	.borrow = borrow,
};
