/* SPDX-License-Identifier: Apache-2.0 */
/* Removes what is old enough, a bounded part at a time, each in its own transaction, so that
 * writers wait only briefly.
 *
 * - Only published rows, finished claims and dead letters without followers are removed
 *   (sql/retention.c).
 * - The age of an event counts from its commit, not from its own time. The boundary that is
 *   recorded is the newest own time of the removed events, since a claim knows no other time.
 * - The age of a claim counts from the week of its event or from when it was first seen, whichever
 *   is later: an event that is old, or has no time at all, may still be delivered again tomorrow.
 * - A week of the inbox is dropped with its partition; rows of the default partition are deleted.
 * - Parking behind a head locks its hold, or the lease of its lane. A statement that waited for a
 *   lock continues with its old snapshot: so all locks are taken first, in the order hold, lease,
 *   letter, and the next statement decides.
 */
#include "store/postgres/postgres.h"

#include "fault/plant.h"
#include "observe/log.h"

#include <stddef.h>
#include <string.h>

#define DEAD_PER_STEP 500

#define ONLY(sql)                                                                                  \
	{                                                                                          \
		[SEMEL_SQL_POSTGRES] = (sql)                                                       \
	}
#define COMMITTED_AT SEMEL_PG_COMMITTED_AT("o")

static const struct semel_sql_statement outbox_span = {
	.what = "find old rows of the outbox",
	.text = ONLY("SELECT coalesce(max(seq), 0), count(*), count(*) FILTER (WHERE committed_at"
		     " < ?4::timestamptz) FROM (SELECT seq, " COMMITTED_AT " AS committed_at"
		     " FROM semel_outbox o WHERE lane = ?1 AND seq > ?2 ORDER BY lane, seq"
		     " LIMIT ?3) AS span")
};
/* ?1 the cutoff, ?2 the lane, ?3 and ?4 the span. */
static const struct semel_sql_statement outbox_delete = {
	.what = "remove old rows of the outbox",
	.text = ONLY("WITH gone AS (DELETE FROM semel_outbox o WHERE o.lane = ?2 AND o.seq > ?3"
		     " AND o.seq <= ?4 AND " SEMEL_SQL_DONE_ROW " AND " COMMITTED_AT
		     " < ?1::timestamptz RETURNING created_at),"
		     " noted AS (INSERT INTO semel_meta AS m (name, value)"
		     " SELECT 'outbox_pruned_until', max(created_at) FROM gone HAVING count(*) > 0"
		     " ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value))"
		     " SELECT count(*) FROM gone")
};

#define WEEK      SEMEL_SQL_POSTGRES_WEEK
#define OLD_CLAIM SEMEL_SQL_POSTGRES_OLD_CLAIM

/* With the LIMIT, the inner query reads only a single partition. */
static const struct semel_sql_statement old_partition = {
	.what = "find old weeks of the inbox",
	.text = ONLY("SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
		     " WHERE i.inhparent = 'semel_inbox'::regclass"
		     " AND c.relname ~ '^semel_inbox_[0-9]{8}$'"
		     " AND to_date(right(c.relname, 8), 'YYYYMMDD') < ?1::date"
		     " AND NOT coalesce((SELECT true FROM semel_inbox y WHERE y.week_start ="
		     " to_date(right(c.relname, 8), 'YYYYMMDD') AND y.first_seen_at >= " WEEK
		     " LIMIT 1), false) ORDER BY c.relname LIMIT 1")
};
static const struct semel_sql_statement drop_partition = {
	.what = "remove a week of the inbox", .text = ONLY("SELECT semel_inbox_drop(?2, " WEEK ")")
};
static const struct semel_sql_statement inbox_delete = {
	.what = "remove old claims",
	.text = ONLY("DELETE FROM semel_inbox_other WHERE ctid = ANY (ARRAY(SELECT ctid"
		     " FROM semel_inbox_other WHERE " OLD_CLAIM " LIMIT ?2))")
};
static const struct semel_sql_statement key_delete = {
	.what = "remove old business keys",
	.text = ONLY("DELETE FROM semel_inbox_key WHERE ctid = ANY (ARRAY(SELECT k.ctid"
		     " FROM semel_inbox_key k WHERE k.first_seen_at < ?1::timestamptz"
		     " AND NOT EXISTS (SELECT 1 FROM semel_inbox i WHERE i.scope = k.scope"
		     " AND i.event_id = k.event_id) LIMIT ?2))")
};
static const struct semel_sql_statement note_known_since = {
	.what = "record what the inbox removes",
	.text = ONLY("INSERT INTO semel_meta AS m (name, value) VALUES ('inbox_known_since',"
		     " ?1::timestamp AT TIME ZONE 'UTC') ON CONFLICT (name) DO UPDATE"
		     " SET value = greatest(m.value, excluded.value)")
};
static const struct semel_sql_statement prepare_inbox = {
	.what = "create the inbox's partitions", .text = ONLY("SELECT semel_inbox_prepare()")
};

#define OLD_BY_TIME SEMEL_SQL_OLD_BY_TIME("d")
static const struct semel_sql_statement lock_holds = {
	.what = "lock the holds of old dead letters",
	.text = ONLY("SELECT 1 FROM semel_hold w WHERE w.state = 'dead' AND EXISTS (SELECT 1"
		     " FROM semel_dead_letter d WHERE d.scope = w.scope AND d.event_id = w.head_id"
		     " AND" OLD_BY_TIME
		     ") ORDER BY scope, aggregate_type, aggregate_id FOR UPDATE")
};
static const struct semel_sql_statement lock_lanes = {
	.what = "lock the lanes of old dead letters",
	.text = ONLY("SELECT 1 FROM semel_lease WHERE lane IN (SELECT q.lane"
		     " FROM semel_outbox_exception q JOIN semel_outbox o ON q.lane = o.lane"
		     " AND q.seq = o.seq JOIN semel_dead_letter d ON o.id = d.event_id"
		     " WHERE q.state = 'failed' AND d.scope = 'relay'"
		     " AND" OLD_BY_TIME ") ORDER BY lane FOR UPDATE")
};
static const struct semel_sql_statement lock_letters = {
	.what = "lock old dead letters",
	.text = ONLY("SELECT 1 FROM semel_dead_letter d WHERE" OLD_BY_TIME
		     " ORDER BY failed_at, entry_id FOR UPDATE")
};
/* The end of the next span: ?3 entries after the end of the last one. */
static const struct semel_sql_statement dead_span = {
	.what = "find old dead letters",
	.text = ONLY("SELECT " SEMEL_PG_MS("failed_at") " + 1 FROM semel_dead_letter d"
							" WHERE" OLD_BY_TIME
							" ORDER BY failed_at, entry_id OFFSET ?3"
							" LIMIT 1")
};

/* ---- steps ----------------------------------------------------------------------------------- */

/* One part of one kind. *done_out: there is no more of it. */
typedef semel_status (*prune_step)(struct semel_pg_store *store,
				   const struct semel_retention_cutoffs *cutoffs,
				   struct semel_prune_counts *counts, bool *done_out,
				   semel_error *error);

/* Binds the maximum number of rows as the last parameter; *done_out: these were the last rows. */
static semel_status delete_some(struct semel_sql_query *query, uint64_t *count_out, bool *done_out)
{
	semel_sql_bind_int(query, SEMEL_SQL_PRUNE_ROWS);
	semel_status status = semel_sql_finish(query);
	*count_out = semel_sql_changes(query);
	*done_out = *count_out < SEMEL_SQL_PRUNE_ROWS;
	return status;
}

struct span {
	int64_t last;
	bool more; /* the lane has rows after it */
	bool old;  /* something in it is old enough */
};

static semel_status find_span(struct semel_pg_store *store, int64_t cutoff_ms, struct span *span,
			      semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, semel_pg_tx(&store->base), &outbox_span, error);
	semel_sql_bind_int(&query, store->prune.lane);
	semel_sql_bind_int(&query, store->prune.seq);
	semel_sql_bind_int(&query, SEMEL_SQL_PRUNE_ROWS);
	semel_sql_bind_time(&query, cutoff_ms);
	if (semel_sql_next(&query)) {
		span->last = semel_sql_int(&query, 0);
		span->more = semel_sql_int(&query, 1) == SEMEL_SQL_PRUNE_ROWS;
		span->old = semel_sql_int(&query, 2) > 0;
	}
	return semel_sql_finish(&query);
}

static semel_status delete_span(struct semel_pg_store *store, int64_t cutoff_ms,
				const struct span *span, uint64_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	int64_t count = 0;
	semel_sql_prepare(&query, semel_pg_tx(&store->base), &outbox_delete, error);
	semel_sql_bind_time(&query, cutoff_ms);
	semel_sql_bind_int(&query, store->prune.lane);
	semel_sql_bind_int(&query, store->prune.seq);
	semel_sql_bind_int(&query, span->last);
	semel_status status = semel_sql_first_int(&query, &count);
	*count_out = (uint64_t)count;
	return status;
}

/* A span without an old row ends the search in its lane: the millions of rows after it need not be
 * read. An old row among those is removed when they become old. */
static semel_status prune_outbox(struct semel_pg_store *store,
				 const struct semel_retention_cutoffs *cutoffs,
				 struct semel_prune_counts *counts, bool *done_out,
				 semel_error *error)
{
	struct span span = { 0 };
	semel_status status = find_span(store, cutoffs->outbox_ms, &span, error);
	if (status != SEMEL_OK)
		return status;
	if (span.old)
		status = delete_span(store, cutoffs->outbox_ms, &span, &counts->outbox, error);
	if (status != SEMEL_OK)
		return status;
	bool lane_ends = !span.more || !span.old;
	store->prune.seq = lane_ends ? 0 : span.last;
	store->prune.lane += lane_ends ? 1 : 0;
	*done_out = store->prune.lane == SEMEL_PG_LANES;
	return SEMEL_OK;
}

static semel_status note_forgotten(semel_tx tx, int64_t cutoff_ms, semel_error *error)
{
	char week[SEMEL_DATE_SIZE];
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &note_known_since, error);
	semel_sql_bind_week(&query, cutoff_ms, week);
	return semel_sql_finish(&query);
}

/* name_out is empty when there is none. */
static semel_status find_partition(semel_tx tx, int64_t cutoff_ms, char name_out[64],
				   semel_error *error)
{
	char week[SEMEL_DATE_SIZE];
	struct semel_sql_query query;
	name_out[0] = '\0';
	semel_sql_prepare(&query, tx, &old_partition, error);
	semel_sql_bind_week(&query, cutoff_ms, week);
	if (semel_sql_next(&query))
		semel_sql_copy(&query, 0, name_out, 64);
	return semel_sql_finish(&query);
}

/* Removes a partition, if there is an old one. It is kept if its lock is not available quickly. */
static semel_status prune_weeks(struct semel_pg_store *store,
				const struct semel_retention_cutoffs *cutoffs,
				struct semel_prune_counts *counts, bool *done_out,
				semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	char week[SEMEL_DATE_SIZE], name[64]; /* PostgreSQL's names have 63 bytes */
	struct semel_sql_query query;
	bool dropped = false;
	semel_status status = find_partition(tx, cutoffs->inbox_ms, name, error);
	*done_out = status == SEMEL_OK && name[0] == '\0';
	if (status != SEMEL_OK || *done_out)
		return status;
	semel_sql_prepare(&query, tx, &drop_partition, error);
	semel_sql_bind_week(&query, cutoffs->inbox_ms, week);
	semel_sql_bind_string(&query, name);
	if (semel_sql_next(&query)) {
		dropped = !semel_sql_is_null(&query, 0);
		counts->inbox = dropped ? (uint64_t)semel_sql_int(&query, 0) : 0;
	}
	status = semel_sql_finish(&query);
	if (status != SEMEL_OK)
		return status;
	*done_out = !dropped;
	if (dropped)
		return note_forgotten(tx, cutoffs->inbox_ms, error);
	semel_log_detail(SEMEL_LOG_WARN, "inbox partition in use, leaving it to the next prune",
			 "%s", name);
	return SEMEL_OK;
}

/* Removes old claims whose week has no partition. */
static semel_status prune_other_weeks(struct semel_pg_store *store,
				      const struct semel_retention_cutoffs *cutoffs,
				      struct semel_prune_counts *counts, bool *done_out,
				      semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	char week[SEMEL_DATE_SIZE];
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &inbox_delete, error);
	semel_sql_bind_week(&query, cutoffs->inbox_ms, week);
	semel_status status = delete_some(&query, &counts->inbox, done_out);
	if (status != SEMEL_OK || counts->inbox == 0)
		return status;
	return note_forgotten(tx, cutoffs->inbox_ms, error);
}

static semel_status prune_keys(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, bool *done_out,
			       semel_error *error)
{
	struct semel_sql_query query;
	uint64_t gone = 0;
	(void)counts;
	semel_sql_prepare(&query, semel_pg_tx(&store->base), &key_delete, error);
	semel_sql_bind_time(&query, cutoffs->inbox_ms);
	return delete_some(&query, &gone, done_out);
}

/* ---- dead letters ---------------------------------------------------------------------------- */

/* Finds where the next span of dead letters ends; if that is the cutoff, it is the last one. */
static semel_status find_dead_span(struct semel_pg_store *store, int64_t cutoff_ms,
				   struct semel_sql_span *span, semel_error *error)
{
	struct semel_sql_query query;
	int64_t end_ms = 0;
	span->from_ms = store->prune.dead_ms;
	semel_sql_prepare(&query, semel_pg_tx(&store->base), &dead_span, error);
	semel_sql_bind_time(&query, cutoff_ms);
	semel_sql_bind_time(&query, span->from_ms);
	semel_sql_bind_int(&query, DEAD_PER_STEP);
	semel_status status = semel_sql_first_int(&query, &end_ms);
	span->until_ms = end_ms == 0 || end_ms > cutoff_ms ? cutoff_ms : end_ms;
	return status;
}

static semel_status lock_span(semel_tx tx, struct semel_sql_span span, semel_error *error)
{
	static const struct semel_sql_statement *const locks[] = { &lock_holds, &lock_lanes,
								   &lock_letters };
	for (size_t i = 0; i < sizeof(locks) / sizeof(locks[0]); i++) {
		struct semel_sql_query query;
		semel_sql_prepare(&query, tx, locks[i], error);
		semel_sql_bind_time(&query, span.until_ms);
		semel_sql_bind_time(&query, span.from_ms);
		semel_status status = semel_sql_finish(&query);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status prune_dead(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, bool *done_out,
			       semel_error *error)
{
	semel_tx tx = semel_pg_tx(&store->base);
	struct semel_sql_span span = { 0 };
	semel_status status = find_dead_span(store, cutoffs->dead_ms, &span, error);
	if (status != SEMEL_OK)
		return status;
	if (!SEMEL_PLANTED("prune-without-lock"))
		status = lock_span(tx, span, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sql_prune_dead(tx, span, &counts->dead, error);
	store->prune.dead_ms = span.until_ms;
	*done_out = span.until_ms == cutoffs->dead_ms;
	return status;
}

/* The kinds of rows, in the order of removal, and the cutoff of each. */
static const struct {
	prune_step step;
	size_t cutoff; /* its offset in the cutoffs */
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
	int64_t cutoff_ms = 0;
	memcpy(&cutoff_ms, (const char *)cutoffs + kinds[kind].cutoff, sizeof(cutoff_ms));
	return cutoff_ms != 0;
}

/* Removes one part of the next kind. A part that failed is the next one again. */
static semel_status prune_some(struct semel_pg_store *store,
			       const struct semel_retention_cutoffs *cutoffs,
			       struct semel_prune_counts *counts, semel_error *error)
{
	bool entered = false, done = false;
	struct semel_pg_prune_place before = store->prune;
	semel_status status = semel_sql_enter(&store->base, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = kinds[store->prune.kind].step(store, cutoffs, counts, &done, error);
	status = semel_sql_leave(&store->base, entered, status, error);
	if (status != SEMEL_OK)
		store->prune = before;
	else if (done)
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
		return semel_sql_count_old(base, cutoffs, counts_out, error);
	while (store->prune.kind < KINDS && !is_wanted(store->prune.kind, cutoffs))
		store->prune.kind++;
	*more_out = store->prune.kind < KINDS;
	if (*more_out)
		return prune_some(store, cutoffs, counts_out, error);
	memset(&store->prune, 0, sizeof(store->prune));
	if (semel_pg_in_transaction(tx))
		return SEMEL_OK;
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &prepare_inbox, error);
	return semel_sql_finish(&query);
}
