/* SPDX-License-Identifier: Apache-2.0 */
/* Consumers at work: one row each, which they write themselves, seldom. */
#include "store/sqlite/sqlite.h"

static const struct semel_sqlite_query put_presence = {
	SEMEL_SQL_ONCE, "write down that a consumer is at work",
	"INSERT INTO semel_consumer (scope, owner, in_hand, breaker, reason, next_try_at, paused,"
	" waits_since, updated_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
	" ON CONFLICT DO UPDATE SET in_hand = excluded.in_hand, breaker = excluded.breaker,"
	" reason = excluded.reason, next_try_at = excluded.next_try_at, paused = excluded.paused,"
	" waits_since = excluded.waits_since, updated_at = excluded.updated_at,"
	" expires_at = excluded.expires_at"
};
static const struct semel_sqlite_query remove_presence = {
	SEMEL_SQL_ONCE, "write down that a consumer has ended",
	"DELETE FROM semel_consumer WHERE scope = ?1 AND (owner = ?2 OR expires_at < ?3)"
};
static const struct semel_sqlite_query each_presence = {
	SEMEL_SQL_ONCE, "look which consumers are at work",
	"SELECT scope, owner, in_hand, breaker, reason, next_try_at, paused, waits_since,"
	" updated_at, expires_at FROM semel_consumer WHERE ?1 IS NULL OR scope = ?1"
	" ORDER BY scope, owner"
};

semel_status semel_sqlite_presence_put(semel_store *store, const struct semel_presence *presence,
				       semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char times[4][SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &put_presence, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, presence->scope);
	semel_sqlite_bind_text(statement, 2, presence->owner);
	sqlite3_bind_int64(statement, 3, (int64_t)presence->in_flight);
	sqlite3_bind_int64(statement, 4, presence->breaker);
	semel_sqlite_bind_text(statement, 5, presence->reason);
	semel_sqlite_bind_time(statement, 6, presence->next_try_ms, times[0]);
	sqlite3_bind_int(statement, 7, presence->paused);
	semel_sqlite_bind_time(statement, 8, presence->waits_since_ms, times[1]);
	semel_sqlite_bind_time(statement, 9, presence->updated_ms, times[2]);
	semel_sqlite_bind_time(statement, 10, presence->expires_at_ms, times[3]);
	status = semel_sqlite_run(tx, &put_presence, statement, error);
	semel_sqlite_give(tx, &put_presence, statement);
	return status;
}

semel_status semel_sqlite_presence_remove(semel_store *store, const struct semel_presence *presence,
					  int64_t forget_ms, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char forget[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &remove_presence, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, presence->scope);
	semel_sqlite_bind_text(statement, 2, presence->owner);
	semel_sqlite_bind_time(statement, 3, forget_ms, forget);
	status = semel_sqlite_run(tx, &remove_presence, statement, error);
	semel_sqlite_give(tx, &remove_presence, statement);
	return status;
}

static struct semel_text peek(sqlite3_stmt *statement, int column)
{
	const char *data = (const char *)sqlite3_column_text(statement, column);
	return semel_text_from(data, (size_t)sqlite3_column_bytes(statement, column));
}

static struct semel_presence presence_of(sqlite3_stmt *statement)
{
	return (struct semel_presence){
		.scope = peek(statement, 0),
		.owner = peek(statement, 1),
		.in_flight = (uint64_t)sqlite3_column_int64(statement, 2),
		.breaker = (uint32_t)sqlite3_column_int(statement, 3),
		.reason = peek(statement, 4),
		.next_try_ms = semel_sqlite_time(statement, 5),
		.paused = sqlite3_column_int(statement, 6) != 0,
		.waits_since_ms = semel_sqlite_time(statement, 7),
		.updated_ms = semel_sqlite_time(statement, 8),
		.expires_at_ms = semel_sqlite_time(statement, 9),
	};
}

semel_status semel_sqlite_presence_each(semel_store *store, struct semel_text scope,
					semel_presence_visitor seen, void *user, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &each_presence, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	do {
		status = semel_sqlite_step(tx, &each_presence, statement, &row, error);
		if (status == SEMEL_OK && row) {
			struct semel_presence presence = presence_of(statement);
			seen(&presence, user);
		}
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &each_presence, statement);
	return status;
}
