/* SPDX-License-Identifier: Apache-2.0 */
/* Consumers at work: one row each, which they write themselves, seldom; and the runs that a crash
 * may end, which are written only after a crash was noticed. */
#include "store/sql/sql.h"

/* ---- presence -------------------------------------------------------------------------------- */

static const struct semel_sql_statement put_presence = {
	.what = "record the presence of a consumer",
	.text = SEMEL_SQL_SAME(
		"INSERT INTO semel_consumer (scope, owner, in_hand, breaker, reason, next_try_at,"
		" paused, waits_since, updated_at, expires_at)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
		" ON CONFLICT (scope, owner) DO UPDATE SET in_hand = excluded.in_hand,"
		" breaker = excluded.breaker, reason = excluded.reason,"
		" next_try_at = excluded.next_try_at, paused = excluded.paused,"
		" waits_since = excluded.waits_since, updated_at = excluded.updated_at,"
		" expires_at = excluded.expires_at")
};
static const struct semel_sql_statement remove_presence = {
	.what = "remove the presence of a consumer",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_consumer WHERE scope = ?1"
			       " AND (owner = ?2 OR expires_at < ?3)")
};
#define EACH_PRESENCE(ms, for_update)                                                              \
	"SELECT scope, owner, in_hand, breaker, reason, paused, " ms("next_try_at") ", " ms(       \
		"waits_since") ", " ms("updated_at") ", " ms("expires_at") " FROM semel_consumer"  \
									   " WHERE scope = ?1 OR " \
									   "?1 IS NULL ORDER BY "  \
									   "scope, owner"
static const struct semel_sql_statement each_presence = { .what = "list the consumers at work",
							  .text = SEMEL_SQL_EACH(EACH_PRESENCE) };

semel_status semel_sql_presence_put(semel_store *store, const struct semel_presence *presence,
				    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &put_presence, error);
	semel_sql_bind_text(&query, presence->scope);
	semel_sql_bind_text(&query, presence->owner);
	semel_sql_bind_int(&query, (int64_t)presence->in_flight);
	semel_sql_bind_int(&query, presence->breaker);
	semel_sql_bind_text(&query, presence->reason);
	semel_sql_bind_time(&query, presence->next_try_ms);
	semel_sql_bind_bool(&query, presence->paused);
	semel_sql_bind_time(&query, presence->waits_since_ms);
	semel_sql_bind_time(&query, presence->updated_ms);
	semel_sql_bind_lease(&query, presence->expires_at_ms);
	return semel_sql_finish(&query);
}

semel_status semel_sql_presence_remove(semel_store *store, const struct semel_presence *presence,
				       int64_t forget_ms, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &remove_presence, error);
	semel_sql_bind_text(&query, presence->scope);
	semel_sql_bind_text(&query, presence->owner);
	semel_sql_bind_lease(&query, forget_ms);
	return semel_sql_finish(&query);
}

semel_status semel_sql_presence_each(semel_store *store, struct semel_text scope,
				     semel_presence_visitor visit, void *user, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &each_presence, error);
	semel_sql_bind_text(&query, scope);
	while (semel_sql_next(&query)) {
		const struct semel_presence presence = {
			.scope = semel_sql_peek(&query, 0),
			.owner = semel_sql_peek(&query, 1),
			.in_flight = (uint64_t)semel_sql_int(&query, 2),
			.breaker = (uint32_t)semel_sql_int(&query, 3),
			.reason = semel_sql_peek(&query, 4),
			.paused = semel_sql_bool(&query, 5),
			.next_try_ms = semel_sql_time(&query, 6),
			.waits_since_ms = semel_sql_time(&query, 7),
			.updated_ms = semel_sql_time(&query, 8),
			.expires_at_ms = semel_sql_lease(&query, 9),
		};
		visit(&presence, user);
	}
	return semel_sql_finish(&query);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static const struct semel_sql_statement forget_runs = {
	.what = "forget old runs",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_running WHERE scope = ?1 AND begun_at < ?2")
};
static const struct semel_sql_statement begin_run = {
	.what = "record that an event runs",
	.text = SEMEL_SQL_SAME(
		"INSERT INTO semel_running AS r (scope, event_id, owner, runs, begun_at)"
		" VALUES (?1, ?2, ?3, 1, ?4) ON CONFLICT (scope, event_id) DO UPDATE"
		" SET runs = r.runs + CASE WHEN r.owner <> excluded.owner THEN 1 ELSE 0 END,"
		" owner = excluded.owner, begun_at = excluded.begun_at RETURNING runs")
};
static const struct semel_sql_statement end_run = {
	.what = "record that an event has run",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_running WHERE scope = ?1 AND event_id = ?2")
};

semel_status semel_sql_running_begin(semel_tx tx, const struct semel_running *running,
				     uint32_t *runs_out, semel_error *error)
{
	struct semel_sql_query query;
	*runs_out = 0;
	semel_sql_prepare(&query, tx, &forget_runs, error);
	semel_sql_bind_text(&query, running->scope);
	semel_sql_bind_time(&query, running->forget_ms);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK)
		return status;
	semel_sql_prepare(&query, tx, &begin_run, error);
	semel_sql_bind_text(&query, running->scope);
	semel_sql_bind_text(&query, running->event_id);
	semel_sql_bind_string(&query, running->owner);
	semel_sql_bind_time(&query, running->now_ms);
	if (semel_sql_next(&query))
		*runs_out = (uint32_t)semel_sql_int(&query, 0);
	return semel_sql_finish(&query);
}

semel_status semel_sql_running_end(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				   semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &end_run, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_text(&query, event_id);
	return semel_sql_finish(&query);
}
