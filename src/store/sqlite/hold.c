/* SPDX-License-Identifier: Apache-2.0 */
/* Holds: aggregates whose events must wait, per scope. They are few, and most batches find none:
 * one look into an index tells. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "store/rules.h"

/* By name: the planner would walk all holds of the scope, and there may be many dead ones. */
#define READY_HOLDS                                                                                \
	"semel_hold INDEXED BY semel_hold_ready WHERE scope = ?1 AND state IN ('released', 'gap')"

static const struct semel_sqlite_query any_hold = {
	SEMEL_SQL_HOLD_ANY, "look for holds", "SELECT 1 FROM semel_hold WHERE scope = ?1 LIMIT 1"
};
static const struct semel_sqlite_query other_hold = {
	SEMEL_SQL_HOLD_OTHER, "look for holds",
	"SELECT 1 FROM semel_hold WHERE scope = ?1 AND (aggregate_type = '') <> ?2 LIMIT 1"
};
static const struct semel_sqlite_query get_hold = {
	SEMEL_SQL_HOLD_GET, "look up a hold",
	"SELECT " SEMEL_SQLITE_HOLD_COLUMNS " FROM semel_hold"
	" WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"
};
static const struct semel_sqlite_query put_hold = {
	SEMEL_SQL_HOLD_PUT, "hold an aggregate",
	"INSERT INTO semel_hold (scope, " SEMEL_SQLITE_HOLD_COLUMNS
	") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
	" ON CONFLICT DO UPDATE SET state = excluded.state, head_id = excluded.head_id,"
	" attempts = excluded.attempts, due_at = excluded.due_at, blocks = excluded.blocks"
};
static const struct semel_sqlite_query remove_hold = {
	SEMEL_SQL_ONCE, "remove a hold",
	"DELETE FROM semel_hold WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"
};
static const struct semel_sqlite_query ready_holds = {
	SEMEL_SQL_HOLD_READY, "look for aggregates that may go on",
	"SELECT " SEMEL_SQLITE_HOLD_COLUMNS " FROM " READY_HOLDS
	" AND (due_at IS NULL OR due_at <= ?2) LIMIT ?3"
};
static const struct semel_sqlite_query first_due = { SEMEL_SQL_ONCE, "look when a hold is due",
						     "SELECT min(due_at) FROM " READY_HOLDS };
/* A gap's head is parked like its followers; a hold without any counts for itself. */
static const struct semel_sqlite_query count_holds = {
	SEMEL_SQL_ONCE, "count what is held",
	"SELECT h.state, h.blocks, h.due_at, CASE WHEN h.aggregate_type = ''"
	" THEN (SELECT count(*) FROM semel_dead_letter d WHERE d.scope = h.scope"
	" AND d.topic = h.aggregate_id AND d.parked_behind IS NOT NULL)"
	" ELSE (SELECT count(*) FROM semel_dead_letter d WHERE d.scope = h.scope"
	" AND d.aggregate_type = h.aggregate_type AND d.aggregate_id = h.aggregate_id"
	" AND d.parked_behind IS NOT NULL) END"
	" FROM semel_hold h WHERE h.scope = ?1"
};

void semel_sqlite_hold_read(sqlite3_stmt *statement, struct semel_arena *arena,
			    struct semel_hold *hold)
{
	hold->aggregate_type = semel_sqlite_text(statement, 0, arena);
	hold->aggregate_id = semel_sqlite_text(statement, 1, arena);
	hold->state = semel_hold_state_of((const char *)sqlite3_column_text(statement, 2));
	hold->head_id = semel_sqlite_text(statement, 3, arena);
	hold->attempts = (uint32_t)sqlite3_column_int64(statement, 4);
	hold->due_ms = semel_sqlite_time(statement, 5);
	hold->blocks = sqlite3_column_int(statement, 6) != 0;
}

semel_status semel_sqlite_hold_has_any(semel_tx tx, struct semel_text scope, bool *any_out,
				       semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	*any_out = false;
	semel_status status = semel_sqlite_take(tx, &any_hold, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	status = semel_sqlite_step(tx, &any_hold, statement, any_out, error);
	semel_sqlite_give(tx, &any_hold, statement);
	return status;
}

semel_status semel_sqlite_hold_has_other_kind(semel_tx tx, struct semel_text scope, bool total,
					      bool *other_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	*other_out = false;
	semel_status status = semel_sqlite_take(tx, &other_hold, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	sqlite3_bind_int(statement, 2, total);
	status = semel_sqlite_step(tx, &other_hold, statement, other_out, error);
	semel_sqlite_give(tx, &other_hold, statement);
	return status;
}

semel_status semel_sqlite_hold_get(semel_tx tx, struct semel_text scope,
				   const struct semel_hold_key *key, struct semel_arena *arena,
				   struct semel_hold *hold_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*hold_out = (struct semel_hold){ .aggregate_type = key->type, .aggregate_id = key->id };
	semel_status status = semel_sqlite_take(tx, &get_hold, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_text(statement, 2, key->type);
	semel_sqlite_bind_text(statement, 3, key->id);
	status = semel_sqlite_step(tx, &get_hold, statement, &row, error);
	if (row)
		semel_sqlite_hold_read(statement, arena, hold_out);
	semel_sqlite_give(tx, &get_hold, statement);
	return status;
}

semel_status semel_sqlite_hold_put(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, semel_error *error)
{
	char due[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	if (hold->state == SEMEL_HOLD_NONE)
		return semel_sqlite_hold_remove(tx, scope, hold, error);
	semel_status status = semel_sqlite_demand_transaction(tx, put_hold.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &put_hold, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_text(statement, 2, hold->aggregate_type);
	semel_sqlite_bind_text(statement, 3, hold->aggregate_id);
	semel_sqlite_bind_string(statement, 4, semel_hold_state_name(hold->state));
	semel_sqlite_bind_text(statement, 5, hold->head_id);
	sqlite3_bind_int64(statement, 6, hold->attempts);
	semel_sqlite_bind_time(statement, 7, hold->due_ms, due);
	sqlite3_bind_int(statement, 8, hold->blocks);
	status = semel_sqlite_run(tx, &put_hold, statement, error);
	semel_sqlite_give(tx, &put_hold, statement);
	return status;
}

/* One writer at a time: what is read in this transaction stays so until its end. */
semel_status semel_sqlite_hold_add(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, bool *added_out,
				   semel_error *error)
{
	const struct semel_hold_key key = { hold->aggregate_type, hold->aggregate_id };
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold found = { .state = SEMEL_HOLD_NONE };
	*added_out = false;
	if (arena == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a hold");
	semel_status status = semel_sqlite_hold_get(tx, scope, &key, arena, &found, error);
	*added_out = status == SEMEL_OK && found.state == SEMEL_HOLD_NONE;
	semel_arena_free(arena);
	return *added_out ? semel_sqlite_hold_put(tx, scope, hold, error) : status;
}

semel_status semel_sqlite_hold_remove(semel_tx tx, struct semel_text scope,
				      const struct semel_hold *hold, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_demand_transaction(tx, remove_hold.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &remove_hold, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_text(statement, 2, hold->aggregate_type);
	semel_sqlite_bind_text(statement, 3, hold->aggregate_id);
	status = semel_sqlite_run(tx, &remove_hold, statement, error);
	semel_sqlite_give(tx, &remove_hold, statement);
	return status;
}

semel_status semel_sqlite_hold_list_ready(semel_tx tx, struct semel_text scope, int64_t now_ms,
					  struct semel_holds *holds, semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	bool row = false;
	holds->count = 0;
	semel_status status = semel_sqlite_take(tx, &ready_holds, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_time(statement, 2, now_ms, now);
	sqlite3_bind_int64(statement, 3, holds->capacity);
	do {
		status = semel_sqlite_step(tx, &ready_holds, statement, &row, error);
		if (row)
			semel_sqlite_hold_read(statement, holds->arena,
					       &holds->holds[holds->count++]);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &ready_holds, statement);
	return status;
}

semel_status semel_sqlite_hold_next_due(semel_store *store, struct semel_text scope,
					int64_t *due_ms_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*due_ms_out = 0;
	semel_status status = semel_sqlite_take(tx, &first_due, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	status = semel_sqlite_step(tx, &first_due, statement, &row, error);
	if (row)
		*due_ms_out = semel_sqlite_time(statement, 0);
	semel_sqlite_give(tx, &first_due, statement);
	return status;
}

static struct semel_hold_summary tally_of(sqlite3_stmt *statement)
{
	return (struct semel_hold_summary){
		.state = semel_hold_state_of((const char *)sqlite3_column_text(statement, 0)),
		.blocks = sqlite3_column_int(statement, 1) != 0,
		.due_ms = semel_sqlite_time(statement, 2),
		.behind = (uint64_t)sqlite3_column_int64(statement, 3),
	};
}

semel_status semel_sqlite_hold_count(semel_store *store, struct semel_text scope,
				     struct semel_hold_counts *counts_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*counts_out = (struct semel_hold_counts){ 0 };
	semel_status status = semel_sqlite_take(tx, &count_holds, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	do {
		status = semel_sqlite_step(tx, &count_holds, statement, &row, error);
		if (row)
			semel_hold_counts_add(counts_out, tally_of(statement));
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &count_holds, statement);
	return status;
}
