/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the inbox, and how far a scope has read a log: a position is written in the transaction
 * of the effects. Every new reader draws a higher epoch; a reader that still has an older epoch can
 * no longer write, and its transaction must not be committed. */
#include "store/sql/sql.h"

#include "store/rules.h"

/* ---- claims ---------------------------------------------------------------------------------- */

static const struct semel_sql_statement each_inbox = {
	.what = "read the inbox",
	.text = { [SEMEL_SQL_SQLITE] = "SELECT event_id, status, topic, week_start"
				       " FROM semel_inbox WHERE scope = ?1 ORDER BY event_id",
		  [SEMEL_SQL_POSTGRES] = "SELECT event_id, status, topic, " SEMEL_SQL_POSTGRES_MS(
			  "week_start") ", event_id,"
					" week_start - DATE '1970-01-01' FROM semel_inbox WHERE "
					"scope = ?1"
					" AND (event_id, week_start) >"
					" (?2, DATE '1970-01-01' + coalesce(nullif(?3, ''), "
					"'-1')::int)"
					" ORDER BY event_id, week_start LIMIT ?4" }
};
static const struct semel_sql_statement any_of_topic = {
	.what = "find claims of a topic",
	.text = SEMEL_SQL_SAME("SELECT 1 FROM semel_inbox WHERE topic = ?1 LIMIT 1")
};

semel_status semel_sql_inbox_each(semel_store *store, struct semel_text scope,
				  semel_id_visitor visit, void *user, semel_error *error)
{
	return semel_sql_ids_each(store, &each_inbox, scope, visit, user, error);
}

semel_status semel_sql_inbox_has_topic(semel_store *store, struct semel_text topic, bool *has_out,
				       semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &any_of_topic, error);
	semel_sql_bind_text(&query, topic);
	return semel_sql_exists(&query, has_out);
}

/* ---- positions ------------------------------------------------------------------------------- */

// clang-format off
#define COLUMNS(D) "next_offset, epoch, owner, " D##_MS("expires_at") ", anchor_offset, anchor_hash"
#define THIS_POSITION(D) " WHERE scope = ?1 AND topic = ?2 AND " D##_NAME("partition") " = ?3"
#define AS_READER(D)     THIS_POSITION(D) " AND epoch = ?4 AND owner = ?5"

#define GET_POSITION(D) "SELECT " COLUMNS(D) " FROM semel_position" THIS_POSITION(D)
static const struct semel_sql_statement get_position = { .what = "read a position",
							 .text = SEMEL_SQL_EACH(GET_POSITION) };
/* An upsert with a condition: not every dialect has one. */
#define TAKE_POSITION(D)                                                                           \
	"INSERT INTO semel_position (scope, topic, " D##_NAME("partition") ", epoch, owner,"       \
	" expires_at) VALUES (?1, ?2, ?3, 1, ?5, ?6)"                                              \
	D##_ON_CONFLICT("(scope, topic, " D##_NAME("partition") ")")                               \
	"owner = " D##_NEW("owner") ", epoch = semel_position.epoch + 1, expires_at = "            \
	D##_NEW("expires_at") " WHERE semel_position.epoch = ?4 RETURNING " COLUMNS(D)
static const struct semel_sql_statement take_position = {
	.what = "acquire a position",
	.text = { [SEMEL_SQL_SQLITE] = TAKE_POSITION(SEMEL_SQL_SQLITE),
		  [SEMEL_SQL_POSTGRES] = TAKE_POSITION(SEMEL_SQL_POSTGRES) }
};
#define PUT_POSITION(D)                                                                            \
	"UPDATE semel_position SET next_offset = ?6, expires_at = ?7, anchor_offset = ?8,"         \
	" anchor_hash = ?9" AS_READER(D)
static const struct semel_sql_statement put_position = { .what = "write a position",
							 .often = true,
							 .text = SEMEL_SQL_EACH(PUT_POSITION) };
#define RELEASE_POSITION(D)                                                                        \
	"UPDATE semel_position SET owner = '', expires_at = NULL" AS_READER(D)
static const struct semel_sql_statement release_position = {
	.what = "release a position", .text = SEMEL_SQL_EACH(RELEASE_POSITION)
};
// clang-format on

static void prepare(struct semel_sql_query *query, semel_tx tx,
		    const struct semel_sql_statement *statement,
		    const struct semel_position *position, semel_error *error)
{
	semel_sql_prepare(query, tx, statement, error);
	semel_sql_bind_text(query, position->scope);
	semel_sql_bind_text(query, position->topic);
	semel_sql_bind_int(query, position->partition);
}

static void read_position(const struct semel_sql_query *query, struct semel_position *position)
{
	position->next = semel_sql_int(query, 0);
	position->epoch = semel_sql_int(query, 1);
	semel_sql_copy(query, 2, position->owner, sizeof(position->owner));
	position->expires_at_ms = semel_sql_lease(query, 3);
	position->anchor.offset = semel_sql_int(query, 4);
	position->anchor.hash = (uint64_t)semel_sql_int(query, 5);
}

semel_status semel_sql_position_get(semel_store *store, struct semel_position *position,
				    semel_error *error)
{
	struct semel_sql_query query;
	position->next = -1;
	position->epoch = position->expires_at_ms = 0;
	position->anchor = SEMEL_ANCHOR_NONE;
	position->owner[0] = '\0';
	prepare(&query, store->driver->tx(store), &get_position, position, error);
	if (semel_sql_next(&query))
		read_position(&query, position);
	return semel_sql_finish(&query);
}

semel_status semel_sql_position_acquire(semel_store *store, struct semel_position *position,
					const char *owner, int64_t expires_at_ms,
					semel_error *error)
{
	struct semel_sql_query query;
	struct semel_position taken = *position;
	prepare(&query, store->driver->tx(store), &take_position, position, error);
	semel_sql_bind_int(&query, position->epoch);
	semel_sql_bind_string(&query, owner);
	semel_sql_bind_lease(&query, expires_at_ms);
	bool won = semel_sql_next(&query);
	if (won)
		read_position(&query, &taken);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK)
		return status;
	if (!won)
		return semel_position_lease_lost(position, error);
	*position = taken;
	return SEMEL_OK;
}

semel_status semel_sql_position_put(semel_tx tx, const struct semel_position *position,
				    semel_error *error)
{
	struct semel_sql_query query;
	prepare(&query, tx, &put_position, position, error);
	semel_sql_bind_int(&query, position->epoch);
	semel_sql_bind_string(&query, position->owner);
	semel_sql_bind_int(&query, position->next);
	semel_sql_bind_lease(&query, position->expires_at_ms);
	semel_sql_bind_int(&query, position->anchor.offset);
	semel_sql_bind_int(&query, (int64_t)position->anchor.hash);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK || semel_sql_changes(&query) > 0)
		return status;
	return semel_position_lease_lost(position, error);
}

/* A position that is not released expires. */
void semel_sql_position_release(semel_store *store, const struct semel_position *position)
{
	struct semel_sql_query query;
	prepare(&query, store->driver->tx(store), &release_position, position, NULL);
	semel_sql_bind_int(&query, position->epoch);
	semel_sql_bind_string(&query, position->owner);
	(void)semel_sql_finish(&query);
}
