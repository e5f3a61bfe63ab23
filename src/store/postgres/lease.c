/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes and their fences, and the group of relays that divides them. Every new owner draws a higher
 * epoch; an owner with an older epoch can neither renew, release nor mark.
 *
 * Many machines judge whether a lease has expired, and their clocks need not agree. So leases use
 * the server's clock: their times are converted to it when they are written, and back when they are
 * read. Clocks that agree to a second are left alone.
 */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "base/error.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGREED_MS 1000

#define LEASE_COLUMNS "lane, epoch, owner, " SEMEL_PG_MS("expires_at")
/* A low mark above every number that was drawn dates from before the numbers went back: the tables
 * were copied without their sequence (logical replication copies none). It is ignored. A low mark
 * from a sequence with another file may date from before, too: the sequence was restarted and has
 * passed the mark since, or the tables come from a dump. Then reading starts at unmarked_seq: rows
 * that were sent without marks are not sent again, and for the rest the marks show what was
 * sent. */
#define NUMBERS           "pg_relation_filenode('semel_outbox_seq')"
#define IS_ABOVE_ALL(low) low " > (SELECT last_value FROM semel_outbox_seq)"
#define HAS_OTHER_FILE    "coalesce(numbers <> " NUMBERS ", false)"
#define WENT_BACK(low)    "(" IS_ABOVE_ALL(low) " OR " HAS_OTHER_FILE ")"
#define TRUE_LOW(low)                                                                              \
	"CASE WHEN " IS_ABOVE_ALL(low) " THEN 0 WHEN " HAS_OTHER_FILE " THEN least(" low           \
				       ", unmarked_seq) ELSE " low " END"
#define LOW_SEQ    TRUE_LOW("low_seq")
#define HIGHER_LOW "greatest(low_seq, $5)"
/* If the file is not known, a relay of an earlier version may have continued without marks after
 * the tables were upgraded. */
#define TAKEN_UNMARKED                                                                             \
	"CASE WHEN " IS_ABOVE_ALL(                                                                 \
		"low_seq") " THEN 0 WHEN numbers IS NULL"                                          \
			   " THEN greatest(unmarked_seq, low_seq) ELSE unmarked_seq END"
#define RENEWED_UNMARKED "CASE WHEN " IS_ABOVE_ALL(HIGHER_LOW) " THEN 0 ELSE unmarked_seq END"

static const struct semel_pg_statement list_lanes = { "read the leases",
						      "SELECT " LEASE_COLUMNS ", " LOW_SEQ
						      " FROM semel_lease ORDER BY lane" };
/* If the row is locked, another relay is acquiring the lane or marking in it: the lane is not
 * free. */
static const struct semel_pg_statement take_lane = {
	"acquire a lane",
	"UPDATE semel_lease SET owner = $3, epoch = epoch + 1, expires_at = $4::timestamptz,"
	" low_seq = " LOW_SEQ ", unmarked_seq = " TAKEN_UNMARKED ", numbers = " NUMBERS
	" WHERE lane = (SELECT lane FROM semel_lease WHERE lane = $1 AND epoch = $2"
	" FOR UPDATE SKIP LOCKED) AND epoch = $2 RETURNING " LEASE_COLUMNS
	", low_seq, pg_current_xact_id()::text::bigint, numbers"
};
/* If the numbers went back, everything is read again, under a new epoch. */
static const struct semel_pg_statement renew_lane = {
	"renew a lease",
	"UPDATE semel_lease SET expires_at = $4::timestamptz, low_seq = " TRUE_LOW(
		HIGHER_LOW) ", unmarked_seq = " RENEWED_UNMARKED ", numbers = " NUMBERS
			    ", epoch = epoch + " WENT_BACK(
				    HIGHER_LOW) "::int"
						" WHERE lane = $1 AND epoch = $2 AND owner = $3 "
						"RETURNING " LEASE_COLUMNS
						", low_seq, pg_current_xact_id()::text::bigint, "
						"numbers"
};
static const struct semel_pg_statement rewind_lane = {
	"move the low mark back to an event",
	"UPDATE semel_lease SET expires_at = $4::timestamptz, low_seq = least(low_seq, $5 - 1),"
	" epoch = epoch + 1 WHERE lane = $1 AND epoch = $2 AND owner = $3 RETURNING " LEASE_COLUMNS
	", low_seq, pg_current_xact_id()::text::bigint, numbers"
};
static const struct semel_pg_statement release_lane = {
	"release a lane", "UPDATE semel_lease SET owner = '', expires_at = NULL"
			  " WHERE lane = $1 AND epoch = $2 AND owner = $3"
};
static const struct semel_pg_statement drawn_numbers = {
	"read the outbox's sequence",
	"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM semel_outbox_seq"
};
static const struct semel_pg_statement sequence_cache = {
	"read the cache size of the outbox's sequence",
	"SELECT seqcache FROM pg_sequence WHERE seqrelid = 'semel_outbox_seq'::regclass"
};
/* The setting changes only with a restart of the server. */
static const struct semel_pg_statement commit_times = {
	"read the server's settings", "SELECT current_setting('track_commit_timestamp') = 'on'"
};
/* Rows that expired a while ago are removed as well. */
static const struct semel_pg_statement join_group = {
	"join the relay group",
	"WITH gone AS (DELETE FROM semel_relay WHERE expires_at < $2::timestamptz - interval '1 "
	"min'"
	" AND owner <> $1), mine AS (INSERT INTO semel_relay (owner, expires_at)"
	" VALUES ($1, $3::timestamptz) ON CONFLICT (owner) DO UPDATE SET expires_at ="
	" excluded.expires_at) SELECT count(*), count(*) FILTER (WHERE owner < $1)"
	" FROM semel_relay WHERE owner <> $1 AND expires_at >= $2::timestamptz"
};
static const struct semel_pg_statement leave_group = { "leave the relay group",
						       "DELETE FROM semel_relay WHERE owner = $1" };

/* A relay's connection reads ranges of one key and marks what it has read: an index scan is always
 * right, whatever the statistics of a new table say. A mark that is lost when the server crashes
 * repeats an event, which every consumer tolerates, so it need not wait for the disk. A row-level
 * security policy that would hide rows causes an error, so that none are lost. */
static const char relay_settings[] =
	"SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off;"
	" SET enable_mergejoin = off; SET enable_sort = off; SET jit = off;"
	" SET row_security = off; SET synchronous_commit = off; SET plan_cache_mode = "
	"force_generic_plan";

/* ---- the clock ------------------------------------------------------------------------------- */

static const struct semel_pg_statement server_time = { "read the server's clock",
						       "SELECT " SEMEL_PG_MS("clock_timestamp()") };

/* doubt_ms: how far the difference may be wrong, since the answer took time. */
static void apply_offset(struct semel_pg_store *store, int64_t clock_offset_ms, int64_t doubt_ms)
{
	int64_t before_ms = store->clock_offset_ms;
	store->clock_offset_ms =
		llabs(clock_offset_ms) <= AGREED_MS + doubt_ms ? 0 : clock_offset_ms;
	if (store->clock_offset_ms != 0 && llabs(store->clock_offset_ms - before_ms) > AGREED_MS)
		semel_log_detail(
			SEMEL_LOG_WARN,
			"clock skew between this machine and PostgreSQL, using the server's clock "
			"for leases",
			"%lld s %s the server's (synchronise both machines: chrony, "
			"systemd-timesyncd)",
			(long long)(llabs(clock_offset_ms) / 1000),
			clock_offset_ms > 0 ? "behind" : "ahead of");
}

semel_status semel_pg_clock_compare(struct semel_pg_store *store, semel_error *error)
{
	PGresult *result = NULL;
	int64_t asked_ms = semel_now_ms(semel_store_env(&store->base));
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &server_time, NULL, &result, error);
	int64_t answered_ms = semel_now_ms(semel_store_env(&store->base));
	if (status != SEMEL_OK)
		return status;
	apply_offset(store, semel_pg_int(result, 0, 0) - (asked_ms + answered_ms) / 2,
		     (answered_ms - asked_ms) / 2);
	semel_pg_clear(result);
	return SEMEL_OK;
}

static int64_t ahead_of(semel_tx tx)
{
	return tx.store == NULL ? 0 : semel_pg_of(tx.store)->clock_offset_ms;
}

int64_t semel_pg_clock_to_server(semel_tx tx, int64_t time_ms)
{
	return time_ms == 0 ? 0 : time_ms + ahead_of(tx);
}

int64_t semel_pg_clock_to_local(semel_tx tx, int64_t time_ms)
{
	return time_ms == 0 ? 0 : time_ms - ahead_of(tx);
}

/* ---- setting up a connection ----------------------------------------------------------------- */

int32_t semel_pg_lane_count(semel_store *store)
{
	(void)store;
	return SEMEL_PG_LANES;
}

/* Numbers that a session has cached are used by its later transactions: it would be unknown whether
 * a lower number is still to be written. */
static semel_status check_sequence(struct semel_pg_store *store, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &sequence_cache, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_int(result, 0, 0) != 1)
		status = semel_error_set(
			error, SEMEL_CONFIG,
			"semel_outbox_seq caches blocks of %s numbers, so an event "
			"could be skipped (ALTER SEQUENCE semel_outbox_seq CACHE 1, "
			"then reconnect the writers)",
			semel_pg_value(result, 0, 0));
	semel_pg_clear(result);
	return status;
}

static semel_status read_commit_times(struct semel_pg_store *store, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &commit_times, NULL, &result, error);
	store->commit_times = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_relay_set_up(struct semel_pg_store *store, semel_error *error)
{
	if (store->relays)
		return SEMEL_OK;
	semel_status status = semel_pg_execute_plain(store->connection, relay_settings,
						     "set up the relay's connection", error);
	if (status != SEMEL_OK)
		return status;
	status = check_sequence(store, error);
	if (status != SEMEL_OK)
		return status;
	status = read_commit_times(store, error);
	if (status != SEMEL_OK)
		return status;
	store->relays = true;
	return SEMEL_OK;
}

semel_status semel_pg_relay_join(semel_store *store, const char *owner, int64_t now_ms,
				 int64_t expires_at_ms, struct semel_relay_group *group_out,
				 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_tx tx = semel_pg_tx(store);
	PGresult *result = NULL;
	semel_status status = semel_pg_relay_set_up(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_clock_compare(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_string(&params, owner);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, now_ms));
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, expires_at_ms));
	status = semel_pg_run(tx, &join_group, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	*group_out = (struct semel_relay_group){
		.members = 1 + (uint32_t)semel_pg_int(result, 0, 0),
		.rank = (uint32_t)semel_pg_int(result, 0, 1),
	};
	semel_pg_clear(result);
	return status;
}

void semel_pg_relay_leave(semel_store *store, const char *owner)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_string(&params, owner);
	(void)semel_pg_run(semel_pg_tx(store), &leave_group, &params, NULL, NULL);
}

static void read_lease(semel_tx tx, const PGresult *result, int row, struct semel_lease *lease)
{
	lease->lane = (int32_t)semel_pg_int(result, row, 0);
	lease->epoch = semel_pg_int(result, row, 1);
	semel_pg_copy(result, row, 2, lease->owner, sizeof(lease->owner));
	lease->expires_at_ms = semel_pg_clock_to_local(tx, semel_pg_int(result, row, 3));
	lease->low_seq = semel_pg_int(result, row, 4);
}

semel_status semel_pg_lease_list(semel_store *store, struct semel_lease *leases_out,
				 semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = semel_pg_run(semel_pg_tx(store), &list_lanes, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_rows(result) != SEMEL_PG_LANES)
		status = semel_error_set(error, SEMEL_NO_SCHEMA,
					 "semel_lease has %d rows instead of %d (put them back: "
					 "INSERT INTO semel_lease (lane) SELECT generate_series(0, "
					 "15) ON CONFLICT DO NOTHING)",
					 semel_pg_rows(result), SEMEL_PG_LANES);
	for (int i = 0; status == SEMEL_OK && i < SEMEL_PG_LANES; i++)
		read_lease(semel_pg_tx(store), result, i, &leases_out[i]);
	semel_pg_clear(result);
	return status;
}

/* The highest number is read before a transaction of ours gets its xid: see watermark.c. */
static semel_status read_sequence(semel_store *store, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &drawn_numbers, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_watermark_observe(semel_pg_of(store), semel_pg_int(result, 0, 0));
	semel_pg_clear(result);
	return status;
}

/* seq NULL: the statement has no such parameter. */
static semel_status update_lease(semel_store *store, const struct semel_pg_statement *statement,
				 const char *owner, struct semel_lease *lease, const int64_t *seq,
				 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_tx tx = semel_pg_tx(store);
	PGresult *result = NULL;
	semel_pg_add_int(&params, lease->lane);
	semel_pg_add_int(&params, lease->epoch);
	semel_pg_add_string(&params, owner);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, lease->expires_at_ms));
	if (seq != NULL)
		semel_pg_add_int(&params, *seq);
	semel_status status = semel_pg_run(tx, statement, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_rows(result) == 0) {
		status =
			semel_error_set(error, SEMEL_LEASE_LOST,
					"lane %d was taken over by another relay (our epoch: %lld)",
					(int)lease->lane, (long long)lease->epoch);
		goto clear_result;
	}
	read_lease(tx, result, 0, lease);
	semel_pg_watermark_check_sequence(semel_pg_of(store), semel_pg_int(result, 0, 6));
	semel_pg_watermark_record_xid(semel_pg_of(store), (uint64_t)semel_pg_int(result, 0, 5));

clear_result:
	semel_pg_clear(result);
	return status;
}

/* Moves the low mark back to rows that were skipped, if there are any. */
static semel_status sweep(semel_store *store, const char *owner, struct semel_lease *lease,
			  semel_error *error)
{
	int64_t found_seq = 0;
	semel_status status = semel_pg_sweep(semel_pg_of(store), lease, &found_seq, error);
	if (status != SEMEL_OK || found_seq == 0)
		return status;
	semel_pg_of(store)->commit_bounds[lease->lane] = (struct semel_pg_commit_bound){ 0 };
	return update_lease(store, &rewind_lane, owner, lease, &found_seq, error);
}

semel_status semel_pg_lease_acquire(semel_store *store, struct semel_lease *lease,
				    const char *owner, int64_t expires_at_ms, semel_error *error)
{
	semel_pg_previous_clear(semel_pg_of(store)->previous);
	semel_pg_of(store)->previous_loaded = 0;
	lease->expires_at_ms = expires_at_ms;
	semel_status status = semel_pg_relay_set_up(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	status = read_sequence(store, error);
	if (status != SEMEL_OK)
		return status;
	status = update_lease(store, &take_lane, owner, lease, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return sweep(store, owner, lease, error);
}

semel_status semel_pg_lease_renew(semel_store *store, struct semel_lease *lease,
				  int64_t expires_at_ms, semel_error *error)
{
	char owner[SEMEL_OWNER_SIZE];
	int64_t epoch = lease->epoch, low_seq = lease->low_seq;
	snprintf(owner, sizeof(owner), "%s", lease->owner);
	lease->expires_at_ms = expires_at_ms;
	semel_status status = update_lease(store, &renew_lane, owner, lease, &low_seq, error);
	if (status != SEMEL_OK || lease->epoch != epoch)
		return status;
	return sweep(store, owner, lease, error);
}

/* A lease that is not released expires. */
void semel_pg_lease_release(semel_store *store, const struct semel_lease *lease)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_int(&params, lease->lane);
	semel_pg_add_int(&params, lease->epoch);
	semel_pg_add_string(&params, lease->owner);
	(void)semel_pg_run(semel_pg_tx(store), &release_lane, &params, NULL, NULL);
}
