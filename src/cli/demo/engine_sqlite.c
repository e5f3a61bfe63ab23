/* SPDX-License-Identifier: Apache-2.0 */
/* The shop on SQLite: a file, and sqlite3's own calls. */
#include "cli/demo/demo.h"

#include "base/sqlite_file.h"

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

static semel_status execute(void *connection, const char *sql, const char *const *parameters,
			    semel_error *error)
{
	if (!parameters)
		return semel_sqlite_exec(connection, sql, error);
	sqlite3_stmt *statement = NULL;
	int code = sqlite3_prepare_v2(connection, sql, -1, &statement, NULL);
	for (int i = 0; code == SQLITE_OK && parameters[i]; i++)
		code = sqlite3_bind_text(statement, i + 1, parameters[i], -1, SQLITE_STATIC);
	if (code == SQLITE_OK)
		code = sqlite3_step(statement);
	semel_status status = SEMEL_OK;
	if (code != SQLITE_DONE)
		status = semel_sqlite_error(connection, code, "write to the shop", error);
	sqlite3_finalize(statement);
	return status;
}

static semel_status ask(void *connection, const char *sql, int64_t *number_out, semel_error *error)
{
	return semel_sqlite_int(connection, sql, 0, number_out, error);
}

static semel_tx borrow(void *connection)
{
	return semel_borrow_sqlite(connection);
}

const struct semel_demo_engine semel_demo_sqlite = {
	.preparation = "PRAGMA synchronous = FULL",
	.open = open_file,
	.close = close_file,
	.execute = execute,
	.ask = ask,
	.borrow = borrow,
};
