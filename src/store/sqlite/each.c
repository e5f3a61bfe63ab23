/* SPDX-License-Identifier: Apache-2.0 */
/* Walking whole tables id by id, for those who compare them. */
#include "store/sqlite/sqlite.h"

static const struct semel_sqlite_query each_outbox = {
	SEMEL_SQL_ONCE, "read the outbox",
	"SELECT id, status, coalesce(topic, aggregate_type || '.events'), created_at"
	" FROM semel_outbox ORDER BY id"
};
static const struct semel_sqlite_query each_inbox = {
	SEMEL_SQL_ONCE, "read the inbox",
	"SELECT event_id, status, topic, week_start FROM semel_inbox WHERE scope = ?1"
	" ORDER BY event_id"
};
static const struct semel_sqlite_query each_dead = {
	SEMEL_SQL_ONCE, "read the dead letters",
	"SELECT event_id, CASE WHEN parked_behind IS NULL THEN status ELSE 'PARKED' END, topic,"
	" event_time FROM semel_dead_letter WHERE scope = ?1 AND event_id IS NOT NULL"
	" ORDER BY CAST(event_id AS BLOB)"
};

/* Straight from the row, NUL-ended: nothing is copied, since there may be millions. */
static struct semel_text peek(sqlite3_stmt *statement, int column)
{
	const char *data = (const char *)sqlite3_column_text(statement, column);
	return semel_text_from(data, (size_t)sqlite3_column_bytes(statement, column));
}

struct walk {
	semel_id_visitor seen;
	void *user;
};

static semel_status walk_rows(semel_tx tx, const struct semel_sqlite_query *query,
			      struct semel_text scope, const struct walk *walk, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	if (scope.data != NULL)
		semel_sqlite_bind_text(statement, 1, scope);
	do {
		status = semel_sqlite_step(tx, query, statement, &row, error);
		if (status == SEMEL_OK && row)
			status = walk->seen(
				peek(statement, 0), (const char *)sqlite3_column_text(statement, 1),
				peek(statement, 2), semel_sqlite_time(statement, 3), walk->user);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, query, statement);
	return status;
}

semel_status semel_sqlite_outbox_each(semel_store *store, semel_id_visitor seen, void *user,
				      semel_error *error)
{
	const struct walk walk = { seen, user };
	const struct semel_text none = { NULL, 0 };
	return walk_rows(semel_sqlite_tx(store), &each_outbox, none, &walk, error);
}

semel_status semel_sqlite_inbox_each(semel_store *store, struct semel_text scope,
				     semel_id_visitor seen, void *user, semel_error *error)
{
	const struct walk walk = { seen, user };
	return walk_rows(semel_sqlite_tx(store), &each_inbox, scope, &walk, error);
}

semel_status semel_sqlite_dead_each(semel_store *store, struct semel_text scope,
				    semel_id_visitor seen, void *user, semel_error *error)
{
	const struct walk walk = { seen, user };
	return walk_rows(semel_sqlite_tx(store), &each_dead, scope, &walk, error);
}
