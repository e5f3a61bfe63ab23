/* SPDX-License-Identifier: Apache-2.0 */
/* How a sleeping relay hears of commits, at no cost for the writers while it is awake.
 *
 * - A writer's trigger tries an advisory lock, shared, until its commit; where that fails it rings
 *   (NOTIFY). A relay that is about to sleep asks for the lock alone, on a connection of its own,
 *   and does not wait: from then on new writers ring.
 * - Writers that had it before keep the relay waiting for the lock, not the other way round. When
 *   it is granted they have committed; the answer wakes the relay, and that look sees them.
 * - The lock is kept through small bursts, and given back when a batch is so large that the relay
 *   is at work anyway. A request that another sleeper keeps waiting stays: somebody sleeps.
 */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "observe/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define GRANT_WAIT_MS 5
#define AGAIN_MS      60000 /* who waits for a connection in vain renews no lease meanwhile */

enum bell_state { BELL_OFF, BELL_ASKED, BELL_ON };

struct semel_pg_bell {
	struct semel_wake *wake;
	PGconn *connection; /* holds or awaits the lock */
	int listen_fd, lock_fd;
	enum bell_state state;
	bool rung;
	char lock[96], unlock[96];
};

/* As the writers' trigger has them: half of all oids are negative as an int, and none as itself. */
static const struct semel_pg_query table_number = {
	"look for the outbox",
	"SELECT 'semel_outbox'::regclass::oid::int, 'semel_outbox'::regclass::oid"
};

static semel_status listen_for(struct semel_pg_store *store, struct semel_pg_bell *bell,
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
	snprintf(bell->lock, sizeof(bell->lock), "SELECT pg_advisory_lock(%s, 1936026988)", number);
	snprintf(bell->unlock, sizeof(bell->unlock), "SELECT pg_advisory_unlock(%s, 1936026988)",
		 number);
	snprintf(listen, sizeof(listen), "LISTEN \"semel_outbox_%s\"", oid);
	semel_pg_clear(result);
	return semel_pg_execute_plain(store->connection, listen, "listen", error);
}

/* Its own connection may wait for the lock as long as it takes. */
static semel_status open_lock(struct semel_pg_store *store, struct semel_pg_bell *bell,
			      semel_error *error)
{
	semel_status status = semel_pg_connect_briefly(store->url, &bell->connection, error);
	return status != SEMEL_OK
		       ? status
		       : semel_pg_execute_plain(bell->connection,
						"SET lock_timeout = 0; SET statement_timeout = 0",
						"set the bell's time-outs", error);
}

void semel_pg_watch(semel_store *store, struct semel_wake *wake)
{
	semel_pg_of(store)->wake = wake;
}

/* Made when a relay first sleeps: consumers watch, too, but never sleep. */
static void make(struct semel_pg_store *store)
{
	int64_t now_ms = semel_steady_ms(semel_store_env(&store->base));
	if (now_ms < store->bell_after_ms)
		return;
	struct semel_pg_bell *bell = calloc(1, sizeof(*bell));
	semel_error error = { 0 };
	if (bell == NULL)
		return;
	if (listen_for(store, bell, &error) != SEMEL_OK ||
	    open_lock(store, bell, &error) != SEMEL_OK) {
		semel_logf(SEMEL_LOG_WARN, "the relay will not be woken, and only polls: %s",
			   error.text);
		store->bell_after_ms = now_ms + AGAIN_MS;
		semel_pg_bell_free(bell);
		return;
	}
	bell->wake = store->wake;
	bell->listen_fd = semel_libpq.socket(store->connection);
	bell->lock_fd = semel_libpq.socket(bell->connection);
	semel_wake_watch_fd(bell->wake, bell->listen_fd);
	semel_wake_watch_fd(bell->wake, bell->lock_fd);
	store->bell = bell;
}

void semel_pg_bell_free(struct semel_pg_bell *bell)
{
	if (bell == NULL)
		return;
	if (bell->wake != NULL) {
		semel_wake_unwatch_fd(bell->wake, bell->listen_fd);
		semel_wake_unwatch_fd(bell->wake, bell->lock_fd);
	}
	if (bell->connection != NULL)
		semel_libpq.finish(bell->connection);
	free(bell);
}

/* A connection that broke is let go: polling is the safety net, and the store's own trouble will
 * be noticed by whoever uses it. */
static void lose(struct semel_pg_store *store)
{
	semel_logf(SEMEL_LOG_WARN, "the bell's connection is gone; the relay polls");
	semel_pg_bell_free(store->bell);
	store->bell = NULL;
}

/* Has the lock been granted meanwhile? Does not wait. */
static void hear_lock(struct semel_pg_store *store)
{
	struct semel_pg_bell *bell = store->bell;
	PGresult *result = NULL;
	if (semel_libpq.consumeInput(bell->connection) == 0) {
		lose(store);
		return;
	}
	if (bell->state != BELL_ASKED || semel_libpq.isBusy(bell->connection))
		return;
	while ((result = semel_libpq.getResult(bell->connection)) != NULL) {
		if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
			bell->state = BELL_ON;
		else
			bell->state = BELL_OFF;
		semel_libpq.clear(result);
	}
}

/* Asks for the lock. It is mostly granted at once; else the grant wakes the relay when it comes. */
static void ask_for_lock(struct semel_pg_store *store)
{
	struct pollfd answer = { .fd = store->bell->lock_fd, .events = POLLIN };
	if (semel_libpq.sendQuery(store->bell->connection, store->bell->lock) == 0) {
		lose(store);
		return;
	}
	store->bell->state = BELL_ASKED;
	if (poll(&answer, 1, GRANT_WAIT_MS) > 0)
		hear_lock(store);
}

/* A relay at work does not keep them all, but remembers that somebody has rung: a ring may come
 * with the answer to a statement that did not see the commit yet. */
void semel_pg_bell_hear(struct semel_pg_store *store)
{
	PGnotify *notice = NULL;
	while (store->bell != NULL && (notice = semel_libpq.notifies(store->connection)) != NULL) {
		semel_libpq.freemem(notice);
		store->bell->rung = true;
	}
}

/* Somebody has rung since this was asked last. */
static bool take_rings(struct semel_pg_store *store)
{
	semel_pg_bell_hear(store);
	bool rung = store->bell->rung;
	store->bell->rung = false;
	return rung;
}

bool semel_pg_arm_wakeup(semel_store *base, bool only_if_armed)
{
	struct semel_pg_store *store = semel_pg_of(base);
	if (store->bell == NULL && store->wake != NULL && !only_if_armed)
		make(store);
	if (store->bell == NULL || (store->bell->state == BELL_OFF && only_if_armed))
		return false;
	if (store->bell->state != BELL_OFF)
		return take_rings(store);
	ask_for_lock(store);
	return store->bell != NULL && store->bell->state == BELL_ON;
}

/* Where nobody would ring, only a look can tell. */
bool semel_pg_check_wakeup(semel_store *base)
{
	struct semel_pg_store *store = semel_pg_of(base);
	if (store->bell == NULL || semel_libpq.consumeInput(store->connection) == 0)
		return true;
	bool rung = take_rings(store);
	enum bell_state before = store->bell->state;
	hear_lock(store);
	return rung || store->bell == NULL || store->bell->state != before || before == BELL_OFF;
}

void semel_pg_bell_quiet(struct semel_pg_store *store)
{
	if (store->bell != NULL && store->bell->state == BELL_ASKED)
		hear_lock(store);
	if (store->bell == NULL || store->bell->state != BELL_ON)
		return;
	store->bell->state = BELL_OFF;
	if (semel_pg_execute_plain(store->bell->connection, store->bell->unlock, "be quiet",
				   NULL) != SEMEL_OK)
		lose(store);
}

void semel_pg_disarm_wakeup(semel_store *store)
{
	semel_pg_bell_quiet(semel_pg_of(store));
}
