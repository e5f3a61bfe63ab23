/* SPDX-License-Identifier: Apache-2.0 */
/* Statements that stay prepared on a borrowed connection, because preparing one costs more than
 * running it.
 *
 * - sqlite3_close refuses a connection that has statements, and the application does not
 *   know of ours. Virtual tables are disconnected before that check (FTS keeps its statements in
 * the same way), so a table without rows finalizes ours at that point. It is connected as long as
 * any is there.
 * - No pointer is kept: a statement is found by its text among those of the connection. So it does
 *   no harm when an application finalizes whatever it finds.
 * - Where anything of this is refused (an authorizer, no memory) the statement is simply not kept.
 */
#include "store/sqlite/sqlite.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_TABLE "semel_kept"
#define MARK        "/* semel keeps this */ " /* before the text of every kept statement */

bool semel_sqlite_is_cached(sqlite3_stmt *statement)
{
	const char *sql = sqlite3_sql(statement);
	return sql != NULL && strncmp(sql, MARK, strlen(MARK)) == 0;
}

static sqlite3_stmt *next_cached(sqlite3 *db, sqlite3_stmt *after)
{
	sqlite3_stmt *statement = sqlite3_next_stmt(db, after);
	while (statement != NULL && !semel_sqlite_is_cached(statement))
		statement = sqlite3_next_stmt(db, statement);
	return statement;
}

/* ---- the table that is let go when the connection closes --------------------------------------
 */

struct cache_table {
	sqlite3_vtab base;
	sqlite3 *db;
};

static int cache_connect(sqlite3 *db, void *unused, int count, const char *const *words,
			 sqlite3_vtab **table_out, char **error_out)
{
	(void)unused, (void)count, (void)words, (void)error_out;
	int code = sqlite3_declare_vtab(db, "CREATE TABLE x (kept)");
	if (code != SQLITE_OK)
		return code;
	struct cache_table *cache_table = calloc(1, sizeof(*cache_table));
	if (cache_table == NULL)
		return SQLITE_NOMEM;
	cache_table->db = db;
	*table_out = &cache_table->base;
	return SQLITE_OK;
}

static int cache_disconnect(sqlite3_vtab *table)
{
	struct cache_table *cache_table =
		(struct cache_table *)table; /* base is its first member */
	sqlite3_stmt *statement = NULL;
	while ((statement = next_cached(cache_table->db, NULL)) != NULL)
		sqlite3_finalize(statement);
	free(cache_table);
	return SQLITE_OK;
}

static int cache_plan(sqlite3_vtab *table, sqlite3_index_info *info)
{
	(void)table, (void)info;
	return SQLITE_OK;
}

/* The table has nothing to read, so opening it fails. */
static int cache_open(sqlite3_vtab *table, sqlite3_vtab_cursor **cursor_out)
{
	(void)cursor_out;
	table->zErrMsg = sqlite3_mprintf(CACHE_TABLE " is Semel's own, and has no rows");
	return SQLITE_ERROR;
}

static const sqlite3_module cache_module = {
	.xConnect = cache_connect, /* and no xCreate: it is there without CREATE */
	.xDisconnect = cache_disconnect,
	.xBestIndex = cache_plan,
	.xOpen = cache_open,
};

/* Registering the table again disconnects the last one; without kept statements that has no effect.
 */
static bool connect_cache_table(sqlite3 *db)
{
	sqlite3_stmt *probe = NULL;
	if (next_cached(db, NULL) != NULL)
		return true; /* so it is connected */
	if (sqlite3_create_module(db, CACHE_TABLE, &cache_module, NULL) != SQLITE_OK)
		return false;
	bool connected = sqlite3_prepare_v2(db, "SELECT kept FROM " CACHE_TABLE, -1, &probe,
					    NULL) == SQLITE_OK;
	sqlite3_finalize(probe);
	return connected;
}

/* ---- statements ------------------------------------------------------------------------------ */

static sqlite3_stmt *find(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *statement = next_cached(db, NULL);
	while (statement != NULL && strcmp(sqlite3_sql(statement) + strlen(MARK), sql) != 0)
		statement = next_cached(db, statement);
	return statement;
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *statement = NULL;
	char *marked = connect_cache_table(db) ? sqlite3_mprintf(MARK "%s", sql) : NULL;
	if (marked != NULL)
		sqlite3_prepare_v3(db, marked, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL);
	sqlite3_free(marked);
	return statement;
}

sqlite3_stmt *semel_sqlite_cached_statement(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *statement = find(db, sql);
	if (statement == NULL)
		return prepare(db, sql);
	return sqlite3_stmt_busy(statement) ? NULL : statement;
}
