/* SPDX-License-Identifier: Apache-2.0 */
/* Which scopes read which topics, as the last consumer of each said: for those who verify. */
#include "base/error.h"
#include "fault/plant.h"
#include "store/sqlite/sqlite.h"

/* What was processed before has left no claim: it is not expected. */
#define CLAIMS_FROM_NOW                                                                            \
	"(coalesce(guarantee, '') = 'at-least-once'"                                               \
	" AND coalesce(excluded.guarantee, '') <> 'at-least-once')"

static const struct semel_sqlite_query put_subscription = {
	SEMEL_SQL_ONCE, "note the subscription",
	"INSERT INTO semel_subscription (scope, topics, guarantee, claim, poison, \"order\","
	" dedup_by, handler, bind, from_latest, since)"
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
	" ON CONFLICT DO UPDATE SET topics = excluded.topics, guarantee = excluded.guarantee,"
	" claim = excluded.claim, poison = excluded.poison, \"order\" = excluded.\"order\","
	" dedup_by = excluded.dedup_by, handler = excluded.handler, bind = excluded.bind,"
	" from_latest = from_latest OR " CLAIMS_FROM_NOW ","
	" since = CASE WHEN " CLAIMS_FROM_NOW " THEN excluded.since ELSE since END"
};
static const struct semel_sqlite_query add_topics = {
	SEMEL_SQL_ONCE, "note the topics",
	"INSERT INTO semel_subscription_topic (scope, topic, since)"
	" SELECT ?1, value, ?3 FROM json_each(?2) WHERE true"
	" ON CONFLICT DO UPDATE SET removed_at = NULL"
};
static const struct semel_sqlite_query remove_topics = {
	SEMEL_SQL_ONCE, "note the topics",
	"UPDATE semel_subscription_topic SET removed_at = ?3 WHERE scope = ?1"
	" AND removed_at IS NULL AND topic NOT IN (SELECT value FROM json_each(?2))"
};
static const struct semel_sqlite_query each_topic = {
	SEMEL_SQL_ONCE, "read the topics",
	"SELECT topic, since, removed_at FROM semel_subscription_topic WHERE scope = ?1"
	" ORDER BY topic"
};
static const struct semel_sqlite_query list_subscriptions = {
	SEMEL_SQL_ONCE, "list the subscriptions",
	"SELECT scope, topics, guarantee, claim, poison, \"order\", dedup_by, handler, bind,"
	" from_latest, since, paused FROM semel_subscription ORDER BY scope LIMIT ?1"
};
static const struct semel_sqlite_query pause_subscription = {
	SEMEL_SQL_ONCE, "pause the subscription",
	"UPDATE semel_subscription SET paused = ?2 WHERE scope = ?1"
};
static const struct semel_sqlite_query look_for_pause = {
	SEMEL_SQL_ONCE, "see whether the subscription is paused",
	"SELECT paused FROM semel_subscription WHERE scope = ?1"
};

static semel_status put_row(semel_store *store, const struct semel_subscription_row *row,
			    int64_t now_ms, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char now[SEMEL_TIME_SIZE];
	const struct semel_text texts[] = { row->scope,    row->topics,  row->guarantee,
					    row->claim,    row->poison,  row->order,
					    row->dedup_by, row->handler, row->bind };
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &put_subscription, &statement, error);
	if (status != SEMEL_OK)
		return status;
	for (int i = 0; i < (int)(sizeof(texts) / sizeof(texts[0])); i++)
		semel_sqlite_bind_text(statement, i + 1, texts[i]);
	sqlite3_bind_int(statement, 10, row->from_latest);
	semel_time_format(now_ms, now);
	semel_sqlite_bind_string(statement, 11, now);
	status = semel_sqlite_run(tx, &put_subscription, statement, error);
	semel_sqlite_give(tx, &put_subscription, statement);
	return status;
}

static semel_status note_topics(semel_store *store, const struct semel_sqlite_query *query,
				const struct semel_subscription_row *row, int64_t now_ms,
				semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, row->scope);
	semel_sqlite_bind_text(statement, 2, row->topics);
	semel_sqlite_bind_time(statement, 3, now_ms, now);
	status = semel_sqlite_run(tx, query, statement, error);
	semel_sqlite_give(tx, query, statement);
	return status;
}

/* A planted bug: a subscription that was not known has nothing on hold. */
static void start_clean(semel_store *store, const char *scope)
{
	char *sql = sqlite3_mprintf("DELETE FROM semel_hold WHERE scope = %Q AND NOT EXISTS"
				    " (SELECT 1 FROM semel_subscription WHERE scope = %Q)",
				    scope, scope);
	sqlite3_exec(semel_sqlite_tx(store).native, sql, NULL, NULL, NULL);
	sqlite3_free(sql);
}

semel_status semel_sqlite_subscription_put(semel_store *store,
					   const struct semel_subscription_row *row, int64_t now_ms,
					   semel_error *error)
{
	bool entered = false;
	semel_status status = semel_sqlite_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	if (SEMEL_PLANTED("new-record-starts-clean"))
		start_clean(store, semel_text_string(row->scope));
	status = put_row(store, row, now_ms, error);
	if (status == SEMEL_OK)
		status = note_topics(store, &add_topics, row, now_ms, error);
	if (status == SEMEL_OK)
		status = note_topics(store, &remove_topics, row, now_ms, error);
	return semel_sqlite_leave(store, entered, status, error);
}

semel_status semel_sqlite_subscription_topics(semel_store *store, struct semel_text scope,
					      semel_topic_visitor seen, void *user,
					      semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &each_topic, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	do {
		status = semel_sqlite_step(tx, &each_topic, statement, &row, error);
		if (status == SEMEL_OK && row)
			seen(semel_text_from((const char *)sqlite3_column_text(statement, 0),
					     (size_t)sqlite3_column_bytes(statement, 0)),
			     semel_sqlite_time(statement, 1), semel_sqlite_time(statement, 2),
			     user);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &each_topic, statement);
	return status;
}

static void read_subscription(sqlite3_stmt *statement, struct semel_arena *arena,
			      struct semel_subscription_row *row)
{
	struct semel_text *const texts[] = { &row->scope,    &row->topics,  &row->guarantee,
					     &row->claim,    &row->poison,  &row->order,
					     &row->dedup_by, &row->handler, &row->bind };
	for (int i = 0; i < (int)(sizeof(texts) / sizeof(texts[0])); i++)
		*texts[i] = semel_sqlite_text(statement, i, arena);
	row->from_latest = sqlite3_column_int(statement, 9) != 0;
	row->since_ms = semel_sqlite_time(statement, 10);
	row->paused = sqlite3_column_int(statement, 11) != 0;
}

semel_status semel_sqlite_subscription_list(semel_store *store, struct semel_arena *arena,
					    struct semel_subscription_row *rows_out, uint32_t limit,
					    uint32_t *count_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*count_out = 0;
	semel_status status = semel_sqlite_take(tx, &list_subscriptions, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, limit);
	do {
		status = semel_sqlite_step(tx, &list_subscriptions, statement, &row, error);
		if (row)
			read_subscription(statement, arena, &rows_out[(*count_out)++]);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &list_subscriptions, statement);
	return status;
}

semel_status semel_sqlite_subscription_pause(semel_store *store, struct semel_text scope,
					     bool paused, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &pause_subscription, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	sqlite3_bind_int(statement, 2, paused);
	status = semel_sqlite_run(tx, &pause_subscription, statement, error);
	bool found = sqlite3_changes(sqlite3_db_handle(statement)) > 0;
	semel_sqlite_give(tx, &pause_subscription, statement);
	return status == SEMEL_OK && !found
		       ? semel_error_set(error, SEMEL_NOT_FOUND, "no subscription has the scope %s",
					 semel_text_shown(scope))
		       : status;
}

semel_status semel_sqlite_subscription_is_paused(semel_store *store, struct semel_text scope,
						 bool *paused_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &look_for_pause, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, scope);
	status = semel_sqlite_step(tx, &look_for_pause, statement, &row, error);
	*paused_out = row && sqlite3_column_int(statement, 0) != 0;
	semel_sqlite_give(tx, &look_for_pause, statement);
	return status;
}
