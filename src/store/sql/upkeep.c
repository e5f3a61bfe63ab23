/* SPDX-License-Identifier: Apache-2.0 */
/* Records other than events: subscriptions, consumers at work, what operators did, and the history
 * of one event, which is read from all tables. */
#include "store/sql/sql.h"

#include "base/error.h"
#include "fault/plant.h"
#include "store/rules.h"

/* ---- subscriptions --------------------------------------------------------------------------- */
/* Which scopes read which topics, as the last consumer of each declared it. */

// clang-format off
/* What was processed before has left no claim, so no claim is expected. */
#define CLAIMS_FROM_NOW(D)                                                                         \
	"(coalesce(semel_subscription.guarantee, '') = 'at-least-once'"                            \
	" AND coalesce(" D##_NEW("guarantee") ", '') <> 'at-least-once')"
#define SET_NEW(D, column) column " = " D##_NEW(column)
#define PUT_SUBSCRIPTION(D)                                                                        \
	"INSERT INTO semel_subscription (scope, topics, guarantee, claim, poison, "                \
	D##_NAME("order") ", dedup_by, handler, bind, from_latest, since)"                         \
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)" D##_ON_CONFLICT("(scope)")        \
	"from_latest = semel_subscription.from_latest OR " CLAIMS_FROM_NOW(D)                      \
	", since = CASE WHEN " CLAIMS_FROM_NOW(D) " THEN " D##_NEW("since")                        \
	" ELSE semel_subscription.since END, " SET_NEW(D, "topics") ", " SET_NEW(D, "guarantee")   \
	", " SET_NEW(D, "claim") ", " SET_NEW(D, "poison") ", " SET_NEW(D, D##_NAME("order"))      \
	", " SET_NEW(D, "dedup_by") ", " SET_NEW(D, "handler") ", " SET_NEW(D, "bind")
static const struct semel_sql_statement put_subscription = {
	.what = "record the subscription", .text = SEMEL_SQL_EACH(PUT_SUBSCRIPTION)
};
/* Existing rows are written only when they change, because the statement runs at every start. */
#define ADD_TOPICS(D, elements)                                                                    \
	"INSERT INTO semel_subscription_topic (scope, topic, since) " elements                     \
	D##_ON_CONFLICT("(scope, topic)") "removed_at = NULL"                                      \
	" WHERE semel_subscription_topic.removed_at IS NOT NULL"
#define TOPICS_SQLITE "SELECT ?1, value, ?3 FROM json_each(?2) WHERE true"
#define TOPICS_POSTGRES                                                                            \
	"SELECT DISTINCT ?1, now_read.topic, ?3::timestamptz"                                      \
	" FROM jsonb_array_elements_text(?2::jsonb) AS now_read (topic)"
static const struct semel_sql_statement add_topics = {
	.what = "record the topics",
	.text = { [SEMEL_SQL_SQLITE] = ADD_TOPICS(SEMEL_SQL_SQLITE, TOPICS_SQLITE),
		  [SEMEL_SQL_POSTGRES] = ADD_TOPICS(SEMEL_SQL_POSTGRES, TOPICS_POSTGRES) }
};
#define REMOVE_TOPICS(elements)                                                                    \
	"UPDATE semel_subscription_topic SET removed_at = ?3 WHERE scope = ?1"                     \
	" AND removed_at IS NULL AND topic NOT IN (SELECT " elements ")"
static const struct semel_sql_statement remove_topics = {
	.what = "record the topics",
	.text = { [SEMEL_SQL_SQLITE] = REMOVE_TOPICS("value FROM json_each(?2)"),
		  [SEMEL_SQL_POSTGRES] = REMOVE_TOPICS("jsonb_array_elements_text(?2::jsonb)") }
};
#define EACH_TOPIC(D)                                                                              \
	"SELECT topic, " D##_MS("since") ", " D##_MS("removed_at")                                 \
	" FROM semel_subscription_topic WHERE scope = ?1 ORDER BY topic"
static const struct semel_sql_statement each_topic = { .what = "read the topics",
						       .text = SEMEL_SQL_EACH(EACH_TOPIC) };
#define LIST_SUBSCRIPTIONS(D)                                                                      \
	"SELECT scope, topics, guarantee, claim, poison, " D##_NAME("order") ", dedup_by,"         \
	" handler, bind, from_latest, " D##_MS("since") ", paused FROM semel_subscription"         \
	" ORDER BY scope LIMIT ?1"
static const struct semel_sql_statement list_subscriptions = {
	.what = "list the subscriptions", .text = SEMEL_SQL_EACH(LIST_SUBSCRIPTIONS)
};
static const struct semel_sql_statement pause_subscription = {
	.what = "pause the subscription",
	.text = SEMEL_SQL_SAME("UPDATE semel_subscription SET paused = ?2 WHERE scope = ?1")
};
static const struct semel_sql_statement read_pause = {
	.what = "read whether the subscription is paused",
	.text = SEMEL_SQL_SAME("SELECT paused FROM semel_subscription WHERE scope = ?1")
};
// clang-format on

/* A planted bug: holds of a subscription that was not registered are deleted. */
static const struct semel_sql_statement start_clean = {
	.what = "remove the holds",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_hold WHERE scope = ?1 AND NOT EXISTS"
			       " (SELECT 1 FROM semel_subscription WHERE scope = ?1)")
};

static semel_status remove_holds(semel_tx tx, struct semel_text scope, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &start_clean, error);
	semel_sql_bind_text(&query, scope);
	return semel_sql_finish(&query);
}

static semel_status put_row(semel_tx tx, const struct semel_subscription_row *row, int64_t now_ms,
			    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &put_subscription, error);
	semel_sql_bind_text(&query, row->scope);
	semel_sql_bind_text(&query, row->topics);
	semel_sql_bind_text(&query, row->guarantee);
	semel_sql_bind_text(&query, row->claim);
	semel_sql_bind_text(&query, row->poison);
	semel_sql_bind_text(&query, row->order);
	semel_sql_bind_text(&query, row->dedup_by);
	semel_sql_bind_text(&query, row->handler);
	semel_sql_bind_text(&query, row->bind);
	semel_sql_bind_bool(&query, row->from_latest);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

static semel_status put_topics(semel_tx tx, const struct semel_sql_statement *statement,
			       const struct semel_subscription_row *row, int64_t now_ms,
			       semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, statement, error);
	semel_sql_bind_text(&query, row->scope);
	semel_sql_bind_text(&query, row->topics);
	semel_sql_bind_time(&query, now_ms);
	return semel_sql_finish(&query);
}

static semel_status put_all(semel_tx tx, const struct semel_subscription_row *row, int64_t now_ms,
			    semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (SEMEL_PLANTED("new-record-starts-clean"))
		status = remove_holds(tx, row->scope, error);
	if (status != SEMEL_OK)
		return status;
	status = put_row(tx, row, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = put_topics(tx, &add_topics, row, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return put_topics(tx, &remove_topics, row, now_ms, error);
}

semel_status semel_sql_subscription_put(semel_store *store,
					const struct semel_subscription_row *row, int64_t now_ms,
					semel_error *error)
{
	bool entered = false;
	semel_status status = semel_sql_enter(store, &entered, error);
	if (status != SEMEL_OK)
		return status;
	status = put_all(store->driver->tx(store), row, now_ms, error);
	return semel_sql_leave(store, entered, status, error);
}

semel_status semel_sql_subscription_topics(semel_store *store, struct semel_text scope,
					   semel_topic_visitor visit, void *user,
					   semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &each_topic, error);
	semel_sql_bind_text(&query, scope);
	while (semel_sql_next(&query))
		visit(semel_sql_peek(&query, 0), semel_sql_time(&query, 1),
		      semel_sql_time(&query, 2), user);
	return semel_sql_finish(&query);
}

static void read_subscription(const struct semel_sql_query *query, struct semel_arena *arena,
			      struct semel_subscription_row *row)
{
	struct semel_text *const texts[] = { &row->scope,    &row->topics,  &row->guarantee,
					     &row->claim,    &row->poison,  &row->order,
					     &row->dedup_by, &row->handler, &row->bind };
	for (int i = 0; i < (int)(sizeof(texts) / sizeof(texts[0])); i++)
		*texts[i] = semel_sql_text(query, i, arena);
	row->from_latest = semel_sql_bool(query, 9);
	row->since_ms = semel_sql_time(query, 10);
	row->paused = semel_sql_bool(query, 11);
}

semel_status semel_sql_subscription_list(semel_store *store, struct semel_arena *arena,
					 struct semel_subscription_row *rows_out, uint32_t limit,
					 uint32_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	*count_out = 0;
	semel_sql_prepare(&query, store->driver->tx(store), &list_subscriptions, error);
	semel_sql_bind_int(&query, limit);
	while (semel_sql_next(&query))
		read_subscription(&query, arena, &rows_out[(*count_out)++]);
	return semel_sql_finish(&query);
}

semel_status semel_sql_subscription_pause(semel_store *store, struct semel_text scope, bool paused,
					  semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &pause_subscription, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_bool(&query, paused);
	semel_status status = semel_sql_finish(&query);
	if (status != SEMEL_OK || semel_sql_changes(&query) > 0)
		return status;
	return semel_error_set(error, SEMEL_NOT_FOUND,
			       "scope %s not found (run: semel subscriptions list)",
			       semel_text_shown(scope));
}

semel_status semel_sql_subscription_is_paused(semel_store *store, struct semel_text scope,
					      bool *paused_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &read_pause, error);
	semel_sql_bind_text(&query, scope);
	*paused_out = semel_sql_next(&query) && semel_sql_bool(&query, 0);
	return semel_sql_finish(&query);
}

/* ---- presence: one row per consumer, which it writes itself, seldom -------------------------- */

// clang-format off
#define PUT_PRESENCE(D)                                                                            \
	"INSERT INTO semel_consumer (scope, owner, in_hand, breaker, reason, next_try_at,"         \
	" paused, waits_since, updated_at, expires_at)"                                            \
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)" D##_ON_CONFLICT("(scope, owner)")      \
	SET_NEW(D, "in_hand") ", " SET_NEW(D, "breaker") ", " SET_NEW(D, "reason") ", "            \
	SET_NEW(D, "next_try_at") ", " SET_NEW(D, "paused") ", " SET_NEW(D, "waits_since") ", "    \
	SET_NEW(D, "updated_at") ", " SET_NEW(D, "expires_at")
static const struct semel_sql_statement put_presence = {
	.what = "record the presence of a consumer", .text = SEMEL_SQL_EACH(PUT_PRESENCE)
};
static const struct semel_sql_statement remove_presence = {
	.what = "remove the presence of a consumer",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_consumer WHERE scope = ?1"
			       " AND (owner = ?2 OR expires_at < ?3)")
};
#define EACH_PRESENCE(D)                                                                           \
	"SELECT scope, owner, in_hand, breaker, reason, paused, " D##_MS("next_try_at") ", "       \
	D##_MS("waits_since") ", " D##_MS("updated_at") ", " D##_MS("expires_at")                  \
	" FROM semel_consumer WHERE scope = ?1 OR ?1 IS NULL ORDER BY scope, owner"
static const struct semel_sql_statement each_presence = { .what = "list the consumers at work",
							  .text = SEMEL_SQL_EACH(EACH_PRESENCE) };
// clang-format on

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

/* ---- runs that a crash may end: written only after one was noticed --------------------------- */

static const struct semel_sql_statement forget_runs = {
	.what = "forget old runs",
	.text = SEMEL_SQL_SAME("DELETE FROM semel_running WHERE scope = ?1 AND begun_at < ?2")
};

// clang-format off
#define BEGIN_RUN(D)                                                                               \
	"INSERT INTO semel_running (scope, event_id, owner, runs, begun_at)"                       \
	" VALUES (?1, ?2, ?3, 1, ?4)" D##_ON_CONFLICT("(scope, event_id)")                         \
	"runs = semel_running.runs + CASE WHEN semel_running.owner <> " D##_NEW("owner")           \
	" THEN 1 ELSE 0 END, " SET_NEW(D, "owner") ", " SET_NEW(D, "begun_at") " RETURNING runs"
static const struct semel_sql_statement begin_run = { .what = "record that an event runs",
						      .text = SEMEL_SQL_EACH(BEGIN_RUN) };
// clang-format on

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

/* ---- the audit log --------------------------------------------------------------------------- */

// clang-format off
#define CUT(D, text) SEMEL_SQL_CUT(D, text, SEMEL_AUDIT_TEXT)

#define ADD_ROW(D)                                                                                 \
	"INSERT INTO semel_audit (at, who, what, target, detail, outcome) VALUES (?1, ?2, ?3, "    \
	CUT(D, D##_AS_TEXT("?4")) ", " CUT(D, D##_AS_TEXT("?5")) ", ?6) RETURNING number"
static const struct semel_sql_statement add_row = { .what = "write to the audit log",
						    .text = SEMEL_SQL_EACH(ADD_ROW) };
static const struct semel_sql_statement finish_row = {
	.what = "write an outcome to the audit log",
	.text = SEMEL_SQL_SAME("UPDATE semel_audit SET outcome = ?2 WHERE number = ?1")
};
#define LIST_ROWS(D)                                                                               \
	"SELECT " D##_MS("at") ", who, what, " CUT(D, "target") ", " CUT(D, "detail")              \
	", outcome FROM semel_audit ORDER BY number DESC LIMIT ?1"
static const struct semel_sql_statement list_rows = { .what = "read the audit log",
						      .text = SEMEL_SQL_EACH(LIST_ROWS) };
// clang-format on

semel_status semel_sql_audit_add(semel_store *store, const struct semel_audit_row *row,
				 int64_t *number_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &add_row, error);
	semel_sql_bind_time(&query, row->at_ms);
	semel_sql_bind_text(&query, row->who);
	semel_sql_bind_text(&query, row->what);
	semel_sql_bind_text(&query, row->target);
	semel_sql_bind_text(&query, row->detail);
	semel_sql_bind_text(&query, row->outcome);
	if (semel_sql_next(&query) && number_out != NULL)
		*number_out = semel_sql_int(&query, 0);
	return semel_sql_finish(&query);
}

semel_status semel_sql_audit_finish(semel_store *store, int64_t number, const char *outcome,
				    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &finish_row, error);
	semel_sql_bind_int(&query, number);
	semel_sql_bind_string(&query, outcome);
	return semel_sql_finish(&query);
}

semel_status semel_sql_audit_list(semel_store *store, struct semel_arena *arena,
				  struct semel_audit_row *rows_out, uint32_t limit,
				  uint32_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	*count_out = 0;
	semel_sql_prepare(&query, store->driver->tx(store), &list_rows, error);
	semel_sql_bind_int(&query, limit);
	while (semel_sql_next(&query))
		rows_out[(*count_out)++] = (struct semel_audit_row){
			.at_ms = semel_sql_time(&query, 0),
			.who = semel_sql_text(&query, 1, arena),
			.what = semel_sql_text(&query, 2, arena),
			.target = semel_sql_text(&query, 3, arena),
			.detail = semel_sql_text(&query, 4, arena),
			.outcome = semel_sql_text(&query, 5, arena),
		};
	return semel_sql_finish(&query);
}

/* ---- the history of one event ---------------------------------------------------------------- */

// clang-format off
/* Each part of the union is one kind of entry: time, what, scope, detail, quoted; an entry without
 * a time did not happen. The scopes are found by jumps along the inbox's key, since it may have
 * millions of rows. Clocks differ, so an event is never shown as published before it was
 * committed. */
#define SCOPES                                                                                     \
	"SELECT min(scope) FROM semel_inbox UNION ALL"                                             \
	" SELECT (SELECT min(scope) FROM semel_inbox WHERE scope > name) FROM scopes"              \
	" WHERE name IS NOT NULL"
#define COMMITTED(D)                                                                               \
	"SELECT " D##_EARLIER(D##_COMMITTED_AT("o"), "o.published_at") ", 'committed', NULL, "     \
	D##_CONCAT("event_type", "' of '", "aggregate_type", "':'", "aggregate_id",                \
		   "', number '", "seq")                                                           \
	", NULL, 1 FROM semel_outbox o WHERE id = ?1"
#define REFUSED(D)                                                                                 \
	"SELECT next_attempt_at, 'refused', NULL, "                                                \
	D##_CONCAT("'attempt '", "attempts", "', retry due: '") ", coalesce(last_error, ''), 2"    \
	" FROM semel_outbox WHERE id = ?1 AND status = 'NEW'"
#define PUBLISHED(D)                                                                               \
	"SELECT published_at, 'published', NULL, "                                                 \
	D##_CONCAT("'to '", "coalesce(topic, " D##_CONCAT("aggregate_type", "'.events'") ")",      \
		   "CASE WHEN attempts > 0 THEN " D##_CONCAT("' after '", "attempts",              \
		   "' refusals, the last: '") " ELSE '' END")                                      \
	", CASE WHEN attempts > 0 THEN coalesce(last_error, '') END, 3"                            \
	" FROM semel_outbox WHERE id = ?1 AND status = 'PUBLISHED'"
#define CLAIMED(D)                                                                                 \
	"SELECT first_seen_at, 'claimed', scope, "                                                 \
	D##_CONCAT("'from '", "topic", "' '", "coalesce(" D##_NAME("partition") ", 0)", "'/'",     \
		   "coalesce(" D##_NAME("offset") ", 0)",                                          \
		   "CASE WHEN status = 'CLAIMED' THEN " D##_CONCAT("', by '",                      \
		   "coalesce(owner, 'unknown')", "' until '",                                      \
		   "coalesce(" D##_AS_TEXT("lease_until") ", 'it is finished')") " ELSE '' END")   \
	", NULL, 4 FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"    \
	" AND (coalesce(error_code, '') <> 'discarded' OR owner IS NOT NULL)"
#define PROCESSED(D)                                                                               \
	"SELECT processed_at, CASE status WHEN 'FAILED' THEN 'failed' ELSE"                        \
	" CASE error_code WHEN 'duplicate-key' THEN 'skipped' ELSE 'processed' END END, scope,"    \
	" CASE WHEN error_code IS NOT NULL THEN error_code WHEN handler_version IS NOT NULL"       \
	" THEN " D##_CONCAT("'handler '", "handler_version") " END, NULL, 5"                       \
	" FROM semel_inbox WHERE event_id = ?1 AND scope IN (SELECT name FROM scopes)"             \
	" AND coalesce(error_code, '') <> 'discarded'"
#define RETRYING(D)                                                                                \
	"SELECT due_at, 'retrying', scope, "                                                       \
	D##_CONCAT("'attempt '", "(attempts + 1)", "' is due'")                                    \
	", NULL, 6 FROM semel_hold WHERE head_id = ?1 AND state = 'retry'"
#define FAILED(D)                                                                                  \
	"SELECT failed_at, CASE WHEN parked_behind IS NULL THEN 'dead-lettered'"                   \
	" ELSE 'parked' END, scope, CASE WHEN parked_behind IS NULL THEN "                         \
	D##_CONCAT("'entry '", "entry_id", "' after '", "attempts", "' attempts: '")               \
	" ELSE " D##_CONCAT("'behind '", "parked_behind") " END,"                                  \
	" CASE WHEN parked_behind IS NULL THEN"                                                    \
	" coalesce(substr(failure_reason, 1, " SEMEL_DEAD_BRIEF "), '') END, 7"                    \
	" FROM semel_dead_letter WHERE event_id = ?1"
#define MOVED(D)                                                                                   \
	"SELECT moved_at, lower(CASE WHEN discard_reason IS NULL"                                  \
	" AND status = 'PENDING' THEN 'REPLAYED' ELSE status END), scope,"                         \
	" CASE WHEN status = 'DISCARDED' THEN NULL WHEN replay_count = 0 THEN "                    \
	D##_CONCAT("'by replay --reprocess, entry '", "entry_id") " ELSE "                         \
	D##_CONCAT("'replay '", "replay_count", "' of entry '", "entry_id")                        \
	" END, CASE WHEN status = 'DISCARDED' THEN substr(discard_reason, 1, " SEMEL_DEAD_BRIEF    \
	") END, 8 FROM semel_dead_letter WHERE event_id = ?1 AND parked_behind IS NULL"
#define TRACE(D)                                                                                   \
	"WITH RECURSIVE scopes (name) AS (" SCOPES "),"                                            \
	" entries (time, what, scope, detail, quoted, step) AS (" COMMITTED(D)                     \
	" UNION ALL " REFUSED(D) " UNION ALL " PUBLISHED(D) " UNION ALL " CLAIMED(D)               \
	" UNION ALL " PROCESSED(D) " UNION ALL " RETRYING(D) " UNION ALL " FAILED(D)               \
	" UNION ALL " MOVED(D) ") SELECT " D##_MS("time") ", what, scope, detail, quoted"          \
	" FROM entries WHERE time IS NOT NULL ORDER BY time, step"

static const struct semel_sql_statement trace_event = { .what = "trace an event",
							.text = SEMEL_SQL_EACH(TRACE) };
// clang-format on

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
	return semel_error_set(error, SEMEL_NOT_FOUND, "event %s not found in this store",
			       event_id);
}
