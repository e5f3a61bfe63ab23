/* SPDX-License-Identifier: Apache-2.0 */
/* Finds rows that the relay would never read because the tables were changed manually.
 *
 * - A row at or below the low mark that was never published: its number was assigned manually, or
 *   the numbering was restarted and has passed the mark since. The low mark is moved back to that
 *   row.
 * - An exception whose row was deleted or marked manually: it is removed, and the next exception of
 *   its aggregate becomes due.
 * Each renewal of the lease reads a bounded range. Rounds are separated by a pause. Nothing is
 * written if nothing is found, since SQLite has one writer at a time.
 */
#include "store/sqlite/sqlite.h"

#include "base/env.h"
#include "fault/plant.h"
#include "observe/log.h"

#define ROWS_PER_STEP      2000
#define ROUND_PAUSE_MS     10000
#define ROUND_PAUSE_FACTOR 10 /* plus this many times the duration of the round */

static const struct semel_sqlite_statement select_below = {
	SEMEL_SQLITE_ONCE, "find events below the low mark",
	"SELECT count(*), coalesce(max(s.seq), 0), coalesce(min(s.seq) FILTER (WHERE s.status ="
	" 'NEW' AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.seq = s.seq)), 0)"
	" FROM (SELECT seq, status FROM semel_outbox WHERE seq > ?1 AND seq <= ?2 ORDER BY seq"
	" LIMIT ?3) AS s"
};
#define IS_ORPHAN                                                                                  \
	"NOT EXISTS (SELECT 1 FROM semel_outbox o WHERE o.seq = semel_outbox_exception.seq"        \
	" AND o.status <> 'PUBLISHED')"
#define WAITS_FOR_NONE                                                                             \
	"state = 'parked' AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e"                  \
	" WHERE e.aggregate_type = semel_outbox_exception.aggregate_type"                          \
	" AND e.aggregate_id = semel_outbox_exception.aggregate_id"                                \
	" AND e.seq < semel_outbox_exception.seq)"

static const struct semel_sqlite_statement any_stuck = {
	SEMEL_SQLITE_ONCE, "find events without an earlier exception",
	"SELECT EXISTS (SELECT 1 FROM semel_outbox_exception WHERE " IS_ORPHAN ")"
	" OR EXISTS (SELECT 1 FROM semel_outbox_exception WHERE " WAITS_FOR_NONE ")"
};
static const struct semel_sqlite_statement drop_orphans = {
	SEMEL_SQLITE_ONCE, "remove exceptions whose events are published",
	"DELETE FROM semel_outbox_exception WHERE " IS_ORPHAN
};
static const struct semel_sqlite_statement make_heads_due = {
	SEMEL_SQLITE_ONCE, "make events without an earlier exception due",
	"UPDATE semel_outbox_exception SET state = 'due' WHERE " WAITS_FOR_NONE
};

static semel_status run_plain(semel_tx tx, const struct semel_sqlite_statement *statement,
			      semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_run(tx, statement, prepared, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}

static semel_status has_stuck(semel_tx tx, bool *any_out, semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &any_stuck, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_step(tx, &any_stuck, prepared, &row, error);
	*any_out = row && sqlite3_column_int(prepared, 0) != 0;
	semel_sqlite_return_statement(tx, &any_stuck, prepared);
	return status;
}

static semel_status repair_exceptions(semel_store *store, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	bool entered = false, any = false;
	semel_status status = has_stuck(tx, &any, error);
	if (status != SEMEL_OK || !any)
		return status;
	status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = run_plain(tx, &drop_orphans, error);
	if (status != SEMEL_OK)
		goto leave;
	status = run_plain(tx, &make_heads_due, error);

leave:
	status = semel_sql_leave(store, entered, status, error);
	if (status != SEMEL_OK)
		return status;
	semel_log(SEMEL_LOG_WARN, "released events behind an exception that no longer exists",
		  NULL);
	return status;
}

static semel_status check_below(semel_store *store, int64_t low_seq, int64_t *count_out,
				int64_t *found_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &select_below, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(prepared, 1, semel_sqlite_of(store)->sweep.after_seq);
	sqlite3_bind_int64(prepared, 2, low_seq);
	sqlite3_bind_int(prepared, 3, ROWS_PER_STEP);
	status = semel_sqlite_step(tx, &select_below, prepared, &row, error);
	if (row) {
		*count_out = sqlite3_column_int64(prepared, 0);
		semel_sqlite_of(store)->sweep.after_seq = sqlite3_column_int64(prepared, 1);
		*found_out = sqlite3_column_int64(prepared, 2);
	}
	semel_sqlite_return_statement(tx, &select_below, prepared);
	return status;
}

semel_status semel_sqlite_sweep(semel_store *base, const struct semel_lease *lease,
				int64_t *found_out, semel_error *error)
{
	struct semel_sqlite_store *store = semel_sqlite_of(base);
	int64_t now_ms = semel_steady_ms(semel_store_env(base));
	int64_t count = 0;
	semel_status status = SEMEL_OK;
	*found_out = 0;
	if (now_ms < store->sweep.next_ms || SEMEL_PLANTED("removed-rows-unseen") ||
	    SEMEL_PLANTED("high-water-mark")) /* it would repair what the planted bug loses */
		return SEMEL_OK;
	if (store->sweep.after_seq == 0) {
		store->sweep.began_ms = now_ms;
		status = repair_exceptions(base, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (!lease->streamed) {
		status = check_below(base, lease->low_seq, &count, found_out, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (count < ROWS_PER_STEP || *found_out != 0) {
		store->sweep.after_seq = 0;
		store->sweep.next_ms = now_ms + ROUND_PAUSE_MS +
				       ROUND_PAUSE_FACTOR * (now_ms - store->sweep.began_ms);
	}
	return status;
}
