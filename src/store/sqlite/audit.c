/* SPDX-License-Identifier: Apache-2.0 */
/* What people did, for those who ask later. */
#include "store/sqlite/sqlite.h"

#define CUT(text)                                                                                  \
	"CASE WHEN length(" text ") > " SEMEL_AUDIT_TEXT " THEN substr(" text                      \
	", 1, " SEMEL_AUDIT_TEXT ") || '…' ELSE " text " END"

static const struct semel_sqlite_query add_row = {
	SEMEL_SQL_ONCE, "write down what was done",
	"INSERT INTO semel_audit (at, who, what, target, detail, outcome)"
	" VALUES (?1, ?2, ?3, " CUT("?4") ", " CUT("?5") ", ?6)"
};
static const struct semel_sqlite_query finish_row = {
	SEMEL_SQL_ONCE, "write down how it ended",
	"UPDATE semel_audit SET outcome = ?2 WHERE number = ?1"
};
static const struct semel_sqlite_query list_rows = {
	SEMEL_SQL_ONCE, "list what was done",
	"SELECT at, who, what, " CUT("target") ", " CUT("detail") ", outcome FROM semel_audit"
								  " ORDER BY number DESC LIMIT ?1"
};

semel_status semel_sqlite_audit_add(semel_store *store, const struct semel_audit_row *row,
				    int64_t *number_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char at[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &add_row, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_time(statement, 1, row->at_ms, at);
	semel_sqlite_bind_text(statement, 2, row->who);
	semel_sqlite_bind_text(statement, 3, row->what);
	semel_sqlite_bind_text(statement, 4, row->target);
	semel_sqlite_bind_text(statement, 5, row->detail);
	semel_sqlite_bind_text(statement, 6, row->outcome);
	status = semel_sqlite_run(tx, &add_row, statement, error);
	if (status == SEMEL_OK && number_out)
		*number_out = sqlite3_last_insert_rowid(sqlite3_db_handle(statement));
	semel_sqlite_give(tx, &add_row, statement);
	return status;
}

semel_status semel_sqlite_audit_finish(semel_store *store, int64_t number, const char *outcome,
				       semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &finish_row, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, number);
	semel_sqlite_bind_string(statement, 2, outcome);
	status = semel_sqlite_run(tx, &finish_row, statement, error);
	semel_sqlite_give(tx, &finish_row, statement);
	return status;
}

semel_status semel_sqlite_audit_list(semel_store *store, struct semel_arena *arena,
				     struct semel_audit_row *rows_out, uint32_t limit,
				     uint32_t *count_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*count_out = 0;
	semel_status status = semel_sqlite_take(tx, &list_rows, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, limit);
	do {
		status = semel_sqlite_step(tx, &list_rows, statement, &row, error);
		if (!row)
			break;
		rows_out[(*count_out)++] = (struct semel_audit_row){
			.at_ms = semel_sqlite_time(statement, 0),
			.who = semel_sqlite_text(statement, 1, arena),
			.what = semel_sqlite_text(statement, 2, arena),
			.target = semel_sqlite_text(statement, 3, arena),
			.detail = semel_sqlite_text(statement, 4, arena),
			.outcome = semel_sqlite_text(statement, 5, arena),
		};
	} while (status == SEMEL_OK);
	semel_sqlite_give(tx, &list_rows, statement);
	return status;
}
