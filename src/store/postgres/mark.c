/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the outcome of events that the relay offered to the broker.
 *
 * - The fence is checked in the transaction that marks: a relay that lost its lane changes nothing.
 * - An exception holds the later events of its aggregate: those committed later, where the order of
 *   commits is known (store/outbox.h, commit_order), otherwise those with higher numbers. Removing
 *   it makes the next exception of the aggregate due in the same transaction, so an aggregate never
 *   waits for an exception that no longer exists.
 * - A FAILED event and its dead letter are written together.
 * - The exceptions of a lane are changed only under the lock of its lease, which a relay takes with
 *   its fence: so no event is parked behind an exception that is removed at the same time.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "base/wake.h"
#include "observe/log.h"
#include "store/rules.h"

#define VISIBLE_MS 20

/* The common case: the confirmed rows of a run, in one statement that is its own transaction. */
static const struct semel_pg_statement mark_run = {
	"mark events as published",
	"WITH fence AS (UPDATE semel_lease l SET low_seq = greatest(l.low_seq, c.low_seq),"
	" expires_at = $5::timestamptz FROM unnest($1::smallint[], $2::bigint[], $4::bigint[])"
	" AS c (lane, epoch, low_seq) WHERE l.lane = c.lane AND l.epoch = c.epoch AND l.owner = $3"
	" RETURNING l.lane, pg_current_xact_id()::text::bigint AS xid),"
	" marked AS (UPDATE semel_outbox o SET status = 'PUBLISHED', published_at = $6::timestamptz"
	" FROM unnest($7::smallint[], $8::bigint[]) AS r (lane, seq), fence"
	" WHERE fence.lane = r.lane AND o.lane = r.lane AND o.seq = r.seq)"
	" SELECT lane, xid FROM fence"
};
static const struct semel_pg_statement mark_refused = {
	"mark a refused event",
	"UPDATE semel_outbox SET status = $3, attempts = $4, next_attempt_at = $5::timestamptz,"
	" last_error = $6 WHERE lane = $1 AND seq = $2"
};
/* The exceptions of the aggregate that precede an event with the number $2 and the place p. */
#define EARLIER_EXCEPTIONS(p)                                                                      \
	" FROM semel_outbox_exception e WHERE e.aggregate_type = $3 AND e.aggregate_id = $4"       \
	" AND CASE WHEN " p " > 0 OR (" p " < 0 AND e.place < 0)"                                  \
	" THEN (e.place, e.seq) < (" p ", $2) ELSE e.seq < $2 END"
/* Exceptions are ordered by (place, seq): the new one is placed after all that hold it, whichever
 * comparison showed that they do. */
#define PLACE(p)                                                                                   \
	"(SELECT CASE WHEN bool_or((e.place, e.seq) > (" p ", $2)) THEN max(e.place) + 1"          \
	" ELSE " p " END" EARLIER_EXCEPTIONS(p) ")"

static const struct semel_pg_statement put_exception = {
	"write an exception",
	"INSERT INTO semel_outbox_exception AS x"
	" (lane, seq, aggregate_type, aggregate_id, state, due_at, blocks, replay, place)"
	" VALUES ($1, $2, $3, $4, $5, $6::timestamptz, $7, $8, " PLACE(
		"$9::bigint") ") ON CONFLICT (lane, seq) DO UPDATE"
			      " SET state = excluded.state, due_at = excluded.due_at, blocks = "
			      "excluded.blocks,"
			      " replay = greatest(x.replay, excluded.replay)"
};
/* An event without an earlier exception becomes due at once. */
static const struct semel_pg_statement park_exception = {
	"park an event",
	"INSERT INTO semel_outbox_exception (lane, seq, aggregate_type, "
	"aggregate_id, state, place)"
	" SELECT $1::smallint, $2::bigint, $3::text, $4::text, CASE WHEN EXISTS "
	"(SELECT 1" EARLIER_EXCEPTIONS("$5::bigint") ") THEN 'parked' ELSE 'due' END, " PLACE(
		"$5::bigint") " ON CONFLICT (lane, seq) DO UPDATE SET state = "
			      "excluded.state, due_at = NULL"
};
static const struct semel_pg_statement remove_exception = {
	"remove an exception", "DELETE FROM semel_outbox_exception WHERE lane = $1 AND seq = $2"
};
static const struct semel_pg_statement make_next_due = {
	"make the next event of an aggregate due",
	"UPDATE semel_outbox_exception SET state = 'due' WHERE state = 'parked'"
	" AND aggregate_type = $1 AND aggregate_id = $2 AND seq = (SELECT seq"
	" FROM semel_outbox_exception WHERE aggregate_type = $1 AND aggregate_id = $2"
	" ORDER BY aggregate_type, aggregate_id, place, seq LIMIT 1)"
};

/* ---- exceptions ------------------------------------------------------------------------------ */

struct exception {
	int32_t lane;
	int64_t seq;
	struct semel_text aggregate_type, aggregate_id;
	const char *state;
	int64_t due_ms;
	bool blocks;
	uint32_t replay;
	int64_t commit_order;
};

static struct exception exception_of(const struct semel_lease *lease,
				     const struct semel_outbox_row *row, const char *state)
{
	return (struct exception){ .lane = lease->lane,
				   .seq = row->seq,
				   .aggregate_type = row->event.aggregate_type,
				   .aggregate_id = row->event.aggregate_id,
				   .state = state,
				   .replay = row->replay,
				   .commit_order = row->commit_order };
}

static void add_row_key(struct semel_pg_params *params, const struct exception *exception)
{
	semel_pg_add_int(params, exception->lane);
	semel_pg_add_int(params, exception->seq);
}

static void add_aggregate(struct semel_pg_params *params, const struct exception *exception)
{
	semel_pg_add_text(params, exception->aggregate_type);
	semel_pg_add_text(params, exception->aggregate_id);
}

static semel_status put(semel_tx tx, const struct exception *exception, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	add_row_key(&params, exception);
	add_aggregate(&params, exception);
	semel_pg_add_string(&params, exception->state);
	semel_pg_add_time(&params, exception->due_ms);
	semel_pg_add_bool(&params, exception->blocks);
	semel_pg_add_int(&params, exception->replay);
	semel_pg_add_int(&params, exception->commit_order);
	return semel_pg_run(tx, &put_exception, &params, NULL, error);
}

static semel_status park(semel_tx tx, const struct exception *exception, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	add_row_key(&params, exception);
	add_aggregate(&params, exception);
	semel_pg_add_int(&params, exception->commit_order);
	return semel_pg_run(tx, &park_exception, &params, NULL, error);
}

/* Removes the exception; the next one of its aggregate becomes due. */
static semel_status remove_and_make_next_due(semel_tx tx, const struct exception *exception,
					     semel_error *error)
{
	struct semel_pg_params key = { 0 }, aggregate = { 0 };
	add_row_key(&key, exception);
	add_aggregate(&aggregate, exception);
	semel_status status = semel_pg_run(tx, &remove_exception, &key, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_run(tx, &make_next_due, &aggregate, NULL, error);
}

static semel_status try_refusal(semel_tx tx, const struct semel_mark *mark,
				const struct exception *exception, const char *state,
				uint64_t *changed_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	add_row_key(&params, exception);
	semel_pg_add_string(&params, state);
	semel_pg_add_int(&params, mark->attempts);
	semel_pg_add_time(&params, mark->kind == SEMEL_MARK_RETRY ? mark->due_ms : 0);
	semel_pg_add_string(&params, mark->reason);
	return semel_pg_change(tx, &mark_refused, &params, changed_out, error);
}

/* The change stream delivers a commit shortly before it is visible. The lease is locked here, so a
 * longer wait is left to the caller, between two calls. */
static semel_status record_refusal(semel_tx tx, const struct semel_mark *mark,
				   const struct exception *exception, const char *state,
				   bool accept_invisible, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(semel_tx_env(tx)) + VISIBLE_MS;
	uint64_t changed = 0;
	semel_status status = try_refusal(tx, mark, exception, state, &changed, error);
	while (status == SEMEL_OK && changed == 0 && semel_steady_ms(semel_tx_env(tx)) < until_ms) {
		semel_env_sleep_ms(semel_tx_env(tx), 2);
		status = try_refusal(tx, mark, exception, state, &changed, error);
	}
	if (status != SEMEL_OK || changed > 0)
		return status;
	if (!accept_invisible)
		return semel_error_set(error, SEMEL_NOT_FINISHED,
				       "the refused event %s is not visible in the outbox yet",
				       semel_text_shown(mark->row->event.id));
	semel_log(SEMEL_LOG_WARN, "refused event not found in the outbox, its row is not marked",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(mark->row->event.id),
					      .attempt = mark->attempts,
					      .error = mark->reason });
	return SEMEL_OK;
}

static semel_status mark_failed(semel_tx tx, const struct semel_mark *mark,
				struct exception *exception, const struct semel_mark_batch *batch,
				semel_error *error)
{
	exception->state = "failed";
	exception->blocks = mark->blocks;
	semel_status status =
		record_refusal(tx, mark, exception, "FAILED", batch->accept_invisible, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_dead_add_refused(tx, mark, batch->now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return mark->holds ? put(tx, exception, error)
			   : remove_and_make_next_due(tx, exception, error);
}

static semel_status mark_other(semel_tx tx, const struct semel_lease *lease,
			       const struct semel_mark *mark, const struct semel_mark_batch *batch,
			       semel_error *error)
{
	struct exception exception = exception_of(lease, mark->row, "retry");
	semel_status status = SEMEL_OK;
	switch (mark->kind) {
	case SEMEL_MARK_PUBLISHED:
		return remove_and_make_next_due(tx, &exception, error);
	case SEMEL_MARK_RETRY:
		exception.due_ms = mark->due_ms;
		status =
			record_refusal(tx, mark, &exception, "NEW", batch->accept_invisible, error);
		if (status != SEMEL_OK)
			return status;
		return put(tx, &exception, error);
	case SEMEL_MARK_FAILED:
		return mark_failed(tx, mark, &exception, batch, error);
	case SEMEL_MARK_PARKED:
		return park(tx, &exception, error);
	}
	return semel_error_set(error, SEMEL_INTERNAL, "a mark of unknown kind");
}

/* ---- marking a batch ------------------------------------------------------------------------- */

static bool is_plain(const struct semel_mark *mark)
{
	return mark->kind == SEMEL_MARK_PUBLISHED && !mark->row->exception;
}

struct mark_arrays {
	struct semel_buffer lanes, epochs, lows, row_lanes, row_seqs;
};

static void collect_marks(struct mark_arrays *arrays, const struct semel_lane_marks *marks)
{
	const struct semel_mark_batch *batch = &marks->batch;
	semel_pg_array_int(&arrays->lanes, marks->lease->lane);
	semel_pg_array_int(&arrays->epochs, marks->lease->epoch);
	semel_pg_array_int(&arrays->lows, batch->low_seq);
	for (size_t i = 0; i < batch->count; i++)
		if (batch->marks[i].kind == SEMEL_MARK_PUBLISHED) {
			semel_pg_array_int(&arrays->row_lanes, marks->lease->lane);
			semel_pg_array_int(&arrays->row_seqs, batch->marks[i].row->seq);
		}
}

static void free_arrays(struct mark_arrays *arrays)
{
	semel_buffer_free(&arrays->lanes);
	semel_buffer_free(&arrays->epochs);
	semel_buffer_free(&arrays->lows);
	semel_buffer_free(&arrays->row_lanes);
	semel_buffer_free(&arrays->row_seqs);
}

/* The result has the lanes whose fence was accepted; all others are lost. */
static void find_lost(const PGresult *result, struct semel_lane_marks *marks, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		marks[i].lost = true;
		for (int at = 0; at < semel_pg_rows(result) && marks[i].lost; at++)
			marks[i].lost = semel_pg_int(result, at, 0) != marks[i].lease->lane;
	}
}

static semel_status mark_runs(semel_store *store, struct semel_lane_marks *marks, size_t count,
			      semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct mark_arrays arrays = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++)
		collect_marks(&arrays, &marks[i]);
	semel_pg_add_array(&params, &arrays.lanes);
	semel_pg_add_array(&params, &arrays.epochs);
	semel_pg_add_string(&params, marks[0].lease->owner);
	semel_pg_add_array(&params, &arrays.lows);
	semel_pg_add_time(&params, semel_pg_clock_to_server(semel_pg_tx(store),
							    marks[0].batch.expires_at_ms));
	semel_pg_add_time(&params, marks[0].batch.now_ms);
	semel_pg_add_array(&params, &arrays.row_lanes);
	semel_pg_add_array(&params, &arrays.row_seqs);
	semel_status status = semel_pg_run(semel_pg_tx(store), &mark_run, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		semel_pg_watermark_record_xid(semel_pg_of(store),
					      (uint64_t)semel_pg_int(result, 0, 1));
	find_lost(result, marks, count);
	semel_pg_clear(result);
	free_arrays(&arrays);
	return status;
}

static semel_status mark_published(semel_store *store, struct semel_lease *lease,
				   const struct semel_mark_batch *batch, semel_error *error)
{
	struct semel_lane_marks marks = { .lease = lease, .batch = *batch };
	semel_status status = mark_runs(store, &marks, 1, error);
	if (status != SEMEL_OK || !marks.lost)
		return status;
	return semel_error_set(
		error, SEMEL_LEASE_LOST,
		"lane %d was taken over by another relay (our epoch: %lld); nothing was marked",
		(int)lease->lane, (long long)lease->epoch);
}

static void renewed(struct semel_lease *lease, const struct semel_mark_batch *batch)
{
	lease->expires_at_ms = batch->expires_at_ms;
	if (batch->low_seq > lease->low_seq)
		lease->low_seq = batch->low_seq;
}

semel_status semel_pg_outbox_mark_lanes(semel_store *store, struct semel_lane_marks *marks,
					size_t count, semel_error *error)
{
	semel_status status = mark_runs(store, marks, count, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		if (!marks[i].lost)
			renewed(marks[i].lease, &marks[i].batch);
	return status;
}

static semel_status mark_all(semel_store *store, struct semel_lease *lease,
			     const struct semel_mark_batch *batch, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	bool entered = false;
	semel_status status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = mark_published(store, lease, batch, error);
	for (size_t i = 0; i < batch->count && status == SEMEL_OK; i++)
		if (!is_plain(&batch->marks[i]))
			status = mark_other(tx, lease, &batch->marks[i], batch, error);
	return semel_sql_leave(store, entered, status, error);
}

semel_status semel_pg_outbox_mark(semel_store *store, struct semel_lease *lease,
				  const struct semel_mark_batch *batch, semel_error *error)
{
	size_t plain = 0;
	while (plain < batch->count && is_plain(&batch->marks[plain]))
		plain++;
	semel_status status = plain == batch->count ? mark_published(store, lease, batch, error)
						    : mark_all(store, lease, batch, error);
	if (status != SEMEL_OK)
		return status;
	renewed(lease, batch);
	return SEMEL_OK;
}

/* ---- dead letters of the relay that an operator replays or discards ----------------------------
 */

static const struct semel_pg_statement find_failed = {
	"find the failed event",
	"SELECT lane, seq, aggregate_type, aggregate_id FROM semel_outbox WHERE id = $1"
};
static const struct semel_pg_statement reset_failed = {
	"reset the event",
	"UPDATE semel_outbox SET status = 'NEW', attempts = 0, next_attempt_at = NULL"
	" WHERE lane = $1 AND seq = $2"
};

static const struct semel_pg_statement lock_lane = {
	"lock the lane", "SELECT 1 FROM semel_lease WHERE lane = $1 FOR UPDATE"
};

static semel_status find_row(semel_tx tx, struct semel_text id, struct semel_arena *arena,
			     struct exception *exception_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, id);
	semel_status status = semel_pg_run(tx, &find_failed, &params, &result, error);
	if (semel_pg_rows(result) > 0) {
		exception_out->lane = (int32_t)semel_pg_int(result, 0, 0);
		exception_out->seq = semel_pg_int(result, 0, 1);
		exception_out->aggregate_type = semel_pg_text(result, 0, 2, arena);
		exception_out->aggregate_id = semel_pg_text(result, 0, 3, arena);
	}
	semel_pg_clear(result);
	return status;
}

static semel_status lock_lease(semel_tx tx, int32_t lane, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_int(&params, lane);
	return semel_pg_run(tx, &lock_lane, &params, NULL, error);
}

/* Locks the lane of an event until the end of the transaction, if the event's row still exists. */
static semel_status lock_lane_of_event(semel_tx tx, struct semel_text event_id, semel_error *error)
{
	struct exception exception = { 0 };
	struct semel_arena *arena = semel_arena_new(1024);
	if (arena == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a dead letter");
	semel_status status = find_row(tx, event_id, arena, &exception, error);
	if (status != SEMEL_OK || exception.seq == 0)
		goto free_arena;
	status = lock_lease(tx, exception.lane, error);
free_arena:
	semel_arena_free(arena);
	return status;
}

static semel_status set_back(semel_tx tx, const struct exception *exception, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	add_row_key(&params, exception);
	semel_status status = semel_pg_run(tx, &reset_failed, &params, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return put(tx, exception, error);
}

semel_status semel_pg_dead_return_to_outbox(semel_tx tx, const struct semel_dead_letter_row *entry,
					    bool discard, semel_error *error)
{
	struct exception exception = { .state = "due", .replay = entry->replay_count + 1 };
	semel_status status = semel_pg_require_transaction(tx, reset_failed.what, error);
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
			status = semel_pg_outbox_insert(tx, &entry->event, 1, error);
		goto free_arena;
	}
	status = lock_lease(tx, exception.lane, error);
	if (status != SEMEL_OK)
		goto free_arena;
	status = discard ? remove_and_make_next_due(tx, &exception, error)
			 : set_back(tx, &exception, error);
free_arena:
	semel_arena_free(arena);
	return status;
}

/* The lane is locked before the letter, as wherever both are locked. */
semel_status semel_pg_dead_move(semel_tx tx, const struct semel_dead_letter_row *entry,
				enum semel_dead_status status, const char *reason, int64_t now_ms,
				semel_error *error)
{
	if (!semel_text_equals_string(entry->scope, SEMEL_SCOPE_RELAY))
		return semel_sql_dead_move(tx, entry, status, reason, now_ms, error);
	semel_status locked = semel_pg_require_transaction(tx, "move a dead letter", error);
	if (locked != SEMEL_OK)
		return locked;
	locked = lock_lane_of_event(tx, entry->event.id, error);
	if (locked != SEMEL_OK)
		return locked;
	return semel_sql_dead_move(tx, entry, status, reason, now_ms, error);
}
