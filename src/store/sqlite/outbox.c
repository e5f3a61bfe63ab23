/* SPDX-License-Identifier: Apache-2.0 */
/* The outbox, written by producers and read by the relay and by replays.
 *
 * - SQLite has one writer at a time, so commit order is the order of seq, and every number at or
 *   below the highest one seen is visible or never will be.
 * - Rows are read without the exceptions, which are read separately when they are due.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

/* ---- producing ------------------------------------------------------------------------------- */

static const struct semel_sqlite_statement insert_event = {
	SEMEL_SQLITE_OUTBOX_INSERT, "write the event to the outbox",
	"INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"
	" routing_key, content_type, headers, created_at, payload, committed_at)"
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
};

static semel_status insert_one(semel_tx tx, sqlite3_stmt *prepared, const struct semel_event *event,
			       semel_error *error)
{
	char time[SEMEL_TIME_SIZE], now[SEMEL_TIME_SIZE];
	semel_sqlite_bind_text(prepared, 1, event->id);
	semel_sqlite_bind_text(prepared, 2, event->aggregate_type);
	semel_sqlite_bind_text(prepared, 3, event->aggregate_id);
	semel_sqlite_bind_text(prepared, 4, event->type);
	semel_sqlite_bind_text(prepared, 5, event->topic);
	semel_sqlite_bind_text(prepared, 6, event->routing_key);
	semel_sqlite_bind_text(prepared, 7, event->content_type);
	semel_sqlite_bind_text(prepared, 8, event->headers);
	semel_time_format(event->time_ms, time);
	semel_sqlite_bind_string(prepared, 9, time);
	semel_sqlite_bind_bytes(prepared, 10, event->payload);
	semel_time_format(semel_now_ms(semel_tx_env(tx)), now);
	semel_sqlite_bind_string(prepared, 11, now);
	semel_status status = semel_sqlite_run(tx, &insert_event, prepared, error);
	if (status != SEMEL_INTERNAL)
		return status;

	int code = sqlite3_extended_errcode(tx.native);
	if (code == SQLITE_CONSTRAINT_UNIQUE || code == SQLITE_CONSTRAINT_PRIMARYKEY)
		return semel_error_set(error, SEMEL_DUPLICATE_ID,
				       "an event with the id %s is in the outbox already (publish "
				       "another event under an id of its own)",
				       semel_text_shown(event->id));
	if ((code & 0xff) == SQLITE_CONSTRAINT)
		return semel_error_set(error, SEMEL_INVALID, "cannot write the event %s: %s",
				       semel_text_shown(event->id), sqlite3_errmsg(tx.native));
	return status;
}

/* Inserts all or none: the savepoint is inside the caller's transaction, and is released
 * afterwards. */
static semel_status insert_all(semel_tx tx, sqlite3_stmt *prepared,
			       const struct semel_event *events, size_t count, semel_error *error)
{
	semel_status status = semel_sqlite_exec(tx.native, "SAVEPOINT semel_publish", error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		status = insert_one(tx, prepared, &events[i], error);
		if (status != SEMEL_OK)
			goto roll_back;
	}
	return semel_sqlite_exec(tx.native, "RELEASE semel_publish", error);

roll_back:
	if (semel_sqlite_in_transaction(tx))
		sqlite3_exec(tx.native, "ROLLBACK TO semel_publish; RELEASE semel_publish", NULL,
			     NULL, NULL);
	return status;
}

semel_status semel_sqlite_outbox_insert(semel_tx tx, const struct semel_event *events, size_t count,
					semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_require_transaction(tx, insert_event.what, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_borrow_statement(tx, &insert_event, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = count == 1 ? insert_one(tx, prepared, events, error)
			    : insert_all(tx, prepared, events, count, error);
	semel_sqlite_return_statement(tx, &insert_event, prepared);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

#define EVENT_COLUMNS                                                                              \
	"o.seq, o.attempts, o.id, o.event_type, o.aggregate_type, o.aggregate_id, o.topic,"        \
	" o.routing_key, o.content_type, o.headers, o.created_at, o.payload"

enum {
	SEQ,
	ATTEMPTS,
	ID,
	TYPE,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	TOPIC,
	ROUTING_KEY,
	CONTENT_TYPE,
	HEADERS,
	CREATED_AT,
	PAYLOAD,
	HELD,
	EXCEPTION,
	REPLAY,
	PREVIOUS
};

#define EARLIER_EXCEPTION                                                                          \
	"EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.aggregate_type = o.aggregate_type" \
	" AND e.aggregate_id = o.aggregate_id AND e.seq < o.seq)"

#define PREVIOUS_ID                                                                                \
	"(SELECT p.id FROM semel_outbox p WHERE p.aggregate_type = o.aggregate_type"               \
	" AND p.aggregate_id = o.aggregate_id AND p.seq < o.seq ORDER BY p.seq DESC LIMIT 1)"

static const struct semel_sqlite_statement newest_seq = { SEMEL_SQLITE_OUTBOX_NEWEST,
							  "read the newest number of the outbox",
							  "SELECT max(seq) FROM semel_outbox" };
static const struct semel_sqlite_statement fetch_run = {
	SEMEL_SQLITE_OUTBOX_FETCH, "read the outbox",
	"SELECT " EVENT_COLUMNS ", " EARLIER_EXCEPTION ", 0, 0, " PREVIOUS_ID
	" FROM semel_outbox o WHERE o.seq > ?1 AND o.status = 'NEW'"
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.seq = o.seq)"
	" ORDER BY o.seq"
};
static const struct semel_sqlite_statement fetch_due = {
	SEMEL_SQLITE_OUTBOX_FETCH_DUE, "read the due events of the outbox",
	"SELECT " EVENT_COLUMNS ", 0, 1, x.replay, " PREVIOUS_ID
	" FROM semel_outbox_exception x JOIN semel_outbox o ON o.seq = x.seq"
	" WHERE x.state IN ('retry', 'due') AND (x.state = 'due' OR x.due_at <= ?1)"
	" AND o.status = 'NEW' AND NOT " EARLIER_EXCEPTION " ORDER BY x.seq"
};
/* Normalised, since a foreign writer may have written another form of the time. */
#define CREATED_AT_NORMAL "strftime('%Y-%m-%dT%H:%M:%fZ', o.created_at)"
#define SELECT_HEAD                                                                                \
	"SELECT " EVENT_COLUMNS ", 0, 0, 0, NULL FROM semel_outbox o WHERE o.seq > ?1"             \
	" AND o.status = 'PUBLISHED' AND (?2 IS NULL OR o.event_type = ?2)"                        \
	" AND (?5 IS NULL OR " CREATED_AT_NORMAL " >= ?5)"                                         \
	" AND (?6 IS NULL OR " CREATED_AT_NORMAL " < ?6)"
static const struct semel_sqlite_statement select_all = {
	SEMEL_SQLITE_ONCE, "select events of the outbox",
	SELECT_HEAD " AND (?3 IS NULL OR o.aggregate_type = ?3)"
		    " AND (?4 IS NULL OR o.aggregate_id = ?4) ORDER BY o.seq"
};
static const struct semel_sqlite_statement select_one = {
	SEMEL_SQLITE_ONCE, "select an event of the outbox",
	"SELECT " EVENT_COLUMNS ", 0, 0, 0, NULL FROM semel_outbox o WHERE o.seq > ?1"
	" AND o.status = 'PUBLISHED' AND o.id = ?7"
};
static const struct semel_sqlite_statement select_aggregate = {
	SEMEL_SQLITE_ONCE, "select events of an aggregate",
	SELECT_HEAD " AND o.aggregate_type = ?3 AND o.aggregate_id = ?4 ORDER BY o.seq"
};

static semel_status read_row(sqlite3_stmt *prepared, struct semel_arena *arena,
			     struct semel_outbox_row *row, semel_error *error)
{
	struct semel_event *event = &row->event;
	*row = (struct semel_outbox_row){ .seq = sqlite3_column_int64(prepared, SEQ) };
	event->id = semel_sqlite_text(prepared, ID, arena);
	event->type = semel_sqlite_text(prepared, TYPE, arena);
	event->aggregate_type = semel_sqlite_text(prepared, AGGREGATE_TYPE, arena);
	event->aggregate_id = semel_sqlite_text(prepared, AGGREGATE_ID, arena);
	event->topic = semel_sqlite_text(prepared, TOPIC, arena);
	event->routing_key = semel_sqlite_text(prepared, ROUTING_KEY, arena);
	event->content_type = semel_sqlite_text(prepared, CONTENT_TYPE, arena);
	event->headers = semel_sqlite_text(prepared, HEADERS, arena);
	event->payload = semel_sqlite_text(prepared, PAYLOAD, arena);
	event->time_ms = semel_sqlite_time(prepared, CREATED_AT);
	if (event->topic.data == NULL && event->aggregate_type.data != NULL)
		event->topic = semel_event_default_topic(event->aggregate_type, arena);
	if (event->routing_key.data == NULL)
		event->routing_key = event->type;
	row->attempts = (uint32_t)sqlite3_column_int64(prepared, ATTEMPTS);
	row->held = sqlite3_column_int(prepared, HELD) != 0;
	row->exception = sqlite3_column_int(prepared, EXCEPTION) != 0;
	row->replay = (uint32_t)sqlite3_column_int64(prepared, REPLAY);
	row->previous = semel_sqlite_text(prepared, PREVIOUS, arena);
	if (event->id.data == NULL || event->type.data == NULL || event->topic.data == NULL ||
	    event->headers.data == NULL || event->payload.data == NULL ||
	    (row->previous.data == NULL && row->previous.length > 0))
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	return SEMEL_OK;
}

/* Rows until the batch is full by count or by bytes; at least one. */
static semel_status fill(semel_tx tx, const struct semel_sqlite_statement *statement,
			 sqlite3_stmt *prepared, struct semel_outbox_batch *batch,
			 semel_error *error)
{
	uint64_t bytes = 0;
	semel_status status = SEMEL_OK;
	batch->count = 0;
	while (batch->count < batch->capacity) {
		bool row = false;
		status = semel_sqlite_step(tx, statement, prepared, &row, error);
		if (status != SEMEL_OK || !row)
			break;
		bytes += (uint64_t)sqlite3_column_bytes(prepared, PAYLOAD);
		if (batch->count > 0 && bytes > batch->bytes_max)
			break;
		status = read_row(prepared, batch->arena, &batch->rows[batch->count], error);
		if (status != SEMEL_OK)
			break;
		batch->count++;
	}
	return status;
}

static semel_status read_newest(semel_tx tx, int64_t *seq_out, semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &newest_seq, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_step(tx, &newest_seq, prepared, &row, error);
	*seq_out = row ? sqlite3_column_int64(prepared, 0) : 0;
	semel_sqlite_return_statement(tx, &newest_seq, prepared);
	return status;
}

/* There is one lane, and a probe would cost as much as a fetch: the fetch itself finds out. */
semel_status semel_sqlite_outbox_probe(semel_store *store, struct semel_lane_probe *probes,
				       size_t count, int64_t now_ms, semel_error *error)
{
	(void)store, (void)now_ms, (void)error;
	for (size_t i = 0; i < count; i++) {
		probes[i].run = probes[i].due = true;
		probes[i].complete_seq = probes[i].after_seq;
	}
	return SEMEL_OK;
}

semel_status semel_sqlite_outbox_fetch(semel_store *store, const struct semel_lease *lease,
				       int64_t after_seq, struct semel_outbox_batch *batch,
				       semel_error *error)
{
	(void)lease;
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *prepared = NULL;
	/* The number is read before the rows: every row at or below it is visible to the later
	 * read. */
	semel_status status = read_newest(tx, &batch->complete_seq, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_borrow_statement(tx, &fetch_run, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, after_seq);
	status = fill(tx, &fetch_run, prepared, batch, error);
	semel_sqlite_return_statement(tx, &fetch_run, prepared);
	return status;
}

semel_status semel_sqlite_outbox_fetch_due(semel_store *store, const struct semel_lease *lease,
					   int64_t now_ms, struct semel_outbox_batch *batch,
					   semel_error *error)
{
	(void)lease;
	semel_tx tx = semel_sqlite_tx(store);
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, &fetch_due, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_time(prepared, 1, now_ms, now);
	status = fill(tx, &fetch_due, prepared, batch, error);
	semel_sqlite_return_statement(tx, &fetch_due, prepared);
	return status;
}

semel_status semel_sqlite_outbox_select(semel_store *store,
					const struct semel_outbox_filter *filter, int64_t after_seq,
					struct semel_outbox_batch *batch, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	bool one = filter->aggregate_type != NULL && filter->aggregate_id != NULL;
	const struct semel_sqlite_statement *statement = filter->id ? &select_one
							 : one      ? &select_aggregate
								    : &select_all;
	char since[SEMEL_TIME_SIZE], until[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, after_seq);
	semel_sqlite_bind_string(prepared, 2, filter->type);
	semel_sqlite_bind_string(prepared, 3, filter->aggregate_type);
	semel_sqlite_bind_string(prepared, 4, filter->aggregate_id);
	semel_sqlite_bind_time(prepared, 5, filter->since_ms, since);
	semel_sqlite_bind_time(prepared, 6, filter->until_ms, until);
	if (filter->id)
		semel_sqlite_bind_string(prepared, 7, filter->id);
	status = fill(tx, statement, prepared, batch, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}
