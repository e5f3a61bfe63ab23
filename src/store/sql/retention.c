/* SPDX-License-Identifier: Apache-2.0 */
/* What retention has in common in all SQL stores: dead letters, the counts of a dry run, and the
 * boundaries of what was removed. Each driver scans outbox and inbox in its own way.
 *
 * - Only settled rows, finished claims and dead letters without followers are removed.
 * - A replay that was requested and not processed yet keeps its dead letter.
 * - A dead letter that is removed leaves a FAILED claim: its event stays accounted for, and does
 *   not run by itself, for as long as the inbox retains claims.
 * - What was removed is recorded as a boundary (semel_meta), written in the same transaction.
 */
#include "store/sql/sql.h"

#include "fault/plant.h"

/* ---- dead letters ---------------------------------------------------------------------------- */

/* The row d failed before ?1, and not before ?2 (NULL: no limit). Followers wait behind the entry,
 * or behind the topic that it holds. */
#define OLD_DEAD_LETTER(d)                                                                         \
	SEMEL_SQL_OLD_BY_TIME(d)                                                                   \
	" AND NOT (" d ".status = 'REPLAYED' AND " d ".settled_at IS NULL)"                        \
	" AND NOT EXISTS (SELECT 1 FROM semel_dead_letter f WHERE f.scope = " d ".scope"           \
	" AND f.aggregate_type = " d ".aggregate_type AND f.aggregate_id = " d ".aggregate_id"     \
	" AND f.parked_behind IS NOT NULL)"                                                        \
	" AND NOT EXISTS (SELECT 1 FROM semel_hold h JOIN semel_dead_letter f"                     \
	" ON f.scope = h.scope AND f.topic = h.aggregate_id AND f.parked_behind IS NOT NULL"       \
	" WHERE h.scope = " d ".scope AND h.aggregate_type = '' AND h.aggregate_id = " d ".topic"  \
	" AND h.head_id = " d ".event_id)"                                                         \
	" AND NOT (" d ".scope = 'relay' AND " d ".status = 'PENDING' AND EXISTS (SELECT 1"        \
	" FROM semel_outbox_exception x WHERE x.aggregate_type = " d ".aggregate_type"             \
	" AND x.aggregate_id = " d ".aggregate_id AND x.state = 'parked'))"

#define DELETE_HOLDS                                                                               \
	"DELETE FROM semel_hold WHERE state = 'dead' AND EXISTS (SELECT 1"                         \
	" FROM semel_dead_letter d WHERE d.scope = semel_hold.scope"                               \
	" AND d.event_id = semel_hold.head_id AND"
static const struct semel_sql_statement delete_holds = {
	.what = "remove the holds of old dead letters",
	.text = SEMEL_SQL_SAME(DELETE_HOLDS OLD_DEAD_LETTER("d") ")")
};
/* A planted bug: what waits behind the hold is ignored. */
static const struct semel_sql_statement delete_all_holds = {
	.what = "remove the holds of old dead letters",
	.text = SEMEL_SQL_SAME(DELETE_HOLDS SEMEL_SQL_OLD_BY_TIME("d") ")")
};
#define EXCEPTIONS_SQLITE                                                                          \
	"DELETE FROM semel_outbox_exception WHERE state = 'failed' AND seq IN (SELECT o.seq"       \
	" FROM semel_dead_letter d JOIN semel_outbox o ON o.id = d.event_id"                       \
	" WHERE d.scope = 'relay' AND d.status = 'PENDING' AND" OLD_DEAD_LETTER("d") ")"
#define EXCEPTIONS_POSTGRES                                                                        \
	"DELETE FROM semel_outbox_exception q USING semel_dead_letter d, semel_outbox o"           \
	" WHERE q.state = 'failed' AND q.lane = o.lane AND q.seq = o.seq AND o.id = d.event_id"    \
	" AND d.scope = 'relay' AND d.status = 'PENDING' AND" OLD_DEAD_LETTER("d")
static const struct semel_sql_statement delete_exceptions = {
	.what = "remove the exceptions of old dead letters",
	.text = { [SEMEL_SQL_SQLITE] = EXCEPTIONS_SQLITE,
		  [SEMEL_SQL_POSTGRES] = EXCEPTIONS_POSTGRES }
};
/* The week of the event. SQLite: 'weekday 0' is the Sunday on or after the day, and six days before
 * it is the Monday of its week; an id that is not text cannot be claimed. */
#define LEAVE_CLAIMS(D, week, has_id)                                                              \
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at,"             \
	" processed_at, topic, error_code, replay) SELECT d.scope, d.event_id, " week              \
	", 'FAILED', d.failed_at, d.failed_at, coalesce(d.topic, ''), 'dead-letter-pruned',"       \
	" d.replay_count FROM semel_dead_letter AS d WHERE " has_id " AND" OLD_DEAD_LETTER("d")    \
		D##_IGNORE("")
#define WEEK_SQLITE   "date(d.event_time, 'weekday 0', '-6 days')"
#define WEEK_POSTGRES "date_trunc('week', coalesce(d.event_time, 'epoch') AT TIME ZONE 'UTC')::date"
static const struct semel_sql_statement leave_claims = {
	.what = "record which dead letters are removed",
	.text = { [SEMEL_SQL_SQLITE] = LEAVE_CLAIMS(SEMEL_SQL_SQLITE, WEEK_SQLITE,
						    "typeof(d.event_id) = 'text'"),
		  [SEMEL_SQL_POSTGRES] = LEAVE_CLAIMS(SEMEL_SQL_POSTGRES, WEEK_POSTGRES,
						      "d.event_id IS NOT NULL") }
};
static const struct semel_sql_statement delete_letters = {
	.what = "remove old dead letters",
	.text = SEMEL_SQL_SAME(
		"DELETE FROM semel_dead_letter WHERE" OLD_DEAD_LETTER("semel_dead_letter"))
};

static semel_status change(semel_tx tx, const struct semel_sql_statement *statement,
			   struct semel_sql_span span, uint64_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, statement, error);
	semel_sql_bind_time(&query, span.until_ms);
	semel_sql_bind_time(&query, span.from_ms);
	semel_status status = semel_sql_finish(&query);
	*count_out = semel_sql_changes(&query);
	return status;
}

semel_status semel_sql_prune_dead(semel_tx tx, struct semel_sql_span span, uint64_t *count_out,
				  semel_error *error)
{
	const struct semel_sql_statement *const steps[] = {
		SEMEL_PLANTED("prune-without-lock") ? &delete_all_holds : &delete_holds,
		&delete_exceptions,
		&leave_claims,
		&delete_letters,
	};
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		semel_status status = change(tx, steps[i], span, count_out, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- the dry run ----------------------------------------------------------------------------- */

/* With one statement each. */
#define COUNT_OUTBOX(D)                                                                            \
	"SELECT count(*) FROM semel_outbox o WHERE " SEMEL_SQL_DONE_ROW                            \
	" AND " D##_COMMITTED_AT("o") " < ?1"
static const struct semel_sql_statement count_outbox = { .what = "count old rows of the outbox",
							 .text = SEMEL_SQL_EACH(COUNT_OUTBOX) };
#define COUNT_INBOX(D) "SELECT count(*) FROM semel_inbox WHERE " D##_OLD_CLAIM
static const struct semel_sql_statement count_inbox = { .what = "count old claims",
							.text = SEMEL_SQL_EACH(COUNT_INBOX) };
static const struct semel_sql_statement count_letters = {
	.what = "count old dead letters",
	.text = SEMEL_SQL_SAME(
		"SELECT count(*) FROM semel_dead_letter AS d WHERE" OLD_DEAD_LETTER("d"))
};

void semel_sql_bind_week(struct semel_sql_query *query, int64_t time_ms,
			 char buffer[SEMEL_DATE_SIZE])
{
	if (time_ms != 0)
		semel_time_format_date(semel_time_week_start(time_ms), buffer);
	semel_sql_bind_string(query, time_ms == 0 ? NULL : buffer);
}

semel_status semel_sql_first_int(struct semel_sql_query *query, int64_t *number_out)
{
	*number_out = semel_sql_next(query) ? semel_sql_int(query, 0) : 0;
	return semel_sql_finish(query);
}

static semel_status count_of(struct semel_sql_query *query, uint64_t *count_out)
{
	int64_t count = 0;
	semel_status status = semel_sql_first_int(query, &count);
	*count_out = (uint64_t)count;
	return status;
}

semel_status semel_sql_count_old(semel_store *store, const struct semel_retention_cutoffs *cutoffs,
				 struct semel_prune_counts *counts, semel_error *error)
{
	semel_tx tx = store->driver->tx(store);
	char week[SEMEL_DATE_SIZE];
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &count_outbox, error);
	semel_sql_bind_time(&query, cutoffs->outbox_ms);
	semel_status status = count_of(&query, &counts->outbox);
	if (status != SEMEL_OK)
		return status;
	semel_sql_prepare(&query, tx, &count_inbox, error);
	semel_sql_bind_week(&query, cutoffs->inbox_ms, week);
	status = count_of(&query, &counts->inbox);
	if (status != SEMEL_OK)
		return status;
	semel_sql_prepare(&query, tx, &count_letters, error);
	semel_sql_bind_time(&query, cutoffs->dead_ms);
	semel_sql_bind_time(&query, 0);
	return count_of(&query, &counts->dead);
}

/* ---- the boundaries -------------------------------------------------------------------------- */

#define READ_BOUNDARY(D) "SELECT " D##_MS("value") " FROM semel_meta WHERE name = ?1"
static const struct semel_sql_statement read_boundary = { .what = "read what was removed",
							  .text = SEMEL_SQL_EACH(READ_BOUNDARY) };

static semel_status boundary(semel_store *store, const char *name, int64_t *time_ms_out,
			     semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &read_boundary, error);
	semel_sql_bind_string(&query, name);
	*time_ms_out = semel_sql_next(&query) ? semel_sql_time(&query, 0) : 0;
	return semel_sql_finish(&query);
}

semel_status semel_sql_outbox_pruned_until(semel_store *store, int64_t *time_ms_out,
					   semel_error *error)
{
	return boundary(store, "outbox_pruned_until", time_ms_out, error);
}

semel_status semel_sql_inbox_known_since(semel_store *store, int64_t *time_ms_out,
					 semel_error *error)
{
	return boundary(store, "inbox_known_since", time_ms_out, error);
}
