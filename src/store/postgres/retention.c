/* SPDX-License-Identifier: Apache-2.0 */
/* Forgetting what is old enough, a bounded piece at a time, so that writers wait for a moment at
 * most.
 *
 * - Only settled rows, finished claims and dead letters without followers go.
 * - A week of the inbox is dropped with its partition; what lies in the default one is deleted.
 * - A dead letter leaves a FAILED claim behind: its event stays accounted for, and does not run by
 *   itself, for as long as the inbox remembers.
 * - What was forgotten is remembered as a boundary (semel_meta), written in the same transaction.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

#define ROWS_PER_STEP 5000

/* Published, or given up with its dead letter gone too. */
#define SETTLED_ROW                                                                                \
	"(status = 'PUBLISHED' OR (status = 'FAILED' AND NOT EXISTS (SELECT 1"                     \
	" FROM semel_dead_letter l WHERE l.scope = 'relay' AND l.event_id = o.id"                  \
	" AND l.parked_behind IS NULL)))"

static const struct semel_pg_query outbox_span = {
	"look for old rows of the outbox",
	"SELECT coalesce(max(seq), 0), count(*) FROM (SELECT seq FROM semel_outbox"
	" WHERE lane = $1 AND seq > $2 ORDER BY lane, seq LIMIT $3) AS span"
};
/* $1 the horizon, $2 the lane, $3 and $4 the span. */
static const struct semel_pg_query outbox_delete = {
	"forget old rows of the outbox",
	"WITH gone AS (DELETE FROM semel_outbox o WHERE o.lane = $2 AND o.seq > $3 AND o.seq <= $4"
	" AND " SETTLED_ROW " AND o.created_at < $1::timestamptz RETURNING created_at),"
	" noted AS (INSERT INTO semel_meta AS m (name, value)"
	" SELECT 'outbox_pruned_until', max(created_at) FROM gone HAVING count(*) > 0"
	" ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value))"
	" SELECT count(*) FROM gone"
};
static const struct semel_pg_query old_partition = {
	"look for old weeks of the inbox",
	"SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
	" WHERE i.inhparent = 'semel_inbox'::regclass AND c.relname ~ '^semel_inbox_[0-9]{8}$'"
	" AND to_date(right(c.relname, 8), 'YYYYMMDD') < $1::date ORDER BY c.relname LIMIT 1"
};
static const struct semel_pg_query drop_partition = { "forget a week of the inbox",
						      "SELECT semel_inbox_drop($1)" };
static const struct semel_pg_query inbox_delete = {
	"forget old claims",
	"DELETE FROM semel_inbox_other WHERE ctid = ANY (ARRAY(SELECT ctid FROM semel_inbox_other"
	" WHERE status <> 'CLAIMED' AND week_start < $1::date LIMIT $2))"
};
static const struct semel_pg_query key_delete = {
	"forget old business keys",
	"DELETE FROM semel_inbox_key k WHERE first_seen_at < $1::timestamptz AND NOT EXISTS"
	" (SELECT 1 FROM semel_inbox i WHERE i.scope = k.scope AND i.event_id = k.event_id)"
};
static const struct semel_pg_query note_known_since = {
	"note what the inbox forgets",
	"INSERT INTO semel_meta AS m (name, value) VALUES ('inbox_known_since',"
	" $1::timestamp AT TIME ZONE 'UTC')"
	" ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)"
};
static const struct semel_pg_query prepare_inbox = { "make the inbox's partitions",
						     "SELECT semel_inbox_prepare()" };

/* Followers wait behind the entry, or behind what it holds. */
#define OLD_DEAD_LETTER                                                                            \
	" d.parked_behind IS NULL AND d.failed_at < $1::timestamptz AND NOT EXISTS (SELECT 1"      \
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
	" topic, error_code) SELECT d.scope, d.event_id, date_trunc('week',"
	" coalesce(d.event_time, 'epoch') AT TIME ZONE 'UTC')::date, 'FAILED', d.failed_at,"
	" d.failed_at, coalesce(d.topic, ''), 'dead-letter-pruned'"
	" FROM semel_dead_letter d WHERE d.event_id IS NOT NULL AND" OLD_DEAD_LETTER
	" ON CONFLICT DO NOTHING"
};
static const struct semel_pg_query dead_delete = {
	"forget old dead letters", "DELETE FROM semel_dead_letter d WHERE" OLD_DEAD_LETTER
};
static const struct semel_pg_query requests_delete = {
	"forget old requests", "DELETE FROM semel_request WHERE created_at < $1::timestamptz"
};

/* The dry run counts with one statement each. */
static const struct semel_pg_query outbox_count = {
	"count old rows of the outbox",
	"SELECT count(*) FROM semel_outbox o WHERE " SETTLED_ROW " AND created_at < $1::timestamptz"
};
static const struct semel_pg_query inbox_count = {
	"count old claims",
	"SELECT count(*) FROM semel_inbox WHERE status <> 'CLAIMED' AND week_start < $1::date"
};
static const struct semel_pg_query dead_count = {
	"count old dead letters",
	"SELECT count(*) FROM semel_dead_letter d WHERE" OLD_DEAD_LETTER
};
static const struct semel_pg_query requests_count = {
	"count old requests",
	"SELECT count(*) FROM semel_request WHERE created_at < $1::timestamptz"
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

/* With the horizon (0: none, so nothing is older) as the only parameter. */
static semel_status change_before(semel_tx tx, const struct semel_pg_query *query, int64_t time_ms,
				  uint64_t *changes_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_time(&params, time_ms);
	return semel_pg_change(tx, query, &params, changes_out, error);
}

static semel_status count_before(semel_tx tx, const struct semel_pg_query *query, int64_t time_ms,
				 uint64_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_time(&params, time_ms);
	return ask(tx, query, &params, count_out, error);
}

struct span {
	int64_t last;
	bool more; /* the lane goes on behind it */
};

static semel_status find_span(struct semel_pg_store *store, struct span *span, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, store->prune.lane);
	semel_pg_add_int(&params, store->prune.seq);
	semel_pg_add_int(&params, ROWS_PER_STEP);
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &outbox_span, &params, &result, error);
	if (status == SEMEL_OK) {
		span->last = semel_pg_int(result, 0, 0);
		span->more = semel_pg_int(result, 0, 1) == ROWS_PER_STEP;
	}
	semel_pg_clear(result);
	return status;
}

static semel_status prune_outbox(struct semel_pg_store *store, int64_t horizon_ms,
				 uint64_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct span span = { 0 };
	semel_status status = find_span(store, &span, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_time(&params, horizon_ms);
	semel_pg_add_int(&params, store->prune.lane);
	semel_pg_add_int(&params, store->prune.seq);
	semel_pg_add_int(&params, span.last);
	status = ask(semel_pg_tx(&store->base), &outbox_delete, &params, count_out, error);
	if (status != SEMEL_OK)
		return status;
	store->prune.seq = span.more ? span.last : 0;
	store->prune.lane += span.more ? 0 : 1;
	store->prune.outbox_done = store->prune.lane == SEMEL_PG_LANES;
	return SEMEL_OK;
}

/* One partition, if there is an old one. */
static semel_status drop_week(semel_tx tx, int64_t horizon_ms, bool *dropped_out,
			      uint64_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_week(&params, horizon_ms);
	semel_status status = semel_pg_run(tx, &old_partition, &params, &result, error);
	*dropped_out = semel_pg_rows(result) > 0;
	if (*dropped_out) {
		semel_pg_add_string(&params, semel_pg_value(result, 0, 0));
		status = ask(tx, &drop_partition, &params, count_out, error);
	}
	semel_pg_clear(result);
	return status;
}

static semel_status prune_inbox(struct semel_pg_store *store, int64_t horizon_ms,
				uint64_t *count_out, semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	struct semel_pg_params params = { 0 };
	bool dropped = false;
	semel_status status = drop_week(tx, horizon_ms, &dropped, count_out, error);
	if (status == SEMEL_OK && !dropped) {
		semel_pg_add_week(&params, horizon_ms);
		semel_pg_add_int(&params, ROWS_PER_STEP);
		status = semel_pg_change(tx, &inbox_delete, &params, count_out, error);
	}
	if (status == SEMEL_OK && *count_out > 0) {
		semel_pg_add_week(&params, horizon_ms);
		status = semel_pg_run(tx, &note_known_since, &params, NULL, error);
	}
	store->prune.inbox_done = !dropped && *count_out < ROWS_PER_STEP;
	if (status == SEMEL_OK && store->prune.inbox_done)
		status = change_before(tx, &key_delete, horizon_ms, NULL, error);
	return status;
}

static semel_status prune_dead(semel_tx tx, const struct semel_horizons *horizons,
			       struct semel_prune_counts *counts, semel_error *error)
{
	semel_status status = change_before(tx, &dead_holds_delete, horizons->dead_ms, NULL, error);
	if (status == SEMEL_OK)
		status = change_before(tx, &dead_exceptions_delete, horizons->dead_ms, NULL, error);
	if (status == SEMEL_OK)
		status = change_before(tx, &dead_note, horizons->dead_ms, NULL, error);
	if (status == SEMEL_OK)
		status = change_before(tx, &dead_delete, horizons->dead_ms, &counts->dead, error);
	if (status == SEMEL_OK)
		status = change_before(tx, &requests_delete, horizons->requests_ms,
				       &counts->requests, error);
	return status;
}

static semel_status count_all(semel_tx tx, const struct semel_horizons *horizons,
			      struct semel_prune_counts *counts, semel_error *error)
{
	struct semel_pg_params week = { 0 };
	semel_status status =
		count_before(tx, &outbox_count, horizons->outbox_ms, &counts->outbox, error);
	if (status == SEMEL_OK && horizons->inbox_ms != 0) {
		semel_pg_add_week(&week, horizons->inbox_ms);
		status = ask(tx, &inbox_count, &week, &counts->inbox, error);
	}
	if (status == SEMEL_OK)
		status = count_before(tx, &dead_count, horizons->dead_ms, &counts->dead, error);
	if (status == SEMEL_OK)
		status = count_before(tx, &requests_count, horizons->requests_ms, &counts->requests,
				      error);
	return status;
}

semel_status semel_pg_prune(semel_store *base, const struct semel_horizons *horizons, bool dry_run,
			    struct semel_prune_counts *counts_out, bool *more_out,
			    semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	semel_tx tx = semel_pg_tx(base);
	bool entered = false;
	*counts_out = (struct semel_prune_counts){ 0 };
	*more_out = false;
	if (dry_run)
		return count_all(tx, horizons, counts_out, error);
	semel_status status = semel_pg_enter(base, &entered, error);
	if (status == SEMEL_OK && horizons->outbox_ms != 0 && !store->prune.outbox_done)
		status = prune_outbox(store, horizons->outbox_ms, &counts_out->outbox, error);
	if (status == SEMEL_OK && horizons->inbox_ms != 0 && !store->prune.inbox_done)
		status = prune_inbox(store, horizons->inbox_ms, &counts_out->inbox, error);
	if (status == SEMEL_OK)
		status = prune_dead(tx, horizons, counts_out, error);
	status = semel_pg_leave(base, entered, status, error);
	*more_out =
		status == SEMEL_OK && ((horizons->outbox_ms != 0 && !store->prune.outbox_done) ||
				       (horizons->inbox_ms != 0 && !store->prune.inbox_done));
	if (status != SEMEL_OK || *more_out)
		return status;
	store->prune.lane = store->prune.seq = 0;
	store->prune.outbox_done = store->prune.inbox_done = false;
	return entered ? semel_pg_run(tx, &prepare_inbox, NULL, NULL, error) : SEMEL_OK;
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
