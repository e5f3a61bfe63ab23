/* SPDX-License-Identifier: Apache-2.0 */
/* How statements are prepared, bound, run and read, on our own and on borrowed connections; this is
 * also the engine of the statement layer.
 *
 * Preparing a statement costs more than running it, so on a borrowed connection ours are cached:
 * - sqlite3_close refuses a connection that has statements, and the application does not know of
 *   ours. Virtual tables are disconnected before that check (FTS keeps its statements in the same
 *   way), so a table without rows finalizes ours at that point. It stays connected as long as there
 *   are any.
 * - No pointer is kept: a statement is found by its text among those of the connection. So it does
 *   no harm if an application finalizes every statement that it finds.
 * - If any of this is refused (an authorizer, out of memory), the statement is simply not cached.
 *
 * The statement layer steps a statement row by row. One that changes rows is run to its end before
 * it is returned, since its change is complete only then.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_TABLE "semel_cached_statements"
#define MARK        "/* cached by semel */ " /* before the text of every cached statement */

/* How far a statement of the statement layer has run. */
enum { BOUND = -1, ENDED, AT_ROW };

/* ---- statements of borrowed connections ------------------------------------------------------ */

static bool is_cached(sqlite3_stmt *prepared)
{
	const char *sql = sqlite3_sql(prepared);
	return sql != NULL && strncmp(sql, MARK, strlen(MARK)) == 0;
}

static sqlite3_stmt *next_cached(sqlite3 *db, sqlite3_stmt *after)
{
	sqlite3_stmt *prepared = sqlite3_next_stmt(db, after);
	while (prepared != NULL && !is_cached(prepared))
		prepared = sqlite3_next_stmt(db, prepared);
	return prepared;
}

struct cache_table {
	sqlite3_vtab base;
	sqlite3 *db;
};

static int cache_connect(sqlite3 *db, void *unused, int count, const char *const *words,
			 sqlite3_vtab **table_out, char **error_out)
{
	(void)unused, (void)count, (void)words, (void)error_out;
	int code = sqlite3_declare_vtab(db, "CREATE TABLE x (cached)");
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
	sqlite3_stmt *prepared = NULL;
	while ((prepared = next_cached(cache_table->db, NULL)) != NULL)
		sqlite3_finalize(prepared);
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
	.xConnect = cache_connect, /* no xCreate: the table exists without CREATE */
	.xDisconnect = cache_disconnect,
	.xBestIndex = cache_plan,
	.xOpen = cache_open,
};

/* Registering the table again disconnects the previous one; that has no effect, since no statement
 * is cached. */
static bool connect_cache_table(sqlite3 *db)
{
	sqlite3_stmt *probe = NULL;
	if (next_cached(db, NULL) != NULL)
		return true; /* so the table is connected */
	if (sqlite3_create_module(db, CACHE_TABLE, &cache_module, NULL) != SQLITE_OK)
		return false;
	bool connected = sqlite3_prepare_v2(db, "SELECT cached FROM " CACHE_TABLE, -1, &probe,
					    NULL) == SQLITE_OK;
	sqlite3_finalize(probe);
	return connected;
}

static sqlite3_stmt *find_cached(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *prepared = next_cached(db, NULL);
	while (prepared != NULL && strcmp(sqlite3_sql(prepared) + strlen(MARK), sql) != 0)
		prepared = next_cached(db, prepared);
	return prepared;
}

static sqlite3_stmt *prepare_cached(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *prepared = NULL;
	char *marked = connect_cache_table(db) ? sqlite3_mprintf(MARK "%s", sql) : NULL;
	if (marked != NULL)
		sqlite3_prepare_v3(db, marked, -1, SQLITE_PREPARE_PERSISTENT, &prepared, NULL);
	sqlite3_free(marked);
	return prepared;
}

static sqlite3_stmt *cached_statement(sqlite3 *db, const char *sql)
{
	sqlite3_stmt *prepared = find_cached(db, sql);
	if (prepared == NULL)
		return prepare_cached(db, sql);
	return sqlite3_stmt_busy(prepared) ? NULL : prepared;
}

/* ---- statements ------------------------------------------------------------------------------ */

static sqlite3 *db_of(semel_tx tx)
{
	return tx.native;
}

int64_t semel_sqlite_changes(semel_tx tx)
{
	return sqlite3_changes64(db_of(tx));
}

static bool has_schema(sqlite3 *db)
{
	int64_t found = 1;
	return semel_sqlite_int(db, "SELECT count(*) FROM sqlite_master WHERE name='semel_schema'",
				1, &found, NULL) != SEMEL_OK ||
	       found > 0;
}

static semel_status error_of(semel_tx tx, int code, const struct semel_sqlite_statement *statement,
			     semel_error *error)
{
	semel_status status = semel_sqlite_error(db_of(tx), code, statement->what, error);
	if ((code & 0xff) == SQLITE_ERROR && !has_schema(db_of(tx)))
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "cannot %s: Semel's tables are not in this database (create "
				       "them with: semel --store sqlite:%s init)",
				       statement->what, sqlite3_db_filename(db_of(tx), "main"));
	return status;
}

static semel_status prepare(semel_tx tx, const struct semel_sqlite_statement *statement,
			    unsigned flags, sqlite3_stmt **prepared_out, semel_error *error)
{
	*prepared_out = NULL;
	int code = sqlite3_prepare_v3(db_of(tx), statement->sql, -1, flags, prepared_out, NULL);
	if (code == SQLITE_OK)
		return SEMEL_OK;
	return error_of(tx, sqlite3_extended_errcode(db_of(tx)), statement, error);
}

/* NULL: the cache is full. */
static sqlite3_stmt **cached_of(struct semel_sqlite_store *store,
				const struct semel_sqlite_statement *statement)
{
	if (statement->id != SEMEL_SQLITE_SHARED)
		return &store->prepared[statement->id];
	size_t at = 0;
	while (at < SEMEL_SQLITE_SHARED_MAX && store->shared[at].sql != NULL &&
	       store->shared[at].sql != statement->sql)
		at++;
	if (at == SEMEL_SQLITE_SHARED_MAX)
		return NULL;
	store->shared[at].sql = statement->sql;
	return &store->shared[at].prepared;
}

semel_status semel_sqlite_borrow_statement(semel_tx tx,
					   const struct semel_sqlite_statement *statement,
					   sqlite3_stmt **prepared_out, semel_error *error)
{
	/* Checked for our own file, before a transaction begins, and before a statement that is one
	 * by itself. */
	if (tx.store != NULL && sqlite3_get_autocommit(db_of(tx))) {
		semel_status moved = semel_sqlite_check_moved(db_of(tx), error);
		if (moved != SEMEL_OK)
			return moved;
	}
	if (statement->id == SEMEL_SQLITE_ONCE)
		return prepare(tx, statement, 0, prepared_out, error);
	if (tx.store == NULL) {
		*prepared_out = cached_statement(db_of(tx), statement->sql);
		return *prepared_out != NULL ? SEMEL_OK
					     : prepare(tx, statement, 0, prepared_out, error);
	}
	sqlite3_stmt **cached = cached_of(semel_sqlite_of(tx.store), statement);
	semel_status status = SEMEL_OK;
	if (cached == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "too many prepared statements");
	if (*cached == NULL)
		status = prepare(tx, statement, SQLITE_PREPARE_PERSISTENT, cached, error);
	*prepared_out = *cached;
	return status;
}

void semel_sqlite_return_statement(semel_tx tx, const struct semel_sqlite_statement *statement,
				   sqlite3_stmt *prepared)
{
	if (prepared == NULL)
		return;
	bool ours = tx.store != NULL && statement->id != SEMEL_SQLITE_ONCE;
	if (!ours && !is_cached(prepared)) {
		sqlite3_finalize(prepared);
		return;
	}
	sqlite3_reset(prepared);
	sqlite3_clear_bindings(prepared);
}

semel_status semel_sqlite_step(semel_tx tx, const struct semel_sqlite_statement *statement,
			       sqlite3_stmt *prepared, bool *row_out, semel_error *error)
{
	int code = sqlite3_step(prepared);
	*row_out = code == SQLITE_ROW;
	if (code == SQLITE_ROW)
		return SEMEL_OK;
	semel_status status = SEMEL_OK;
	if (code != SQLITE_DONE)
		status = error_of(tx, sqlite3_extended_errcode(db_of(tx)), statement, error);
	sqlite3_reset(prepared);
	return status;
}

semel_status semel_sqlite_run(semel_tx tx, const struct semel_sqlite_statement *statement,
			      sqlite3_stmt *prepared, semel_error *error)
{
	bool row = false;
	semel_status status = SEMEL_OK;
	do
		status = semel_sqlite_step(tx, statement, prepared, &row, error);
	while (status == SEMEL_OK && row);
	return status;
}

/* ---- binding and reading --------------------------------------------------------------------- */

void semel_sqlite_bind_bytes(sqlite3_stmt *prepared, int at, struct semel_text text)
{
	if (text.data == NULL || text.length == 0 ||
	    (memchr(text.data, '\0', text.length) == NULL && semel_text_is_utf8(text)))
		semel_sqlite_bind_text(prepared, at, text);
	else
		sqlite3_bind_blob64(prepared, at, text.data, text.length, SQLITE_STATIC);
}

void semel_sqlite_bind_string(sqlite3_stmt *prepared, int at, const char *string)
{
	sqlite3_bind_text(prepared, at, string, -1, SQLITE_STATIC);
}

void semel_sqlite_bind_time(sqlite3_stmt *prepared, int at, int64_t time_ms,
			    char buffer[SEMEL_TIME_SIZE])
{
	if (time_ms == 0) {
		sqlite3_bind_null(prepared, at);
		return;
	}
	semel_time_format(time_ms, buffer);
	semel_sqlite_bind_string(prepared, at, buffer);
}

int64_t semel_sqlite_time(sqlite3_stmt *prepared, int column)
{
	const char *text = (const char *)sqlite3_column_text(prepared, column);
	int64_t time_ms = 0;
	if (text == NULL)
		return 0;
	if (semel_time_parse(text, &time_ms))
		return time_ms;
	char repaired[SEMEL_TIME_SIZE];
	sqlite3_snprintf((int)sizeof(repaired), repaired, "%sZ", text);
	if (strlen(text) > 10)
		repaired[10] = 'T';
	return semel_time_parse(repaired, &time_ms) ? time_ms : 0;
}

void semel_sqlite_copy(sqlite3_stmt *prepared, int column, char *out, size_t size)
{
	const char *text = (const char *)sqlite3_column_text(prepared, column);
	sqlite3_snprintf((int)size, out, "%s", text == NULL ? "" : text);
}

/* ---- the engine of the statement layer ------------------------------------------------------- */

static sqlite3_stmt *of(const struct semel_sql_rows *rows)
{
	return rows->native;
}

static struct semel_sqlite_statement statement_of(const struct semel_sql_rows *rows)
{
	return (struct semel_sqlite_statement){
		.id = rows->statement->often ? SEMEL_SQLITE_SHARED : SEMEL_SQLITE_ONCE,
		.what = rows->statement->what,
		.sql = rows->statement->text[SEMEL_SQL_SQLITE],
	};
}

static void bind(sqlite3_stmt *prepared, int at, const struct semel_sql_value *value)
{
	char time[SEMEL_TIME_SIZE];
	switch (value->type) {
	case SEMEL_SQL_TEXT:
		semel_sqlite_bind_text(prepared, at, value->text);
		return;
	case SEMEL_SQL_ANY_TEXT:
	case SEMEL_SQL_BYTES:
		semel_sqlite_bind_bytes(prepared, at, value->text);
		return;
	case SEMEL_SQL_INT:
	case SEMEL_SQL_BOOL:
		sqlite3_bind_int64(prepared, at, value->number);
		return;
	case SEMEL_SQL_TIME:
		if (value->number == 0) {
			sqlite3_bind_null(prepared, at);
			return;
		}
		semel_time_format(value->number, time);
		sqlite3_bind_text(prepared, at, time, -1, SQLITE_TRANSIENT);
	}
}

static semel_status run(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			size_t count, semel_error *error)
{
	struct semel_sqlite_statement statement = statement_of(rows);
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(rows->tx, &statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++)
		bind(prepared, (int)i + 1, &values[i]);
	rows->native = prepared;
	rows->row = BOUND;
	return SEMEL_OK;
}

static semel_status next(struct semel_sql_rows *rows, bool *row_out, semel_error *error)
{
	struct semel_sqlite_statement statement = statement_of(rows);
	*row_out = false;
	if (rows->row == ENDED)
		return SEMEL_OK;
	semel_status status = semel_sqlite_step(rows->tx, &statement, of(rows), row_out, error);
	rows->row = *row_out ? AT_ROW : ENDED;
	return status;
}

static semel_status finish(struct semel_sql_rows *rows, semel_error *error)
{
	struct semel_sqlite_statement statement = statement_of(rows);
	semel_status status = SEMEL_OK;
	if (rows->native == NULL)
		return SEMEL_OK;
	bool changes = sqlite3_stmt_readonly(of(rows)) == 0;
	if (rows->row == BOUND || (rows->row == AT_ROW && changes))
		status = semel_sqlite_run(rows->tx, &statement, of(rows), error);
	if (changes)
		rows->changes = (uint64_t)semel_sqlite_changes(rows->tx);
	sqlite3_blob_close(rows->blob);
	semel_sqlite_return_statement(rows->tx, &statement, of(rows));
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

/* Reads only the size, not a byte of the payload. Without a payload, opening it fails. */
static uint64_t payload_size(struct semel_sql_rows *rows, int column)
{
	sqlite3_int64 position = sqlite3_column_int64(of(rows), column);
	sqlite3_blob *blob = rows->blob;
	int found = blob ? sqlite3_blob_reopen(blob, position)
			 : sqlite3_blob_open(sqlite3_db_handle(of(rows)), "main",
					     "semel_dead_letter", "payload", position, 0, &blob);
	rows->blob = blob;
	if (found == SQLITE_OK)
		return (uint64_t)sqlite3_blob_bytes(blob);
	sqlite3_blob_close(blob);
	rows->blob = NULL;
	return 0;
}

const struct semel_sql_engine semel_sqlite_engine = {
	.dialect = SEMEL_SQL_SQLITE,
	.require_transaction = semel_sqlite_require_transaction,
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
