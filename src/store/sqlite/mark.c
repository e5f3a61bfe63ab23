/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the outcome of events that the relay offered to the broker.
 *
 * - The fence is checked in the transaction that marks: a relay that lost its lane changes nothing.
 * - An exception holds the later events of its aggregate. When it is removed, the next of its
 *   aggregate becomes due in the same transaction, so an aggregate never waits for an exception
 *   that no longer exists.
 * - A FAILED event and its dead letter are written together.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "store/rules.h"

static const struct semel_sqlite_statement check_fence = {
	SEMEL_SQLITE_MARK_FENCE, "check the fence",
	"UPDATE semel_lease SET low_seq = max(low_seq, ?4), expires_at = ?5"
	" WHERE lane = ?1 AND epoch = ?2 AND owner = ?3"
};
/* OR FAIL: a failed mark rolls the whole transaction back, so SQLite need not keep the pages aside
 * (in a temporary file) to undo this statement alone. */
static const struct semel_sqlite_statement mark_published = {
	SEMEL_SQLITE_MARK_PUBLISHED, "mark events as published",
	"UPDATE OR FAIL semel_outbox SET status = 'PUBLISHED', published_at = ?3"
	" WHERE seq BETWEEN ?1 AND ?2"
};
static const struct semel_sqlite_statement mark_refused = {
	SEMEL_SQLITE_ONCE, "mark a refused event",
	"UPDATE semel_outbox SET status = ?2, attempts = ?3, next_attempt_at = ?4, last_error = ?5"
	" WHERE seq = ?1"
};
static const struct semel_sqlite_statement put_exception = {
	SEMEL_SQLITE_ONCE, "write an exception",
	"INSERT INTO semel_outbox_exception"
	" (seq, aggregate_type, aggregate_id, state, due_at, blocks, replay)"
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (seq) DO UPDATE SET"
	" state = excluded.state, due_at = excluded.due_at, blocks = excluded.blocks,"
	" replay = max(replay, excluded.replay)"
};
/* An event that has no earlier exception becomes due at once. */
static const struct semel_sqlite_statement park_exception = {
	SEMEL_SQLITE_ONCE, "park an event",
	"INSERT INTO semel_outbox_exception (seq, aggregate_type, aggregate_id, state)"
	" SELECT ?1, ?2, ?3, CASE WHEN EXISTS (SELECT 1 FROM semel_outbox_exception e"
	" WHERE e.aggregate_type = ?2 AND e.aggregate_id = ?3 AND e.seq < ?1)"
	" THEN 'parked' ELSE 'due' END"
	" WHERE true ON CONFLICT (seq) DO UPDATE SET state = excluded.state, due_at = NULL"
};
static const struct semel_sqlite_statement remove_exception = {
	SEMEL_SQLITE_ONCE, "remove an exception",
	"DELETE FROM semel_outbox_exception WHERE seq = ?1"
};
static const struct semel_sqlite_statement make_next_due = {
	SEMEL_SQLITE_ONCE, "make the next event of an aggregate due",
	"UPDATE semel_outbox_exception SET state = 'due' WHERE state = 'parked' AND seq ="
	" (SELECT min(seq) FROM semel_outbox_exception"
	" WHERE aggregate_type = ?1 AND aggregate_id = ?2)"
};

/* Runs a statement whose first parameter is the row's number. */
static semel_status run_with_seq(semel_tx tx, const struct semel_sqlite_statement *statement,
				 int64_t seq, semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, seq);
	status = semel_sqlite_run(tx, statement, prepared, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}

struct exception {
	int64_t seq;
	struct semel_text aggregate_type, aggregate_id;
	const char *state;
	int64_t due_ms;
	bool blocks;
	uint32_t replay;
};

static struct exception exception_of(const struct semel_outbox_row *row, const char *state)
{
	return (struct exception){ .seq = row->seq,
				   .aggregate_type = row->event.aggregate_type,
				   .aggregate_id = row->event.aggregate_id,
				   .state = state,
				   .replay = row->replay };
}

static semel_status put(semel_tx tx, const struct semel_sqlite_statement *statement,
			const struct exception *exception, semel_error *error)
{
	char due[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, exception->seq);
	semel_sqlite_bind_text(prepared, 2, exception->aggregate_type);
	semel_sqlite_bind_text(prepared, 3, exception->aggregate_id);
	if (statement == &put_exception) {
		semel_sqlite_bind_string(prepared, 4, exception->state);
		semel_sqlite_bind_time(prepared, 5, exception->due_ms, due);
		sqlite3_bind_int(prepared, 6, exception->blocks);
		sqlite3_bind_int64(prepared, 7, exception->replay);
	}
	status = semel_sqlite_run(tx, statement, prepared, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}

/* Removes the exception; the next one of its aggregate becomes due. */
static semel_status remove_and_make_next_due(semel_tx tx, const struct exception *exception,
					     semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	semel_status status = run_with_seq(tx, &remove_exception, exception->seq, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_borrow_statement(tx, &make_next_due, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(prepared, 1, exception->aggregate_type);
	semel_sqlite_bind_text(prepared, 2, exception->aggregate_id);
	status = semel_sqlite_run(tx, &make_next_due, prepared, error);
	semel_sqlite_return_statement(tx, &make_next_due, prepared);
	return status;
}

static semel_status record_refusal(semel_tx tx, const struct semel_mark *mark, const char *state,
				   semel_error *error)
{
	char due[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, &mark_refused, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, mark->row->seq);
	semel_sqlite_bind_string(prepared, 2, state);
	sqlite3_bind_int64(prepared, 3, mark->attempts);
	semel_sqlite_bind_time(prepared, 4, mark->kind == SEMEL_MARK_RETRY ? mark->due_ms : 0, due);
	semel_sqlite_bind_bytes(prepared, 5, semel_text_of(mark->reason));
	status = semel_sqlite_run(tx, &mark_refused, prepared, error);
	semel_sqlite_return_statement(tx, &mark_refused, prepared);
	return status;
}

static semel_status mark_failed(semel_tx tx, const struct semel_mark *mark, int64_t now_ms,
				semel_error *error)
{
	struct exception exception = exception_of(mark->row, "failed");
	exception.blocks = mark->blocks;
	semel_status status = record_refusal(tx, mark, "FAILED", error);
	if (status != SEMEL_OK)
		return status;
	status = semel_dead_add_refused(tx, mark, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return mark->holds ? put(tx, &put_exception, &exception, error)
			   : remove_and_make_next_due(tx, &exception, error);
}

static semel_status mark_retry(semel_tx tx, const struct semel_mark *mark, semel_error *error)
{
	struct exception exception = exception_of(mark->row, "retry");
	exception.due_ms = mark->due_ms;
	semel_status status = record_refusal(tx, mark, "NEW", error);
	if (status != SEMEL_OK)
		return status;
	return put(tx, &put_exception, &exception, error);
}

static semel_status mark_other(semel_tx tx, const struct semel_mark *mark, int64_t now_ms,
			       semel_error *error)
{
	struct exception exception = exception_of(mark->row, "parked");
	switch (mark->kind) {
	case SEMEL_MARK_PUBLISHED:
		return remove_and_make_next_due(tx, &exception, error);
	case SEMEL_MARK_RETRY:
		return mark_retry(tx, mark, error);
	case SEMEL_MARK_FAILED:
		return mark_failed(tx, mark, now_ms, error);
	case SEMEL_MARK_PARKED:
		return put(tx, &park_exception, &exception, error);
	}
	return semel_error_set(error, SEMEL_INTERNAL, "a mark of unknown kind");
}

static bool is_plain(const struct semel_mark *mark)
{
	return mark->kind == SEMEL_MARK_PUBLISHED && !mark->row->exception;
}

/* How many marks from here on are confirmed rows with consecutive numbers, without another row in
 * between. */
static size_t run_length(const struct semel_mark *marks, size_t count)
{
	size_t length = 1;
	while (length < count && is_plain(&marks[length]) &&
	       marks[length].row->seq == marks[length - 1].row->seq + 1)
		length++;
	return length;
}

/* Most marks are of confirmed rows that are not exceptions: these are marked by ranges. */
static semel_status mark_rows(semel_tx tx, const struct semel_mark_batch *batch, semel_error *error)
{
	char now[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, &mark_published, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_time(prepared, 3, batch->now_ms, now);
	for (size_t i = 0, length = 1; i < batch->count; i += length) {
		const struct semel_mark *mark = &batch->marks[i];
		length = is_plain(mark) ? run_length(mark, batch->count - i) : 1;
		if (mark->kind == SEMEL_MARK_PUBLISHED) {
			sqlite3_bind_int64(prepared, 1, mark->row->seq);
			sqlite3_bind_int64(prepared, 2, mark[length - 1].row->seq);
			status = semel_sqlite_run(tx, &mark_published, prepared, error);
			if (status != SEMEL_OK)
				goto give_statement;
		}
		if (is_plain(mark))
			continue;
		status = mark_other(tx, mark, batch->now_ms, error);
		if (status != SEMEL_OK)
			goto give_statement;
	}
give_statement:
	semel_sqlite_return_statement(tx, &mark_published, prepared);
	return status;
}

static semel_status pass_fence(semel_tx tx, const struct semel_lease *lease,
			       const struct semel_mark_batch *batch, semel_error *error)
{
	char expires[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, &check_fence, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int(prepared, 1, lease->lane);
	sqlite3_bind_int64(prepared, 2, lease->epoch);
	semel_sqlite_bind_string(prepared, 3, lease->owner);
	sqlite3_bind_int64(prepared, 4, batch->low_seq);
	semel_sqlite_bind_time(prepared, 5, batch->expires_at_ms, expires);
	status = semel_sqlite_run(tx, &check_fence, prepared, error);
	if (status != SEMEL_OK)
		goto give_statement;
	if (semel_sqlite_changes(tx) != 1)
		status = semel_error_set(
			error, SEMEL_LEASE_LOST,
			"lane %d was taken over by another relay (our epoch: %lld); nothing was "
			"marked",
			(int)lease->lane, (long long)lease->epoch);
give_statement:
	semel_sqlite_return_statement(tx, &check_fence, prepared);
	return status;
}

semel_status semel_sqlite_outbox_mark(semel_store *store, struct semel_lease *lease,
				      const struct semel_mark_batch *batch, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	bool entered = false;
	semel_status status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = pass_fence(tx, lease, batch, error);
	if (status != SEMEL_OK)
		goto leave;
	status = mark_rows(tx, batch, error);

leave:
	status = semel_sql_leave(store, entered, status, error);
	if (status != SEMEL_OK)
		return status;
	lease->expires_at_ms = batch->expires_at_ms;
	if (batch->low_seq > lease->low_seq)
		lease->low_seq = batch->low_seq;
	return SEMEL_OK;
}

/* ---- dead letters of the relay that an operator replays or discards ----------------------------
 */

static const struct semel_sqlite_statement find_failed = {
	SEMEL_SQLITE_ONCE, "find the failed event",
	"SELECT seq, aggregate_type, aggregate_id FROM semel_outbox WHERE id = ?1"
};
static const struct semel_sqlite_statement reset_failed = {
	SEMEL_SQLITE_ONCE, "reset the event",
	"UPDATE semel_outbox SET status = 'NEW', attempts = 0, next_attempt_at = NULL WHERE seq = "
	"?1"
};

static semel_status find_row(semel_tx tx, struct semel_text id, struct semel_arena *arena,
			     struct exception *exception_out, semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &find_failed, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(prepared, 1, id);
	status = semel_sqlite_step(tx, &find_failed, prepared, &row, error);
	if (row) {
		exception_out->seq = sqlite3_column_int64(prepared, 0);
		exception_out->aggregate_type = semel_sqlite_text(prepared, 1, arena);
		exception_out->aggregate_id = semel_sqlite_text(prepared, 2, arena);
	}
	semel_sqlite_return_statement(tx, &find_failed, prepared);
	return status;
}

semel_status semel_sqlite_dead_return_to_outbox(semel_tx tx,
						const struct semel_dead_letter_row *entry,
						bool discard, semel_error *error)
{
	struct exception exception = { .state = "due", .replay = entry->replay_count + 1 };
	semel_status status = semel_sqlite_require_transaction(tx, reset_failed.what, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_arena *arena = semel_arena_new(1024);
	if (arena == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a replay");
	status = find_row(tx, entry->event.id, arena, &exception, error);
	if (status != SEMEL_OK)
		goto free_arena;
	if (exception.seq == 0) { /* the row was deleted; the dead letter still has the event */
		if (!discard)
			status = semel_sqlite_outbox_insert(tx, &entry->event, 1, error);
		goto free_arena;
	}
	if (discard) {
		status = remove_and_make_next_due(tx, &exception, error);
		goto free_arena;
	}
	status = run_with_seq(tx, &reset_failed, exception.seq, error);
	if (status != SEMEL_OK)
		goto free_arena;
	status = put(tx, &put_exception, &exception, error);
free_arena:
	semel_arena_free(arena);
	return status;
}
