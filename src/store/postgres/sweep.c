/* SPDX-License-Identifier: Apache-2.0 */
/* Finds rows that no relay would ever read because the tables were changed manually.
 *
 * - A row at or below its lane's low mark that was never published: its number was assigned
 *   manually (COPY, a restored table), or the sequence was set back and has passed the mark since.
 *   The low mark is moved back to that row.
 * - An exception whose row was deleted or marked manually: it is removed, and the next exception of
 *   its aggregate becomes due. A parked exception without an earlier one becomes due at once.
 * Each renewal of a lease reads a bounded range of its lane. Rounds are separated by a pause, which
 * is longer after a longer round. Where rows are not marked individually (relay --marks off), only
 * the low mark shows what was published; unmarked_seq records how far that goes. The change stream
 * delivers a row whatever its number, so in that mode only the exceptions are checked.
 */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "base/error.h"
#include "observe/log.h"

#define ROWS_PER_STEP      500
#define ROUND_PAUSE_MS     10000
#define ROUND_PAUSE_FACTOR 10 /* plus this many times the duration of the round */

static const struct semel_pg_statement select_below = {
	"find events below the low mark",
	"SELECT count(*), coalesce(max(s.seq), 0), coalesce(min(s.seq) FILTER (WHERE s.status ="
	" 'NEW' AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.lane = $1"
	" AND x.seq = s.seq)), 0) FROM (SELECT o.seq, o.status FROM semel_outbox o WHERE o.lane = "
	"$1"
	" AND o.seq > greatest($2, (SELECT unmarked_seq FROM semel_lease WHERE lane = $1))"
	" AND o.seq <= $3 ORDER BY o.lane, o.seq LIMIT $4) AS s"
};
static const struct semel_pg_statement any_exception = {
	"find exceptions", "SELECT EXISTS (SELECT 1 FROM semel_outbox_exception WHERE lane = $1)"
};
static const struct semel_pg_statement drop_orphans = {
	"remove exceptions whose events are published",
	"DELETE FROM semel_outbox_exception x WHERE x.lane = $1 AND NOT EXISTS (SELECT 1"
	" FROM semel_outbox o WHERE o.lane = x.lane AND o.seq = x.seq AND o.status <> 'PUBLISHED')"
};
static const struct semel_pg_statement make_heads_due = {
	"make events without an earlier exception due",
	"UPDATE semel_outbox_exception x SET state = 'due' WHERE x.lane = $1"
	" AND x.state = 'parked' AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e"
	" WHERE e.aggregate_type = x.aggregate_type AND e.aggregate_id = x.aggregate_id"
	" AND (e.place, e.seq) < (x.place, x.seq))"
};
static const struct semel_pg_statement fence = {
	"lock the lease",
	"SELECT 1 FROM semel_lease WHERE lane = $1 AND epoch = $2 AND owner = $3 FOR UPDATE"
};

static semel_status run_for_lane(semel_tx tx, const struct semel_pg_statement *statement,
				 int32_t lane, uint64_t *changed_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_int(&params, lane);
	return semel_pg_change(tx, statement, &params, changed_out, error);
}

static semel_status has_exceptions(semel_tx tx, int32_t lane, bool *any_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, lane);
	semel_status status = semel_pg_run(tx, &any_exception, &params, &result, error);
	*any_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

static semel_status lock_lease(semel_tx tx, const struct semel_lease *lease, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, lease->lane);
	semel_pg_add_int(&params, lease->epoch);
	semel_pg_add_string(&params, lease->owner);
	semel_status status = semel_pg_run(tx, &fence, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_rows(result) == 0)
		status =
			semel_error_set(error, SEMEL_LEASE_LOST,
					"lane %d was taken over by another relay (our epoch: %lld)",
					(int)lease->lane, (long long)lease->epoch);
	semel_pg_clear(result);
	return status;
}

/* The exceptions of a lane are changed only under the lock of its lease. */
static semel_status repair_exceptions(semel_store *store, const struct semel_lease *lease,
				      semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	uint64_t gone = 0, freed = 0;
	bool entered = false, any = false;
	semel_status status = has_exceptions(tx, lease->lane, &any, error);
	if (status != SEMEL_OK || !any)
		return status;
	status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = lock_lease(tx, lease, error);
	if (status != SEMEL_OK)
		goto leave;
	status = run_for_lane(tx, &drop_orphans, lease->lane, &gone, error);
	if (status != SEMEL_OK)
		goto leave;
	status = run_for_lane(tx, &make_heads_due, lease->lane, &freed, error);

leave:
	status = semel_sql_leave(store, entered, status, error);
	if (status != SEMEL_OK)
		return status;
	if (gone + freed > 0)
		semel_log_detail(SEMEL_LOG_WARN,
				 "released events behind an exception that no longer exists",
				 "lane %d", (int)lease->lane);
	return status;
}

/* Ends the round of a lane; the next one begins after a pause. */
static void end_round(struct semel_pg_store *store, int32_t lane, int64_t now_ms)
{
	int64_t took_ms = now_ms - store->sweep.began_ms[lane];
	store->sweep.after_seq[lane] = 0;
	store->sweep.next_ms[lane] = now_ms + ROUND_PAUSE_MS + ROUND_PAUSE_FACTOR * took_ms;
}

semel_status semel_pg_sweep(struct semel_pg_store *store, const struct semel_lease *lease,
			    int64_t *found_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	int32_t lane = lease->lane;
	int64_t now_ms = semel_steady_ms(semel_store_env(&store->base));
	semel_status status = SEMEL_OK;
	*found_out = 0;
	if (now_ms < store->sweep.next_ms[lane])
		return SEMEL_OK;
	if (store->sweep.after_seq[lane] == 0) {
		store->sweep.began_ms[lane] = now_ms;
		status = repair_exceptions(&store->base, lease, error);
	}
	if (status != SEMEL_OK)
		return status;
	if (lease->streamed) {
		end_round(store, lane, now_ms);
		return SEMEL_OK;
	}
	semel_pg_add_int(&params, lane);
	semel_pg_add_int(&params, store->sweep.after_seq[lane]);
	semel_pg_add_int(&params, lease->low_seq);
	semel_pg_add_int(&params, ROWS_PER_STEP);
	status = semel_pg_run(semel_pg_tx(&store->base), &select_below, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	*found_out = semel_pg_int(result, 0, 2);
	store->sweep.after_seq[lane] = semel_pg_int(result, 0, 1);
	if (semel_pg_int(result, 0, 0) < ROWS_PER_STEP || *found_out != 0)
		end_round(store, lane, now_ms);
	semel_pg_clear(result);
	return status;
}
