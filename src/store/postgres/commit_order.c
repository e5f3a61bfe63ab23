/* SPDX-License-Identifier: Apache-2.0 */
/* Order of commits under polling, where the server keeps commit times (track_commit_timestamp).
 *
 * A transaction may draw its number, wait for the lock of another one that draws a higher number,
 * and commit after it. A batch is a range of numbers, so:
 * - Its rows are sent in the order of (place, seq). place is the time of the row's commit, of the
 *   transaction in its xmin: a row of the range was never updated. A transaction that waited for a
 *   lock commits after the lock was released, which is after the commit time of the other one was
 *   taken. A row without a time was committed before the server recorded commit times, or they
 *   have been discarded: such rows are first.
 * - A row beyond the range may have been committed before one inside. Let w be the earliest time
 *   at which one of the last ten rows read was written (committed_at: when its INSERT ran).
 *   Numbers beyond them are drawn later, so their commits are later than w, except for the time
 *   between a row's number and its committed_at, which are two expressions of one INSERT: SLACK_US
 *   allows for it. So rows beyond are read until w - SLACK_US is later than every commit of the
 *   batch, or there are no more: any row further on was committed after all rows that are sent
 *   now.
 * - Of each aggregate, as many rows are chosen as it has in the range: those that were committed
 *   first. So a batch is never empty, and no row that is left out precedes one that is sent. Rows
 *   left out stay above the cursor (complete_seq), and are read again.
 * - A row that the next statement sees and this one did not was committed later than all of these.
 *
 * All rows of one transaction have the same time, which is later than all of their committed_at:
 * with a large transaction, each batch would read all the rest of it. So the result of a read
 * beyond the range is stored for its lane (semel_pg_commit_bound): beyond from_seq, the last row
 * that was committed before `latest` (at least the end of the batch), and up to to_seq, where the
 * read has ended, nothing that is still to be sent was committed before `latest`, the latest commit
 * of the rows chosen. A later batch that ends within these bounds, or whose read has reached them,
 * and has no later commit than `latest`, needs no further read:
 * - A row that the read saw there was not committed before `latest`, so not before this batch. A
 *   row that was updated since has a later commit. An exception counts as still to be sent: it may
 *   become due again.
 * - A row that the read did not see became visible after the commit at `latest` did: it was
 *   committed after every row that has that time or an earlier one.
 * - A row beyond to_seq was committed after `latest`, as above; or the read reached the end of the
 *   table (INT64_MAX), and then the row was not seen. None of this depends on where a batch begins.
 * The bound is discarded with the connection, when the numbers went back (watermark.c: it may be
 * another table), and when a lane is rewound to a row that was changed manually (lease.c).
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "event/hash.h"

#include <stdlib.h>
#include <string.h>

#define SLACK_US 200000
#define FEW_ROWS 100 /* in the first read beyond a batch; four times as many in each later one */

/* A row of the range, or one beyond it that may have to precede the range. */
struct candidate {
	int64_t commit_order, seq;
	uint64_t aggregate; /* its hash */
	int32_t row;        /* in the batch; -1: beyond it */
	bool chosen;        /* for the batch */
};

struct candidates {
	struct candidate *all;
	size_t count, capacity;
};

/* ---- the order ------------------------------------------------------------------------------- */

static int compare_numbers(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int compare_commits(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;
	int order = compare_numbers(a->commit_order, b->commit_order);
	return order != 0 ? order : compare_numbers(a->seq, b->seq);
}

static int compare_aggregates(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;
	if (a->aggregate != b->aggregate)
		return a->aggregate < b->aggregate ? -1 : 1;
	return compare_commits(left, right);
}

/* Chooses, of each aggregate, as many rows as it has in the range: those that were committed first.
 * Returns the latest commit among them. */
static int64_t choose(struct candidates *candidates)
{
	int64_t latest = INT64_MIN;
	qsort(candidates->all, candidates->count, sizeof(*candidates->all), compare_aggregates);
	for (size_t first = 0, end = 0; first < candidates->count; first = end) {
		size_t row_count = 0;
		for (end = first;
		     end < candidates->count &&
		     candidates->all[end].aggregate == candidates->all[first].aggregate;
		     end++)
			row_count += candidates->all[end].row >= 0;
		for (size_t i = first; i < end; i++) {
			candidates->all[i].chosen = i < first + row_count;
			if (candidates->all[i].chosen && candidates->all[i].commit_order > latest)
				latest = candidates->all[i].commit_order;
		}
	}
	return latest;
}

static bool is_in_order(const struct semel_outbox_batch *batch)
{
	for (uint32_t i = 1; i < batch->count; i++)
		if (batch->rows[i].commit_order < batch->rows[i - 1].commit_order)
			return false;
	return true;
}

/* ---- rows beyond the range ------------------------------------------------------------------- */

#define WRITTEN SEMEL_PG_COMMIT_ORDER_OF("s.committed_at")

static const struct semel_pg_statement select_beyond = {
	"find earlier commits",
	"WITH s AS MATERIALIZED (SELECT o.seq, o.status, o.aggregate_type, o.aggregate_id,"
	" o.committed_at, " SEMEL_PG_COMMIT_ORDER(
		"o") " AS place FROM semel_outbox o"
		     " WHERE o.lane = $1 AND o.seq > $2 ORDER BY o.lane, o.seq LIMIT $4)"
		     " SELECT e.rows, e.last, e.written, e.earlier, c.seq, c.place, "
		     "c.aggregate_type, c.aggregate_id"
		     " FROM (SELECT count(*) AS rows, max(s.seq) AS last, max(s.seq)"
		     " FILTER (WHERE s.status = 'NEW' AND s.place < $3) AS earlier, "
		     "(SELECT min(" WRITTEN
		     ") FROM (SELECT s.committed_at FROM s ORDER BY s.seq DESC LIMIT 10) AS s) AS "
		     "written FROM s)"
		     " AS e LEFT JOIN (SELECT * FROM s WHERE s.status = 'NEW' AND s.place < $3"
		     " AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.lane = $1"
		     " AND x.seq = s.seq)) AS c ON true"
};
enum { ROWS, LAST, WRITTEN_AT, EARLIER, SEQ, PLACE, TYPE, ID };

static bool add_candidate(struct candidates *candidates, struct candidate candidate)
{
	if (candidates->count == candidates->capacity) {
		size_t capacity = candidates->capacity * 2;
		struct candidate *all =
			realloc(candidates->all, capacity * sizeof(*candidates->all));
		if (all == NULL)
			return false;
		candidates->all = all;
		candidates->capacity = capacity;
	}
	candidates->all[candidates->count++] = candidate;
	return true;
}

/* Only aggregates of the range count; candidates are sorted by aggregate up to known. */
static bool is_of_batch(const struct candidates *candidates, size_t known, uint64_t aggregate)
{
	size_t low = 0, high = known;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (candidates->all[middle].aggregate < aggregate)
			low = middle + 1;
		else
			high = middle;
	}
	return low < known && candidates->all[low].aggregate == aggregate;
}

static semel_status add_beyond(struct candidates *candidates, const PGresult *result,
			       semel_error *error)
{
	size_t known = candidates->count;
	for (int i = 0; i < semel_pg_rows(result); i++) {
		if (semel_pg_is_null(result, i, SEQ))
			continue;
		struct candidate found = {
			.commit_order = semel_pg_int(result, i, PLACE),
			.seq = semel_pg_int(result, i, SEQ),
			.row = -1,
			.aggregate =
				semel_hash_aggregate(semel_text_of(semel_pg_value(result, i, TYPE)),
						     semel_text_of(semel_pg_value(result, i, ID))),
		};
		if (is_of_batch(candidates, known, found.aggregate) &&
		    !add_candidate(candidates, found))
			return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch");
	}
	return SEMEL_OK;
}

bool semel_pg_is_bounded(const struct semel_pg_commit_bound *bound, int64_t end_seq, int64_t latest)
{
	return end_seq >= bound->from_seq && end_seq < bound->to_seq && latest <= bound->latest;
}

/* Reads rows beyond the batch until no later row can have been committed before the chosen rows. */
static semel_status read_beyond(struct semel_pg_store *store, int32_t lane, int64_t end_seq,
				struct candidates *candidates, semel_error *error)
{
	int64_t latest = choose(candidates), written = INT64_MIN, rows = FEW_ROWS;
	int64_t from_seq = end_seq;
	struct semel_pg_commit_bound *bound = &store->commit_bounds[lane];
	bool more = true, bounded = semel_pg_is_bounded(bound, end_seq, latest);
	while (more && !bounded && written < latest + SLACK_US) {
		struct semel_pg_params params = { 0 };
		PGresult *result = NULL;
		semel_pg_add_int(&params, lane);
		semel_pg_add_int(&params, end_seq);
		semel_pg_add_int(&params, latest);
		semel_pg_add_int(&params, rows);
		semel_status status = semel_pg_run(semel_pg_tx(&store->base), &select_beyond,
						   &params, &result, error);
		if (status != SEMEL_OK)
			return status;
		more = semel_pg_int(result, 0, ROWS) == rows;
		end_seq = semel_pg_int(result, 0, LAST);
		written = more ? semel_pg_int(result, 0, WRITTEN_AT) : written;
		if (!semel_pg_is_null(result, 0, EARLIER))
			from_seq = semel_pg_int(result, 0, EARLIER);
		status = add_beyond(candidates, result, error);
		semel_pg_clear(result);
		if (status != SEMEL_OK)
			return status;
		latest = choose(candidates);
		bounded = more && semel_pg_is_bounded(bound, end_seq, latest);
		rows *= 4;
	}
	if (!bounded)
		*bound = (struct semel_pg_commit_bound){ .from_seq = from_seq,
							 .to_seq = more ? end_seq : INT64_MAX,
							 .latest = latest };
	return SEMEL_OK;
}

/* ---- the batch ------------------------------------------------------------------------------- */

static bool collect_candidates(const struct semel_outbox_batch *batch,
			       struct candidates *candidates)
{
	candidates->capacity = batch->count + 16;
	candidates->all = malloc(candidates->capacity * sizeof(*candidates->all));
	if (candidates->all == NULL)
		return false;
	for (uint32_t i = 0; i < batch->count; i++) {
		const struct semel_event *event = &batch->rows[i].event;
		candidates->all[candidates->count++] = (struct candidate){
			.commit_order = batch->rows[i].commit_order,
			.seq = batch->rows[i].seq,
			.row = (int32_t)i,
			.aggregate =
				semel_hash_aggregate(event->aggregate_type, event->aggregate_id),
			.chosen = true,
		};
	}
	return true;
}

/* Rows left out are read again: the cursor does not pass them. */
static void leave_above_cursor(struct semel_outbox_batch *batch, int64_t seq)
{
	if (seq - 1 < batch->complete_seq)
		batch->complete_seq = seq - 1;
	batch->cut = true;
}

/* The chosen rows, in the order of their commits. Rows from beyond the range are fetched. */
static semel_status arrange(struct semel_pg_store *store, int32_t lane,
			    struct candidates *candidates, struct semel_outbox_batch *batch,
			    semel_error *error)
{
	struct semel_buffer beyond = { 0 };
	uint32_t count = 0;
	int64_t end_seq = batch->rows[batch->count - 1].seq;
	struct semel_outbox_row *rows =
		semel_arena_alloc(batch->arena, batch->count * sizeof(*rows));
	if (rows == NULL)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	qsort(candidates->all, candidates->count, sizeof(*candidates->all), compare_commits);
	for (size_t i = 0; i < candidates->count; i++) {
		const struct candidate *candidate = &candidates->all[i];
		if (!candidate->chosen && candidate->row >= 0)
			leave_above_cursor(batch, candidate->seq);
		if (!candidate->chosen)
			continue;
		if (candidate->row < 0) {
			leave_above_cursor(batch, end_seq + 1);
			semel_pg_array_int(&beyond, candidate->seq);
		}
		rows[count++] = candidate->row >= 0
					? batch->rows[candidate->row]
					: (struct semel_outbox_row){ .seq = candidate->seq };
	}
	memcpy(batch->rows, rows, count * sizeof(*rows));
	batch->count = count;
	batch->by_commit = true;
	semel_status status = SEMEL_OK;
	if (beyond.length > 0)
		status = semel_pg_outbox_fetch_seqs(store, lane, &beyond, batch, error);
	semel_buffer_free(&beyond);
	return status;
}

semel_status semel_pg_order_by_commit(struct semel_pg_store *store, int32_t lane, bool full,
				      struct semel_outbox_batch *batch, semel_error *error)
{
	struct candidates candidates = { 0 };
	semel_status status = SEMEL_OK;
	if (batch->count == 0 || (!full && is_in_order(batch)))
		return SEMEL_OK;
	if (!collect_candidates(batch, &candidates))
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	if (full) {
		status = read_beyond(store, lane, batch->rows[batch->count - 1].seq, &candidates,
				     error);
		if (status != SEMEL_OK)
			goto free_candidates;
	}
	if (candidates.count > batch->count || !is_in_order(batch))
		status = arrange(store, lane, &candidates, batch, error);

free_candidates:
	free(candidates.all);
	return status;
}
