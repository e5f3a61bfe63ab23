/* SPDX-License-Identifier: Apache-2.0 */
/* Whose lease has run out is judged on many machines, whose clocks need not agree. So leases go by
 * the server's clock, which all of them have in common: times of leases are turned into the
 * server's when they are written, and back when they are read. Clocks that agree to a second are
 * left alone. */
#include "store/postgres/postgres.h"

#include "base/env.h"
#include "observe/log.h"

#include <stdlib.h>

#define AGREED_MS 1000

static const struct semel_pg_query server_time = { "read the server's clock",
						   "SELECT " SEMEL_PG_MS("clock_timestamp()") };

/* doubt_ms: by so much the difference may be wrong, since the answer took its time. */
static void apply_offset(struct semel_pg_store *store, int64_t clock_offset_ms, int64_t doubt_ms)
{
	int64_t before_ms = store->clock_offset_ms;
	store->clock_offset_ms =
		llabs(clock_offset_ms) <= AGREED_MS + doubt_ms ? 0 : clock_offset_ms;
	if (store->clock_offset_ms != 0 && llabs(store->clock_offset_ms - before_ms) > AGREED_MS)
		semel_logf(
			SEMEL_LOG_WARN,
			"the local clock is %lld s %s PostgreSQL's, using the server's for leases "
			"(synchronise both machines: chrony, systemd-timesyncd)",
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
