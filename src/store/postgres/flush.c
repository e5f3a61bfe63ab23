/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of rows from the change stream, in large batches that the relay does not wait for.
 *
 * - One statement checks the fence of all lanes, marks, moves the low marks, renews the leases and
 *   records the stream's position: all of it, or nothing.
 * - The stream may deliver a row before its commit is visible: a row that is not visible yet is not
 *   marked, the position is not recorded, and the whole batch is sent again. Before that, the
 *   visibility of its transactions is checked: if all are visible, a missing row was deleted.
 * - The statement is durable once its answer was read, and so is everything that our other
 *   connections have committed before, since the server's WAL has one order.
 */
#include "store/postgres/changes.h"

#include "base/error.h"
#include "observe/log.h"

#include <poll.h>

static const struct semel_pg_statement flush_rows = {
	"mark events as published",
	"WITH fence AS (UPDATE semel_lease l SET low_seq = greatest(l.low_seq, c.low_seq),"
	" unmarked_seq = CASE WHEN $14 THEN l.unmarked_seq"
	" ELSE greatest(l.unmarked_seq, c.low_seq) END, expires_at = $5::timestamptz"
	" FROM unnest($1::smallint[], $2::bigint[], $4::bigint[])"
	" AS c (lane, epoch, low_seq) WHERE l.lane = c.lane AND l.epoch = c.epoch AND l.owner = $3"
	" RETURNING l.lane),"
	" marked AS (UPDATE semel_outbox o SET status = 'PUBLISHED', published_at = $6::timestamptz"
	" FROM unnest($7::smallint[], $8::bigint[]) AS r (lane, seq), fence"
	" WHERE fence.lane = r.lane AND o.lane = r.lane AND o.seq = r.seq RETURNING 1),"
	" noted AS (UPDATE semel_slot SET position = greatest(position, $9::pg_lsn)"
	" WHERE name = $10 AND (SELECT count(*) FROM fence) = $11"
	" AND ($13 OR (SELECT count(*) FROM marked) = $12))"
	" SELECT (SELECT count(*) FROM fence), (SELECT count(*) FROM marked)"
};

static void collect_rows(struct semel_pg_changes *changes, const struct semel_flush *flush)
{
	semel_buffer_clear(&changes->flush.lanes);
	semel_buffer_clear(&changes->flush.epochs);
	semel_buffer_clear(&changes->flush.lows);
	semel_buffer_clear(&changes->flush.row_lanes);
	semel_buffer_clear(&changes->flush.row_seqs);
	for (size_t i = 0; i < flush->lease_count; i++) {
		semel_pg_array_int(&changes->flush.lanes, flush->leases[i].lane);
		semel_pg_array_int(&changes->flush.epochs, flush->leases[i].epoch);
		semel_pg_array_int(&changes->flush.lows, flush->low_seqs[i]);
	}
	for (size_t i = 0; i < flush->count; i++) {
		semel_pg_array_int(&changes->flush.row_lanes, flush->lanes[i]);
		semel_pg_array_int(&changes->flush.row_seqs, flush->seqs[i]);
	}
}

static void add_params(struct semel_pg_changes *changes, const struct semel_flush *flush,
		       const char *position, struct semel_pg_params *params)
{
	semel_pg_add_array(params, &changes->flush.lanes);
	semel_pg_add_array(params, &changes->flush.epochs);
	semel_pg_add_string(params, flush->leases[0].owner);
	semel_pg_add_array(params, &changes->flush.lows);
	semel_pg_add_time(params, semel_pg_clock_to_server(semel_pg_tx(changes->statement_store),
							   flush->expires_at_ms));
	semel_pg_add_time(params, flush->now_ms);
	semel_pg_add_array(params, &changes->flush.row_lanes);
	semel_pg_add_array(params, &changes->flush.row_seqs);
	semel_pg_add_string(params, position);
	semel_pg_add_string(params, changes->slot);
	semel_pg_add_int(params, (int64_t)flush->lease_count);
	semel_pg_add_int(params, (int64_t)flush->count);
	semel_pg_add_bool(params, changes->flush.all_visible);
	semel_pg_add_bool(params, flush->marks);
}

static bool are_visible(const struct semel_pg_changes *changes, const struct semel_flush *flush)
{
	for (size_t i = 0; i < flush->count; i++)
		if ((i == 0 || flush->xids[i] != flush->xids[i - 1]) &&
		    !semel_pg_visible_includes(changes, flush->xids[i]))
			return false;
	return true;
}

/* The snapshot of the statement itself is newer, and sees at least as much. */
static semel_status check_visibility(struct semel_pg_changes *changes,
				     const struct semel_flush *flush, semel_error *error)
{
	changes->flush.all_visible = false;
	if (!flush->again)
		return SEMEL_OK;
	semel_status status = semel_pg_visible_refresh(changes, error);
	changes->flush.all_visible = status == SEMEL_OK && are_visible(changes, flush);
	return status;
}

semel_status semel_pg_flush_send(struct semel_changes *base, const struct semel_flush *flush,
				 semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	struct semel_pg_params params = { 0 };
	char position[24];
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	status = check_visibility(changes, flush, error);
	if (status != SEMEL_OK)
		return status;
	collect_rows(changes, flush);
	semel_pg_lsn_format(flush->position, position);
	add_params(changes, flush, position, &params);
	status = semel_pg_send(semel_pg_of(changes->statement_store), &flush_rows, &params, error);
	changes->flush.lease_count = flush->lease_count;
	changes->flush.row_count = flush->count;
	changes->flush.sent = status == SEMEL_OK;
	changes->flush.answered = false;
	return semel_pg_changes_failed(changes, status);
}

static semel_status evaluate(struct semel_pg_changes *changes, PGresult *result, semel_error *error)
{
	PGconn *connection = semel_pg_of(changes->statement_store)->connection;
	if (semel_libpq.resultStatus(result) != PGRES_TUPLES_OK)
		return semel_pg_error(connection, result, flush_rows.what, error);
	if ((size_t)semel_pg_int(result, 0, 0) != changes->flush.lease_count)
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "another relay has taken the lanes");
	if ((size_t)semel_pg_int(result, 0, 1) == changes->flush.row_count)
		return SEMEL_OK;
	if (!changes->flush.all_visible)
		return semel_error_set(error, SEMEL_NOT_FINISHED,
				       "only %s of %zu events are visible yet",
				       semel_pg_value(result, 0, 1), changes->flush.row_count);
	semel_log_detail(
		SEMEL_LOG_INFO,
		"published events were deleted from the outbox before they were marked", "%lld",
		(long long)changes->flush.row_count - (long long)semel_pg_int(result, 0, 1));
	return SEMEL_OK;
}

/* Reads the answer; waits for it if it has not arrived. */
static void read_answer(struct semel_pg_changes *changes)
{
	PGconn *connection = semel_pg_of(changes->statement_store)->connection;
	PGresult *result = semel_libpq.getResult(connection);
	changes->flush.error = (semel_error){ .status = SEMEL_OK };
	changes->flush.status = evaluate(changes, result, &changes->flush.error);
	while (result != NULL) {
		semel_pg_clear(result);
		result = semel_libpq.getResult(connection);
	}
	changes->flush.answered = true;
}

static void await_answer(PGconn *connection, int64_t wait_ms)
{
	struct pollfd answer = { .fd = semel_libpq.socket(connection), .events = POLLIN };
	(void)poll(&answer, 1, (int)wait_ms);
}

void semel_pg_flush_await(struct semel_pg_changes *changes)
{
	if (changes->flush.sent && !changes->flush.answered)
		read_answer(changes);
}

semel_status semel_pg_flush_poll(struct semel_changes *base, int64_t wait_ms, bool *done_out,
				 semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	*done_out = false;
	if (changes->flush.sent && !changes->flush.answered) {
		PGconn *connection = semel_pg_of(changes->statement_store)->connection;
		if (wait_ms > 0)
			await_answer(connection, wait_ms);
		bool alive = semel_libpq.consumeInput(connection) != 0;
		if (wait_ms < 0 || !alive || !semel_libpq.isBusy(connection))
			read_answer(changes);
	}
	if (!changes->flush.answered)
		return SEMEL_OK;
	changes->flush.sent = changes->flush.answered = false;
	*done_out = changes->flush.status == SEMEL_OK;
	if (!*done_out)
		semel_error_set(error, changes->flush.status, "%s", changes->flush.error.text);
	return semel_pg_changes_failed(changes, changes->flush.status);
}

void semel_pg_flush_free(struct semel_pg_changes *changes)
{
	semel_buffer_free(&changes->flush.lanes);
	semel_buffer_free(&changes->flush.epochs);
	semel_buffer_free(&changes->flush.lows);
	semel_buffer_free(&changes->flush.row_lanes);
	semel_buffer_free(&changes->flush.row_seqs);
}
