/* SPDX-License-Identifier: Apache-2.0 */
/* The watermark: transactions do not commit in the order in which they draw numbers, so a number
 * counts as complete only when no lower one can commit late.
 *
 * - A producer's transaction has its own number (xid) before it draws one for its event: the
 *   schema's default for seq ensures that.
 * - So if N is the highest number drawn, and a transaction of ours gets the xid M after N was read,
 *   then every transaction with a number up to N has an xid below M.
 * - Once a snapshot's xmin has reached M, all of them have ended: what is at or below N is in that
 *   snapshot, or never will be.
 * A snapshot's own xmax cannot be used as M: it only shows what has ended, and younger transactions
 * may be open already.
 */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

/* Discards what was recorded, since it applied to other numbers. */
static void reset_watermark(struct semel_pg_store *store)
{
	store->watermark.drawn_seq = store->watermark.complete_seq = 0;
	store->watermark.count = 0;
	store->watermark.waiting_since_ms = 0;
	free(store->watermark.writers);
	store->watermark.writers = NULL;
	memset(store->commit_bounds, 0, sizeof(store->commit_bounds));
}

void semel_pg_watermark_observe(struct semel_pg_store *store, int64_t drawn_seq)
{
	if (drawn_seq < store->watermark.drawn_seq)
		reset_watermark(store);
	store->watermark.drawn_seq = drawn_seq;
}

void semel_pg_watermark_check_sequence(struct semel_pg_store *store, int64_t numbers)
{
	if (store->watermark.numbers != 0 && store->watermark.numbers != numbers)
		reset_watermark(store);
	store->watermark.numbers = numbers;
}

void semel_pg_watermark_record_xid(struct semel_pg_store *store, uint64_t xid)
{
	uint32_t count = store->watermark.count;
	struct semel_pg_watermark_entry *last =
		count == 0 ? NULL : &store->watermark.entries[count - 1];
	int64_t seq = store->watermark.drawn_seq;
	if (seq <= store->watermark.complete_seq || (last != NULL && last->seq >= seq))
		return;
	if (count < SEMEL_PG_WATERMARK_ENTRIES_MAX) /* full: a transaction is open for long; a later
							      entry will do */
		store->watermark.entries[store->watermark.count++] =
			(struct semel_pg_watermark_entry){ .seq = seq, .xid = xid };
}

static void drop_entries(struct semel_pg_store *store, uint32_t count)
{
	store->watermark.count -= count;
	memmove(store->watermark.entries, store->watermark.entries + count,
		store->watermark.count * sizeof(store->watermark.entries[0]));
}

int64_t semel_pg_watermark_advance(struct semel_pg_store *store, uint64_t xmin)
{
	uint32_t reached = 0;
	while (reached < store->watermark.count && store->watermark.entries[reached].xid <= xmin)
		reached++;
	if (reached > 0 &&
	    store->watermark.entries[reached - 1].seq > store->watermark.complete_seq)
		store->watermark.complete_seq = store->watermark.entries[reached - 1].seq;
	if (reached > 0)
		store->watermark.waiting_since_ms = 0;
	drop_entries(store, reached);
	return store->watermark.complete_seq;
}

/* ---- long-running transactions --------------------------------------------------------------- */

/* A transaction that is open for long need not be a producer. A transaction that has drawn a number
 * holds a lock on the outbox until its end; so the holders are listed after the number was read,
 * and when all of them have ended, no other transaction can commit late with it. */
#define WRITERS                                                                                    \
	" FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'"                 \
	" AND relation = 'semel_outbox'::regclass AND pid IS DISTINCT FROM pg_backend_pid()"       \
	" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"

static const struct semel_pg_statement select_writers = {
	"list the writers of the outbox",
	"SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}')" WRITERS
};
/* A prepared transaction keeps its virtual id, except on servers of 2021 and before: there it gets
 * one that begins with -1, and may be any of those that were listed. */
static const struct semel_pg_statement count_writers = {
	"list the writers of the outbox",
	"SELECT count(*)" WRITERS " AND (virtualtransaction = ANY ($1::text[])"
	" OR virtualtransaction LIKE '-1/%')"
};
#define SINCE(column) "to_char(" column " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
static const struct semel_pg_statement oldest_transaction = {
	"find the oldest transaction",
	"SELECT CASE WHEN p.gid IS NULL THEN 'pid ' || l.pid || ', user ' || coalesce(a.usename,"
	" 'unknown') || ', application ' || coalesce(a.application_name, 'unknown') ||"
	" ', query since ' || coalesce(" SINCE(
		"a.query_start") ", 'unknown') ||"
				 " ' (end it with: SELECT pg_terminate_backend(' || l.pid || '))'"
				 " ELSE 'prepared as ' || p.gid || ', user ' || p.owner || ', "
				 "since ' || " SINCE(
					 "p.prepared") " || ' (end it with: ROLLBACK PREPARED ' || "
						       "quote_literal(p.gid) || ')' END"
						       " FROM pg_locks l LEFT JOIN "
						       "pg_stat_activity a ON a.pid = l.pid"
						       " LEFT JOIN pg_prepared_xacts p ON "
						       "p.transaction = l.transactionid AND l.pid "
						       "IS NULL"
						       " WHERE l.locktype = 'transactionid' AND "
						       "l.mode = 'ExclusiveLock'"
						       " AND l.pid IS DISTINCT FROM "
						       "pg_backend_pid() ORDER BY "
						       "age(l.transactionid) DESC LIMIT 1"
};

#define PATIENCE_MS    1000
#define CHECK_EVERY_MS 250
#define LOG_AFTER_MS   5000
#define LOG_EVERY_MS   60000

static void log_oldest_transaction(struct semel_pg_store *store, int64_t waited_ms)
{
	PGresult *result = NULL;
	if (semel_pg_run(semel_pg_tx(&store->base), &oldest_transaction, NULL, &result, NULL) ==
		    SEMEL_OK &&
	    semel_pg_rows(result) > 0)
		semel_log_detail(SEMEL_LOG_WARN,
				 "open transaction holds back the low mark of the outbox",
				 "waiting for %lld s: %s", (long long)(waited_ms / 1000),
				 semel_pg_value(result, 0, 0));
	semel_pg_clear(result);
}

static semel_status list_writers(struct semel_pg_store *store, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &select_writers, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	store->watermark.writers_seq = store->watermark.drawn_seq;
	store->watermark.writers = strdup(semel_pg_value(result, 0, 0));
	semel_pg_clear(result);
	return status;
}

static void raise_to(struct semel_pg_store *store, int64_t seq)
{
	uint32_t passed = 0;
	if (seq > store->watermark.complete_seq)
		store->watermark.complete_seq = seq;
	while (passed < store->watermark.count && store->watermark.entries[passed].seq <= seq)
		passed++;
	drop_entries(store, passed);
}

static semel_status check_writers(struct semel_pg_store *store, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, store->watermark.writers);
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &count_writers, &params, &result, error);
	bool gone = status == SEMEL_OK && semel_pg_int(result, 0, 0) == 0;
	semel_pg_clear(result);
	if (!gone)
		return status;
	raise_to(store, store->watermark.writers_seq);
	free(store->watermark.writers);
	store->watermark.writers = NULL;
	return SEMEL_OK;
}

semel_status semel_pg_watermark_maintain(struct semel_pg_store *store, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(semel_store_env(&store->base));
	if (store->watermark.count == 0 || store->watermark.waiting_since_ms == 0)
		store->watermark.waiting_since_ms = now_ms;
	int64_t waited_ms = now_ms - store->watermark.waiting_since_ms;
	if (waited_ms < PATIENCE_MS || now_ms - store->watermark.checked_at_ms < CHECK_EVERY_MS)
		return SEMEL_OK;
	store->watermark.checked_at_ms = now_ms;
	if (waited_ms >= LOG_AFTER_MS && (store->watermark.logged_at_ms == 0 ||
					  now_ms - store->watermark.logged_at_ms >= LOG_EVERY_MS)) {
		store->watermark.logged_at_ms = now_ms;
		log_oldest_transaction(store, waited_ms);
	}
	return store->watermark.writers == NULL ? list_writers(store, error)
						: check_writers(store, error);
}
