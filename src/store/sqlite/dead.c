/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters, and the followers that are parked behind them.
 *
 * - One entry per scope and event, for its whole life: what fails again comes back to it, with its
 *   count of replays. An event without an id cannot be known again, and is always a new entry.
 * - Followers stand in the same table with parked_behind set, in the order of position.
 * - The event's columns keep any bytes, so that a broken delivery can be looked at.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "store/rules.h"

#define ENTRY_COLUMNS                                                                              \
	"entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic, routing_key," \
	" content_type, headers, payload, event_time, \"partition\", \"offset\","                  \
	" failure_reason, failed_at, saga_id, correlation_id, attempts, replay_count,"             \
	" parked_behind"

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
	HEADERS,
	PAYLOAD,
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
	STATUS, /* these are not in an insert */
	DISCARD_REASON,
	SETTLED_AT,
	PARKED
};

/* The same columns for a list, but for the payload: sizes are asked for by its row. */
#define CUT(column)                                                                                \
	"CASE WHEN length(" column ") > " SEMEL_DEAD_BRIEF " THEN substr(" column                  \
	", 1, " SEMEL_DEAD_BRIEF ") || '…' ELSE " column " END"
#define BRIEF_NAMES                                                                                \
	"entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic, routing_key," \
	" content_type, "
#define BRIEF_HEADERS                                                                              \
	"CASE WHEN length(CAST(headers AS BLOB)) > " SEMEL_DEAD_BRIEF " THEN 'null'"               \
	" ELSE headers END, "
#define BRIEF_PLACE   "position, event_time, \"partition\", \"offset\", "
#define BRIEF_HEADED  CUT("saga_id") ", " CUT("correlation_id")
#define BRIEF_FAILURE CUT("failure_reason") ", failed_at, "
#define BRIEF_DISCARD CUT("discard_reason") ", settled_at,"
#define BRIEF_COUNTS  ", attempts, replay_count, parked_behind, status, "
#define BRIEF_EVENT   BRIEF_NAMES BRIEF_HEADERS BRIEF_PLACE
#define BRIEF_COLUMNS BRIEF_EVENT BRIEF_FAILURE BRIEF_HEADED BRIEF_COUNTS BRIEF_DISCARD

#define ENTRY_VALUES                                                                               \
	"(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,"   \
	" ?20, ?21)"

static const struct semel_sqlite_query add_entry = {
	SEMEL_SQL_ONCE, "write a dead letter",
	"INSERT INTO semel_dead_letter (" ENTRY_COLUMNS ") VALUES " ENTRY_VALUES
	" ON CONFLICT (scope, event_id) WHERE parked_behind IS NULL AND event_id IS NOT NULL"
	" DO UPDATE SET status = 'PENDING', failure_reason = excluded.failure_reason,"
	" failed_at = excluded.failed_at, attempts = excluded.attempts,"
	" replay_count = max(replay_count, excluded.replay_count), discard_reason = NULL,"
	" settled_at = NULL"
	" RETURNING entry_id, replay_count"
};
static const struct semel_sqlite_query add_follower = {
	SEMEL_SQL_PARKED_ADD, "park an event",
	"INSERT INTO semel_dead_letter (" ENTRY_COLUMNS ") VALUES " ENTRY_VALUES
	" ON CONFLICT (scope, event_id) WHERE parked_behind IS NOT NULL DO NOTHING"
};

#define TOPIC_HELD_BY_ENTRY                                                                        \
	"EXISTS (SELECT 1 FROM semel_hold h WHERE h.scope = d.scope AND h.aggregate_type = ''"     \
	" AND h.aggregate_id = d.topic AND h.head_id = d.event_id)"

/* Followers behind an entry: of the consumer in this table, of the relay among the exceptions. */
#define PARKED_AND_FROM                                                                            \
	" CASE WHEN " TOPIC_HELD_BY_ENTRY " THEN (SELECT count(*) FROM semel_dead_letter f"        \
	" WHERE f.scope = d.scope AND f.topic = d.topic AND f.parked_behind IS NOT NULL)"          \
	" ELSE (SELECT count(*) FROM semel_dead_letter f WHERE f.scope = d.scope"                  \
	" AND f.aggregate_type = d.aggregate_type AND f.aggregate_id = d.aggregate_id"             \
	" AND f.parked_behind IS NOT NULL AND (f.parked_behind = d.event_id OR EXISTS"             \
	" (SELECT 1 FROM semel_hold h WHERE h.scope = d.scope"                                     \
	" AND h.aggregate_type = d.aggregate_type AND h.aggregate_id = d.aggregate_id"             \
	" AND h.head_id = d.event_id))) END"                                                       \
	" + CASE WHEN d.scope = 'relay' AND d.status = 'PENDING' THEN (SELECT count(*)"            \
	" FROM semel_outbox_exception x WHERE x.aggregate_type = d.aggregate_type"                 \
	" AND x.aggregate_id = d.aggregate_id AND x.state = 'parked') ELSE 0 END"                  \
	" FROM semel_dead_letter d"

static const struct semel_sqlite_query get_entry = {
	SEMEL_SQL_ONCE, "read a dead letter",
	"SELECT " ENTRY_COLUMNS ", status, discard_reason, settled_at," PARKED_AND_FROM
	" WHERE d.entry_id = ?1 AND d.parked_behind IS NULL"
};
#define SELECT_BRIEF "SELECT " BRIEF_COLUMNS PARKED_AND_FROM
static const struct semel_sqlite_query list_entries = {
	SEMEL_SQL_ONCE, "list the dead letters",
	SELECT_BRIEF " WHERE d.parked_behind IS NULL AND (?1 IS NULL OR d.status = ?1)"
		     " AND (?2 IS NULL OR d.scope = ?2) AND (?4 IS NULL OR d.event_type = ?4)"
		     " AND (?5 IS NULL OR d.failed_at >= ?5) AND (?6 IS NULL OR d.failed_at < ?6)"
		     " AND (?7 IS NULL OR (d.failed_at, d.entry_id) > (SELECT a.failed_at,"
		     " a.entry_id FROM semel_dead_letter a WHERE a.entry_id = ?7))"
		     " ORDER BY d.failed_at, d.entry_id LIMIT ?3"
};
static const struct semel_sqlite_query first_follower = {
	SEMEL_SQL_PARKED_FIRST, "read a parked event",
	"SELECT " ENTRY_COLUMNS ", status, discard_reason, settled_at, 0 FROM semel_dead_letter"
	" WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"
	" AND parked_behind IS NOT NULL ORDER BY position LIMIT 1"
};
static const struct semel_sqlite_query first_of_topic = {
	SEMEL_SQL_ONCE, "read a parked event",
	"SELECT " ENTRY_COLUMNS ", status, discard_reason, settled_at, 0 FROM semel_dead_letter"
	" WHERE scope = ?1 AND topic = ?2 AND parked_behind IS NOT NULL ORDER BY position LIMIT 1"
};
/* Looks at all followers of the aggregate: for strict order, where a gap should be rare and short.
 */
static const struct semel_sqlite_query next_follower = {
	SEMEL_SQL_ONCE, "read a parked event",
	"SELECT " ENTRY_COLUMNS
	", status, discard_reason, settled_at, 0 FROM semel_dead_letter AS f"
	" WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"
	" AND parked_behind IS NOT NULL ORDER BY event_id <> ?4,"
	" NOT (EXISTS (SELECT 1 FROM semel_inbox AS i WHERE i.scope = f.scope"
	" AND i.event_id = f.parked_behind AND i.status <> 'CLAIMED')"
	" OR EXISTS (SELECT 1 FROM semel_dead_letter AS d WHERE d.scope = f.scope"
	" AND d.event_id = f.parked_behind AND d.parked_behind IS NULL)),"
	" EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = f.scope"
	" AND p.event_id = f.parked_behind AND p.parked_behind IS NOT NULL), position LIMIT 1"
};
static const struct semel_sqlite_query has_follower = {
	SEMEL_SQL_ONCE, "look for a parked event",
	"SELECT 1 FROM semel_dead_letter WHERE entry_id = ?1 AND parked_behind IS NOT NULL"
};
static const struct semel_sqlite_query remove_follower = {
	SEMEL_SQL_PARKED_REMOVE, "remove a parked event",
	"DELETE FROM semel_dead_letter WHERE entry_id = ?1 AND parked_behind IS NOT NULL"
};
static const struct semel_sqlite_query count_pending = {
	SEMEL_SQL_ONCE, "count the dead letters",
	"SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NULL"
	" AND status = 'PENDING' AND (?1 IS NULL OR scope = ?1)"
};
static const struct semel_sqlite_query look_at_entry = {
	SEMEL_SQL_ONCE, "look at a dead letter",
	"SELECT status, replay_count FROM semel_dead_letter"
	" WHERE entry_id = ?1 AND parked_behind IS NULL"
};
static const struct semel_sqlite_query move_entry = {
	SEMEL_SQL_ONCE, "move a dead letter",
	"UPDATE semel_dead_letter SET status = ?2, discard_reason = ?3, moved_at = ?4,"
	" settled_at = CASE WHEN scope = '" SEMEL_SCOPE_RELAY "' AND ?2 = 'REPLAYED' THEN ?4 END,"
	" replay_count = replay_count + ?5 WHERE entry_id = ?1"
};
static const struct semel_sqlite_query settle_entry = {
	SEMEL_SQL_ONCE, "settle a dead letter",
	"UPDATE semel_dead_letter SET status = 'REPLAYED', settled_at = ?4,"
	" moved_at = CASE WHEN status = 'PENDING' THEN ?4 ELSE moved_at END,"
	" replay_count = max(replay_count, ?3)"
	" WHERE scope = ?1 AND event_id = ?2 AND parked_behind IS NULL"
	" AND ((status = 'PENDING' AND replay_count < ?3)"
	" OR (status = 'REPLAYED' AND settled_at IS NULL))"
};
static const struct semel_sqlite_query authorize_entry = {
	SEMEL_SQL_ONCE, "let a dead letter run again",
	"UPDATE semel_dead_letter SET status = 'REPLAYED', discard_reason = NULL, moved_at = ?3,"
	" settled_at = NULL WHERE scope = ?1 AND event_id = ?2 AND parked_behind IS NULL"
};

/* ---- binding and reading --------------------------------------------------------------------- */

/* Parameters are numbered from one, columns from zero. */
static void bind(sqlite3_stmt *statement, enum column column, struct semel_text text)
{
	semel_sqlite_bind_bytes(statement, (int)column + 1, text);
}

struct entry_times {
	char event[SEMEL_TIME_SIZE], failed[SEMEL_TIME_SIZE];
};

static void bind_entry(sqlite3_stmt *statement, const struct semel_dead_entry *entry,
		       struct entry_times *times)
{
	const struct semel_event *event = &entry->event;
	const struct semel_text none = { NULL, 0 };
	bind(statement, ENTRY_ID, entry->entry_id);
	bind(statement, SCOPE, entry->scope);
	bind(statement, EVENT_ID, semel_text_is_blank(event->id) ? none : event->id);
	bind(statement, EVENT_TYPE, event->type);
	bind(statement, AGGREGATE_TYPE, event->aggregate_type);
	bind(statement, AGGREGATE_ID, event->aggregate_id);
	bind(statement, TOPIC, event->topic);
	bind(statement, ROUTING_KEY, event->routing_key);
	bind(statement, CONTENT_TYPE, event->content_type);
	bind(statement, HEADERS, event->headers);
	bind(statement, PAYLOAD, event->payload);
	semel_time_format(event->time_ms, times->event);
	semel_time_format(entry->failed_at_ms, times->failed);
	semel_sqlite_bind_string(statement, EVENT_TIME + 1, times->event);
	semel_sqlite_bind_string(statement, FAILED_AT + 1, times->failed);
	sqlite3_bind_int(statement, PARTITION + 1, entry->partition);
	sqlite3_bind_int64(statement, OFFSET + 1, entry->offset);
	bind(statement, REASON, entry->reason);
	bind(statement, SAGA_ID, entry->saga_id);
	bind(statement, CORRELATION_ID, entry->correlation_id);
	sqlite3_bind_int64(statement, ATTEMPTS + 1, entry->attempts);
	sqlite3_bind_int64(statement, REPLAY_COUNT + 1, entry->replay_count);
	bind(statement, PARKED_BEHIND, entry->parked_behind);
}

/* All but the payload. */
static void read_brief(sqlite3_stmt *statement, struct semel_arena *arena,
		       struct semel_dead_entry *entry)
{
	struct semel_event *event = &entry->event;
	entry->entry_id = semel_sqlite_text(statement, ENTRY_ID, arena);
	entry->scope = semel_sqlite_text(statement, SCOPE, arena);
	event->id = semel_sqlite_text(statement, EVENT_ID, arena);
	event->type = semel_sqlite_text(statement, EVENT_TYPE, arena);
	event->aggregate_type = semel_sqlite_text(statement, AGGREGATE_TYPE, arena);
	event->aggregate_id = semel_sqlite_text(statement, AGGREGATE_ID, arena);
	event->topic = semel_sqlite_text(statement, TOPIC, arena);
	event->routing_key = semel_sqlite_text(statement, ROUTING_KEY, arena);
	event->content_type = semel_sqlite_text(statement, CONTENT_TYPE, arena);
	event->headers = semel_sqlite_text(statement, HEADERS, arena);
	if (event->headers.data == NULL)
		event->headers = SEMEL_TEXT("{}");
	event->payload = (struct semel_text){ 0 };
	entry->payload_size = 0;
	event->time_ms = semel_sqlite_time(statement, EVENT_TIME);
	entry->partition = sqlite3_column_int(statement, PARTITION);
	entry->offset = sqlite3_column_int64(statement, OFFSET);
	entry->reason = semel_sqlite_text(statement, REASON, arena);
	entry->failed_at_ms = semel_sqlite_time(statement, FAILED_AT);
	entry->saga_id = semel_sqlite_text(statement, SAGA_ID, arena);
	entry->correlation_id = semel_sqlite_text(statement, CORRELATION_ID, arena);
	entry->attempts = (uint32_t)sqlite3_column_int64(statement, ATTEMPTS);
	entry->replay_count = (uint32_t)sqlite3_column_int64(statement, REPLAY_COUNT);
	entry->parked_behind = semel_sqlite_text(statement, PARKED_BEHIND, arena);
	entry->status = semel_dead_status_of((const char *)sqlite3_column_text(statement, STATUS));
	entry->discard_reason = semel_sqlite_text(statement, DISCARD_REASON, arena);
	entry->settled_at_ms = semel_sqlite_time(statement, SETTLED_AT);
	entry->parked = (uint64_t)sqlite3_column_int64(statement, PARKED);
}

static void read_entry(sqlite3_stmt *statement, struct semel_arena *arena,
		       struct semel_dead_entry *entry)
{
	read_brief(statement, arena, entry);
	entry->event.payload = semel_sqlite_text(statement, PAYLOAD, arena);
	entry->payload_size = entry->event.payload.length;
}

/* Asks for the size only: no byte of the payload is read. Without one there is nothing to open. */
static uint64_t measure_payload(sqlite3 *connection, sqlite3_int64 row, sqlite3_blob **blob)
{
	int found = *blob ? sqlite3_blob_reopen(*blob, row)
			  : sqlite3_blob_open(connection, "main", "semel_dead_letter", "payload",
					      row, 0, blob);

	if (found == SQLITE_OK)
		return (uint64_t)sqlite3_blob_bytes(*blob);
	sqlite3_blob_close(*blob);
	*blob = NULL;
	return 0;
}

/* ---- dead letters ---------------------------------------------------------------------------- */

semel_status semel_sqlite_dead_add(semel_tx tx, struct semel_dead_entry *entry,
				   struct semel_arena *arena, semel_error *error)
{
	struct entry_times times;
	sqlite3_stmt *statement = NULL;
	bool row = false;
	struct semel_text used = { NULL, 0 };
	struct semel_dead_entry head = *entry;
	semel_status status = semel_sqlite_demand_transaction(tx, add_entry.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &add_entry, &statement, error);
	if (status != SEMEL_OK)
		return status;
	head.parked_behind = used;
	bind_entry(statement, &head, &times);
	status = semel_sqlite_step(tx, &add_entry, statement, &row, error);
	if (row) {
		used = semel_sqlite_text(statement, 0, arena);
		entry->replay_count = (uint32_t)sqlite3_column_int64(statement, 1);
		status = semel_sqlite_run(tx, &add_entry, statement, error);
	}
	semel_sqlite_give(tx, &add_entry, statement);
	if (status != SEMEL_OK)
		return status;
	if (used.data == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a dead letter");
	entry->entry_id = used;
	entry->status = SEMEL_DEAD_PENDING;
	return SEMEL_OK;
}

semel_status semel_sqlite_dead_get(semel_store *store, const char *entry_id,
				   struct semel_arena *arena, struct semel_dead_entry *entry_out,
				   semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &get_entry, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, entry_id);
	status = semel_sqlite_step(tx, &get_entry, statement, &row, error);
	if (row)
		read_entry(statement, arena, entry_out);
	semel_sqlite_give(tx, &get_entry, statement);
	return status == SEMEL_OK && !row ? semel_dead_not_found(entry_id, error) : status;
}

semel_status semel_sqlite_dead_list(semel_store *store, const semel_dead_filter *filter,
				    struct semel_arena *arena, struct semel_dead_entry *entries_out,
				    uint32_t *count_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	sqlite3_blob *blob = NULL;
	char since[SEMEL_TIME_SIZE], until[SEMEL_TIME_SIZE];
	bool row = false;
	*count_out = 0;
	semel_status status = semel_sqlite_take(tx, &list_entries, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(
		statement, 1,
		filter->status == SEMEL_DEAD_ANY ? NULL : semel_dead_status_name(filter->status));
	semel_sqlite_bind_string(statement, 2, filter->scope);
	sqlite3_bind_int64(statement, 3, filter->limit == 0 ? 20 : filter->limit);
	semel_sqlite_bind_string(statement, 4, filter->type);
	if (filter->since_ms != 0)
		semel_sqlite_bind_time(statement, 5, filter->since_ms, since);
	if (filter->until_ms != 0)
		semel_sqlite_bind_time(statement, 6, filter->until_ms, until);
	semel_sqlite_bind_string(statement, 7, filter->after);
	do {
		status = semel_sqlite_step(tx, &list_entries, statement, &row, error);
		if (!row)
			break;
		struct semel_dead_entry *entry = &entries_out[(*count_out)++];
		read_brief(statement, arena, entry);
		entry->payload_size =
			measure_payload(sqlite3_db_handle(statement),
					sqlite3_column_int64(statement, PAYLOAD), &blob);
	} while (status == SEMEL_OK);
	sqlite3_blob_close(blob);
	semel_sqlite_give(tx, &list_entries, statement);
	return status;
}

semel_status semel_sqlite_dead_count(semel_store *store, const char *scope, uint64_t *count_out,
				     semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*count_out = 0;
	semel_status status = semel_sqlite_take(tx, &count_pending, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, scope);
	status = semel_sqlite_step(tx, &count_pending, statement, &row, error);
	if (row)
		*count_out = (uint64_t)sqlite3_column_int64(statement, 0);
	semel_sqlite_give(tx, &count_pending, statement);
	return status;
}

/* May the entry be moved? */
static semel_status check_move(semel_tx tx, const struct semel_dead_entry *entry,
			       enum semel_dead_status status, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	enum semel_dead_status now = SEMEL_DEAD_ANY;
	uint32_t count = 0;
	semel_status found = semel_sqlite_take(tx, &look_at_entry, &statement, error);
	if (found != SEMEL_OK)
		return found;
	semel_sqlite_bind_text(statement, 1, entry->entry_id);
	found = semel_sqlite_step(tx, &look_at_entry, statement, &row, error);
	if (row) {
		now = semel_dead_status_of((const char *)sqlite3_column_text(statement, 0));
		count = (uint32_t)sqlite3_column_int64(statement, 1);
	}
	semel_sqlite_give(tx, &look_at_entry, statement);
	if (found != SEMEL_OK)
		return found;
	if (!row)
		return semel_dead_not_found(semel_text_string(entry->entry_id), error);
	return semel_dead_check_move(entry, now, status, count, error);
}

semel_status semel_sqlite_dead_move(semel_tx tx, const struct semel_dead_entry *entry,
				    enum semel_dead_status status, const char *reason,
				    int64_t now_ms, semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status result = semel_sqlite_demand_transaction(tx, move_entry.what, error);
	if (result == SEMEL_OK)
		result = check_move(tx, entry, status, error);
	if (result != SEMEL_OK)
		return result;
	result = semel_sqlite_take(tx, &move_entry, &statement, error);
	if (result != SEMEL_OK)
		return result;
	semel_sqlite_bind_text(statement, 1, entry->entry_id);
	semel_sqlite_bind_string(statement, 2, semel_dead_status_name(status));
	semel_sqlite_bind_string(statement, 3, status == SEMEL_DEAD_DISCARDED ? reason : NULL);
	semel_sqlite_bind_time(statement, 4, now_ms, now);
	sqlite3_bind_int(statement, 5, status == SEMEL_DEAD_REPLAYED);
	result = semel_sqlite_run(tx, &move_entry, statement, error);
	semel_sqlite_give(tx, &move_entry, statement);
	return result;
}

semel_status semel_sqlite_dead_settle(semel_tx tx, struct semel_text scope,
				      struct semel_text event_id, uint32_t replay, int64_t now_ms,
				      semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_demand_transaction(tx, settle_entry.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &settle_entry, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_bytes(statement, 1, scope);
	semel_sqlite_bind_bytes(statement, 2, event_id);
	sqlite3_bind_int64(statement, 3, replay);
	semel_sqlite_bind_time(statement, 4, now_ms, now);
	status = semel_sqlite_run(tx, &settle_entry, statement, error);
	semel_sqlite_give(tx, &settle_entry, statement);
	return status;
}

semel_status semel_sqlite_dead_authorize(semel_tx tx, struct semel_text scope,
					 struct semel_text event_id, int64_t now_ms,
					 semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_demand_transaction(tx, authorize_entry.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &authorize_entry, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_bytes(statement, 1, scope);
	semel_sqlite_bind_bytes(statement, 2, event_id);
	semel_sqlite_bind_time(statement, 3, now_ms, now);
	status = semel_sqlite_run(tx, &authorize_entry, statement, error);
	semel_sqlite_give(tx, &authorize_entry, statement);
	return status;
}

/* ---- followers ------------------------------------------------------------------------------- */

semel_status semel_sqlite_parked_add(semel_tx tx, const struct semel_dead_entry *entry,
				     semel_error *error)
{
	struct entry_times times;
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_demand_transaction(tx, add_follower.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &add_follower, &statement, error);
	if (status != SEMEL_OK)
		return status;
	bind_entry(statement, entry, &times);
	if (entry->parked_behind.data ==
	    NULL) /* a follower all the same, of a head without an id */
		bind(statement, PARKED_BEHIND, SEMEL_TEXT(""));
	status = semel_sqlite_run(tx, &add_follower, statement, error);
	semel_sqlite_give(tx, &add_follower, statement);
	return status;
}

semel_status semel_sqlite_parked_first(semel_tx tx, struct semel_text scope,
				       const struct semel_hold *hold, struct semel_arena *arena,
				       struct semel_dead_entry *entry_out, semel_error *error)
{
	bool whole_topic = hold->aggregate_type.length == 0;
	const struct semel_sqlite_query *query = whole_topic ? &first_of_topic : &first_follower;
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*entry_out = (struct semel_dead_entry){ 0 };
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_bytes(statement, 1, scope);
	semel_sqlite_bind_bytes(statement, 2,
				whole_topic ? hold->aggregate_id : hold->aggregate_type);
	if (!whole_topic)
		semel_sqlite_bind_bytes(statement, 3, hold->aggregate_id);
	status = semel_sqlite_step(tx, query, statement, &row, error);
	if (row)
		read_entry(statement, arena, entry_out);
	semel_sqlite_give(tx, query, statement);
	return status;
}

semel_status semel_sqlite_parked_next(semel_tx tx, struct semel_text scope,
				      const struct semel_hold *hold, struct semel_arena *arena,
				      struct semel_dead_entry *entry_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*entry_out = (struct semel_dead_entry){ 0 };
	semel_status status = semel_sqlite_take(tx, &next_follower, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_bytes(statement, 1, scope);
	semel_sqlite_bind_bytes(statement, 2, hold->aggregate_type);
	semel_sqlite_bind_bytes(statement, 3, hold->aggregate_id);
	semel_sqlite_bind_bytes(statement, 4, hold->head_id);
	status = semel_sqlite_step(tx, &next_follower, statement, &row, error);
	if (row)
		read_entry(statement, arena, entry_out);
	semel_sqlite_give(tx, &next_follower, statement);
	return status;
}

semel_status semel_sqlite_parked_exists(semel_tx tx, struct semel_text entry_id, bool *parked_out,
					semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	*parked_out = false;
	semel_status status = semel_sqlite_take(tx, &has_follower, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, entry_id);
	status = semel_sqlite_step(tx, &has_follower, statement, parked_out, error);
	semel_sqlite_give(tx, &has_follower, statement);
	return status;
}

semel_status semel_sqlite_parked_remove(semel_tx tx, struct semel_text entry_id, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_demand_transaction(tx, remove_follower.what, error);
	if (status == SEMEL_OK)
		status = semel_sqlite_take(tx, &remove_follower, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, entry_id);
	status = semel_sqlite_run(tx, &remove_follower, statement, error);
	semel_sqlite_give(tx, &remove_follower, statement);
	return status;
}
