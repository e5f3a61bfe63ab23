/* SPDX-License-Identifier: Apache-2.0 */
/* The history of one event, as the tables have it. Each part of the union is one kind of entry. */
#include "store/sql/sql.h"

#include "base/error.h"
#include "store/rules.h"

/* time, what, scope, detail, quoted; an entry without a time did not happen. The scopes are found
 * by jumps along the inbox's key, since its rows may be millions. Clocks differ: nothing is
 * published before it is committed. */
#define TRACE(ms, committed)                                                                       \
	"WITH RECURSIVE scopes (name) AS (SELECT min(scope) FROM semel_inbox UNION ALL"            \
	" SELECT (SELECT min(scope) FROM semel_inbox WHERE scope > name) FROM scopes"              \
	" WHERE name IS NOT NULL), entries (time, what, scope, detail, quoted, step) AS ("         \
	"SELECT " committed ", 'committed', NULL, event_type || ' of ' || aggregate_type ||"       \
	"  ':' || aggregate_id || ', number ' || seq, NULL, 1 FROM semel_outbox o WHERE id = ?1"   \
	" UNION ALL SELECT next_attempt_at, 'refused', NULL, 'attempt ' || attempts ||"            \
	"  ', retry due: ', coalesce(last_error, ''), 2"                                           \
	"  FROM semel_outbox WHERE id = ?1 AND status = 'NEW'"                                     \
	" UNION ALL SELECT published_at, 'published', NULL, 'to ' ||"                              \
	"  coalesce(topic, aggregate_type || '.events') ||"                                        \
	"  CASE WHEN attempts > 0 THEN ' after ' || attempts || ' refusals, the last: '"           \
	"  ELSE '' END, CASE WHEN attempts > 0 THEN coalesce(last_error, '') END, 3"               \
	"  FROM semel_outbox WHERE id = ?1 AND status = 'PUBLISHED'"                               \
	" UNION ALL SELECT first_seen_at, 'claimed', scope, 'from ' || topic || ' ' ||"            \
	"  coalesce(\"partition\", 0) || '/' || coalesce(\"offset\", 0) ||"                        \
	"  CASE WHEN status = 'CLAIMED' THEN ', by ' || coalesce(owner, 'unknown') ||"             \
	"  ' until ' || coalesce(CAST(lease_until AS text), 'it is finished') ELSE '' END,"        \
	"  NULL, 4 FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"    \
	"  AND (coalesce(error_code, '') <> 'discarded' OR owner IS NOT NULL)"                     \
	" UNION ALL SELECT processed_at, CASE status WHEN 'FAILED' THEN 'failed' ELSE"             \
	"  CASE error_code WHEN 'duplicate-key' THEN 'skipped' ELSE 'processed' END END, scope,"   \
	"  CASE WHEN error_code IS NOT NULL THEN error_code WHEN handler_version IS NOT NULL"      \
	"  THEN 'handler ' || handler_version END, NULL, 5"                                        \
	"  FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"            \
	"  AND coalesce(error_code, '') <> 'discarded'"                                            \
	" UNION ALL SELECT due_at, 'retrying', scope, 'attempt ' || (attempts + 1) ||"             \
	"  ' is due', NULL, 6 FROM semel_hold WHERE head_id = ?1 AND state = 'retry'"              \
	" UNION ALL SELECT failed_at, CASE WHEN parked_behind IS NULL THEN 'dead-lettered'"        \
	"  ELSE 'parked' END, scope, CASE WHEN parked_behind IS NULL THEN 'entry ' || entry_id ||" \
	"  ' after ' || attempts || ' attempts: ' ELSE 'behind ' || parked_behind END,"            \
	"  CASE WHEN parked_behind IS NULL THEN"                                                   \
	"  coalesce(substr(failure_reason, 1, " SEMEL_DEAD_BRIEF "), '') END, 7"                   \
	"  FROM semel_dead_letter WHERE event_id = ?1"                                             \
	" UNION ALL SELECT moved_at, lower(CASE WHEN discard_reason IS NULL"                       \
	"  AND status = 'PENDING' THEN 'REPLAYED' ELSE status END), scope,"                        \
	"  CASE WHEN status = 'DISCARDED' THEN NULL WHEN replay_count = 0 THEN"                    \
	"  'by replay --reprocess, entry ' || entry_id ELSE 'replay ' || replay_count ||"          \
	"  ' of entry ' || entry_id END, CASE WHEN status = 'DISCARDED' THEN"                      \
	"  substr(discard_reason, 1, " SEMEL_DEAD_BRIEF ") END, 8"                                 \
	"  FROM semel_dead_letter WHERE event_id = ?1 AND parked_behind IS NULL)"                  \
	" SELECT " ms("time") ", what, scope, detail, quoted FROM entries"                         \
			      " WHERE time IS NOT NULL ORDER BY time, step"

static const struct semel_sql_statement trace_event = {
	.what = "trace an event",
	.text = { [SEMEL_SQL_SQLITE] =
			  TRACE(SEMEL_SQL_SQLITE_MS,
				"min(committed_at, coalesce(published_at, committed_at))"),
		  [SEMEL_SQL_POSTGRES] = TRACE(
			  SEMEL_SQL_POSTGRES_MS,
			  "least(" SEMEL_SQL_POSTGRES_COMMITTED_AT("o") ", o.published_at)") }
};

semel_status semel_sql_trace(semel_store *store, const char *event_id, struct semel_arena *arena,
			     semel_trace_visitor visit, void *user, semel_error *error)
{
	struct semel_sql_query query;
	bool any = false;
	semel_sql_prepare(&query, store->driver->tx(store), &trace_event, error);
	semel_sql_bind_string(&query, event_id);
	while (semel_sql_next(&query)) {
		const struct semel_trace_entry entry = {
			.time_ms = semel_sql_time(&query, 0),
			.what = semel_text_shown(semel_sql_text(&query, 1, arena)),
			.scope = semel_text_shown(semel_sql_text(&query, 2, arena)),
			.detail = semel_text_shown(semel_sql_text(&query, 3, arena)),
			.quoted = semel_text_shown(semel_sql_text(&query, 4, arena)),
		};
		any = true;
		visit(&entry, user);
	}
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK || any)
		return status;
	return semel_error_set(error, SEMEL_NOT_FOUND, "no event %s in this store", event_id);
}
