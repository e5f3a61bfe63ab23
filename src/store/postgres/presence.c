/* SPDX-License-Identifier: Apache-2.0 */
/* Consumers at work: one row each, which they write themselves, seldom. Leases go by the server's
 * clock. */
#include "store/postgres/postgres.h"

static const struct semel_pg_query put_presence = {
	"write down that a consumer is at work",
	"INSERT INTO semel_consumer (scope, owner, in_hand, breaker, reason, next_try_at, paused,"
	" waits_since, updated_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6::timestamptz, $7,"
	" $8::timestamptz, $9::timestamptz, $10::timestamptz)"
	" ON CONFLICT (scope, owner) DO UPDATE SET in_hand = excluded.in_hand,"
	" breaker = excluded.breaker, reason = excluded.reason,"
	" next_try_at = excluded.next_try_at, paused = excluded.paused,"
	" waits_since = excluded.waits_since, updated_at = excluded.updated_at,"
	" expires_at = excluded.expires_at"
};
static const struct semel_pg_query remove_presence = {
	"write down that a consumer has ended",
	"DELETE FROM semel_consumer WHERE scope = $1 AND (owner = $2 OR expires_at < "
	"$3::timestamptz)"
};
#define TIMES                                                                                      \
	SEMEL_PG_MS("next_try_at")                                                                 \
	", " SEMEL_PG_MS("waits_since") ", " SEMEL_PG_MS("updated_at") ", " SEMEL_PG_MS(           \
		"expires_at")
static const struct semel_pg_query each_presence = {
	"look which consumers are at work",
	"SELECT scope, owner, in_hand, breaker, reason, paused, " TIMES " FROM semel_consumer"
	" WHERE $1::text IS NULL OR scope = $1 ORDER BY scope, owner"
};

semel_status semel_pg_presence_put(semel_store *store, const struct semel_presence *presence,
				   semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	struct semel_pg_params params = { 0 };
	semel_pg_add_text(&params, presence->scope);
	semel_pg_add_text(&params, presence->owner);
	semel_pg_add_int(&params, (int64_t)presence->in_flight);
	semel_pg_add_int(&params, presence->breaker);
	semel_pg_add_text(&params, presence->reason);
	semel_pg_add_time(&params, presence->next_try_ms);
	semel_pg_add_bool(&params, presence->paused);
	semel_pg_add_time(&params, presence->waits_since_ms);
	semel_pg_add_time(&params, presence->updated_ms);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, presence->expires_at_ms));
	return semel_pg_run(tx, &put_presence, &params, NULL, error);
}

semel_status semel_pg_presence_remove(semel_store *store, const struct semel_presence *presence,
				      int64_t forget_ms, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	struct semel_pg_params params = { 0 };
	semel_pg_add_text(&params, presence->scope);
	semel_pg_add_text(&params, presence->owner);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, forget_ms));
	return semel_pg_run(tx, &remove_presence, &params, NULL, error);
}

static struct semel_text peek(const PGresult *result, int row, int column)
{
	if (semel_libpq.getisnull(result, row, column))
		return (struct semel_text){ NULL, 0 };
	return semel_text_from(semel_pg_value(result, row, column),
			       (size_t)semel_libpq.getlength(result, row, column));
}

semel_status semel_pg_presence_each(semel_store *store, struct semel_text scope,
				    semel_presence_visitor seen, void *user, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status = semel_pg_run(tx, &each_presence, &params, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++) {
		struct semel_presence presence = {
			.scope = peek(result, row, 0),
			.owner = peek(result, row, 1),
			.in_flight = (uint64_t)semel_pg_int(result, row, 2),
			.breaker = (uint32_t)semel_pg_int(result, row, 3),
			.reason = peek(result, row, 4),
			.paused = semel_pg_bool(result, row, 5),
			.next_try_ms = semel_pg_int(result, row, 6),
			.waits_since_ms = semel_pg_int(result, row, 7),
			.updated_ms = semel_pg_int(result, row, 8),
			.expires_at_ms = semel_pg_clock_to_local(tx, semel_pg_int(result, row, 9)),
		};
		seen(&presence, user);
	}
	semel_pg_clear(result);
	return status;
}
