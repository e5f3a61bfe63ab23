/* SPDX-License-Identifier: Apache-2.0 */
/* The life of one event, as the tables tell it. Each row below is one kind of fact. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "store/rules.h"

/* time, what, scope, detail, said; a fact without a time is none. The scopes are found by jumps
 * along the inbox's key, since its rows may be millions. Clocks differ: nothing is published before
 * it is committed. */
static const struct semel_sqlite_query facts_of_event = {
	SEMEL_SQL_ONCE, "trace an event",
	"WITH RECURSIVE scopes (name) AS (SELECT min(scope) FROM semel_inbox UNION ALL"
	" SELECT (SELECT min(scope) FROM semel_inbox WHERE scope > name) FROM scopes"
	" WHERE name IS NOT NULL) "
	"SELECT min(committed_at, coalesce(published_at, committed_at)) AS time,"
	"  'committed' AS what, NULL AS scope,"
	"  event_type || ' of ' || aggregate_type || ':' || aggregate_id || ', number ' || seq"
	"  AS detail, NULL AS said, 1 AS step FROM semel_outbox WHERE id = ?1"
	" UNION ALL SELECT next_attempt_at, 'refused', NULL, 'attempt ' || attempts ||"
	"  ', comes back then: ', coalesce(last_error, ''), 2"
	"  FROM semel_outbox WHERE id = ?1 AND status = 'NEW'"
	" UNION ALL SELECT published_at, 'published', NULL, 'to ' ||"
	"  coalesce(topic, aggregate_type || '.events') ||"
	"  CASE WHEN attempts > 0 THEN ' after ' || attempts || ' refusals, the last: '"
	"  ELSE '' END, CASE WHEN attempts > 0 THEN coalesce(last_error, '') END, 3"
	"  FROM semel_outbox WHERE id = ?1 AND status = 'PUBLISHED'"
	" UNION ALL SELECT first_seen_at, 'claimed', scope, 'from ' || topic || ' ' ||"
	"  coalesce(\"partition\", 0) || '/' || coalesce(\"offset\", 0) ||"
	"  CASE WHEN status = 'CLAIMED' THEN ', by ' || coalesce(owner, 'somebody') || ' until ' ||"
	"  coalesce(lease_until, 'it is finished') ELSE '' END, NULL, 4"
	"  FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"
	"  AND (error_code IS NOT 'discarded' OR owner IS NOT NULL)"
	" UNION ALL SELECT processed_at, CASE status WHEN 'FAILED' THEN 'failed' ELSE"
	"  CASE error_code WHEN 'duplicate-key' THEN 'skipped' ELSE 'processed' END END, scope,"
	"  CASE WHEN error_code IS NOT NULL THEN error_code WHEN handler_version IS NOT NULL"
	"  THEN 'handler ' || handler_version END, NULL, 5"
	"  FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"
	"  AND error_code IS NOT 'discarded'"
	" UNION ALL SELECT due_at, 'retrying', scope, 'attempt ' || (attempts + 1) || ' is due "
	"then',"
	"  NULL, 6 FROM semel_hold WHERE head_id = ?1 AND state = 'retry'"
	" UNION ALL SELECT failed_at, CASE WHEN parked_behind IS NULL THEN 'dead-lettered'"
	"  ELSE 'parked' END, scope, CASE WHEN parked_behind IS NULL THEN 'entry ' || entry_id ||"
	"  ' after ' || attempts || ' attempts: ' ELSE 'behind ' || parked_behind END,"
	"  CASE WHEN parked_behind IS NULL THEN coalesce(substr(failure_reason, "
	"1, " SEMEL_DEAD_BRIEF "), '') END, 7 FROM "
	"semel_dead_letter WHERE event_id = ?1"
	" UNION ALL SELECT moved_at, lower(CASE WHEN discard_reason IS NULL AND status = 'PENDING'"
	"  THEN 'REPLAYED' ELSE status END), scope, CASE WHEN status = 'DISCARDED' THEN"
	"  NULL WHEN replay_count = 0 THEN 'by replay --reprocess, entry ' ||"
	"  entry_id ELSE 'replay ' || replay_count || ' of entry ' || entry_id END,"
	"  CASE WHEN status = 'DISCARDED' THEN substr(discard_reason, 1, " SEMEL_DEAD_BRIEF
	") END, 8"
	"  FROM semel_dead_letter WHERE event_id = ?1 AND parked_behind IS NULL"
	" ORDER BY time, step"
};

semel_status semel_sqlite_trace(semel_store *store, const char *event_id, struct semel_arena *arena,
				semel_trace_visitor seen, void *user, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false, any = false;
	semel_status status = semel_sqlite_take(tx, &facts_of_event, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(statement, 1, event_id);
	do {
		status = semel_sqlite_step(tx, &facts_of_event, statement, &row, error);
		if (status != SEMEL_OK || !row || sqlite3_column_type(statement, 0) == SQLITE_NULL)
			continue;
		struct semel_trace_entry fact = {
			.time_ms = semel_sqlite_time(statement, 0),
			.what = semel_text_shown(semel_sqlite_text(statement, 1, arena)),
			.scope = semel_text_shown(semel_sqlite_text(statement, 2, arena)),
			.detail = semel_text_shown(semel_sqlite_text(statement, 3, arena)),
			.quoted = semel_text_shown(semel_sqlite_text(statement, 4, arena)),
		};
		any = true;
		seen(&fact, user);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &facts_of_event, statement);
	if (status == SEMEL_OK && !any)
		return semel_error_set(error, SEMEL_NOT_FOUND, "no event %s in this store",
				       event_id);
	return status;
}
