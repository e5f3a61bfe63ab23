/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters, and the followers that are parked behind them.
 *
 * - One entry per scope and event, for its whole life: an event that fails again returns to its
 *   entry, with its count of replays. An event without an id cannot be recognised, and is always a
 *   new entry.
 * - Followers are in the same table with parked_behind set, in the order of position.
 * - Headers and payload keep any bytes, so that a broken delivery can be inspected. SQLite keeps
 *   them in their columns, as blobs; PostgreSQL in columns of their own.
 */
#include "store/sql/sql.h"

#include "base/error.h"
#include "store/rules.h"

#include <assert.h>

enum column {
	ENTRY_ID,
	SCOPE,
	EVENT_ID,
	EVENT_TYPE,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	TOPIC,
	ROUTING_KEY,
	CONTENT_TYPE,
	EVENT_TIME,
	PARTITION,
	OFFSET,
	REASON,
	FAILED_AT,
	SAGA_ID,
	CORRELATION_ID,
	ATTEMPTS,
	REPLAY_COUNT,
	PARKED_BEHIND,
	STATUS, /* from here on, the positions differ from an insert */
	DISCARD_REASON,
	SETTLED_AT,
	PARKED,
	HEADERS,
	PAYLOAD, /* in a list: what its size is read from */
	HEADERS_BYTES,
	PAYLOAD_BYTES
};

/* ---- inserting ------------------------------------------------------------------------------- */

// clang-format off
/* SQLite: an event without a time gets that of the epoch, because retention needs one. */
#define SEMEL_SQL_SQLITE_EVENT_TIME   "coalesce(?10, '1970-01-01T00:00:00.000Z')"
#define SEMEL_SQL_POSTGRES_EVENT_TIME "?10"
/* Headers and payload, and the parameters that they are inserted from. */
#define SEMEL_SQL_SQLITE_BYTES          "headers, payload"
#define SEMEL_SQL_POSTGRES_BYTES        "headers, payload, headers_bytes, payload_bytes"
#define SEMEL_SQL_SQLITE_BYTES_VALUES   "?20, ?21"
#define SEMEL_SQL_POSTGRES_BYTES_VALUES "?20, ?22, ?21, ?23"

#define PLACE(D) D##_NAME("partition") ", " D##_NAME("offset")
#define INSERT_ENTRY(D)                                                                            \
	"INSERT INTO semel_dead_letter (entry_id, scope, event_id, event_type,"                    \
	" aggregate_type, aggregate_id, topic, routing_key, content_type, event_time, "            \
	PLACE(D) ", failure_reason, failed_at, saga_id, correlation_id,"                           \
	" attempts, replay_count, parked_behind, " D##_BYTES                                       \
	") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, " D##_EVENT_TIME                            \
	", ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, " D##_BYTES_VALUES ")"

#define ADD_ENTRY(D)                                                                               \
	INSERT_ENTRY(D)                                                                            \
	D##_ON_CONFLICT("(scope, event_id) WHERE parked_behind IS NULL AND event_id IS NOT NULL")  \
	"status = 'PENDING', failure_reason = " D##_NEW("failure_reason")                          \
	", failed_at = " D##_NEW("failed_at") ", attempts = " D##_NEW("attempts")                  \
	", replay_count = CASE WHEN semel_dead_letter.replay_count > " D##_NEW("replay_count")     \
	" THEN semel_dead_letter.replay_count ELSE " D##_NEW("replay_count")                       \
	" END, discard_reason = NULL, settled_at = NULL RETURNING entry_id, replay_count"
static const struct semel_sql_statement add_entry = { .what = "write a dead letter",
						      .in_transaction = true,
						      .text = SEMEL_SQL_EACH(ADD_ENTRY) };
#define ADD_FOLLOWER(D)                                                                            \
	INSERT_ENTRY(D) D##_IGNORE("(scope, event_id) WHERE parked_behind IS NOT NULL")
static const struct semel_sql_statement add_follower = { .what = "park an event",
							 .often = true,
							 .in_transaction = true,
							 .text = SEMEL_SQL_EACH(ADD_FOLLOWER) };
// clang-format on

static void bind_entry(struct semel_sql_query *query, const struct semel_dead_letter_row *entry,
		       struct semel_text parked_behind)
{
	const struct semel_event *event = &entry->event;
	const struct semel_text none = { NULL, 0 };
	semel_sql_bind_any_text(query, entry->entry_id);
	semel_sql_bind_any_text(query, entry->scope);
	semel_sql_bind_any_text(query, semel_text_is_blank(event->id) ? none : event->id);
	semel_sql_bind_any_text(query, event->type);
	semel_sql_bind_any_text(query, event->aggregate_type);
	semel_sql_bind_any_text(query, event->aggregate_id);
	semel_sql_bind_any_text(query, event->topic);
	semel_sql_bind_any_text(query, event->routing_key);
	semel_sql_bind_any_text(query, event->content_type);
	semel_sql_bind_time(query, event->time_ms);
	semel_sql_bind_int(query, entry->partition);
	semel_sql_bind_int(query, entry->offset);
	semel_sql_bind_any_text(query, entry->reason);
	semel_sql_bind_time(query, entry->failed_at_ms);
	semel_sql_bind_any_text(query, entry->saga_id);
	semel_sql_bind_any_text(query, entry->correlation_id);
	semel_sql_bind_int(query, entry->attempts);
	semel_sql_bind_int(query, entry->replay_count);
	semel_sql_bind_any_text(query, parked_behind);
	semel_sql_bind_bytes(query, event->headers);
	semel_sql_bind_bytes(query, event->payload);
}

/* ---- reading --------------------------------------------------------------------------------- */

#define TOPIC_HELD_BY_ENTRY                                                                        \
	"EXISTS (SELECT 1 FROM semel_hold h WHERE h.scope = d.scope AND h.aggregate_type = ''"     \
	" AND h.aggregate_id = d.topic AND h.head_id = d.event_id)"

/* Followers behind an entry: those of a consumer are in this table, those of the relay among the
 * exceptions. */
#define FOLLOWERS                                                                                  \
	"CASE WHEN " TOPIC_HELD_BY_ENTRY " THEN (SELECT count(*) FROM semel_dead_letter f"         \
	" WHERE f.scope = d.scope AND f.topic = d.topic AND f.parked_behind IS NOT NULL)"          \
	" ELSE (SELECT count(*) FROM semel_dead_letter f WHERE f.scope = d.scope"                  \
	" AND f.aggregate_type = d.aggregate_type AND f.aggregate_id = d.aggregate_id"             \
	" AND f.parked_behind IS NOT NULL AND (f.parked_behind = d.event_id OR EXISTS"             \
	" (SELECT 1 FROM semel_hold h WHERE h.scope = d.scope"                                     \
	" AND h.aggregate_type = d.aggregate_type AND h.aggregate_id = d.aggregate_id"             \
	" AND h.head_id = d.event_id))) END"                                                       \
	" + CASE WHEN d.scope = 'relay' AND d.status = 'PENDING' THEN (SELECT count(*)"            \
	" FROM semel_outbox_exception x WHERE x.aggregate_type = d.aggregate_type"                 \
	" AND x.aggregate_id = d.aggregate_id AND x.state = 'parked') ELSE 0 END"

// clang-format off
#define NAMES                                                                                      \
	"entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic, routing_key," \
	" content_type, "
#define COUNTS ", attempts, replay_count, parked_behind, status, "
#define ENTRY(D)                                                                                   \
	NAMES D##_MS("event_time") ", " PLACE(D) ", failure_reason, " D##_MS("failed_at")          \
	", saga_id, correlation_id" COUNTS "discard_reason, " D##_MS("settled_at") ", "
#define GET_ENTRY(D)                                                                               \
	"SELECT " ENTRY(D) FOLLOWERS ", " D##_BYTES " FROM semel_dead_letter d"                    \
	" WHERE d.entry_id = ?1 AND d.parked_behind IS NULL"
static const struct semel_sql_statement get_entry = { .what = "read a dead letter",
						      .text = SEMEL_SQL_EACH(GET_ENTRY) };

/* The same columns for a list, with texts cut; instead of the payload, what its size is read
 * from. */
#define CUT(D, column) SEMEL_SQL_CUT(D, column, SEMEL_DEAD_BRIEF)
#define BRIEF(D)                                                                                   \
	NAMES D##_MS("event_time") ", " PLACE(D) ", " CUT(D, "failure_reason") ", "                \
	D##_MS("failed_at") ", " CUT(D, "saga_id") ", " CUT(D, "correlation_id")                   \
	COUNTS CUT(D, "discard_reason") ", " D##_MS("settled_at") ", "
#define SEMEL_SQL_SQLITE_SIZES                                                                     \
	"CASE WHEN length(CAST(headers AS BLOB)) > " SEMEL_DEAD_BRIEF " THEN 'null'"               \
	" ELSE headers END, position"
#define SEMEL_SQL_POSTGRES_SIZES                                                                   \
	"CASE WHEN coalesce(octet_length(headers), octet_length(headers_bytes))"                   \
	" > " SEMEL_DEAD_BRIEF " THEN 'null' ELSE headers END,"                                    \
	" coalesce(octet_length(payload), octet_length(payload_bytes)),"                           \
	" CASE WHEN octet_length(headers_bytes) <= " SEMEL_DEAD_BRIEF " THEN headers_bytes END"
#define LIST_ENTRIES(D)                                                                            \
	"SELECT " BRIEF(D) FOLLOWERS ", " D##_SIZES " FROM semel_dead_letter d"                    \
	" WHERE d.parked_behind IS NULL AND (d.status = ?1 OR ?1 IS NULL)"                         \
	" AND (d.scope = ?2 OR ?2 IS NULL) AND (d.event_type = ?3 OR ?3 IS NULL)"                  \
	" AND (d.failed_at >= ?4 OR ?4 IS NULL) AND (d.failed_at < ?5 OR ?5 IS NULL)"              \
	" AND ((d.failed_at, d.entry_id) > (SELECT a.failed_at, a.entry_id"                        \
	" FROM semel_dead_letter a WHERE a.entry_id = ?6) OR ?6 IS NULL)"                          \
	" ORDER BY d.failed_at, d.entry_id LIMIT ?7"
static const struct semel_sql_statement list_entries = { .what = "list the dead letters",
							 .text = SEMEL_SQL_EACH(LIST_ENTRIES) };
// clang-format on

static const struct semel_sql_statement count_pending = {
	.what = "count the dead letters",
	.text = SEMEL_SQL_SAME("SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NULL"
			       " AND status = 'PENDING' AND (scope = ?1 OR ?1 IS NULL)")
};

/* Reads everything except the payload. */
static void read_brief(const struct semel_sql_query *query, struct semel_arena *arena,
		       struct semel_dead_letter_row *entry)
{
	struct semel_event *event = &entry->event;
	entry->entry_id = semel_sql_text(query, ENTRY_ID, arena);
	entry->scope = semel_sql_text(query, SCOPE, arena);
	event->id = semel_sql_text(query, EVENT_ID, arena);
	event->type = semel_sql_text(query, EVENT_TYPE, arena);
	event->aggregate_type = semel_sql_text(query, AGGREGATE_TYPE, arena);
	event->aggregate_id = semel_sql_text(query, AGGREGATE_ID, arena);
	event->topic = semel_sql_text(query, TOPIC, arena);
	event->routing_key = semel_sql_text(query, ROUTING_KEY, arena);
	event->content_type = semel_sql_text(query, CONTENT_TYPE, arena);
	event->headers = semel_sql_bytes(query, HEADERS, HEADERS_BYTES, arena);
	if (event->headers.data == NULL)
		event->headers = SEMEL_TEXT("{}");
	event->payload = (struct semel_text){ 0 };
	event->time_ms = semel_sql_time(query, EVENT_TIME);
	entry->partition = (int32_t)semel_sql_int(query, PARTITION);
	entry->offset = semel_sql_int(query, OFFSET);
	entry->reason = semel_sql_text(query, REASON, arena);
	entry->failed_at_ms = semel_sql_time(query, FAILED_AT);
	entry->saga_id = semel_sql_text(query, SAGA_ID, arena);
	entry->correlation_id = semel_sql_text(query, CORRELATION_ID, arena);
	entry->attempts = (uint32_t)semel_sql_int(query, ATTEMPTS);
	entry->replay_count = (uint32_t)semel_sql_int(query, REPLAY_COUNT);
	entry->parked_behind = semel_sql_text(query, PARKED_BEHIND, arena);
	entry->status = semel_dead_status_of(semel_text_string(semel_sql_peek(query, STATUS)));
	entry->discard_reason = semel_sql_text(query, DISCARD_REASON, arena);
	entry->settled_at_ms = semel_sql_time(query, SETTLED_AT);
	entry->parked = (uint64_t)semel_sql_int(query, PARKED);
}

static void read_entry(const struct semel_sql_query *query, struct semel_arena *arena,
		       struct semel_dead_letter_row *entry)
{
	read_brief(query, arena, entry);
	entry->event.payload = semel_sql_bytes(query, PAYLOAD, PAYLOAD_BYTES, arena);
	entry->payload_size = entry->event.payload.length;
}

/* ---- dead letters ---------------------------------------------------------------------------- */

semel_status semel_sql_dead_add(semel_tx tx, struct semel_dead_letter_row *entry,
				struct semel_arena *arena, semel_error *error)
{
	struct semel_sql_query query;
	struct semel_text used = { NULL, 0 };
	uint32_t replay_count = entry->replay_count;
	semel_sql_prepare(&query, tx, &add_entry, error);
	bind_entry(&query, entry, (struct semel_text){ NULL, 0 });
	if (semel_sql_next(&query)) {
		used = semel_sql_text(&query, 0, arena);
		replay_count = (uint32_t)semel_sql_int(&query, 1);
	}
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK)
		return status;
	if (used.data == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a dead letter");
	entry->entry_id = used;
	entry->replay_count = replay_count;
	entry->status = SEMEL_DEAD_PENDING;
	return SEMEL_OK;
}

semel_status semel_sql_dead_get(semel_store *store, const char *entry_id, struct semel_arena *arena,
				struct semel_dead_letter_row *entry_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &get_entry, error);
	semel_sql_bind_string(&query, entry_id);
	bool found = semel_sql_next(&query);
	if (found)
		read_entry(&query, arena, entry_out);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK || found)
		return status;
	return semel_dead_not_found(entry_id, error);
}

semel_status semel_sql_dead_list(semel_store *store, const semel_dead_letter_filter *filter,
				 struct semel_arena *arena,
				 struct semel_dead_letter_row *entries_out, uint32_t *count_out,
				 semel_error *error)
{
	struct semel_sql_query query;
	bool all = filter->status == SEMEL_DEAD_ANY;
	assert(filter->limit > 0);
	*count_out = 0;
	semel_sql_prepare(&query, store->driver->tx(store), &list_entries, error);
	semel_sql_bind_string(&query, all ? NULL : semel_dead_status_name(filter->status));
	semel_sql_bind_string(&query, filter->scope);
	semel_sql_bind_string(&query, filter->type);
	semel_sql_bind_time(&query, filter->since_ms);
	semel_sql_bind_time(&query, filter->until_ms);
	semel_sql_bind_string(&query, filter->after);
	semel_sql_bind_int(&query, filter->limit);
	while (semel_sql_next(&query)) {
		struct semel_dead_letter_row *entry = &entries_out[(*count_out)++];
		read_brief(&query, arena, entry);
		entry->payload_size = semel_sql_payload_size(&query, PAYLOAD);
	}
	return semel_sql_finish(&query);
}

semel_status semel_sql_dead_count(semel_store *store, const char *scope, uint64_t *count_out,
				  semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &count_pending, error);
	semel_sql_bind_string(&query, scope);
	*count_out = semel_sql_next(&query) ? (uint64_t)semel_sql_int(&query, 0) : 0;
	return semel_sql_finish(&query);
}

// clang-format off
#define DEAD_ID(D)                                                                                 \
	"SELECT event_id, CASE WHEN parked_behind IS NULL THEN status ELSE 'PARKED' END, topic, "  \
	D##_MS("event_time")
#define WITH_ID "scope = ?1 AND event_id IS NOT NULL"
static const struct semel_sql_statement each_dead = {
	.what = "read the dead letters",
	.text = { [SEMEL_SQL_SQLITE] = DEAD_ID(SEMEL_SQL_SQLITE) " FROM semel_dead_letter WHERE "
			  WITH_ID " ORDER BY CAST(event_id AS BLOB)",
		  [SEMEL_SQL_POSTGRES] = DEAD_ID(SEMEL_SQL_POSTGRES)
			  ", event_id, position FROM semel_dead_letter WHERE " WITH_ID
			  " AND (event_id, position) > (?2, coalesce(nullif(?3, ''), '-1')::bigint)"
			  " ORDER BY event_id, position LIMIT ?4" }
};
// clang-format on

semel_status semel_sql_dead_each(semel_store *store, struct semel_text scope,
				 semel_id_visitor visit, void *user, semel_error *error)
{
	return semel_sql_ids_each(store, &each_dead, scope, visit, user, error);
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Locks the entry, so that of two concurrent moves the second sees what the first has done. */
#define READ_STATUS(D)                                                                             \
	"SELECT status, replay_count FROM semel_dead_letter"                                       \
	" WHERE entry_id = ?1 AND parked_behind IS NULL" D##_LOCK
static const struct semel_sql_statement read_status = { .what = "read a dead letter",
							.text = SEMEL_SQL_EACH(READ_STATUS) };
static const struct semel_sql_statement move_entry = {
	.what = "move a dead letter",
	.in_transaction = true,
	.text = SEMEL_SQL_SAME("UPDATE semel_dead_letter SET status = ?2, discard_reason = ?3,"
			       " moved_at = ?4, settled_at = ?5, replay_count = replay_count + ?6"
			       " WHERE entry_id = ?1")
};
static const struct semel_sql_statement settle_entry = {
	.what = "settle a dead letter",
	.in_transaction = true,
	.text = SEMEL_SQL_SAME(
		"UPDATE semel_dead_letter SET settled_at = ?4,"
		" moved_at = CASE WHEN status = 'PENDING' THEN ?4 ELSE moved_at END,"
		" status = 'REPLAYED',"
		" replay_count = CASE WHEN replay_count < ?3 THEN ?3 ELSE replay_count END"
		" WHERE scope = ?1 AND event_id = ?2 AND parked_behind IS NULL"
		" AND ((status = 'PENDING' AND replay_count < ?3)"
		" OR (status = 'REPLAYED' AND settled_at IS NULL))")
};
static const struct semel_sql_statement authorize_entry = {
	.what = "authorize another run of a dead letter",
	.in_transaction = true,
	.text = SEMEL_SQL_SAME("UPDATE semel_dead_letter SET status = 'REPLAYED',"
			       " discard_reason = NULL, moved_at = ?3, settled_at = NULL"
			       " WHERE scope = ?1 AND event_id = ?2 AND parked_behind IS NULL")
};

/* May the entry be moved? */
static semel_status check_move(semel_tx tx, const struct semel_dead_letter_row *entry,
			       enum semel_dead_status status, semel_error *error)
{
	struct semel_sql_query query;
	enum semel_dead_status now = SEMEL_DEAD_ANY;
	uint32_t count = 0;
	semel_sql_prepare(&query, tx, &read_status, error);
	semel_sql_bind_text(&query, entry->entry_id);
	bool found = semel_sql_next(&query);
	if (found) {
		now = semel_dead_status_of(semel_text_string(semel_sql_peek(&query, 0)));
		count = (uint32_t)semel_sql_int(&query, 1);
	}
	semel_status result = semel_sql_finish(&query);
	if (result != SEMEL_OK)
		return result;
	if (!found)
		return semel_dead_not_found(semel_text_string(entry->entry_id), error);
	return semel_dead_check_move(entry, now, status, count, error);
}

semel_status semel_sql_dead_move(semel_tx tx, const struct semel_dead_letter_row *entry,
				 enum semel_dead_status status, const char *reason, int64_t now_ms,
				 semel_error *error)
{
	struct semel_sql_query query;
	bool replayed = status == SEMEL_DEAD_REPLAYED;
	bool of_relay = semel_text_equals_string(entry->scope, SEMEL_SCOPE_RELAY);
	semel_status result = tx.driver->sql->require_transaction(tx, move_entry.what, error);
	if (result != SEMEL_OK)
		return result;
	result = check_move(tx, entry, status, error);
	if (result != SEMEL_OK)
		return result;
	semel_sql_prepare(&query, tx, &move_entry, error);
	semel_sql_bind_text(&query, entry->entry_id);
	semel_sql_bind_string(&query, semel_dead_status_name(status));
	semel_sql_bind_string(&query, status == SEMEL_DEAD_DISCARDED ? reason : NULL);
	semel_sql_bind_time(&query, now_ms);
	semel_sql_bind_time(&query, of_relay && replayed ? now_ms : 0);
	semel_sql_bind_int(&query, replayed);
	return semel_sql_finish(&query);
}

semel_status semel_sql_dead_settle(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				   uint32_t replay, int64_t now_ms, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &settle_entry, error);
	semel_sql_bind_any_text(&query, scope);
	semel_sql_bind_any_text(&query, event_id);
	semel_sql_bind_int(&query, replay);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

semel_status semel_sql_dead_authorize(semel_tx tx, struct semel_text scope,
				      struct semel_text event_id, int64_t now_ms,
				      semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &authorize_entry, error);
	semel_sql_bind_any_text(&query, scope);
	semel_sql_bind_any_text(&query, event_id);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

/* ---- followers ------------------------------------------------------------------------------- */

#define FOLLOWER(D) "SELECT " ENTRY(D) "0, " D##_BYTES " FROM semel_dead_letter AS f"
#define OF_AGGREGATE                                                                               \
	" WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"                          \
	" AND parked_behind IS NOT NULL"

#define FIRST_FOLLOWER(D) FOLLOWER(D) OF_AGGREGATE " ORDER BY position LIMIT 1"
static const struct semel_sql_statement first_follower = { .what = "read a parked event",
							   .often = true,
							   .text = SEMEL_SQL_EACH(FIRST_FOLLOWER) };
#define FIRST_OF_TOPIC(D)                                                                          \
	FOLLOWER(D)                                                                                \
	" WHERE scope = ?1 AND topic = ?2 AND parked_behind IS NOT NULL ORDER BY position LIMIT 1"
static const struct semel_sql_statement first_of_topic = { .what = "read a parked event",
							   .text = SEMEL_SQL_EACH(FIRST_OF_TOPIC) };
/* Reads all followers of the aggregate: for strict order, where a gap should be rare and short. */
#define NEXT_FOLLOWER(D)                                                                           \
	FOLLOWER(D)                                                                                \
	OF_AGGREGATE " ORDER BY CASE WHEN event_id = ?4 THEN 0 ELSE 1 END,"                        \
		     " NOT (EXISTS (SELECT 1 FROM semel_inbox AS i WHERE i.scope = f.scope"        \
		     " AND i.event_id = f.parked_behind AND i.status <> 'CLAIMED')"                \
		     " OR EXISTS (SELECT 1 FROM semel_dead_letter AS d WHERE d.scope = f.scope"    \
		     " AND d.event_id = f.parked_behind AND d.parked_behind IS NULL)),"            \
		     " EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = f.scope"       \
		     " AND p.event_id = f.parked_behind AND p.parked_behind IS NOT NULL),"         \
		     " position LIMIT 1"
static const struct semel_sql_statement next_follower = { .what = "read a parked event",
							  .text = SEMEL_SQL_EACH(NEXT_FOLLOWER) };
#define FIND_FOLLOWER(D)                                                                           \
	"SELECT 1 FROM semel_dead_letter WHERE entry_id = ?1 AND parked_behind IS NOT "            \
	"NULL" D##_LOCK
static const struct semel_sql_statement find_follower = { .what = "find a parked event",
							  .text = SEMEL_SQL_EACH(FIND_FOLLOWER) };
static const struct semel_sql_statement remove_follower = {
	.what = "remove a parked event",
	.often = true,
	.in_transaction = true,
	.text = SEMEL_SQL_SAME("DELETE FROM semel_dead_letter WHERE entry_id = ?1 AND "
			       "parked_behind IS NOT NULL")
};

semel_status semel_sql_parked_add(semel_tx tx, const struct semel_dead_letter_row *entry,
				  semel_error *error)
{
	struct semel_sql_query query;
	bool head_has_id = entry->parked_behind.data != NULL;
	semel_sql_prepare(&query, tx, &add_follower, error);
	bind_entry(&query, entry, head_has_id ? entry->parked_behind : SEMEL_TEXT(""));
	return semel_sql_finish(&query);
}

static semel_status read_follower(struct semel_sql_query *query, struct semel_arena *arena,
				  struct semel_dead_letter_row *entry_out)
{
	*entry_out = (struct semel_dead_letter_row){ 0 };
	if (semel_sql_next(query))
		read_entry(query, arena, entry_out);
	return semel_sql_finish(query);
}

semel_status semel_sql_parked_first(semel_tx tx, struct semel_text scope,
				    const struct semel_hold *hold, struct semel_arena *arena,
				    struct semel_dead_letter_row *entry_out, semel_error *error)
{
	struct semel_sql_query query;
	bool whole_topic = hold->aggregate_type.length == 0;
	semel_sql_prepare(&query, tx, whole_topic ? &first_of_topic : &first_follower, error);
	semel_sql_bind_any_text(&query, scope);
	if (!whole_topic)
		semel_sql_bind_any_text(&query, hold->aggregate_type);
	semel_sql_bind_any_text(&query, hold->aggregate_id);
	return read_follower(&query, arena, entry_out);
}

semel_status semel_sql_parked_next(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, struct semel_arena *arena,
				   struct semel_dead_letter_row *entry_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &next_follower, error);
	semel_sql_bind_any_text(&query, scope);
	semel_sql_bind_any_text(&query, hold->aggregate_type);
	semel_sql_bind_any_text(&query, hold->aggregate_id);
	semel_sql_bind_any_text(&query, hold->head_id);
	return read_follower(&query, arena, entry_out);
}

semel_status semel_sql_parked_exists(semel_tx tx, struct semel_text entry_id, bool *exists_out,
				     semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &find_follower, error);
	semel_sql_bind_text(&query, entry_id);
	return semel_sql_exists(&query, exists_out);
}

semel_status semel_sql_parked_remove(semel_tx tx, struct semel_text entry_id, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &remove_follower, error);
	semel_sql_bind_text(&query, entry_id);
	return semel_sql_finish(&query);
}
