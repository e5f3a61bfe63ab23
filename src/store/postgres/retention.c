/* SPDX-License-Identifier: Apache-2.0 */
/* Forgetting what is old enough, a bounded piece at a time, each in a transaction of its own, so
 * that nobody waits for longer than a moment.
 *
 * - Only settled rows, finished claims and dead letters without followers go.
 * - An event goes by when it was committed, not by its own time. The boundary that is remembered is
 *   the newest own time of what went: a claim knows no other.
 * - A claim goes by the week of its event and by when it was first seen, whichever is later: an
 *   event may be old, or have no time at all, and come again tomorrow all the same.
 * - A week of the inbox is dropped with its partition; what lies in the default one is deleted.
 * - A replay that was asked for and not processed yet keeps its dead letter.
 * - Whoever parks behind a head has the lock of its hold, or of its lane's lease. A statement that
 *   waited for a lock goes on with what it saw before: so first all locks are taken, in the order
 *   hold, lease, letter, and the next statement decides.
 * - A dead letter leaves a FAILED claim behind: its event stays accounted for, and does not run by
 *   itself, for as long as the inbox remembers.
 * - What was forgotten is remembered as a boundary (semel_meta), written in the same transaction.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "fault/plant.h"
#include "observe/log.h"

#include <stddef.h>
#include <string.h>

#define ROWS_PER_STEP 5000
#define DEAD_PER_STEP 500

#define COMMITTED_AT SEMEL_PG_COMMITTED_AT("o")

/* Published, or given up with its dead letter gone too. */
#define SETTLED_ROW                                                                                \
	"(status = 'PUBLISHED' OR (status = 'FAILED' AND NOT EXISTS (SELECT 1"                     \
	" FROM semel_dead_letter l WHERE l.scope = 'relay' AND l.event_id = o.id"                  \
	" AND l.parked_behind IS NULL)))"

static const struct semel_pg_query outbox_span = {
	"look for old rows of the outbox",
	"SELECT coalesce(max(seq), 0), count(*), count(*) FILTER (WHERE committed_at <"
	" $4::timestamptz) FROM (SELECT seq, " COMMITTED_AT " AS committed_at FROM semel_outbox o"
	" WHERE lane = $1 AND seq > $2 ORDER BY lane, seq LIMIT $3) AS span"
};
/* $1 the horizon, $2 the lane, $3 and $4 the span. */
static const struct semel_pg_query outbox_delete = {
	"forget old rows of the outbox",
	"WITH gone AS (DELETE FROM semel_outbox o WHERE o.lane = $2 AND o.seq > $3 AND o.seq <= $4"
	" AND " SETTLED_ROW " AND " COMMITTED_AT " < $1::timestamptz RETURNING created_at),"
	" noted AS (INSERT INTO semel_meta AS m (name, value)"
	" SELECT 'outbox_pruned_until', max(created_at) FROM gone HAVING count(*) > 0"
	" ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value))"
	" SELECT count(*) FROM gone"
};
/* $1 is a Monday, as a week_start. */
#define HORIZON   "($1::date::timestamp AT TIME ZONE 'UTC')"
#define OLD_CLAIM "status <> 'CLAIMED' AND week_start < $1::date AND first_seen_at < " HORIZON

/* The LIMIT keeps the inner question one about a single partition. */
static const struct semel_pg_query old_partition = {
	"look for old weeks of the inbox",
	"SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
	" WHERE i.inhparent = 'semel_inbox'::regclass AND c.relname ~ '^semel_inbox_[0-9]{8}$'"
	" AND to_date(right(c.relname, 8), 'YYYYMMDD') < $1::date AND NOT coalesce((SELECT true"
	" FROM semel_inbox y WHERE y.week_start = to_date(right(c.relname, 8), 'YYYYMMDD')"
	" AND y.first_seen_at >= " HORIZON " LIMIT 1), false) ORDER BY c.relname LIMIT 1"
};
static const struct semel_pg_query drop_partition = { "forget a week of the inbox",
						      "SELECT semel_inbox_drop($2, " HORIZON ")" };
static const struct semel_pg_query inbox_delete = {
	"forget old claims",
	"DELETE FROM semel_inbox_other WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel_inbox_other"
	" WHERE " OLD_CLAIM " LIMIT $2))"
};
static const struct semel_pg_query key_delete = {
	"forget old business keys",
	"DELETE FROM semel_inbox_key WHERE ctid = ANY (ARRAY(SELECT k.ctid FROM semel_inbox_key k"
	" WHERE k.first_seen_at < $1::timestamptz AND NOT EXISTS (SELECT 1 FROM semel_inbox i"
	" WHERE i.scope = k.scope AND i.event_id = k.event_id) LIMIT $2))"
};
static const struct semel_pg_query note_known_since = {
	"note what the inbox forgets",
	"INSERT INTO semel_meta AS m (name, value) VALUES ('inbox_known_since',"
	" $1::timestamp AT TIME ZONE 'UTC')"
	" ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)"
};
static const struct semel_pg_query prepare_inbox = { "make the inbox's partitions",
						     "SELECT semel_inbox_prepare()" };

/* $1 and $2: the piece that is looked at; $2 NULL: from the beginning. */
#define OLD_BY_TIME                                                                                \
	" d.parked_behind IS NULL AND d.failed_at < $1::timestamptz"                               \
	" AND ($2::timestamptz IS NULL OR d.failed_at >= $2::timestamptz)"

/* Followers wait behind the entry, or behind what it holds. */
#define OLD_DEAD_LETTER                                                                            \
	OLD_BY_TIME                                                                                \
	" AND NOT (d.status = 'REPLAYED' AND d.settled_at IS NULL) AND NOT EXISTS (SELECT 1"       \
	" FROM semel_dead_letter f WHERE f.scope = d.scope"                                        \
	" AND f.aggregate_type = d.aggregate_type AND f.aggregate_id = d.aggregate_id"             \
	" AND f.parked_behind IS NOT NULL)"                                                        \
	" AND NOT EXISTS (SELECT 1 FROM semel_hold h JOIN semel_dead_letter f"                     \
	" ON f.scope = h.scope AND f.topic = h.aggregate_id AND f.parked_behind IS NOT NULL"       \
	" WHERE h.scope = d.scope AND h.aggregate_type = '' AND h.aggregate_id = d.topic"          \
	" AND h.head_id = d.event_id)"                                                             \
	" AND NOT (d.scope = 'relay' AND d.status = 'PENDING' AND EXISTS (SELECT 1"                \
	" FROM semel_outbox_exception x WHERE x.aggregate_type = d.aggregate_type"                 \
	" AND x.aggregate_id = d.aggregate_id AND x.state = 'parked'))"

static const struct semel_pg_query dead_holds_lock = {
	"lock the holds of old dead letters",
	"SELECT 1 FROM semel_hold w WHERE w.state = 'dead' AND EXISTS (SELECT 1"
	" FROM semel_dead_letter d WHERE d.scope = w.scope AND d.event_id = w.head_id"
	" AND" OLD_BY_TIME ") ORDER BY scope, aggregate_type, aggregate_id FOR UPDATE"
};
static const struct semel_pg_query dead_lanes_lock = {
	"lock the lanes of old dead letters",
	"SELECT 1 FROM semel_lease WHERE lane IN (SELECT q.lane FROM semel_outbox_exception q"
	" JOIN semel_outbox o ON q.lane = o.lane AND q.seq = o.seq JOIN semel_dead_letter d"
	" ON o.id = d.event_id WHERE q.state = 'failed' AND d.scope = 'relay'"
	" AND" OLD_BY_TIME ") ORDER BY lane FOR UPDATE"
};
static const struct semel_pg_query dead_lock = {
	"lock old dead letters", "SELECT 1 FROM semel_dead_letter d WHERE" OLD_BY_TIME
				 " ORDER BY failed_at, entry_id FOR UPDATE"
};
static const struct semel_pg_query dead_holds_delete = {
	"lift the holds of old dead letters",
	"DELETE FROM semel_hold w WHERE w.state = 'dead' AND EXISTS (SELECT 1"
	" FROM semel_dead_letter d WHERE d.scope = w.scope AND d.event_id = w.head_id"
	" AND" OLD_DEAD_LETTER ")"
};
static const struct semel_pg_query dead_exceptions_delete = {
	"lift the exceptions of old dead letters",
	"DELETE FROM semel_outbox_exception q USING semel_dead_letter d, semel_outbox o"
	" WHERE q.state = 'failed' AND q.lane = o.lane AND q.seq = o.seq AND o.id = d.event_id"
	" AND d.scope = 'relay' AND d.status = 'PENDING' AND" OLD_DEAD_LETTER
};
static const struct semel_pg_query dead_note = {
	"note which dead letters are forgotten",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at,"
	" topic, error_code, replay) SELECT d.scope, d.event_id, date_trunc('week',"
	" coalesce(d.event_time, 'epoch') AT TIME ZONE 'UTC')::date, 'FAILED', d.failed_at,"
	" d.failed_at, coalesce(d.topic, ''), 'dead-letter-pruned', d.replay_count"
	" FROM semel_dead_letter d WHERE d.event_id IS NOT NULL AND" OLD_DEAD_LETTER
	" ON CONFLICT DO NOTHING"
};
static const struct semel_pg_query dead_delete = {
	"forget old dead letters", "DELETE FROM semel_dead_letter d WHERE" OLD_DEAD_LETTER
};
/* The end of the next piece: so many entries behind the end of the last one. */
static const struct semel_pg_query dead_span = {
	"look for old dead letters",
	"SELECT " SEMEL_PG_MS("failed_at") " + 1 FROM semel_dead_letter WHERE parked_behind IS NULL"
					   " AND failed_at < $1::timestamptz AND ($2::timestamptz "
					   "IS NULL OR failed_at >= $2)"
					   " ORDER BY failed_at, entry_id OFFSET $3 LIMIT 1"
};

/* The dry run counts with one statement each. */
static const struct semel_pg_query outbox_count = {
	"count old rows of the outbox", "SELECT count(*) FROM semel_outbox o WHERE " SETTLED_ROW
					" AND " COMMITTED_AT " < $1::timestamptz"
};
static const struct semel_pg_query inbox_count = {
	"count old claims", "SELECT count(*) FROM semel_inbox WHERE " OLD_CLAIM
};
static const struct semel_pg_query dead_count = {
	"count old dead letters",
	"SELECT count(*) FROM semel_dead_letter d WHERE" OLD_DEAD_LETTER
};

/* ---- steps ----------------------------------------------------------------------------------- */

/* The statement's first column, 0 without a row. */
static semel_status ask(semel_tx tx, const struct semel_pg_query *query,
			struct semel_pg_params *params, uint64_t *number_out, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = semel_pg_run(tx, query, params, &result, error);
	*number_out = semel_pg_rows(result) > 0 ? (uint64_t)semel_pg_int(result, 0, 0) : 0;
	semel_pg_clear(result);
	return status;
}

/* Dead letters that failed since from_ms (0: ever) and before until_ms. */
struct piece {
	int64_t from_ms, until_ms;
};

static semel_status change_piece(semel_tx tx, const struct semel_pg_query *query,
				 struct piece piece, uint64_t *changes_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_time(&params, piece.until_ms);
	semel_pg_add_time(&params, piece.from_ms);
	return semel_pg_change(tx, query, &params, changes_out, error);
}

/* With the horizon (0: none, so nothing is older) as the only parameter. */
static semel_status count_before(semel_tx tx, const struct semel_pg_query *query, int64_t time_ms,
				 uint64_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_time(&params, time_ms);
	return ask(tx, query, &params, count_out, error);
}

/* At most ROWS_PER_STEP of those before the horizon; *done_out: these were the last. */
static semel_status delete_some(semel_tx tx, const struct semel_pg_query *query,
				struct semel_pg_params *params, uint64_t *count_out, bool *done_out,
				semel_error *error)
{
	semel_pg_add_int(params, ROWS_PER_STEP);
	semel_status status = semel_pg_change(tx, query, params, count_out, error);
	*done_out = *count_out < ROWS_PER_STEP;
	return status;
}

/* One piece of one kind. *done_out: there is no more of it. */
typedef semel_status (*prune_step)(struct semel_pg_store *store,
				   const struct semel_retention_cutoffs *cutoffs,
				   struct semel_prune_counts *counts, bool *done_out,
				   semel_error *error);

struct span {
	int64_t last;
	bool more; /* the lane goes on behind it */
	bool old;  /* something in it is old enough */
};

static semel_status find_span(struct semel_pg_store *store, int64_t horizon_ms, struct span *span,
			      semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, store->prune.lane);
	semel_pg_add_int(&params, store->prune.seq);
	semel_pg_add_int(&params, ROWS_PER_STEP);
	semel_pg_add_time(&params, horizon_ms);
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &outbox_span, &params, &result, error);
	if (status == SEMEL_OK) {
		span->last = semel_pg_int(result, 0, 0);
		span->more = semel_pg_int(result, 0, 1) == ROWS_PER_STEP;
		span->old = semel_pg_int(result, 0, 2) > 0;
	}
	semel_pg_clear(result);
	return status;
}

/* A whole span without anything old is where the lane's past ends: the millions behind it need not
 * be read. An old row that was written after them goes when they do. */
static semel_status prune_outbox(struct semel_pg_store *store,
				 const struct semel_retention_cutoffs *cutoffs,
				 struct semel_prune_counts *counts, bool *done_out,
				 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct span span = { 0 };
	semel_status status = find_span(store, cutoffs->outbox_ms, &span, error);
	if (status == SEMEL_OK && span.old) {
		semel_pg_add_time(&params, cutoffs->outbox_ms);
		semel_pg_add_int(&params, store->prune.lane);
		semel_pg_add_int(&params, store->prune.seq);
		semel_pg_add_int(&params, span.last);
		status = ask(semel_pg_tx(&store->base), &outbox_delete, &params, &counts->outbox,
			     error);
	}
	if (status != SEMEL_OK)
		return status;
	bool lane_ends = !span.more || !span.old;
	store->prune.seq = lane_ends ? 0 : span.last;
	store->prune.lane += lane_ends ? 1 : 0;
	*done_out = store->prune.lane == SEMEL_PG_LANES;
	return SEMEL_OK;
}

static semel_status note_forgotten(semel_tx tx, int64_t horizon_ms, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_week(&params, horizon_ms);
	return semel_pg_run(tx, &note_known_since, &params, NULL, error);
}

/* A partition, if there is an old one. It stays where its lock cannot be had in a moment. */
static semel_status prune_weeks(struct semel_pg_store *store,
				const struct semel_retention_cutoffs *cutoffs,
				struct semel_prune_counts *counts, bool *done_out,
				semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	struct semel_pg_params params = { 0 };
	PGresult *old = NULL, *dropped = NULL;
	semel_pg_add_week(&params, cutoffs->inbox_ms);
	semel_status status = semel_pg_run(tx, &old_partition, &params, &old, error);
	*done_out = semel_pg_rows(old) == 0;
	if (status != SEMEL_OK || *done_out)
		goto clear_results;
	semel_pg_add_week(&params, cutoffs->inbox_ms);
	semel_pg_add_string(&params, semel_pg_value(old, 0, 0));
	status = semel_pg_run(tx, &drop_partition, &params, &dropped, error);
	*done_out = status == SEMEL_OK && semel_pg_is_null(dropped, 0, 0);
	if (*done_out)
		semel_logf(SEMEL_LOG_WARN, "%s is in use and goes with the next prune",
			   semel_pg_value(old, 0, 0));
	if (status != SEMEL_OK || *done_out)
		goto clear_results;
	counts->inbox = (uint64_t)semel_pg_int(dropped, 0, 0);
	status = note_forgotten(tx, cutoffs->inbox_ms, error);
clear_results:
	semel_pg_clear(dropped);
	semel_pg_clear(old);
	return status;
}

/* What has no week of its own. */
static semel_status prune_other_weeks(struct semel_pg_store *store,
				      const struct semel_retention_cutoffs *cutoffs,
				      struct semel_prune_counts *counts, bool *done_out,
				      semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	struct semel_pg_params params = { 0 };
	semel_pg_add_week(&params, cutoffs->inbox_ms);
	semel_status status =
		delete_some(tx, &inbox_delete, &params, &counts->inbox, done_out, error);
	if (status == SEMEL_OK && counts->inbox > 0)
		status = note_forgotten(tx, cutoffs->inbox_ms, error);
	return status;
}

static semel_status prune_keys(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, bool *done_out,
			       semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t gone = 0;
	(void)counts;
	semel_pg_add_time(&params, cutoffs->inbox_ms);
	return delete_some(semel_pg_tx(&store->base), &key_delete, &params, &gone, done_out, error);
}

/* Where the next piece of dead letters ends; the horizon itself: it is the last one. */
static semel_status find_dead_span(struct semel_pg_store *store, int64_t horizon_ms,
				   int64_t *end_ms_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t end = 0;
	semel_pg_add_time(&params, horizon_ms);
	semel_pg_add_time(&params, store->prune.dead_ms);
	semel_pg_add_int(&params, DEAD_PER_STEP);
	semel_status status = ask(semel_pg_tx(&store->base), &dead_span, &params, &end, error);
	*end_ms_out = end == 0 || (int64_t)end > horizon_ms ? horizon_ms : (int64_t)end;
	return status;
}

static semel_status lock_piece(semel_tx tx, struct piece piece, semel_error *error)
{
	semel_status status = change_piece(tx, &dead_holds_lock, piece, NULL, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_lanes_lock, piece, NULL, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_lock, piece, NULL, error);
	return status;
}

static semel_status prune_dead(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, bool *done_out,
			       semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	struct piece piece = { .from_ms = store->prune.dead_ms };
	semel_status status = find_dead_span(store, cutoffs->dead_ms, &piece.until_ms, error);
	if (status == SEMEL_OK && !SEMEL_PLANTED("prune-without-lock"))
		status = lock_piece(tx, piece, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_holds_delete, piece, NULL, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_exceptions_delete, piece, NULL, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_note, piece, NULL, error);
	if (status == SEMEL_OK)
		status = change_piece(tx, &dead_delete, piece, &counts->dead, error);
	store->prune.dead_ms = piece.until_ms;
	*done_out = piece.until_ms == cutoffs->dead_ms;
	return status;
}

static semel_status count_all(semel_tx tx, const struct semel_retention_cutoffs *cutoffs,
			      struct semel_prune_counts *counts, semel_error *error)
{
	struct semel_pg_params week = { 0 }, dead = { 0 };
	semel_status status =
		count_before(tx, &outbox_count, cutoffs->outbox_ms, &counts->outbox, error);
	if (status == SEMEL_OK && cutoffs->inbox_ms != 0) {
		semel_pg_add_week(&week, cutoffs->inbox_ms);
		status = ask(tx, &inbox_count, &week, &counts->inbox, error);
	}
	if (status == SEMEL_OK) {
		semel_pg_add_time(&dead, cutoffs->dead_ms);
		semel_pg_add_time(&dead, 0);
		status = ask(tx, &dead_count, &dead, &counts->dead, error);
	}
	return status;
}

/* The kinds, in the order in which they go, and by whose horizon. */
static const struct {
	prune_step step;
	size_t horizon; /* where it stands among the cutoffs */
} kinds[] = {
	{ prune_outbox, offsetof(struct semel_retention_cutoffs, outbox_ms) },
	{ prune_weeks, offsetof(struct semel_retention_cutoffs, inbox_ms) },
	{ prune_other_weeks, offsetof(struct semel_retention_cutoffs, inbox_ms) },
	{ prune_keys, offsetof(struct semel_retention_cutoffs, inbox_ms) },
	{ prune_dead, offsetof(struct semel_retention_cutoffs, dead_ms) },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static bool is_wanted(size_t kind, const struct semel_retention_cutoffs *cutoffs)
{
	int64_t horizon_ms = 0;
	memcpy(&horizon_ms, (const char *)cutoffs + kinds[kind].horizon, sizeof(horizon_ms));
	return horizon_ms != 0;
}

/* One piece of the kind that is next. */
static semel_status prune_some(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, semel_error *error)
{
	bool entered = false, done = false;
	semel_status status = semel_pg_enter(&store->base, &entered, error);
	if (status == SEMEL_OK)
		status = kinds[store->prune.kind].step(store, cutoffs, counts, &done, error);
	status = semel_pg_leave(&store->base, entered, status, error);
	if (status == SEMEL_OK && done)
		store->prune.kind++;
	return status;
}

semel_status semel_pg_prune(semel_store *base, const struct semel_retention_cutoffs *cutoffs,
			    bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
			    semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	semel_tx tx = semel_pg_tx(base);
	*counts_out = (struct semel_prune_counts){ 0 };
	*more_out = false;
	if (dry_run)
		return count_all(tx, cutoffs, counts_out, error);
	while (store->prune.kind < KINDS && !is_wanted(store->prune.kind, cutoffs))
		store->prune.kind++;
	*more_out = store->prune.kind < KINDS;
	if (*more_out)
		return prune_some(store, cutoffs, counts_out, error);
	memset(&store->prune, 0, sizeof(store->prune));
	return semel_pg_in_transaction(tx) ? SEMEL_OK
					   : semel_pg_run(tx, &prepare_inbox, NULL, NULL, error);
}

/* ---- the boundaries -------------------------------------------------------------------------- */

static const struct semel_pg_query read_meta = {
	"read what was forgotten", "SELECT " SEMEL_PG_MS("value") " FROM semel_meta WHERE name ="
								  " $1"
};

static semel_status read_boundary(semel_store *store, const char *name, int64_t *time_ms_out,
				  semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t value = 0;
	semel_pg_add_string(&params, name);
	semel_status status = ask(semel_pg_tx(store), &read_meta, &params, &value, error);
	*time_ms_out = (int64_t)value;
	return status;
}

semel_status semel_pg_outbox_pruned_until(semel_store *store, int64_t *time_ms_out,
					  semel_error *error)
{
	return read_boundary(store, "outbox_pruned_until", time_ms_out, error);
}

semel_status semel_pg_inbox_known_since(semel_store *store, int64_t *time_ms_out,
					semel_error *error)
{
	return read_boundary(store, "inbox_known_since", time_ms_out, error);
}
