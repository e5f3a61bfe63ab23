/* SPDX-License-Identifier: Apache-2.0 */
/* Forgetting what is old enough, a bounded look at a time, so that writers wait for a moment at
 * most.
 *
 * - Only settled rows, finished claims and dead letters without followers go.
 * - An event goes by when it was committed, not by its own time. The boundary that is remembered is
 *   the newest own time of what went: a claim knows no other.
 * - A claim goes by the week of its event and by when it was first seen, whichever is later: an
 *   event may be old, or have no time at all, and come again tomorrow all the same.
 * - A replay that was asked for and not processed yet keeps its dead letter.
 * - A dead letter leaves a FAILED claim behind: its event stays accounted for, and does not run by
 *   itself, for as long as the inbox remembers.
 * - What was forgotten is remembered as a boundary (semel_meta), written in the same transaction.
 * - Outbox and inbox are walked with a cursor, from the start of a run to its end; nothing that
 *   retention asks for is indexed, since every publish and every claim would pay for it.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "fault/plant.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_PER_STEP 5000

#define CREATED_AT_NORMAL "strftime('%Y-%m-%dT%H:%M:%fZ', created_at)"

/* Published, or given up with its dead letter gone too. */
#define SETTLED_ROW                                                                                \
	"(status = 'PUBLISHED' OR (status = 'FAILED' AND NOT EXISTS (SELECT 1"                     \
	" FROM semel_dead_letter l WHERE l.scope = 'relay' AND l.event_id = semel_outbox.id"       \
	" AND l.parked_behind IS NULL)))"

/* Parameters: ?1 the horizon, ?2 and on the cursor, the last one the number of rows to look at. */
static const struct semel_sqlite_query outbox_span = {
	SEMEL_SQL_ONCE, "look for old rows of the outbox",
	"SELECT max(seq), count(*) FROM (SELECT seq FROM semel_outbox WHERE seq > ?1"
	" ORDER BY seq LIMIT ?2)"
};
static const struct semel_sqlite_query outbox_newest = {
	SEMEL_SQL_ONCE, "note what the outbox forgets",
	"INSERT INTO semel_meta (name, value) SELECT 'outbox_pruned_until', newest FROM"
	" (SELECT max(" CREATED_AT_NORMAL
	") AS newest FROM semel_outbox WHERE seq > ?2 AND seq <= ?3"
	" AND " SETTLED_ROW " AND committed_at < ?1) WHERE newest IS NOT NULL"
	" ON CONFLICT DO UPDATE SET value = max(value, excluded.value)"
};
/* A planted bug: old is old, whether it was published or not. */
static const struct semel_sqlite_query outbox_delete_all = {
	SEMEL_SQL_ONCE, "forget old rows of the outbox",
	"DELETE FROM semel_outbox WHERE seq > ?2 AND seq <= ?3 AND committed_at < ?1"
};
static const struct semel_sqlite_query outbox_delete = {
	SEMEL_SQL_ONCE, "forget old rows of the outbox",
	"DELETE FROM semel_outbox WHERE seq > ?2 AND seq <= ?3 AND " SETTLED_ROW
	" AND committed_at < ?1"
};
/* ?1 is a Monday, as a week_start; a time of that day or later sorts behind it. */
#define OLD_CLAIM "status <> 'CLAIMED' AND week_start < ?1 AND first_seen_at < ?1"

static const struct semel_sqlite_query inbox_span = {
	SEMEL_SQL_ONCE, "look for old claims",
	"SELECT scope, event_id FROM semel_inbox WHERE (scope, event_id) > (?1, ?2)"
	" ORDER BY scope, event_id LIMIT 1 OFFSET ?3"
};
static const struct semel_sqlite_query inbox_delete = {
	SEMEL_SQL_ONCE, "forget old claims",
	"DELETE FROM semel_inbox WHERE (scope, event_id) > (?2, ?3)"
	" AND (?4 IS NULL OR (scope, event_id) <= (?4, ?5))"
	" AND " OLD_CLAIM
};
static const struct semel_sqlite_query key_delete = {
	SEMEL_SQL_ONCE, "forget old business keys",
	"DELETE FROM semel_inbox_key WHERE first_seen_at < ?1 AND NOT EXISTS"
	" (SELECT 1 FROM semel_inbox i WHERE i.scope = semel_inbox_key.scope"
	" AND i.event_id = semel_inbox_key.event_id)"
};
static const struct semel_sqlite_query note_known_since = {
	SEMEL_SQL_ONCE, "note what the inbox forgets",
	"INSERT INTO semel_meta (name, value) VALUES ('inbox_known_since', ?1)"
	" ON CONFLICT DO UPDATE SET value = max(value, excluded.value)"
};

/* Followers wait behind the entry, or behind what it holds. */
#define OLD_DEAD_LETTER                                                                            \
	" parked_behind IS NULL AND failed_at < ?1"                                                \
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

static const struct semel_sqlite_query dead_holds_delete = {
	SEMEL_SQL_ONCE, "lift the holds of old dead letters",
	"DELETE FROM semel_hold WHERE state = 'dead' AND EXISTS (SELECT 1 FROM semel_dead_letter d"
	" WHERE d.scope = semel_hold.scope AND d.event_id = semel_hold.head_id"
	" AND" OLD_DEAD_LETTER ")"
};
/* A planted bug: whoever waits behind the hold is not looked for. */
static const struct semel_sqlite_query dead_holds_delete_all = {
	SEMEL_SQL_ONCE, "lift the holds of old dead letters",
	"DELETE FROM semel_hold WHERE state = 'dead' AND EXISTS (SELECT 1 FROM semel_dead_letter d"
	" WHERE d.scope = semel_hold.scope AND d.event_id = semel_hold.head_id"
	" AND d.parked_behind IS NULL AND d.failed_at < ?1)"
};
static const struct semel_sqlite_query dead_exceptions_delete = {
	SEMEL_SQL_ONCE, "lift the exceptions of old dead letters",
	"DELETE FROM semel_outbox_exception WHERE state = 'failed' AND seq IN (SELECT o.seq"
	" FROM semel_dead_letter d JOIN semel_outbox o ON o.id = d.event_id"
	" WHERE d.scope = 'relay' AND d.status = 'PENDING' AND" OLD_DEAD_LETTER ")"
};
/* 'weekday 0' is the Sunday on or after the day: six days before it is the Monday of its week. */
static const struct semel_sqlite_query dead_note = {
	SEMEL_SQL_ONCE, "note which dead letters are forgotten",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at,"
	" topic, error_code, replay)"
	" SELECT scope, event_id, date(event_time, 'weekday 0', '-6 days'),"
	" 'FAILED', failed_at, failed_at, coalesce(topic, ''), 'dead-letter-pruned', replay_count"
	" FROM semel_dead_letter AS d WHERE typeof(event_id) = 'text' AND" OLD_DEAD_LETTER
	" ON CONFLICT DO NOTHING"
};
static const struct semel_sqlite_query dead_delete = {
	SEMEL_SQL_ONCE, "forget old dead letters",
	"DELETE FROM semel_dead_letter AS d WHERE" OLD_DEAD_LETTER
};

/* The dry run counts with one statement each. */
static const struct semel_sqlite_query outbox_count = {
	SEMEL_SQL_ONCE, "count old rows of the outbox",
	"SELECT count(*) FROM semel_outbox WHERE " SETTLED_ROW " AND committed_at < ?1"
};
static const struct semel_sqlite_query inbox_count = {
	SEMEL_SQL_ONCE, "count old claims", "SELECT count(*) FROM semel_inbox WHERE " OLD_CLAIM
};
static const struct semel_sqlite_query dead_count = {
	SEMEL_SQL_ONCE, "count old dead letters",
	"SELECT count(*) FROM semel_dead_letter AS d WHERE" OLD_DEAD_LETTER
};

/* The cutoffs as the tables write them; empty: keep all. */
struct bounds {
	char outbox[SEMEL_TIME_SIZE], inbox[SEMEL_DATE_SIZE], keys[SEMEL_TIME_SIZE];
	char dead[SEMEL_TIME_SIZE];
};

static void format_bound(int64_t time_ms, char out[SEMEL_TIME_SIZE])
{
	out[0] = '\0'; /* sorts before every time: nothing is older */
	if (time_ms != 0)
		semel_time_format(time_ms, out);
}

static struct bounds bounds_of(const struct semel_retention_cutoffs *cutoffs)
{
	struct bounds bounds = { 0 };
	format_bound(cutoffs->outbox_ms, bounds.outbox);
	format_bound(cutoffs->inbox_ms, bounds.keys);
	format_bound(cutoffs->dead_ms, bounds.dead);
	if (cutoffs->inbox_ms != 0) /* whole weeks that ended before the horizon */
		semel_time_format_date(semel_time_week_start(cutoffs->inbox_ms), bounds.inbox);
	return bounds;
}

/* Runs a statement with one text; changes_out may be NULL. */
static semel_status run_with(semel_tx tx, const struct semel_sqlite_query *query, const char *text,
			     uint64_t *changes_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, text);
	status = semel_sqlite_run(tx, query, statement, error);
	if (changes_out != NULL && status == SEMEL_OK)
		*changes_out = (uint64_t)semel_sqlite_changes(tx);
	semel_sqlite_give(tx, query, statement);
	return status;
}

static semel_status count_with(semel_tx tx, const struct semel_sqlite_query *query,
			       const char *text, uint64_t *count_out, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*count_out = 0;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, text);
	status = semel_sqlite_step(tx, query, statement, &row, error);
	if (row)
		*count_out = (uint64_t)sqlite3_column_int64(statement, 0);
	semel_sqlite_give(tx, query, statement);
	return status;
}

/* ---- outbox ---------------------------------------------------------------------------------- */

struct span {
	int64_t after, last; /* numbers; last 0: the table ends here */
	bool more;
};

static semel_status find_span(semel_tx tx, struct span *span, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &outbox_span, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, span->after);
	sqlite3_bind_int64(statement, 2, ROWS_PER_STEP);
	status = semel_sqlite_step(tx, &outbox_span, statement, &row, error);
	if (row) {
		span->last = sqlite3_column_int64(statement, 0);
		span->more = sqlite3_column_int64(statement, 1) == ROWS_PER_STEP;
	}
	semel_sqlite_give(tx, &outbox_span, statement);
	return status;
}

static semel_status run_in_span(semel_tx tx, const struct semel_sqlite_query *query,
				const char *horizon, const struct span *span, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, horizon);
	sqlite3_bind_int64(statement, 2, span->after);
	sqlite3_bind_int64(statement, 3, span->last);
	status = semel_sqlite_run(tx, query, statement, error);
	semel_sqlite_give(tx, query, statement);
	return status;
}

static semel_status prune_outbox(struct semel_sqlite_store *store, const char *horizon,
				 uint64_t *count_out, bool *more_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	struct span span = { .after = store->prune.seq };
	semel_status status = find_span(tx, &span, error);
	if (status == SEMEL_OK)
		status = run_in_span(tx, &outbox_newest, horizon, &span, error);
	if (status == SEMEL_OK)
		status = run_in_span(tx,
				     SEMEL_PLANTED("prune-takes-unpublished") ? &outbox_delete_all
									      : &outbox_delete,
				     horizon, &span, error);
	if (status != SEMEL_OK)
		return status;
	*count_out = (uint64_t)semel_sqlite_changes(tx);
	store->prune.seq = span.more ? span.last : 0;
	*more_out = *more_out || span.more;
	return SEMEL_OK;
}

/* ---- inbox ----------------------------------------------------------------------------------- */

struct stop {
	struct semel_buffer scope, event_id; /* no data: the table ends here */
};

/* With its length: other programs write claims too, and a zero byte may be in them. */
static void append_column(struct semel_buffer *to, sqlite3_stmt *statement, int column)
{
	const void *text = sqlite3_column_text(statement, column);
	semel_buffer_append(to, text, (size_t)sqlite3_column_bytes(statement, column));
}

static struct semel_text text_or_none(const struct semel_buffer *buffer)
{
	return buffer->data ? semel_buffer_text(buffer) : (struct semel_text){ NULL, 0 };
}

static semel_status find_stop(struct semel_sqlite_store *store, struct stop *stop,
			      semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &inbox_span, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, semel_buffer_text(&store->prune.scope));
	semel_sqlite_bind_text(statement, 2, semel_buffer_text(&store->prune.event_id));
	sqlite3_bind_int64(statement, 3, ROWS_PER_STEP - 1);
	status = semel_sqlite_step(tx, &inbox_span, statement, &row, error);
	if (row) {
		append_column(&stop->scope, statement, 0);
		append_column(&stop->event_id, statement, 1);
		if (stop->scope.failed || stop->event_id.failed)
			status = semel_error_set(error, SEMEL_INTERNAL, "no memory to prune");
	}
	semel_sqlite_give(tx, &inbox_span, statement);
	return status;
}

static semel_status delete_claims(struct semel_sqlite_store *store, const char *week,
				  const struct stop *stop, uint64_t *count_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_sqlite_take(tx, &inbox_delete, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, week);
	semel_sqlite_bind_text(statement, 2, semel_buffer_text(&store->prune.scope));
	semel_sqlite_bind_text(statement, 3, semel_buffer_text(&store->prune.event_id));
	semel_sqlite_bind_text(statement, 4, text_or_none(&stop->scope));
	semel_sqlite_bind_text(statement, 5, text_or_none(&stop->event_id));
	status = semel_sqlite_run(tx, &inbox_delete, statement, error);
	*count_out = status == SEMEL_OK ? (uint64_t)semel_sqlite_changes(tx) : 0;
	semel_sqlite_give(tx, &inbox_delete, statement);
	return status;
}

static semel_status prune_inbox(struct semel_sqlite_store *store, const struct bounds *bounds,
				uint64_t *count_out, bool *more_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(&store->base);
	struct stop stop = { 0 };
	semel_status status = find_stop(store, &stop, error);
	if (status == SEMEL_OK)
		status = delete_claims(store, bounds->inbox, &stop, count_out, error);
	if (status == SEMEL_OK && *count_out > 0)
		status = run_with(tx, &note_known_since, bounds->inbox, NULL, error);
	if (status == SEMEL_OK && stop.scope.data == NULL)
		status = run_with(tx, &key_delete, bounds->keys, NULL, error);
	if (status != SEMEL_OK) {
		semel_buffer_free(&stop.scope);
		semel_buffer_free(&stop.event_id);
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

static semel_status prune_dead(semel_tx tx, const struct bounds *bounds,
			       struct semel_prune_counts *counts, semel_error *error)
{
	const struct semel_sqlite_query *lift_holds =
		SEMEL_PLANTED("prune-without-lock") ? &dead_holds_delete_all : &dead_holds_delete;
	semel_status status = run_with(tx, lift_holds, bounds->dead, NULL, error);
	if (status == SEMEL_OK)
		status = run_with(tx, &dead_exceptions_delete, bounds->dead, NULL, error);
	if (status == SEMEL_OK)
		status = run_with(tx, &dead_note, bounds->dead, NULL, error);
	if (status == SEMEL_OK)
		status = run_with(tx, &dead_delete, bounds->dead, &counts->dead, error);
	return status;
}

static semel_status count_all(semel_tx tx, const struct bounds *bounds,
			      struct semel_prune_counts *counts, semel_error *error)
{
	semel_status status = count_with(tx, &outbox_count, bounds->outbox, &counts->outbox, error);
	if (status == SEMEL_OK)
		status = count_with(tx, &inbox_count, bounds->inbox, &counts->inbox, error);
	if (status == SEMEL_OK)
		status = count_with(tx, &dead_count, bounds->dead, &counts->dead, error);
	return status;
}

semel_status semel_sqlite_prune(semel_store *base, const struct semel_retention_cutoffs *cutoffs,
				bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
				semel_error *error)
{
	struct semel_sqlite_store *store = semel_sqlite_of(base);
	struct bounds bounds = bounds_of(cutoffs);
	bool entered = false, more = false;
	*counts_out = (struct semel_prune_counts){ 0 };
	*more_out = false;
	if (dry_run)
		return count_all(semel_sqlite_tx(base), &bounds, counts_out, error);
	/* A table that has been walked to its end is not begun anew while the other is at work. */
	bool outbox = cutoffs->outbox_ms != 0 &&
		      (store->prune.seq != 0 || store->prune.scope.data == NULL);
	bool inbox = cutoffs->inbox_ms != 0 &&
		     (store->prune.scope.data != NULL || store->prune.seq == 0);
	semel_status status = semel_sqlite_enter(base, &entered, error);
	if (status == SEMEL_OK && outbox)
		status = prune_outbox(store, bounds.outbox, &counts_out->outbox, &more, error);
	if (status == SEMEL_OK && inbox)
		status = prune_inbox(store, &bounds, &counts_out->inbox, &more, error);
	if (status == SEMEL_OK)
		status = prune_dead(semel_sqlite_tx(base), &bounds, counts_out, error);
	status = semel_sqlite_leave(base, entered, status, error);
	*more_out = status == SEMEL_OK && more;
	return status;
}

/* ---- the boundaries -------------------------------------------------------------------------- */

static const struct semel_sqlite_query read_meta = {
	SEMEL_SQL_ONCE, "read what was forgotten", "SELECT value FROM semel_meta WHERE name = ?1"
};

static semel_status read_boundary(semel_store *store, const char *name, int64_t *time_ms_out,
				  semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	*time_ms_out = 0;
	semel_status status = semel_sqlite_take(tx, &read_meta, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, name);
	status = semel_sqlite_step(tx, &read_meta, statement, &row, error);
	if (row)
		*time_ms_out = semel_sqlite_time(statement, 0);
	semel_sqlite_give(tx, &read_meta, statement);
	return status;
}

semel_status semel_sqlite_outbox_pruned_until(semel_store *store, int64_t *time_ms_out,
					      semel_error *error)
{
	return read_boundary(store, "outbox_pruned_until", time_ms_out, error);
}

semel_status semel_sqlite_inbox_known_since(semel_store *store, int64_t *time_ms_out,
					    semel_error *error)
{
	return read_boundary(store, "inbox_known_since", time_ms_out, error);
}
