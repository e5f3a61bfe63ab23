/* SPDX-License-Identifier: Apache-2.0 */
/* How far a scope has read a log, written in the transaction of the effects. Every new reader draws
 * a higher epoch; whoever still holds an older one cannot write any more, and its transaction must
 * not be committed. */
#include "store/sqlite/sqlite.h"

#include "store/rules.h"

#define POSITION_COLUMNS "next_offset, epoch, owner, expires_at, anchor_offset, anchor_hash"
#define THE_POSITION     " WHERE scope = ?1 AND topic = ?2 AND \"partition\" = ?3"

static const struct semel_sqlite_query get_position = { SEMEL_SQL_ONCE, "look up a position",
							"SELECT " POSITION_COLUMNS
							" FROM semel_position" THE_POSITION };
static const struct semel_sqlite_query take_position = {
	SEMEL_SQL_ONCE, "take a position",
	"INSERT INTO semel_position (scope, topic, \"partition\", epoch, owner, expires_at)"
	" VALUES (?1, ?2, ?3, 1, ?5, ?6) ON CONFLICT DO UPDATE SET owner = excluded.owner,"
	" epoch = epoch + 1, expires_at = excluded.expires_at WHERE epoch = ?4"
	" RETURNING " POSITION_COLUMNS
};
static const struct semel_sqlite_query put_position = {
	SEMEL_SQL_POSITION_PUT, "write a position",
	"UPDATE semel_position SET next_offset = ?6, expires_at = ?7, anchor_offset = ?8,"
	" anchor_hash = ?9" THE_POSITION " AND epoch = ?4 AND owner = ?5"
};
static const struct semel_sqlite_query release_position = {
	SEMEL_SQL_ONCE, "release a position",
	"UPDATE semel_position SET owner = '', expires_at = NULL" THE_POSITION
	" AND epoch = ?4 AND owner = ?5"
};

static semel_status take(semel_tx tx, const struct semel_sqlite_query *query,
			 const struct semel_position *position, sqlite3_stmt **statement_out,
			 semel_error *error)
{
	semel_status status = semel_sqlite_take(tx, query, statement_out, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(*statement_out, 1, position->scope);
	semel_sqlite_bind_text(*statement_out, 2, position->topic);
	sqlite3_bind_int(*statement_out, 3, position->partition);
	return SEMEL_OK;
}

static void read_position(sqlite3_stmt *statement, struct semel_position *position)
{
	position->next = sqlite3_column_int64(statement, 0);
	position->epoch = sqlite3_column_int64(statement, 1);
	semel_sqlite_copy(statement, 2, position->owner, sizeof(position->owner));
	position->expires_at_ms = semel_sqlite_time(statement, 3);
	position->anchor.offset = sqlite3_column_int64(statement, 4);
	position->anchor.hash = (uint64_t)sqlite3_column_int64(statement, 5);
}

semel_status semel_sqlite_position_get(semel_store *store, struct semel_position *position,
				       semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	position->next = -1;
	position->epoch = position->expires_at_ms = 0;
	position->anchor = SEMEL_ANCHOR_NONE;
	position->owner[0] = '\0';
	semel_status status = take(tx, &get_position, position, &statement, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_step(tx, &get_position, statement, &row, error);
	if (row)
		read_position(statement, position);
	semel_sqlite_give(tx, &get_position, statement);
	return status;
}

/* The row that comes back is read before the statement is run to its end, and only then is the
 * change committed. */
semel_status semel_sqlite_position_take(semel_store *store, struct semel_position *position,
					const char *owner, int64_t expires_at_ms,
					semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char expires[SEMEL_TIME_SIZE];
	struct semel_position taken = *position;
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = take(tx, &take_position, position, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 4, position->epoch);
	semel_sqlite_bind_string(statement, 5, owner);
	semel_sqlite_bind_time(statement, 6, expires_at_ms, expires);
	status = semel_sqlite_step(tx, &take_position, statement, &row, error);
	if (status == SEMEL_OK && !row)
		status = semel_position_lease_lost(position, error);
	if (row) {
		read_position(statement, &taken);
		status = semel_sqlite_run(tx, &take_position, statement, error);
	}
	semel_sqlite_give(tx, &take_position, statement);
	if (status == SEMEL_OK)
		*position = taken;
	return status;
}

semel_status semel_sqlite_position_put(semel_tx tx, const struct semel_position *position,
				       semel_error *error)
{
	char expires[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = take(tx, &put_position, position, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 4, position->epoch);
	semel_sqlite_bind_string(statement, 5, position->owner);
	sqlite3_bind_int64(statement, 6, position->next);
	semel_sqlite_bind_time(statement, 7, position->expires_at_ms, expires);
	sqlite3_bind_int64(statement, 8, position->anchor.offset);
	sqlite3_bind_int64(statement, 9, (int64_t)position->anchor.hash);
	status = semel_sqlite_run(tx, &put_position, statement, error);
	if (status == SEMEL_OK && semel_sqlite_changes(tx) == 0)
		status = semel_position_lease_lost(position, error);
	semel_sqlite_give(tx, &put_position, statement);
	return status;
}

/* What is not released runs out. */
void semel_sqlite_position_release(semel_store *store, const struct semel_position *position)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	if (take(tx, &release_position, position, &statement, NULL) != SEMEL_OK)
		return;
	sqlite3_bind_int64(statement, 4, position->epoch);
	semel_sqlite_bind_string(statement, 5, position->owner);
	(void)semel_sqlite_run(tx, &release_position, statement, NULL);
	semel_sqlite_give(tx, &release_position, statement);
}
