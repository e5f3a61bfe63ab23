/* SPDX-License-Identifier: Apache-2.0 */
/* The lane and its fence. Every new owner draws a higher epoch; an owner with an older epoch can
 * neither renew, release nor mark. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

/* A low mark above every number that was drawn dates from before the numbering was restarted. */
#define WENT_BACK(low)                                                                             \
	"(" low " > coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), 0))"
#define TRUE_LOW(low) "CASE WHEN " WENT_BACK(low) " THEN 0 ELSE " low " END"
#define LOW_SEQ       TRUE_LOW("low_seq")
#define HIGHER_LOW    "max(low_seq, ?5)"

static const struct semel_sqlite_statement list_lanes = {
	SEMEL_SQLITE_ONCE, "read the leases",
	"SELECT lane, epoch, owner, expires_at, " LOW_SEQ " FROM semel_lease WHERE lane = 0"
};
static const struct semel_sqlite_statement take_lane = {
	SEMEL_SQLITE_ONCE, "acquire a lane",
	"UPDATE semel_lease SET owner = ?3, epoch = epoch + 1, expires_at = ?4, low_seq = " LOW_SEQ
	" WHERE lane = ?1 AND epoch = ?2 RETURNING lane, epoch, owner, expires_at, low_seq"
};
/* If the numbers went back, everything is read again, under a new epoch. */
static const struct semel_sqlite_statement renew_lane = {
	SEMEL_SQLITE_ONCE, "renew a lease",
	"UPDATE semel_lease SET expires_at = ?4, low_seq = " TRUE_LOW(
		HIGHER_LOW) ", epoch = epoch + " WENT_BACK(HIGHER_LOW) " WHERE lane = ?1 AND epoch "
								       "= ?2 AND owner = ?3"
								       " RETURNING lane, epoch, "
								       "owner, expires_at, low_seq"
};
static const struct semel_sqlite_statement rewind_lane = {
	SEMEL_SQLITE_ONCE, "move the low mark back to an event",
	"UPDATE semel_lease SET expires_at = ?4, low_seq = min(low_seq, ?5 - 1), epoch = epoch + 1"
	" WHERE lane = ?1 AND epoch = ?2 AND owner = ?3"
	" RETURNING lane, epoch, owner, expires_at, low_seq"
};
static const struct semel_sqlite_statement release_lane = {
	SEMEL_SQLITE_ONCE, "release a lane",
	"UPDATE semel_lease SET owner = '', expires_at = NULL"
	" WHERE lane = ?1 AND epoch = ?2 AND owner = ?3"
};

int32_t semel_sqlite_lane_count(semel_store *store)
{
	(void)store;
	return 1;
}

/* There is one lane: a second relay waits until it is free. */
semel_status semel_sqlite_relay_join(semel_store *store, const char *owner, int64_t now_ms,
				     int64_t expires_at_ms, struct semel_relay_group *group_out,
				     semel_error *error)
{
	(void)store, (void)owner, (void)now_ms, (void)expires_at_ms, (void)error;
	*group_out = (struct semel_relay_group){ .members = 1, .rank = 0 };
	return SEMEL_OK;
}

void semel_sqlite_relay_leave(semel_store *store, const char *owner)
{
	(void)store, (void)owner;
}

/* Changes of the file always wake. */
bool semel_sqlite_arm_wakeup(semel_store *store, bool only_if_armed)
{
	(void)store, (void)only_if_armed;
	return false;
}

/* A change of the file does not show what was written. */
bool semel_sqlite_check_wakeup(semel_store *store)
{
	(void)store;
	return true;
}

static void read_lease(sqlite3_stmt *prepared, struct semel_lease *lease)
{
	lease->lane = sqlite3_column_int(prepared, 0);
	lease->epoch = sqlite3_column_int64(prepared, 1);
	semel_sqlite_copy(prepared, 2, lease->owner, sizeof(lease->owner));
	lease->expires_at_ms = semel_sqlite_time(prepared, 3);
	lease->low_seq = sqlite3_column_int64(prepared, 4);
}

static semel_status error_of_loss(const struct semel_lease *lease, semel_error *error)
{
	return semel_error_set(error, SEMEL_LEASE_LOST,
			       "lane %d was taken over by another relay (our epoch: %lld)",
			       (int)lease->lane, (long long)lease->epoch);
}

semel_status semel_sqlite_lease_list(semel_store *store, struct semel_lease *leases_out,
				     semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &list_lanes, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_step(tx, &list_lanes, prepared, &row, error);
	if (status != SEMEL_OK)
		goto give_statement;
	if (row)
		read_lease(prepared, leases_out);
	else
		status = semel_error_set(error, SEMEL_NO_SCHEMA,
					 "the lane's row is missing in semel_lease (put it back: "
					 "INSERT INTO semel_lease (lane) VALUES (0))");
give_statement:
	semel_sqlite_return_statement(tx, &list_lanes, prepared);
	return status;
}

/* The returned row is read first; then the statement is run to its end, which commits the change.
 * seq NULL: the statement has no such parameter. */
static semel_status update_lease(semel_store *store, const struct semel_sqlite_statement *statement,
				 const char *owner, struct semel_lease *lease, const int64_t *seq,
				 semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char expires[SEMEL_TIME_SIZE];
	struct semel_lease updated = *lease;
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int(prepared, 1, lease->lane);
	sqlite3_bind_int64(prepared, 2, lease->epoch);
	semel_sqlite_bind_string(prepared, 3, owner);
	semel_sqlite_bind_time(prepared, 4, lease->expires_at_ms, expires);
	if (seq != NULL)
		sqlite3_bind_int64(prepared, 5, *seq);
	status = semel_sqlite_step(tx, statement, prepared, &row, error);
	if (status != SEMEL_OK)
		goto give_statement;
	if (!row) {
		status = error_of_loss(lease, error);
		goto give_statement;
	}
	read_lease(prepared, &updated);
	status = semel_sqlite_run(tx, statement, prepared, error);

give_statement:
	semel_sqlite_return_statement(tx, statement, prepared);
	if (status != SEMEL_OK)
		return status;
	*lease = updated;
	return SEMEL_OK;
}

/* Moves the low mark back to rows that were skipped, if there are any. */
static semel_status sweep(semel_store *store, const char *owner, struct semel_lease *lease,
			  semel_error *error)
{
	int64_t found_seq = 0;
	semel_status status = semel_sqlite_sweep(store, lease, &found_seq, error);
	if (status != SEMEL_OK || found_seq == 0)
		return status;
	return update_lease(store, &rewind_lane, owner, lease, &found_seq, error);
}

semel_status semel_sqlite_lease_acquire(semel_store *store, struct semel_lease *lease,
					const char *owner, int64_t expires_at_ms,
					semel_error *error)
{
	lease->expires_at_ms = expires_at_ms;
	semel_status status = update_lease(store, &take_lane, owner, lease, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return sweep(store, owner, lease, error);
}

semel_status semel_sqlite_lease_renew(semel_store *store, struct semel_lease *lease,
				      int64_t expires_at_ms, semel_error *error)
{
	char owner[SEMEL_OWNER_SIZE];
	int64_t epoch = lease->epoch, low_seq = lease->low_seq;
	sqlite3_snprintf((int)sizeof(owner), owner, "%s", lease->owner);
	lease->expires_at_ms = expires_at_ms;
	semel_status status = update_lease(store, &renew_lane, owner, lease, &low_seq, error);
	if (status != SEMEL_OK || lease->epoch != epoch)
		return status;
	return sweep(store, owner, lease, error);
}

/* A lease that is not released expires. */
void semel_sqlite_lease_release(semel_store *store, const struct semel_lease *lease)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *prepared = NULL;
	if (semel_sqlite_borrow_statement(tx, &release_lane, &prepared, NULL) != SEMEL_OK)
		return;
	sqlite3_bind_int(prepared, 1, lease->lane);
	sqlite3_bind_int64(prepared, 2, lease->epoch);
	semel_sqlite_bind_string(prepared, 3, lease->owner);
	(void)semel_sqlite_run(tx, &release_lane, prepared, NULL);
	semel_sqlite_return_statement(tx, &release_lane, prepared);
}
