/* SPDX-License-Identifier: Apache-2.0 */
/* Wakes a sleeping relay after commits, at no cost for the writers while it is awake.
 *
 * - A writer's trigger tries to take an advisory lock, shared, until its commit; if that fails, it
 *   notifies (NOTIFY). A relay that is about to sleep requests the lock exclusively, on a
 *   connection of its own, and does not wait: from then on new writers notify.
 * - The relay waits for writers that already hold the lock; no writer waits for the relay. When the
 *   lock is granted they have committed; the answer wakes the relay, and its next read sees their
 *   rows.
 * - The lock is kept through small bursts, and released when a batch is so large that the relay is
 *   busy anyway. A request that another sleeping relay blocks stays pending.
 */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "observe/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define GRANT_WAIT_MS 5
#define RETRY_MS      60000 /* while it waits for a connection a relay renews no lease */

enum wakeup_state { WAKEUP_OFF, WAKEUP_REQUESTED, WAKEUP_ARMED };

struct semel_pg_wakeup {
	struct semel_wake *wake;
	PGconn *connection; /* holds or awaits the lock */
	int listen_fd, lock_fd;
	enum wakeup_state state;
	bool notified;
	char lock[96], unlock[96];
};

/* Both forms that the writers' trigger uses: cast to int, half of all oids are negative; as an oid,
 * none is. */
static const struct semel_pg_statement table_number = {
	"find the outbox",
	"SELECT 'semel_outbox'::regclass::oid::int, 'semel_outbox'::regclass::oid"
};

static semel_status start_listening(struct semel_pg_store *store, struct semel_pg_wakeup *wakeup,
				    semel_error *error)
{
	PGresult *result = NULL;
	char listen[64];
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &table_number, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	const char *number = semel_pg_value(result, 0, 0);
	const char *oid = semel_pg_value(result, 0, 1);
	snprintf(wakeup->lock, sizeof(wakeup->lock), "SELECT pg_advisory_lock(%s, 1936026988)",
		 number);
	snprintf(wakeup->unlock, sizeof(wakeup->unlock),
		 "SELECT pg_advisory_unlock(%s, 1936026988)", number);
	snprintf(listen, sizeof(listen), "LISTEN \"semel_outbox_%s\"", oid);
	semel_pg_clear(result);
	return semel_pg_execute_plain(store->connection, listen, "listen", error);
}

/* The wakeup connection may wait for the lock without a limit. */
static semel_status open_lock(struct semel_pg_store *store, struct semel_pg_wakeup *wakeup,
			      semel_error *error)
{
	semel_status status = semel_pg_connect_briefly(store->url, &wakeup->connection, error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_execute_plain(wakeup->connection,
				      "SET lock_timeout = 0; SET statement_timeout = 0",
				      "set the wakeup's time-outs", error);
}

void semel_pg_watch(semel_store *store, struct semel_wake *wake)
{
	semel_pg_of(store)->wake = wake;
}

/* Opened when a relay first sleeps: consumers call watch too, but never arm the wakeup. */
static void open_wakeup(struct semel_pg_store *store)
{
	int64_t now_ms = semel_steady_ms(semel_store_env(&store->base));
	if (now_ms < store->wakeup_after_ms)
		return;
	struct semel_pg_wakeup *wakeup = calloc(1, sizeof(*wakeup));
	semel_error error = { 0 };
	if (wakeup == NULL)
		return;
	if (start_listening(store, wakeup, &error) != SEMEL_OK ||
	    open_lock(store, wakeup, &error) != SEMEL_OK) {
		semel_log(SEMEL_LOG_WARN, "cannot set up the wakeup, polling instead",
			  &(struct semel_log_fields){ .error = error.text });
		store->wakeup_after_ms = now_ms + RETRY_MS;
		semel_pg_wakeup_free(wakeup);
		return;
	}
	wakeup->wake = store->wake;
	wakeup->listen_fd = semel_libpq.socket(store->connection);
	wakeup->lock_fd = semel_libpq.socket(wakeup->connection);
	semel_wake_watch_fd(wakeup->wake, wakeup->listen_fd);
	semel_wake_watch_fd(wakeup->wake, wakeup->lock_fd);
	store->wakeup = wakeup;
}

void semel_pg_wakeup_free(struct semel_pg_wakeup *wakeup)
{
	if (wakeup == NULL)
		return;
	if (wakeup->wake != NULL) {
		semel_wake_unwatch_fd(wakeup->wake, wakeup->listen_fd);
		semel_wake_unwatch_fd(wakeup->wake, wakeup->lock_fd);
	}
	if (wakeup->connection != NULL)
		semel_libpq.finish(wakeup->connection);
	free(wakeup);
}

/* A broken connection is closed: polling is the fallback, and a failure of the store's own
 * connection is reported by its next statement. */
static void drop_wakeup(struct semel_pg_store *store)
{
	semel_log(SEMEL_LOG_WARN, "lost the wakeup connection, polling instead", NULL);
	semel_pg_wakeup_free(store->wakeup);
	store->wakeup = NULL;
}

/* Checks whether the lock was granted; does not wait. */
static void poll_lock(struct semel_pg_store *store)
{
	struct semel_pg_wakeup *wakeup = store->wakeup;
	PGresult *result = NULL;
	if (semel_libpq.consumeInput(wakeup->connection) == 0) {
		drop_wakeup(store);
		return;
	}
	if (wakeup->state != WAKEUP_REQUESTED || semel_libpq.isBusy(wakeup->connection))
		return;
	while ((result = semel_libpq.getResult(wakeup->connection)) != NULL) {
		if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
			wakeup->state = WAKEUP_ARMED;
		else
			wakeup->state = WAKEUP_OFF;
		semel_libpq.clear(result);
	}
}

/* Requests the lock. Usually it is granted at once; otherwise the grant wakes the relay later. */
static void request_lock(struct semel_pg_store *store)
{
	struct pollfd answer = { .fd = store->wakeup->lock_fd, .events = POLLIN };
	if (semel_libpq.sendQuery(store->wakeup->connection, store->wakeup->lock) == 0) {
		drop_wakeup(store);
		return;
	}
	store->wakeup->state = WAKEUP_REQUESTED;
	if (poll(&answer, 1, GRANT_WAIT_MS) > 0)
		poll_lock(store);
}

/* Notifications are collapsed into one flag: one may arrive with the answer to a statement that did
 * not see its commit yet. */
void semel_pg_wakeup_collect(struct semel_pg_store *store)
{
	PGnotify *notice = NULL;
	while (store->wakeup != NULL &&
	       (notice = semel_libpq.notifies(store->connection)) != NULL) {
		semel_libpq.freemem(notice);
		store->wakeup->notified = true;
	}
}

/* A writer has notified since the last call. */
static bool take_notifications(struct semel_pg_store *store)
{
	semel_pg_wakeup_collect(store);
	bool notified = store->wakeup->notified;
	store->wakeup->notified = false;
	return notified;
}

bool semel_pg_arm_wakeup(semel_store *base, bool only_if_armed)
{
	struct semel_pg_store *store = semel_pg_of(base);
	if (store->wakeup == NULL && store->wake != NULL && !only_if_armed)
		open_wakeup(store);
	if (store->wakeup == NULL || (store->wakeup->state == WAKEUP_OFF && only_if_armed))
		return false;
	if (store->wakeup->state != WAKEUP_OFF)
		return take_notifications(store);
	request_lock(store);
	return store->wakeup != NULL && store->wakeup->state == WAKEUP_ARMED;
}

/* While the wakeup is not armed, only a read shows whether there are rows. */
bool semel_pg_check_wakeup(semel_store *base)
{
	struct semel_pg_store *store = semel_pg_of(base);
	if (store->wakeup == NULL || semel_libpq.consumeInput(store->connection) == 0)
		return true;
	bool notified = take_notifications(store);
	enum wakeup_state before = store->wakeup->state;
	poll_lock(store);
	return notified || store->wakeup == NULL || store->wakeup->state != before ||
	       before == WAKEUP_OFF;
}

void semel_pg_wakeup_disarm(struct semel_pg_store *store)
{
	if (store->wakeup != NULL && store->wakeup->state == WAKEUP_REQUESTED)
		poll_lock(store);
	if (store->wakeup == NULL || store->wakeup->state != WAKEUP_ARMED)
		return;
	store->wakeup->state = WAKEUP_OFF;
	if (semel_pg_execute_plain(store->wakeup->connection, store->wakeup->unlock,
				   "release the wakeup's lock", NULL) != SEMEL_OK)
		drop_wakeup(store);
}

void semel_pg_disarm_wakeup(semel_store *store)
{
	semel_pg_wakeup_disarm(semel_pg_of(store));
}
