/* SPDX-License-Identifier: Apache-2.0 */
/* The stream delivers a commit when it is in the server's own WAL. With a synchronous standby the
 * writer waits longer, and after a failover such a commit may never have happened: its events must
 * not reach the broker before the commit is visible.
 *
 * - Where synchronous_standby_names is set, a transaction is read only when it is visible to a
 *   snapshot. One snapshot is taken per read, and only when the last one is not enough.
 * - Everything after a waiting transaction waits with it: rows are published in commit order.
 * - While a transaction waits, the socket is not watched, because its data cannot be read yet; the
 *   caller reads again after some milliseconds, and continues with its other work.
 */
#include "store/postgres/changes.h"

#include "observe/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_MAX_MS 20
#define LOG_AFTER_MS 1000

/* ---- what a snapshot sees -------------------------------------------------------------------- */

/* Reads the number at *text, and moves *text past it; false: there is none. */
static bool take_number(const char **text, uint64_t *number_out)
{
	char *end = NULL;
	if (**text < '0' || **text > '9')
		return false;
	*number_out = strtoumax(*text, &end, 10);
	*text = end;
	return true;
}

static bool take(const char **text, char expected)
{
	if (**text != expected)
		return false;
	++*text;
	return true;
}

/* The transaction id with these lower 32 bits that is nearest to reference: below or above it. */
static uint64_t nearest(uint64_t reference, uint32_t xid)
{
	int32_t distance = (int32_t)(xid - (uint32_t)reference);
	return reference + (uint64_t)(int64_t)distance;
}

bool semel_pg_snapshot_sees(const char *snapshot, uint32_t xid)
{
	uint64_t xmin = 0, xmax = 0, open = 0;
	if (!take_number(&snapshot, &xmin) || !take(&snapshot, ':') ||
	    !take_number(&snapshot, &xmax) || !take(&snapshot, ':'))
		return false;
	uint64_t whole = nearest(xmax, xid);
	if (whole < xmin)
		return true;
	if (whole >= xmax)
		return false;
	while (take_number(&snapshot, &open)) {
		if (open == whole)
			return false;
		(void)take(&snapshot, ',');
	}
	return *snapshot == '\0';
}

/* ---- waiting --------------------------------------------------------------------------------- */

static const struct semel_pg_statement take_snapshot = { "take a snapshot",
							 "SELECT pg_current_snapshot()" };

semel_status semel_pg_visible_refresh(struct semel_pg_changes *changes, semel_error *error)
{
	PGresult *result = NULL;
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_run(tx, &take_snapshot, NULL, &result, error);
	if (status != SEMEL_OK)
		return semel_pg_changes_failed(changes, status);
	free(changes->visible.snapshot);
	changes->visible.snapshot = strdup(semel_pg_value(result, 0, 0));
	semel_pg_clear(result);
	return SEMEL_OK;
}

bool semel_pg_visible_includes(const struct semel_pg_changes *changes, uint32_t xid)
{
	return changes->visible.snapshot != NULL &&
	       semel_pg_snapshot_sees(changes->visible.snapshot, xid);
}

static int64_t now_ms(const struct semel_pg_changes *changes)
{
	return semel_steady_ms(changes->base.env);
}

static void listen_to(const struct semel_pg_changes *changes, bool listens)
{
	int socket = semel_libpq.socket(changes->stream.connection);
	if (changes->stream.wake == NULL)
		return;
	if (listens)
		semel_wake_watch_fd(changes->stream.wake, socket);
	else
		semel_wake_unwatch_fd(changes->stream.wake, socket);
}

static void start_waiting(struct semel_pg_changes *changes)
{
	if (!changes->visible.waiting) {
		changes->visible.waiting = true;
		changes->visible.logged = false;
		changes->visible.since_ms = now_ms(changes);
		changes->visible.pause_ms = 1;
		listen_to(changes, false);
	}
	changes->visible.check_at_ms = now_ms(changes) + changes->visible.pause_ms;
	if (changes->visible.pause_ms < PAUSE_MAX_MS)
		changes->visible.pause_ms *= 2;
}

static void stop_waiting(struct semel_pg_changes *changes)
{
	if (!changes->visible.waiting)
		return;
	changes->visible.waiting = false;
	listen_to(changes, true);
	if (changes->visible.logged)
		semel_log_detail(SEMEL_LOG_INFO, "commit became visible, publishing its events",
				 "after %lld ms",
				 (long long)(now_ms(changes) - changes->visible.since_ms));
}

static void log_wait(struct semel_pg_changes *changes)
{
	if (changes->visible.logged || now_ms(changes) - changes->visible.since_ms < LOG_AFTER_MS)
		return;
	changes->visible.logged = true;
	semel_log_detail(SEMEL_LOG_WARN,
			 "commit waits for a synchronous standby, delaying its events",
			 "later events wait too (see pg_stat_replication and "
			 "synchronous_standby_names)");
}

static semel_status refresh_and_check(struct semel_pg_changes *changes, uint32_t xid,
				      semel_error *error)
{
	changes->visible.refreshed = true;
	semel_status status = semel_pg_visible_refresh(changes, error);
	bool visible = status == SEMEL_OK && semel_pg_visible_includes(changes, xid);
	if (visible)
		stop_waiting(changes);
	else
		start_waiting(changes);
	return status;
}

semel_status semel_pg_visible_begin(struct semel_pg_changes *changes, uint32_t xid,
				    semel_error *error)
{
	if (!changes->visible.required || semel_pg_visible_includes(changes, xid))
		return SEMEL_OK;
	if (!changes->visible.refreshed)
		return refresh_and_check(changes, xid, error);
	start_waiting(changes);
	changes->visible.check_at_ms = 0; /* the next read checks at once */
	return SEMEL_OK;
}

semel_status semel_pg_visible_read(struct semel_pg_changes *changes, bool *waiting_out,
				   semel_error *error)
{
	semel_status status = SEMEL_OK;
	changes->visible.refreshed = false;
	if (changes->visible.waiting && now_ms(changes) >= changes->visible.check_at_ms)
		status = refresh_and_check(changes, changes->stream.xid, error);
	*waiting_out = changes->visible.waiting;
	if (*waiting_out)
		log_wait(changes);
	return status;
}

int64_t semel_pg_stream_visibility_wait_ms(const struct semel_changes *base)
{
	const struct semel_pg_changes *changes = (const struct semel_pg_changes *)base;
	if (!changes->visible.waiting)
		return -1;
	int64_t wait_ms = changes->visible.check_at_ms - now_ms(changes);
	return wait_ms > 0 ? wait_ms : 0;
}

void semel_pg_visible_reset(struct semel_pg_changes *changes)
{
	changes->visible.waiting = false;
	free(changes->visible.snapshot);
	changes->visible.snapshot = NULL;
}
