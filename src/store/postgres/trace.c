/* SPDX-License-Identifier: Apache-2.0 */
/* The life of one event, as the tables tell it. Each part of the union is one kind of fact. */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "store/rules.h"

#define COMMITTED "least(" SEMEL_PG_COMMITTED_AT("o") ", o.published_at)"

/* time, what, scope, detail, said; a fact without a time is none. The scopes are found by jumps
 * along the inbox's key, since its rows may be millions. Clocks differ: nothing is published before
 * it is committed. */
static const struct semel_pg_query facts_of_event = {
	"trace an event",
	"WITH RECURSIVE scopes (name) AS (SELECT min(scope) FROM semel_inbox UNION ALL"
	" SELECT (SELECT min(scope) FROM semel_inbox WHERE scope > name) FROM scopes"
	" WHERE name IS NOT NULL), facts (time, what, scope, detail, said, step) AS ("
	"SELECT " COMMITTED ", 'committed', NULL, event_type || ' of ' || aggregate_type || ':' ||"
	"  aggregate_id || ', number ' || seq, NULL, 1 FROM semel_outbox o WHERE id = $1"
	" UNION ALL SELECT next_attempt_at, 'refused', NULL, 'attempt ' || attempts ||"
	"  ', comes back then: ', coalesce(last_error, ''), 2"
	"  FROM semel_outbox WHERE id = $1 AND status = 'NEW'"
	" UNION ALL SELECT published_at, 'published', NULL, 'to ' ||"
	"  coalesce(topic, aggregate_type || '.events') ||"
	"  CASE WHEN attempts > 0 THEN ' after ' || attempts || ' refusals, the last: '"
	"  ELSE '' END, CASE WHEN attempts > 0 THEN coalesce(last_error, '') END, 3"
	"  FROM semel_outbox WHERE id = $1 AND status = 'PUBLISHED'"
	" UNION ALL SELECT first_seen_at, 'claimed', scope, 'from ' || topic || ' ' ||"
	"  coalesce(\"partition\", 0) || '/' || coalesce(\"offset\", 0) ||"
	"  CASE WHEN status = 'CLAIMED' THEN ', by ' || coalesce(owner, 'somebody') || ' until ' ||"
	"  coalesce(lease_until::text, 'it is finished') ELSE '' END, NULL, 4"
	"  FROM semel_inbox WHERE event_id = $1 AND scope IN (SELECT name FROM scopes)"
	"  AND (error_code IS DISTINCT FROM 'discarded' OR owner IS NOT NULL)"
	" UNION ALL SELECT processed_at, CASE status WHEN 'FAILED' THEN 'failed' ELSE"
	"  CASE error_code WHEN 'duplicate-key' THEN 'skipped' ELSE 'processed' END END, scope,"
	"  CASE WHEN error_code IS NOT NULL THEN error_code WHEN handler_version IS NOT NULL"
	"  THEN 'handler ' || handler_version END, NULL, 5"
	"  FROM semel_inbox WHERE event_id = $1 AND scope IN (SELECT name FROM scopes)"
	"  AND error_code IS DISTINCT FROM 'discarded'"
	" UNION ALL SELECT due_at, 'retrying', scope, 'attempt ' || (attempts + 1) ||"
	"  ' is due then', NULL, 6 FROM semel_hold WHERE head_id = $1 AND state = 'retry'"
	" UNION ALL SELECT failed_at, CASE WHEN parked_behind IS NULL THEN 'dead-lettered'"
	"  ELSE 'parked' END, scope, CASE WHEN parked_behind IS NULL THEN 'entry ' || entry_id ||"
	"  ' after ' || attempts || ' attempts: ' ELSE 'behind ' || parked_behind END,"
	"  CASE WHEN parked_behind IS NULL THEN coalesce(substr(failure_reason, "
	"1, " SEMEL_DEAD_BRIEF "), '') END, 7 FROM "
	"semel_dead_letter WHERE event_id = $1"
	" UNION ALL SELECT moved_at, lower(CASE WHEN discard_reason IS NULL AND status = 'PENDING'"
	"  THEN 'REPLAYED' ELSE status END), scope, CASE WHEN status = 'DISCARDED' THEN"
	"  NULL WHEN replay_count = 0 THEN 'by replay --reprocess, entry ' ||"
	"  entry_id ELSE 'replay ' || replay_count || ' of entry ' || entry_id END,"
	"  CASE WHEN status = 'DISCARDED' THEN substr(discard_reason, 1, " SEMEL_DEAD_BRIEF
	") END, 8"
	"  FROM semel_dead_letter WHERE event_id = $1 AND parked_behind IS NULL)"
	" SELECT " SEMEL_PG_MS("time") ", what, scope, detail, said FROM facts"
				       " WHERE time IS NOT NULL ORDER BY time, step"
};

semel_status semel_pg_trace(semel_store *store, const char *event_id, struct semel_arena *arena,
			    semel_trace_visitor seen, void *user, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, event_id);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &facts_of_event, &params, &result, error);
	if (status == SEMEL_OK && semel_pg_rows(result) == 0)
		status = semel_error_set(error, SEMEL_NOT_FOUND, "no event %s in this store",
					 event_id);
	for (int row = 0; row < semel_pg_rows(result); row++) {
		struct semel_trace_entry fact = {
			.time_ms = semel_pg_int(result, row, 0),
			.what = semel_text_shown(semel_pg_text(result, row, 1, arena)),
			.scope = semel_text_shown(semel_pg_text(result, row, 2, arena)),
			.detail = semel_text_shown(semel_pg_text(result, row, 3, arena)),
			.quoted = semel_text_shown(semel_pg_text(result, row, 4, arena)),
		};
		seen(&fact, user);
	}
	semel_pg_clear(result);
	return status;
}
