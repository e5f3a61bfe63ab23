/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters, and the followers that are parked behind them.
 *
 * - One entry per scope and event, for its whole life: what fails again comes back to it, with its
 *   count of replays. An event without an id cannot be known again, and is always a new entry.
 * - Followers stand in the same table with parked_behind set, in the order of position.
 * - Headers and payload keep any bytes, so that a broken delivery can be looked at.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "store/rules.h"

#include <string.h>

#define NAMES_BEFORE_TIME                                                                          \
	"entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic, routing_key," \
	" content_type, headers, headers_bytes, payload, payload_bytes"
#define NAMES_BETWEEN "\"partition\", \"offset\", failure_reason"
#define NAMES_AFTER   "saga_id, correlation_id, attempts, replay_count, parked_behind"

#define ENTRY_NAMES NAMES_BEFORE_TIME ", event_time, " NAMES_BETWEEN ", failed_at, " NAMES_AFTER
#define ENTRY_COLUMNS                                                                              \
	NAMES_BEFORE_TIME ", " SEMEL_PG_MS("event_time") ", " NAMES_BETWEEN ", " SEMEL_PG_MS(      \
		"failed_at") ", " NAMES_AFTER                                                      \
			     ", status, discard_reason, " SEMEL_PG_MS("settled_at")

/* The same columns for a list; in the payload's place its size. */
#define CUT(column)                                                                                \
	"CASE WHEN length(" column ") > " SEMEL_DEAD_BRIEF " THEN left(" column                    \
	", " SEMEL_DEAD_BRIEF ") || '…' ELSE " column " END"
#define BRIEF_NAMES                                                                                \
	"entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic, routing_key," \
	" content_type, "
#define BRIEF_HEADERS                                                                              \
	"CASE WHEN coalesce(octet_length(headers), octet_length(headers_bytes)) "                  \
	"> " SEMEL_DEAD_BRIEF " THEN 'null' ELSE headers END,"                                     \
	" CASE WHEN octet_length(headers_bytes) <= " SEMEL_DEAD_BRIEF " THEN headers_bytes END, "
#define BRIEF_SIZE    "coalesce(octet_length(payload), octet_length(payload_bytes)), NULL, "
#define BRIEF_PLACE   ", \"partition\", \"offset\", "
#define BRIEF_HEADED  ", " CUT("saga_id") ", " CUT("correlation_id")
#define BRIEF_COUNTS  ", attempts, replay_count, parked_behind, status, "
#define BRIEF_FAILURE CUT("failure_reason") ", " SEMEL_PG_MS("failed_at")
#define BRIEF_DISCARD CUT("discard_reason") ", " SEMEL_PG_MS("settled_at")
#define BRIEF_EVENT   BRIEF_NAMES BRIEF_HEADERS BRIEF_SIZE SEMEL_PG_MS("event_time")
#define BRIEF_COLUMNS BRIEF_EVENT BRIEF_PLACE BRIEF_FAILURE BRIEF_HEADED BRIEF_COUNTS BRIEF_DISCARD

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
	HEADERS_BYTES,
	PAYLOAD,
	PAYLOAD_BYTES,
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

#define INSERT_ENTRY                                                                               \
	"INSERT INTO semel_dead_letter AS d (" ENTRY_NAMES ") VALUES ($1, $2, $3, $4, $5, $6, $7," \
	" $8, $9, $10, $11::bytea, $12, $13::bytea, $14::timestamptz, $15, $16, $17,"              \
	" $18::timestamptz, $19, $20, $21, $22, $23)"

static const struct semel_pg_query add_entry = {
	"write a dead letter", INSERT_ENTRY
	" ON CONFLICT (scope, event_id) WHERE parked_behind IS NULL AND event_id IS NOT NULL"
	" DO UPDATE SET status = 'PENDING', failure_reason = excluded.failure_reason,"
	" failed_at = excluded.failed_at, attempts = excluded.attempts,"
	" replay_count = greatest(d.replay_count, excluded.replay_count), discard_reason = NULL,"
	" settled_at = NULL"
	" RETURNING entry_id, replay_count"
};
static const struct semel_pg_query add_follower = {
	"park an event",
	INSERT_ENTRY " ON CONFLICT (scope, event_id) WHERE parked_behind IS NOT NULL DO NOTHING"
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

#define SELECT_ENTRY "SELECT " ENTRY_COLUMNS "," PARKED_AND_FROM
#define SELECT_BRIEF "SELECT " BRIEF_COLUMNS "," PARKED_AND_FROM
static const struct semel_pg_query get_entry = {
	"read a dead letter", SELECT_ENTRY " WHERE d.entry_id = $1 AND d.parked_behind IS NULL"
};
static const struct semel_pg_query list_entries = {
	"list the dead letters",
	SELECT_BRIEF " WHERE d.parked_behind IS NULL AND ($1::text IS NULL OR d.status = $1)"
		     " AND ($2::text IS NULL OR d.scope = $2)"
		     " AND ($4::text IS NULL OR d.event_type = $4)"
		     " AND ($5::timestamptz IS NULL OR d.failed_at >= $5::timestamptz)"
		     " AND ($6::timestamptz IS NULL OR d.failed_at < $6::timestamptz)"
		     " AND ($7::text IS NULL OR (d.failed_at, d.entry_id) > (SELECT a.failed_at,"
		     " a.entry_id FROM semel_dead_letter a WHERE a.entry_id = $7))"
		     " ORDER BY d.failed_at, d.entry_id LIMIT $3"
};
static const struct semel_pg_query first_follower = {
	"read a parked event", "SELECT " ENTRY_COLUMNS ", 0 FROM semel_dead_letter"
			       " WHERE scope = $1 AND aggregate_type = $2 AND aggregate_id = $3"
			       " AND parked_behind IS NOT NULL ORDER BY position LIMIT 1"
};
static const struct semel_pg_query first_of_topic = {
	"read a parked event",
	"SELECT " ENTRY_COLUMNS ", 0 FROM semel_dead_letter"
	" WHERE scope = $1 AND topic = $2 AND parked_behind IS NOT NULL ORDER BY position LIMIT 1"
};
/* Looks at all followers of the aggregate: for strict order, where a gap should be rare and short.
 */
static const struct semel_pg_query next_follower = {
	"read a parked event",
	"SELECT " ENTRY_COLUMNS ", 0 FROM semel_dead_letter AS f"
	" WHERE scope = $1 AND aggregate_type = $2 AND aggregate_id = $3"
	" AND parked_behind IS NOT NULL ORDER BY event_id IS DISTINCT FROM $4,"
	" NOT (EXISTS (SELECT 1 FROM semel_inbox AS i WHERE i.scope = f.scope"
	" AND i.event_id = f.parked_behind AND i.status <> 'CLAIMED')"
	" OR EXISTS (SELECT 1 FROM semel_dead_letter AS d WHERE d.scope = f.scope"
	" AND d.event_id = f.parked_behind AND d.parked_behind IS NULL)),"
	" EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = f.scope"
	" AND p.event_id = f.parked_behind AND p.parked_behind IS NOT NULL), position LIMIT 1"
};
static const struct semel_pg_query has_follower = {
	"look for a parked event",
	"SELECT 1 FROM semel_dead_letter WHERE entry_id = $1 AND parked_behind IS NOT NULL"
	" FOR UPDATE"
};
static const struct semel_pg_query remove_follower = {
	"remove a parked event",
	"DELETE FROM semel_dead_letter WHERE entry_id = $1 AND parked_behind IS NOT NULL"
};
static const struct semel_pg_query count_pending = {
	"count the dead letters",
	"SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NULL"
	" AND status = 'PENDING' AND ($1::text IS NULL OR scope = $1)"
};
/* Locked, so that of two who would move it the second sees what the first has done. */
static const struct semel_pg_query look_at_entry = {
	"look at a dead letter", "SELECT status, replay_count FROM semel_dead_letter"
				 " WHERE entry_id = $1 AND parked_behind IS NULL FOR UPDATE"
};
static const struct semel_pg_query move_entry = {
	"move a dead letter",
	"UPDATE semel_dead_letter SET status = $2, discard_reason = $3,"
	" moved_at = $4::timestamptz, settled_at = CASE WHEN scope = '" SEMEL_SCOPE_RELAY "'"
	" AND $2 = 'REPLAYED' THEN $4::timestamptz END, replay_count = replay_count + $5"
	" WHERE entry_id = $1"
};
static const struct semel_pg_query settle_entry = {
	"settle a dead letter",
	"UPDATE semel_dead_letter SET status = 'REPLAYED', settled_at = $4::timestamptz,"
	" moved_at = CASE WHEN status = 'PENDING' THEN $4::timestamptz ELSE moved_at END,"
	" replay_count = greatest(replay_count, $3)"
	" WHERE scope = $1 AND event_id = $2 AND parked_behind IS NULL"
	" AND ((status = 'PENDING' AND replay_count < $3)"
	" OR (status = 'REPLAYED' AND settled_at IS NULL))"
};
static const struct semel_pg_query authorize_entry = {
	"let a dead letter run again",
	"UPDATE semel_dead_letter SET status = 'REPLAYED', discard_reason = NULL,"
	" moved_at = $3::timestamptz, settled_at = NULL"
	" WHERE scope = $1 AND event_id = $2 AND parked_behind IS NULL"
};

/* ---- values ---------------------------------------------------------------------------------- */

static void add_values(struct semel_pg_params *params, const struct semel_dead_entry *entry)
{
	const struct semel_event *event = &entry->event;
	const struct semel_text none = { NULL, 0 };
	semel_pg_add_text(params, entry->entry_id);
	semel_pg_add_text(params, entry->scope);
	semel_pg_add_text(params, semel_text_is_blank(event->id) ? none : event->id);
	semel_pg_add_text(params, event->type);
	semel_pg_add_text(params, event->aggregate_type);
	semel_pg_add_text(params, event->aggregate_id);
	semel_pg_add_text(params, event->topic);
	semel_pg_add_text(params, event->routing_key);
	semel_pg_add_text(params, event->content_type);
	semel_pg_add_bytes(params, event->headers);
	semel_pg_add_bytes(params, event->payload);
	semel_pg_add_time(params, event->time_ms);
	semel_pg_add_int(params, entry->partition);
	semel_pg_add_int(params, entry->offset);
	semel_pg_add_text(params, entry->reason);
	semel_pg_add_time(params, entry->failed_at_ms);
	semel_pg_add_text(params, entry->saga_id);
	semel_pg_add_text(params, entry->correlation_id);
	semel_pg_add_int(params, entry->attempts);
	semel_pg_add_int(params, entry->replay_count);
	semel_pg_add_text(params, entry->parked_behind);
}

/* All but the payload. */
static void read_brief(const PGresult *result, int row, struct semel_arena *arena,
		       struct semel_dead_entry *entry)
{
	struct semel_event *event = &entry->event;
	entry->entry_id = semel_pg_text(result, row, ENTRY_ID, arena);
	entry->scope = semel_pg_text(result, row, SCOPE, arena);
	event->id = semel_pg_text(result, row, EVENT_ID, arena);
	event->type = semel_pg_text(result, row, EVENT_TYPE, arena);
	event->aggregate_type = semel_pg_text(result, row, AGGREGATE_TYPE, arena);
	event->aggregate_id = semel_pg_text(result, row, AGGREGATE_ID, arena);
	event->topic = semel_pg_text(result, row, TOPIC, arena);
	event->routing_key = semel_pg_text(result, row, ROUTING_KEY, arena);
	event->content_type = semel_pg_text(result, row, CONTENT_TYPE, arena);
	event->headers = semel_pg_bytes(result, row, HEADERS, arena);
	if (event->headers.data == NULL)
		event->headers = SEMEL_TEXT("{}");
	event->payload = (struct semel_text){ 0 };
	event->time_ms = semel_pg_int(result, row, EVENT_TIME);
	entry->partition = (int32_t)semel_pg_int(result, row, PARTITION);
	entry->offset = semel_pg_int(result, row, OFFSET);
	entry->reason = semel_pg_text(result, row, REASON, arena);
	entry->failed_at_ms = semel_pg_int(result, row, FAILED_AT);
	entry->saga_id = semel_pg_text(result, row, SAGA_ID, arena);
	entry->correlation_id = semel_pg_text(result, row, CORRELATION_ID, arena);
	entry->attempts = (uint32_t)semel_pg_int(result, row, ATTEMPTS);
	entry->replay_count = (uint32_t)semel_pg_int(result, row, REPLAY_COUNT);
	entry->parked_behind = semel_pg_text(result, row, PARKED_BEHIND, arena);
	entry->status = semel_dead_status_of(semel_pg_value(result, row, STATUS));
	entry->discard_reason = semel_pg_text(result, row, DISCARD_REASON, arena);
	entry->settled_at_ms = semel_pg_int(result, row, SETTLED_AT);
	entry->parked = (uint64_t)semel_pg_int(result, row, PARKED);
}

static void read_entry(const PGresult *result, int row, struct semel_arena *arena,
		       struct semel_dead_entry *entry)
{
	read_brief(result, row, arena, entry);
	entry->event.payload = semel_pg_bytes(result, row, PAYLOAD, arena);
	entry->payload_size = entry->event.payload.length;
}

/* ---- dead letters ---------------------------------------------------------------------------- */

semel_status semel_pg_dead_add(semel_tx tx, struct semel_dead_entry *entry,
			       struct semel_arena *arena, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	struct semel_dead_entry head = *entry;
	semel_status status = semel_pg_demand_transaction(tx, add_entry.what, error);
	if (status != SEMEL_OK)
		return status;
	head.parked_behind = (struct semel_text){ NULL, 0 };
	add_values(&params, &head);
	status = semel_pg_run(tx, &add_entry, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	entry->entry_id = semel_pg_text(result, 0, 0, arena);
	entry->replay_count = (uint32_t)semel_pg_int(result, 0, 1);
	entry->status = SEMEL_DEAD_PENDING;
	semel_pg_clear(result);
	if (entry->entry_id.data == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a dead letter");
	return SEMEL_OK;
}

semel_status semel_pg_dead_get(semel_store *store, const char *entry_id, struct semel_arena *arena,
			       struct semel_dead_entry *entry_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, entry_id);
	semel_status status = semel_pg_run(semel_pg_tx(store), &get_entry, &params, &result, error);
	if (status == SEMEL_OK && semel_pg_rows(result) == 0)
		status = semel_dead_not_found(entry_id, error);
	if (status == SEMEL_OK)
		read_entry(result, 0, arena, entry_out);
	semel_pg_clear(result);
	return status;
}

static void add_bound(struct semel_pg_params *params, int64_t time_ms)
{
	if (time_ms == 0)
		semel_pg_add_string(params, NULL);
	else
		semel_pg_add_time(params, time_ms);
}

semel_status semel_pg_dead_list(semel_store *store, const semel_dead_filter *filter,
				struct semel_arena *arena, struct semel_dead_entry *entries_out,
				uint32_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, filter->status == SEMEL_DEAD_ANY
					     ? NULL
					     : semel_dead_status_name(filter->status));
	semel_pg_add_string(&params, filter->scope);
	semel_pg_add_int(&params, filter->limit == 0 ? 20 : filter->limit);
	semel_pg_add_string(&params, filter->type);
	add_bound(&params, filter->since_ms);
	add_bound(&params, filter->until_ms);
	semel_pg_add_string(&params, filter->after);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &list_entries, &params, &result, error);
	*count_out = (uint32_t)semel_pg_rows(result);
	for (int row = 0; row < semel_pg_rows(result); row++) {
		read_brief(result, row, arena, &entries_out[row]);
		entries_out[row].payload_size = (uint64_t)semel_pg_int(result, row, PAYLOAD);
	}
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_dead_count(semel_store *store, const char *scope, uint64_t *count_out,
				 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, scope);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &count_pending, &params, &result, error);
	*count_out = status == SEMEL_OK ? (uint64_t)semel_pg_int(result, 0, 0) : 0;
	semel_pg_clear(result);
	return status;
}

/* May the entry be moved? */
static semel_status check_move(semel_tx tx, const struct semel_dead_entry *entry,
			       enum semel_dead_status status, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, entry->entry_id);
	semel_status found = semel_pg_run(tx, &look_at_entry, &params, &result, error);
	if (found == SEMEL_OK && semel_pg_rows(result) == 0)
		found = semel_dead_not_found(semel_text_string(entry->entry_id), error);
	if (found == SEMEL_OK) {
		enum semel_dead_status now = semel_dead_status_of(semel_pg_value(result, 0, 0));
		found = semel_dead_check_move(entry, now, status,
					      (uint32_t)semel_pg_int(result, 0, 1), error);
	}
	semel_pg_clear(result);
	return found;
}

semel_status semel_pg_dead_move(semel_tx tx, const struct semel_dead_entry *entry,
				enum semel_dead_status status, const char *reason, int64_t now_ms,
				semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status result = semel_pg_demand_transaction(tx, move_entry.what, error);
	/* As everybody who has to do with a lane and its letters: first the lane. */
	if (result == SEMEL_OK && semel_text_equals_string(entry->scope, SEMEL_SCOPE_RELAY))
		result = semel_pg_lane_lock_by_event(tx, entry->event.id, error);
	if (result == SEMEL_OK)
		result = check_move(tx, entry, status, error);
	if (result != SEMEL_OK)
		return result;
	semel_pg_add_text(&params, entry->entry_id);
	semel_pg_add_string(&params, semel_dead_status_name(status));
	semel_pg_add_string(&params, status == SEMEL_DEAD_DISCARDED ? reason : NULL);
	semel_pg_add_time(&params, now_ms);
	semel_pg_add_int(&params, status == SEMEL_DEAD_REPLAYED);
	return semel_pg_run(tx, &move_entry, &params, NULL, error);
}

semel_status semel_pg_dead_settle(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				  uint32_t replay, int64_t now_ms, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_demand_transaction(tx, settle_entry.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, event_id);
	semel_pg_add_int(&params, replay);
	semel_pg_add_time(&params, now_ms);
	return semel_pg_run(tx, &settle_entry, &params, NULL, error);
}

semel_status semel_pg_dead_authorize(semel_tx tx, struct semel_text scope,
				     struct semel_text event_id, int64_t now_ms, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_demand_transaction(tx, authorize_entry.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, event_id);
	semel_pg_add_time(&params, now_ms);
	return semel_pg_run(tx, &authorize_entry, &params, NULL, error);
}

/* ---- followers ------------------------------------------------------------------------------- */

semel_status semel_pg_parked_add(semel_tx tx, const struct semel_dead_entry *entry,
				 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_dead_entry follower = *entry;
	semel_status status = semel_pg_demand_transaction(tx, add_follower.what, error);
	if (status != SEMEL_OK)
		return status;
	if (follower.parked_behind.data == NULL) /* of a head without an id */
		follower.parked_behind = SEMEL_TEXT("");
	add_values(&params, &follower);
	return semel_pg_run(tx, &add_follower, &params, NULL, error);
}

semel_status semel_pg_parked_first(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, struct semel_arena *arena,
				   struct semel_dead_entry *entry_out, semel_error *error)
{
	bool whole_topic = hold->aggregate_type.length == 0;
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*entry_out = (struct semel_dead_entry){ 0 };
	semel_pg_add_text(&params, scope);
	if (!whole_topic)
		semel_pg_add_text(&params, hold->aggregate_type);
	semel_pg_add_text(&params, hold->aggregate_id);
	semel_status status = semel_pg_run(tx, whole_topic ? &first_of_topic : &first_follower,
					   &params, &result, error);
	if (semel_pg_rows(result) > 0)
		read_entry(result, 0, arena, entry_out);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_parked_next(semel_tx tx, struct semel_text scope,
				  const struct semel_hold *hold, struct semel_arena *arena,
				  struct semel_dead_entry *entry_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*entry_out = (struct semel_dead_entry){ 0 };
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, hold->aggregate_type);
	semel_pg_add_text(&params, hold->aggregate_id);
	semel_pg_add_text(&params, hold->head_id);
	semel_status status = semel_pg_run(tx, &next_follower, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		read_entry(result, 0, arena, entry_out);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_parked_exists(semel_tx tx, struct semel_text entry_id, bool *parked_out,
				    semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, entry_id);
	semel_status status = semel_pg_run(tx, &has_follower, &params, &result, error);
	*parked_out = status == SEMEL_OK && semel_pg_rows(result) > 0;
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_parked_remove(semel_tx tx, struct semel_text entry_id, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_demand_transaction(tx, remove_follower.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, entry_id);
	return semel_pg_run(tx, &remove_follower, &params, NULL, error);
}
