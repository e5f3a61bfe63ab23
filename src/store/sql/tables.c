/* SPDX-License-Identifier: Apache-2.0 */
/* Reading whole tables id by id, to compare them. An engine that gets all rows at once reads page
 * by page along a key, so that neither memory nor an open snapshot grows with the table. */
#include "store/sql/sql.h"

#include "base/error.h"

/* ---- pages ----------------------------------------------------------------------------------- */

void semel_sql_page_start(struct semel_sql_page *page)
{
	*page = (struct semel_sql_page){ 0 };
}

/* Empty, not NULL, at the start. */
static struct semel_text key_of(const struct semel_buffer *key)
{
	return key->data == NULL ? SEMEL_TEXT("") : semel_buffer_text(key);
}

void semel_sql_page_bind(struct semel_sql_query *query, struct semel_sql_page *page)
{
	page->rows = 0;
	if (query->engine->page_rows == 0)
		return;
	semel_sql_bind_text(query, key_of(&page->key));
	semel_sql_bind_text(query, key_of(&page->second_key));
	semel_sql_bind_int(query, query->engine->page_rows);
}

static void keep_key(struct semel_buffer *key, struct semel_text text)
{
	semel_buffer_clear(key);
	semel_buffer_append(key, semel_text_chars(text), text.length);
}

bool semel_sql_page_next(struct semel_sql_query *query, struct semel_sql_page *page, int key_column)
{
	if (!semel_sql_next(query))
		return false;
	if (++page->rows != query->engine->page_rows)
		return true;
	keep_key(&page->key, semel_sql_peek(query, key_column));
	keep_key(&page->second_key, semel_sql_peek(query, key_column + 1));
	if (page->key.failed || page->second_key.failed)
		semel_sql_stop(query, semel_error_set(query->error, SEMEL_INTERNAL,
						      "no memory to read a table"));
	return query->status == SEMEL_OK;
}

bool semel_sql_page_is_full(const struct semel_sql_query *query, const struct semel_sql_page *page)
{
	return query->engine->page_rows != 0 && page->rows == query->engine->page_rows;
}

void semel_sql_page_end(struct semel_sql_page *page)
{
	semel_buffer_free(&page->key);
	semel_buffer_free(&page->second_key);
}

/* ---- ids ------------------------------------------------------------------------------------- */

#define TOPIC       "coalesce(topic, aggregate_type || '.events')"
#define DEAD_STATUS "CASE WHEN parked_behind IS NULL THEN status ELSE 'PARKED' END"
#define CREATED_MS  SEMEL_SQL_POSTGRES_MS("created_at")
#define WEEK_MS     SEMEL_SQL_POSTGRES_MS("week_start")
#define EVENT_MS    SEMEL_SQL_POSTGRES_MS("event_time")

/* id, status, topic, time; in pages ?1 is the scope, ?2 and ?3 the key where the last one ended, ?4
 * how many rows. */
static const struct semel_sql_statement each_outbox = {
	.what = "read the outbox",
	.text = { [SEMEL_SQL_SQLITE] =
			  "SELECT id, status, " TOPIC ", created_at FROM semel_outbox ORDER BY id",
		  [SEMEL_SQL_POSTGRES] = "SELECT id, status, " TOPIC ", " CREATED_MS ", id, ''"
					 " FROM semel_outbox WHERE ?1::text IS NULL AND id > ?2"
					 " AND ?3::text IS NOT NULL ORDER BY id LIMIT ?4" }
};
static const struct semel_sql_statement each_inbox = {
	.what = "read the inbox",
	.text = { [SEMEL_SQL_SQLITE] = "SELECT event_id, status, topic, week_start"
				       " FROM semel_inbox WHERE scope = ?1 ORDER BY event_id",
		  [SEMEL_SQL_POSTGRES] =
			  "SELECT event_id, status, topic, " WEEK_MS ", event_id,"
			  " week_start - DATE '1970-01-01' FROM semel_inbox WHERE scope = ?1"
			  " AND (event_id, week_start) >"
			  " (?2, DATE '1970-01-01' + coalesce(nullif(?3, ''), '-1')::int)"
			  " ORDER BY event_id, week_start LIMIT ?4" }
};
static const struct semel_sql_statement each_dead = {
	.what = "read the dead letters",
	.text = { [SEMEL_SQL_SQLITE] =
			  "SELECT event_id, " DEAD_STATUS ", topic, event_time"
			  " FROM semel_dead_letter WHERE scope = ?1 AND event_id IS NOT NULL"
			  " ORDER BY CAST(event_id AS BLOB)",
		  [SEMEL_SQL_POSTGRES] =
			  "SELECT event_id, " DEAD_STATUS ", topic, " EVENT_MS ","
			  " event_id, position FROM semel_dead_letter WHERE scope = ?1"
			  " AND event_id IS NOT NULL AND (event_id, position) >"
			  " (?2, coalesce(nullif(?3, ''), '-1')::bigint)"
			  " ORDER BY event_id, position LIMIT ?4" }
};

/* Straight from the rows: nothing is copied, since there may be millions. */
static semel_status visit_page(struct semel_sql_query *query, struct semel_sql_page *page,
			       semel_id_visitor visit, void *user)
{
	while (semel_sql_page_next(query, page, 4))
		semel_sql_stop(query,
			       visit(semel_sql_peek(query, 0),
				     semel_text_string(semel_sql_peek(query, 1)),
				     semel_sql_peek(query, 2), semel_sql_time(query, 3), user));
	return semel_sql_finish(query);
}

struct each {
	const struct semel_sql_statement *statement;
	struct semel_text scope; /* data NULL: the table has none */
	semel_id_visitor visit;
	void *user;
};

static semel_status read_all(semel_store *store, const struct each *each, semel_error *error)
{
	struct semel_sql_query query;
	struct semel_sql_page page;
	semel_status status = SEMEL_OK;
	semel_sql_page_start(&page);
	do {
		semel_sql_prepare(&query, store->driver->tx(store), each->statement, error);
		if (each->scope.data != NULL || query.engine->page_rows != 0)
			semel_sql_bind_text(&query, each->scope);
		semel_sql_page_bind(&query, &page);
		status = visit_page(&query, &page, each->visit, each->user);
	} while (status == SEMEL_OK && semel_sql_page_is_full(&query, &page));
	semel_sql_page_end(&page);
	return status;
}

semel_status semel_sql_outbox_each(semel_store *store, semel_id_visitor visit, void *user,
				   semel_error *error)
{
	const struct each each = { &each_outbox, { NULL, 0 }, visit, user };
	return read_all(store, &each, error);
}

semel_status semel_sql_inbox_each(semel_store *store, struct semel_text scope,
				  semel_id_visitor visit, void *user, semel_error *error)
{
	const struct each each = { &each_inbox, scope, visit, user };
	return read_all(store, &each, error);
}

semel_status semel_sql_dead_each(semel_store *store, struct semel_text scope,
				 semel_id_visitor visit, void *user, semel_error *error)
{
	const struct each each = { &each_dead, scope, visit, user };
	return read_all(store, &each, error);
}

/* ---- topics and routing keys ----------------------------------------------------------------- */

#define ROUTING "SELECT id, coalesce(routing_key, event_type)"
static const struct semel_sql_statement each_routing = {
	.what = "read the outbox",
	.text = { [SEMEL_SQL_SQLITE] = ROUTING " FROM semel_outbox ORDER BY id",
		  [SEMEL_SQL_POSTGRES] =
			  ROUTING ", id, '' FROM semel_outbox WHERE id > ?1"
				  " AND ?2::text IS NOT NULL ORDER BY id LIMIT ?3" }
};
/* On PostgreSQL a lane is one range of the key. */
static const struct semel_sql_statement newest_topics = {
	.what = "read the topics of the outbox",
	.text = { [SEMEL_SQL_SQLITE] =
			  "SELECT DISTINCT coalesce(topic, aggregate_type || '.events') FROM"
			  " (SELECT topic, aggregate_type FROM semel_outbox ORDER BY seq DESC"
			  " LIMIT 10000)",
		  [SEMEL_SQL_POSTGRES] =
			  "SELECT DISTINCT coalesce(o.topic, o.aggregate_type || '.events')"
			  " FROM semel_lease l CROSS JOIN LATERAL (SELECT topic, aggregate_type"
			  " FROM semel_outbox WHERE lane = l.lane ORDER BY seq DESC LIMIT 1000) "
			  "o" }
};
static const struct semel_sql_statement any_of_topic = {
	.what = "find claims of a topic",
	.text = SEMEL_SQL_SAME("SELECT 1 FROM semel_inbox WHERE topic = ?1 LIMIT 1")
};

semel_status semel_sql_outbox_routing_each(semel_store *store, semel_routing_visitor visit,
					   void *user, semel_error *error)
{
	struct semel_sql_query query;
	struct semel_sql_page page;
	semel_status status = SEMEL_OK;
	semel_sql_page_start(&page);
	do {
		semel_sql_prepare(&query, store->driver->tx(store), &each_routing, error);
		semel_sql_page_bind(&query, &page);
		while (semel_sql_page_next(&query, &page, 2))
			semel_sql_stop(&query, visit(semel_sql_peek(&query, 0),
						     semel_sql_peek(&query, 1), user));
		status = semel_sql_finish(&query);
	} while (status == SEMEL_OK && semel_sql_page_is_full(&query, &page));
	semel_sql_page_end(&page);
	return status;
}

semel_status semel_sql_outbox_topics_each(semel_store *store, semel_text_visitor visit, void *user,
					  semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &newest_topics, error);
	while (semel_sql_next(&query))
		visit(semel_sql_peek(&query, 0), user);
	return semel_sql_finish(&query);
}

semel_status semel_sql_inbox_has_topic(semel_store *store, struct semel_text topic, bool *has_out,
				       semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &any_of_topic, error);
	semel_sql_bind_text(&query, topic);
	return semel_sql_exists(&query, has_out);
}
