/* SPDX-License-Identifier: Apache-2.0 */
/* Removes what is old enough, a bounded part of the tables at a time, so that writers wait briefly.
 *
 * - Only published rows, finished claims and dead letters without followers are removed
 *   (sql/retention.c).
 * - The age of an event counts from its commit, not from its own time. The boundary that is
 *   recorded is the newest own time of the removed events, since a claim knows no other time.
 * - The age of a claim counts from the week of its event or from when it was first seen, whichever
 *   is later: an event that is old, or has no time at all, may still be delivered again tomorrow.
 * - Outbox and inbox are scanned with a cursor, from the start of a run to its end; what retention
 *   searches for has no index, since every publish and every claim would pay for it.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "fault/plant.h"

#define ONLY(sql)                                                                                  \
	{                                                                                          \
		[SEMEL_SQL_SQLITE] = (sql)                                                         \
	}
#define CREATED_AT_NORMAL "strftime('%Y-%m-%dT%H:%M:%fZ', created_at)"
#define OLD_IN_SPAN       "seq > ?2 AND seq <= ?3 AND committed_at < ?1"

/* ?1: the cursor; ?2: the number of rows to read. */
static const struct semel_sql_statement outbox_span = {
	.what = "find old rows of the outbox",
	.text = ONLY("SELECT max(seq), count(*) FROM (SELECT seq FROM semel_outbox WHERE seq > ?1"
		     " ORDER BY seq LIMIT ?2)")
};
static const struct semel_sql_statement outbox_newest = {
	.what = "record what the outbox removes",
	.text = ONLY("INSERT INTO semel_meta (name, value) SELECT 'outbox_pruned_until', newest"
		     " FROM (SELECT max(" CREATED_AT_NORMAL ") AS newest FROM semel_outbox AS o"
		     " WHERE " OLD_IN_SPAN " AND " SEMEL_SQL_DONE_ROW ") WHERE newest IS NOT NULL"
		     " ON CONFLICT DO UPDATE SET value = max(value, excluded.value)")
};
/* A planted bug: deletes old rows whether they were published or not. */
static const struct semel_sql_statement outbox_delete_all = {
	.what = "remove old rows of the outbox",
	.text = ONLY("DELETE FROM semel_outbox WHERE " OLD_IN_SPAN)
};
static const struct semel_sql_statement outbox_delete = {
	.what = "remove old rows of the outbox",
	.text = ONLY("DELETE FROM semel_outbox AS o WHERE " OLD_IN_SPAN
		     " AND " SEMEL_SQL_DONE_ROW)
};
static const struct semel_sql_statement inbox_span = {
	.what = "find old claims",
	.text = ONLY("SELECT scope, event_id FROM semel_inbox WHERE (scope, event_id) > (?1, ?2)"
		     " ORDER BY scope, event_id LIMIT 1 OFFSET ?3")
};
static const struct semel_sql_statement inbox_delete = {
	.what = "remove old claims",
	.text = ONLY("DELETE FROM semel_inbox WHERE (scope, event_id) > (?2, ?3)"
		     " AND (?4 IS NULL OR (scope, event_id) <= (?4, ?5))"
		     " AND " SEMEL_SQL_SQLITE_OLD_CLAIM)
};
static const struct semel_sql_statement key_delete = {
	.what = "remove old business keys",
	.text = ONLY("DELETE FROM semel_inbox_key WHERE first_seen_at < ?1 AND NOT EXISTS"
		     " (SELECT 1 FROM semel_inbox i WHERE i.scope = semel_inbox_key.scope"
		     " AND i.event_id = semel_inbox_key.event_id)")
};
static const struct semel_sql_statement note_known_since = {
	.what = "record what the inbox removes",
	.text = ONLY("INSERT INTO semel_meta (name, value) VALUES ('inbox_known_since', ?1)"
		     " ON CONFLICT DO UPDATE SET value = max(value, excluded.value)")
};

/* ---- outbox ---------------------------------------------------------------------------------- */

struct span {
	int64_t after, last; /* numbers; last 0: the table ends here */
	bool more;
};

static semel_status find_span(semel_tx tx, struct span *span, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &outbox_span, error);
	semel_sql_bind_int(&query, span->after);
	semel_sql_bind_int(&query, SEMEL_SQL_PRUNE_ROWS);
	if (semel_sql_next(&query)) {
		span->last = semel_sql_int(&query, 0);
		span->more = semel_sql_int(&query, 1) == SEMEL_SQL_PRUNE_ROWS;
	}
	return semel_sql_finish(&query);
}

static semel_status run_in_span(semel_tx tx, const struct semel_sql_statement *statement,
				int64_t cutoff_ms, const struct span *span, uint64_t *changes_out,
				semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, statement, error);
	semel_sql_bind_time(&query, cutoff_ms);
	semel_sql_bind_int(&query, span->after);
	semel_sql_bind_int(&query, span->last);
	semel_status status = semel_sql_finish(&query);
	*changes_out = semel_sql_changes(&query);
	return status;
}

static semel_status prune_outbox(struct semel_sqlite_store *store, int64_t cutoff_ms,
				 uint64_t *count_out, bool *more_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	struct span span = { .after = store->prune.seq };
	bool planted = SEMEL_PLANTED("prune-takes-unpublished");
	semel_status status = find_span(tx, &span, error);
	if (status != SEMEL_OK)
		return status;
	status = run_in_span(tx, &outbox_newest, cutoff_ms, &span, count_out, error);
	if (status != SEMEL_OK)
		return status;
	status = run_in_span(tx, planted ? &outbox_delete_all : &outbox_delete, cutoff_ms, &span,
			     count_out, error);
	if (status != SEMEL_OK)
		return status;
	store->prune.seq = span.more ? span.last : 0;
	*more_out = *more_out || span.more;
	return SEMEL_OK;
}

/* ---- inbox ----------------------------------------------------------------------------------- */

struct stop {
	struct semel_buffer scope, event_id; /* no data: the table ends here */
};

static void free_stop(struct stop *stop)
{
	semel_buffer_free(&stop->scope);
	semel_buffer_free(&stop->event_id);
}

/* With its length: other programs write claims too, which may contain a NUL byte. */
static void append_column(struct semel_buffer *to, const struct semel_sql_query *query, int column)
{
	struct semel_text text = semel_sql_peek(query, column);
	semel_buffer_append(to, semel_text_chars(text), text.length);
}

static struct semel_text text_or_none(const struct semel_buffer *buffer)
{
	return buffer->data ? semel_buffer_text(buffer) : (struct semel_text){ NULL, 0 };
}

static semel_status find_stop(struct semel_sqlite_store *store, struct stop *stop,
			      semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, semel_sqlite_tx(&store->base), &inbox_span, error);
	semel_sql_bind_text(&query, semel_buffer_text(&store->prune.scope));
	semel_sql_bind_text(&query, semel_buffer_text(&store->prune.event_id));
	semel_sql_bind_int(&query, SEMEL_SQL_PRUNE_ROWS - 1);
	if (semel_sql_next(&query)) {
		append_column(&stop->scope, &query, 0);
		append_column(&stop->event_id, &query, 1);
	}
	if (stop->scope.failed || stop->event_id.failed)
		semel_sql_stop(&query,
			       semel_error_set(error, SEMEL_INTERNAL, "out of memory for pruning"));
	return semel_sql_finish(&query);
}

static semel_status delete_claims(struct semel_sqlite_store *store, int64_t cutoff_ms,
				  const struct stop *stop, uint64_t *count_out, semel_error *error)
{
	char week[SEMEL_DATE_SIZE];
	struct semel_sql_query query;
	semel_sql_prepare(&query, semel_sqlite_tx(&store->base), &inbox_delete, error);
	semel_sql_bind_week(&query, cutoff_ms, week);
	semel_sql_bind_text(&query, semel_buffer_text(&store->prune.scope));
	semel_sql_bind_text(&query, semel_buffer_text(&store->prune.event_id));
	semel_sql_bind_text(&query, text_or_none(&stop->scope));
	semel_sql_bind_text(&query, text_or_none(&stop->event_id));
	semel_status status = semel_sql_finish(&query);
	*count_out = 0;
	if (status != SEMEL_OK)
		return status;
	*count_out = semel_sql_changes(&query);
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

static semel_status delete_keys(semel_tx tx, int64_t cutoff_ms, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &key_delete, error);
	semel_sql_bind_time(&query, cutoff_ms);
	return semel_sql_finish(&query);
}

/* Removes old claims from the cursor to the stop. */
static semel_status prune_claims(struct semel_sqlite_store *store, int64_t cutoff_ms,
				 struct stop *stop, uint64_t *count_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	semel_status status = find_stop(store, stop, error);
	if (status != SEMEL_OK)
		return status;
	status = delete_claims(store, cutoff_ms, stop, count_out, error);
	if (status != SEMEL_OK)
		return status;
	if (*count_out > 0)
		status = note_forgotten(tx, cutoff_ms, error);
	if (status != SEMEL_OK)
		return status;
	return stop->scope.data == NULL ? delete_keys(tx, cutoff_ms, error) : SEMEL_OK;
}

static semel_status prune_inbox(struct semel_sqlite_store *store, int64_t cutoff_ms,
				uint64_t *count_out, bool *more_out, semel_error *error)
{
	struct stop stop = { 0 };
	semel_status status = prune_claims(store, cutoff_ms, &stop, count_out, error);
	if (status != SEMEL_OK) {
		free_stop(&stop);
		return status;
	}
	semel_buffer_free(&store->prune.scope);
	semel_buffer_free(&store->prune.event_id);
	store->prune.scope = stop.scope;
	store->prune.event_id = stop.event_id;
	*more_out = *more_out || stop.scope.data != NULL;
	return SEMEL_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static semel_status prune_all(struct semel_sqlite_store *store,
			      const struct semel_retention_cutoffs *cutoffs,
			      struct semel_prune_counts *counts, bool *more, semel_error *error)
{
	/* A table that was pruned to its end is not started again while the other one is being
	 * pruned. */
	bool outbox = cutoffs->outbox_ms != 0 &&
		      (store->prune.seq != 0 || store->prune.scope.data == NULL);
	bool inbox = cutoffs->inbox_ms != 0 &&
		     (store->prune.scope.data != NULL || store->prune.seq == 0);
	const struct semel_sql_span letters = { .until_ms = cutoffs->dead_ms };
	semel_status status = SEMEL_OK;
	if (outbox)
		status = prune_outbox(store, cutoffs->outbox_ms, &counts->outbox, more, error);
	if (status != SEMEL_OK)
		return status;
	if (inbox)
		status = prune_inbox(store, cutoffs->inbox_ms, &counts->inbox, more, error);
	if (status != SEMEL_OK)
		return status;
	return semel_sql_prune_dead(semel_sqlite_tx(&store->base), letters, &counts->dead, error);
}

semel_status semel_sqlite_prune(semel_store *base, const struct semel_retention_cutoffs *cutoffs,
				bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
				semel_error *error)
{
	bool entered = false, more = false;
	*counts_out = (struct semel_prune_counts){ 0 };
	*more_out = false;
	if (dry_run)
		return semel_sql_count_old(base, cutoffs, counts_out, error);
	semel_status status = semel_sql_enter(base, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = prune_all(semel_sqlite_of(base), cutoffs, counts_out, &more, error);
	status = semel_sql_leave(base, entered, status, error);
	*more_out = status == SEMEL_OK && more;
	return status;
}
