/* SPDX-License-Identifier: Apache-2.0 */
/* How statements are taken, bound, run and given back, on our own and on borrowed connections. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

#include <string.h>

static sqlite3 *db_of(semel_tx tx)
{
	return tx.native;
}

semel_tx semel_sqlite_tx(semel_store *store)
{
	return (semel_tx){ store->driver, semel_sqlite_of(store)->db, store };
}

bool semel_sqlite_in_transaction(semel_tx tx)
{
	return tx.native != NULL && sqlite3_get_autocommit(db_of(tx)) == 0;
}

semel_status semel_sqlite_demand_transaction(semel_tx tx, const char *what, semel_error *error)
{
	if (semel_sqlite_in_transaction(tx))
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_NO_TRANSACTION,
			       "cannot %s: no transaction is open on this connection (BEGIN "
			       "IMMEDIATE first, so that it commits with the business change; a "
			       "statement with ON CONFLICT ROLLBACK ends one, too)",
			       what);
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

static semel_status error_of(semel_tx tx, int code, const struct semel_sqlite_query *query,
			     semel_error *error)
{
	semel_status status = semel_sqlite_error(db_of(tx), code, query->what, error);
	if ((code & 0xff) == SQLITE_ERROR && !has_schema(db_of(tx)))
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "cannot %s: Semel's tables are not in this database (make "
				       "them with: semel --store sqlite:%s init)",
				       query->what, sqlite3_db_filename(db_of(tx), "main"));
	return status;
}

static semel_status prepare(semel_tx tx, const struct semel_sqlite_query *query, unsigned flags,
			    sqlite3_stmt **statement_out, semel_error *error)
{
	*statement_out = NULL;
	int code = sqlite3_prepare_v3(db_of(tx), query->sql, -1, flags, statement_out, NULL);
	if (code == SQLITE_OK)
		return SEMEL_OK;
	return error_of(tx, sqlite3_extended_errcode(db_of(tx)), query, error);
}

/* NULL: there is no place left. */
static sqlite3_stmt **place_of(struct semel_sqlite_store *store,
			       const struct semel_sqlite_query *query)
{
	if (query->id != SEMEL_SQLITE_SHARED)
		return &store->statements[query->id];
	size_t at = 0;
	while (at < SEMEL_SQLITE_SHARED_MAX && store->shared[at].sql != NULL &&
	       store->shared[at].sql != query->sql)
		at++;
	if (at == SEMEL_SQLITE_SHARED_MAX)
		return NULL;
	store->shared[at].sql = query->sql;
	return &store->shared[at].statement;
}

semel_status semel_sqlite_take(semel_tx tx, const struct semel_sqlite_query *query,
			       sqlite3_stmt **statement_out, semel_error *error)
{
	/* Of a file of our own, before a transaction begins, and before what is one by itself. */
	if (tx.store != NULL && sqlite3_get_autocommit(db_of(tx))) {
		semel_status place = semel_sqlite_check_moved(db_of(tx), error);
		if (place != SEMEL_OK)
			return place;
	}
	if (query->id == SEMEL_SQLITE_ONCE)
		return prepare(tx, query, 0, statement_out, error);
	if (tx.store == NULL) {
		*statement_out = semel_sqlite_cached_statement(db_of(tx), query->sql);
		return *statement_out != NULL ? SEMEL_OK
					      : prepare(tx, query, 0, statement_out, error);
	}
	sqlite3_stmt **place = place_of(semel_sqlite_of(tx.store), query);
	semel_status status = SEMEL_OK;
	if (place == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "too many prepared statements");
	if (*place == NULL)
		status = prepare(tx, query, SQLITE_PREPARE_PERSISTENT, place, error);
	*statement_out = *place;
	return status;
}

void semel_sqlite_give(semel_tx tx, const struct semel_sqlite_query *query, sqlite3_stmt *statement)
{
	if (statement == NULL)
		return;
	bool ours = tx.store != NULL && query->id != SEMEL_SQLITE_ONCE;
	if (!ours && !semel_sqlite_is_cached(statement)) {
		sqlite3_finalize(statement);
		return;
	}
	sqlite3_reset(statement);
	sqlite3_clear_bindings(statement);
}

semel_status semel_sqlite_step(semel_tx tx, const struct semel_sqlite_query *query,
			       sqlite3_stmt *statement, bool *row_out, semel_error *error)
{
	int code = sqlite3_step(statement);
	*row_out = code == SQLITE_ROW;
	if (code == SQLITE_ROW)
		return SEMEL_OK;
	semel_status status = SEMEL_OK;
	if (code != SQLITE_DONE)
		status = error_of(tx, sqlite3_extended_errcode(db_of(tx)), query, error);
	sqlite3_reset(statement);
	return status;
}

semel_status semel_sqlite_run(semel_tx tx, const struct semel_sqlite_query *query,
			      sqlite3_stmt *statement, semel_error *error)
{
	bool row = false;
	semel_status status = SEMEL_OK;
	do
		status = semel_sqlite_step(tx, query, statement, &row, error);
	while (status == SEMEL_OK && row);
	return status;
}

semel_status semel_sqlite_enter(semel_store *store, bool *entered_out, semel_error *error)
{
	*entered_out = false;
	if (semel_sqlite_in_transaction(semel_sqlite_tx(store)))
		return SEMEL_OK;
	semel_status status = semel_sqlite_begin(store, error);
	*entered_out = status == SEMEL_OK;
	return status;
}

semel_status semel_sqlite_leave(semel_store *store, bool entered, semel_status status,
				semel_error *error)
{
	if (!entered)
		return status;
	if (status != SEMEL_OK) {
		semel_sqlite_rollback(store);
		return status;
	}
	return semel_sqlite_commit(store, error);
}

/* ---- binding and reading --------------------------------------------------------------------- */

void semel_sqlite_bind_bytes(sqlite3_stmt *statement, int at, struct semel_text text)
{
	if (text.data == NULL || text.length == 0 ||
	    (memchr(text.data, '\0', text.length) == NULL && semel_text_is_utf8(text)))
		semel_sqlite_bind_text(statement, at, text);
	else
		sqlite3_bind_blob64(statement, at, text.data, text.length, SQLITE_STATIC);
}

void semel_sqlite_bind_string(sqlite3_stmt *statement, int at, const char *string)
{
	sqlite3_bind_text(statement, at, string, -1, SQLITE_STATIC);
}

void semel_sqlite_bind_time(sqlite3_stmt *statement, int at, int64_t time_ms,
			    char buffer[SEMEL_TIME_SIZE])
{
	if (time_ms == 0) {
		sqlite3_bind_null(statement, at);
		return;
	}
	semel_time_format(time_ms, buffer);
	semel_sqlite_bind_string(statement, at, buffer);
}

int64_t semel_sqlite_time(sqlite3_stmt *statement, int column)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);
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

void semel_sqlite_copy(sqlite3_stmt *statement, int column, char *out, size_t size)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);
	sqlite3_snprintf((int)size, out, "%s", text == NULL ? "" : text);
}
