/* SPDX-License-Identifier: Apache-2.0 */
/* Which scopes read which topics, as the last consumer of each declared it. */
#include "store/sql/sql.h"

#include "base/error.h"
#include "fault/plant.h"

/* What was processed before has left no claim: it is not expected. */
#define CLAIMS_FROM_NOW                                                                            \
	"(coalesce(known.guarantee, '') = 'at-least-once'"                                         \
	" AND coalesce(excluded.guarantee, '') <> 'at-least-once')"

static const struct semel_sql_statement put_subscription = {
	.what = "record the subscription",
	.text = SEMEL_SQL_SAME(
		"INSERT INTO semel_subscription AS known (scope, topics, guarantee, claim, poison,"
		" \"order\", dedup_by, handler, bind, from_latest, since)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
		" ON CONFLICT (scope) DO UPDATE SET topics = excluded.topics,"
		" guarantee = excluded.guarantee, claim = excluded.claim,"
		" poison = excluded.poison, \"order\" = excluded.\"order\","
		" dedup_by = excluded.dedup_by, handler = excluded.handler, bind = excluded.bind,"
		" from_latest = known.from_latest OR " CLAIMS_FROM_NOW ","
		" since = CASE WHEN " CLAIMS_FROM_NOW
		" THEN excluded.since ELSE known.since END")
};
/* What is there is written only when it changes: the statement runs at every start. */
static const struct semel_sql_statement add_topics = {
	.what = "record the topics",
	.text = { [SEMEL_SQL_SQLITE] =
			  "INSERT INTO semel_subscription_topic AS known (scope, topic, since)"
			  " SELECT ?1, value, ?3 FROM json_each(?2) WHERE true"
			  " ON CONFLICT (scope, topic) DO UPDATE SET removed_at = NULL"
			  " WHERE known.removed_at IS NOT NULL",
		  [SEMEL_SQL_POSTGRES] =
			  "INSERT INTO semel_subscription_topic AS known (scope, topic, since)"
			  " SELECT DISTINCT ?1, now_read.topic, ?3::timestamptz"
			  " FROM jsonb_array_elements_text(?2::jsonb) AS now_read (topic)"
			  " ON CONFLICT (scope, topic) DO UPDATE SET removed_at = NULL"
			  " WHERE known.removed_at IS NOT NULL" }
};
#define REMOVE_TOPICS(elements)                                                                    \
	"UPDATE semel_subscription_topic SET removed_at = ?3 WHERE scope = ?1"                     \
	" AND removed_at IS NULL AND topic NOT IN (SELECT " elements ")"
static const struct semel_sql_statement remove_topics = {
	.what = "record the topics",
	.text = { [SEMEL_SQL_SQLITE] = REMOVE_TOPICS("value FROM json_each(?2)"),
		  [SEMEL_SQL_POSTGRES] = REMOVE_TOPICS("jsonb_array_elements_text(?2::jsonb)") }
};
#define EACH_TOPIC(ms, for_update)                                                                 \
	"SELECT topic, " ms("since") ", " ms("removed_at") " FROM semel_subscription_topic"        \
							   " WHERE scope = ?1 ORDER BY topic"
static const struct semel_sql_statement each_topic = { .what = "read the topics",
						       .text = SEMEL_SQL_EACH(EACH_TOPIC) };
#define LIST_SUBSCRIPTIONS(ms, for_update)                                                         \
	"SELECT scope, topics, guarantee, claim, poison, \"order\", dedup_by, handler, bind,"      \
	" from_latest, " ms("since") ", paused FROM semel_subscription ORDER BY scope LIMIT ?1"
static const struct semel_sql_statement list_subscriptions = {
	.what = "list the subscriptions", .text = SEMEL_SQL_EACH(LIST_SUBSCRIPTIONS)
};
static const struct semel_sql_statement pause_subscription = {
	.what = "pause the subscription",
	.text = SEMEL_SQL_SAME("UPDATE semel_subscription SET paused = ?2 WHERE scope = ?1")
};
static const struct semel_sql_statement read_pause = {
	.what = "read whether the subscription is paused",
	.text = SEMEL_SQL_SAME("SELECT paused FROM semel_subscription WHERE scope = ?1")
};
/* A planted bug: a subscription that was not registered has nothing on hold. */
static const struct semel_sql_statement start_clean = {
	.what = "remove the holds",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_hold WHERE scope = ?1 AND NOT EXISTS"
			       " (SELECT 1 FROM semel_subscription WHERE scope = ?1)")
};

static semel_status remove_holds(semel_tx tx, struct semel_text scope, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &start_clean, error);
	semel_sql_bind_text(&query, scope);
	return semel_sql_finish(&query);
}

static semel_status put_row(semel_tx tx, const struct semel_subscription_row *row, int64_t now_ms,
			    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &put_subscription, error);
	semel_sql_bind_text(&query, row->scope);
	semel_sql_bind_text(&query, row->topics);
	semel_sql_bind_text(&query, row->guarantee);
	semel_sql_bind_text(&query, row->claim);
	semel_sql_bind_text(&query, row->poison);
	semel_sql_bind_text(&query, row->order);
	semel_sql_bind_text(&query, row->dedup_by);
	semel_sql_bind_text(&query, row->handler);
	semel_sql_bind_text(&query, row->bind);
	semel_sql_bind_bool(&query, row->from_latest);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

static semel_status put_topics(semel_tx tx, const struct semel_sql_statement *statement,
			       const struct semel_subscription_row *row, int64_t now_ms,
			       semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, statement, error);
	semel_sql_bind_text(&query, row->scope);
	semel_sql_bind_text(&query, row->topics);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

static semel_status put_all(semel_tx tx, const struct semel_subscription_row *row, int64_t now_ms,
			    semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (SEMEL_PLANTED("new-record-starts-clean"))
		status = remove_holds(tx, row->scope, error);
	if (status != SEMEL_OK)
		return status;
	status = put_row(tx, row, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = put_topics(tx, &add_topics, row, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return put_topics(tx, &remove_topics, row, now_ms, error);
}

semel_status semel_sql_subscription_put(semel_store *store,
					const struct semel_subscription_row *row, int64_t now_ms,
					semel_error *error)
{
	bool entered = false;
	semel_status status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = put_all(store->driver->tx(store), row, now_ms, error);
	return semel_sql_leave(store, entered, status, error);
}

semel_status semel_sql_subscription_topics(semel_store *store, struct semel_text scope,
					   semel_topic_visitor visit, void *user,
					   semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &each_topic, error);
	semel_sql_bind_text(&query, scope);
	while (semel_sql_next(&query))
		visit(semel_sql_peek(&query, 0), semel_sql_time(&query, 1),
		      semel_sql_time(&query, 2), user);
	return semel_sql_finish(&query);
}

static void read_subscription(const struct semel_sql_query *query, struct semel_arena *arena,
			      struct semel_subscription_row *row)
{
	struct semel_text *const texts[] = { &row->scope,    &row->topics,  &row->guarantee,
					     &row->claim,    &row->poison,  &row->order,
					     &row->dedup_by, &row->handler, &row->bind };
	for (int i = 0; i < (int)(sizeof(texts) / sizeof(texts[0])); i++)
		*texts[i] = semel_sql_text(query, i, arena);
	row->from_latest = semel_sql_bool(query, 9);
	row->since_ms = semel_sql_time(query, 10);
	row->paused = semel_sql_bool(query, 11);
}

semel_status semel_sql_subscription_list(semel_store *store, struct semel_arena *arena,
					 struct semel_subscription_row *rows_out, uint32_t limit,
					 uint32_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	*count_out = 0;
	semel_sql_prepare(&query, store->driver->tx(store), &list_subscriptions, error);
	semel_sql_bind_int(&query, limit);
	while (semel_sql_next(&query))
		read_subscription(&query, arena, &rows_out[(*count_out)++]);
	return semel_sql_finish(&query);
}

semel_status semel_sql_subscription_pause(semel_store *store, struct semel_text scope, bool paused,
					  semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &pause_subscription, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_bool(&query, paused);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK || semel_sql_changes(&query) > 0)
		return status;
	return semel_error_set(error, SEMEL_NOT_FOUND, "no subscription has the scope %s",
			       semel_text_shown(scope));
}

semel_status semel_sql_subscription_is_paused(semel_store *store, struct semel_text scope,
					      bool *paused_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &read_pause, error);
	semel_sql_bind_text(&query, scope);
	*paused_out = semel_sql_next(&query) && semel_sql_bool(&query, 0);
	return semel_sql_finish(&query);
}
