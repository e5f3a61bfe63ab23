/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that a crash may end; only after one was noticed. */
#include "store/sqlite/sqlite.h"

static const struct semel_sqlite_query forget_old = {
	SEMEL_SQL_ONCE, "forget runs of long ago",
	"DELETE FROM semel_running WHERE scope = ?1 AND begun_at < ?2"
};
static const struct semel_sqlite_query begin_run = {
	SEMEL_SQL_ONCE, "write down that an event runs",
	"INSERT INTO semel_running (scope, event_id, owner, runs, begun_at)"
	" VALUES (?1, ?2, ?3, 1, ?4)"
	" ON CONFLICT DO UPDATE SET runs = runs + (owner <> excluded.owner),"
	" owner = excluded.owner, begun_at = excluded.begun_at RETURNING runs"
};
static const struct semel_sqlite_query end_run = {
	SEMEL_SQL_ONCE, "write down that an event has run",
	"DELETE FROM semel_running WHERE scope = ?1 AND event_id = ?2"
};

static semel_status forget(semel_tx tx, const struct semel_running *running, semel_error *error)
{
	char before[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &forget_old, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, running->scope);
	semel_sqlite_bind_time(statement, 2, running->forget_ms, before);
	status = semel_sqlite_run(tx, &forget_old, statement, error);
	semel_sqlite_give(tx, &forget_old, statement);
	return status;
}

semel_status semel_sqlite_running_begin(semel_tx tx, const struct semel_running *running,
					uint32_t *runs_out, semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = forget(tx, running, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &begin_run, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, running->scope);
	semel_sqlite_bind_text(statement, 2, running->event_id);
	semel_sqlite_bind_string(statement, 3, running->owner);
	semel_sqlite_bind_time(statement, 4, running->now_ms, now);
	status = semel_sqlite_step(tx, &begin_run, statement, &row, error);
	*runs_out = row ? (uint32_t)sqlite3_column_int64(statement, 0) : 0;
	semel_sqlite_give(tx, &begin_run, statement);
	return status;
}

semel_status semel_sqlite_running_end(semel_tx tx, struct semel_text scope,
				      struct semel_text event_id, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &end_run, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_text(statement, 2, event_id);
	status = semel_sqlite_run(tx, &end_run, statement, error);
	semel_sqlite_give(tx, &end_run, statement);
	return status;
}
