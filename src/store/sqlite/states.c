/* SPDX-License-Identifier: Apache-2.0 */
/* What the tables say of a batch of events at a scope. There is one writer at a time, so whoever is
 * in a transaction has the lock of everything. */
#include "store/sqlite/sqlite.h"

#include "store/rules.h"

enum { LETTER = SEMEL_SQLITE_HOLD_WIDTH, REPLAY_COUNT, SETTLED };

static const struct semel_sqlite_query any_state = {
	SEMEL_SQL_STATES_ANY, "look for holds and dead letters",
	"SELECT 1 FROM semel_hold WHERE scope = ?1 UNION ALL SELECT 1 FROM semel_dead_letter"
	" WHERE scope = ?1 AND parked_behind IS NULL AND event_id IS NOT NULL LIMIT 1"
};
static const struct semel_sqlite_query look_at_state = {
	SEMEL_SQL_STATES_LOOK, "look up a hold and a dead letter",
	"SELECT " SEMEL_SQLITE_HOLD_COLUMNS ", letter, replay_count, settled FROM (SELECT 1)"
	" LEFT JOIN (SELECT " SEMEL_SQLITE_HOLD_COLUMNS " FROM semel_hold WHERE scope = ?1"
	" AND aggregate_type = ?2 AND aggregate_id = ?3) LEFT JOIN (SELECT status AS letter,"
	" replay_count, settled_at IS NOT NULL AS settled FROM semel_dead_letter"
	" WHERE scope = ?1 AND event_id = ?4 AND parked_behind IS NULL)"
};

semel_status semel_sqlite_states_exist(semel_tx tx, struct semel_text scope, bool *any_out,
				       semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	*any_out = false;
	semel_status status = semel_sqlite_take(tx, &any_state, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	status = semel_sqlite_step(tx, &any_state, statement, any_out, error);
	semel_sqlite_give(tx, &any_state, statement);
	return status;
}

static semel_status look_at(semel_tx tx, struct semel_text scope,
			    const struct semel_state_query *query, struct semel_arena *arena,
			    struct semel_state_result *answer, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*answer = (struct semel_state_result){ .hold = { .aggregate_type = query->key.type,
							 .aggregate_id = query->key.id },
					       .letter = SEMEL_DEAD_ANY };
	semel_status status = semel_sqlite_take(tx, &look_at_state, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	semel_sqlite_bind_text(statement, 2, query->key.type);
	semel_sqlite_bind_text(statement, 3, query->key.id);
	semel_sqlite_bind_bytes(statement, 4, query->event_id);
	status = semel_sqlite_step(tx, &look_at_state, statement, &row, error);
	if (row && sqlite3_column_type(statement, 0) != SQLITE_NULL)
		semel_sqlite_hold_read(statement, arena, &answer->hold);
	if (row && sqlite3_column_type(statement, LETTER) != SQLITE_NULL) {
		answer->letter =
			semel_dead_status_of((const char *)sqlite3_column_text(statement, LETTER));
		answer->replay_count = (uint32_t)sqlite3_column_int64(statement, REPLAY_COUNT);
		answer->settled = sqlite3_column_int(statement, SETTLED) != 0;
	}
	semel_sqlite_give(tx, &look_at_state, statement);
	return status;
}

semel_status semel_sqlite_states_read(semel_tx tx, struct semel_text scope,
				      struct semel_state_batch *batch, semel_error *error)
{
	semel_status status = semel_sqlite_demand_transaction(tx, look_at_state.what, error);
	for (size_t i = 0; i < batch->count && status == SEMEL_OK; i++)
		status = look_at(tx, scope, &batch->queries[i], batch->arena, &batch->results[i],
				 error);
	return status;
}
