/* SPDX-License-Identifier: Apache-2.0 */
/* Which scopes read which topics, as the last consumer of each said: for those who verify. A
 * consumer that comes has the inbox's next weeks made ready, too. */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "observe/log.h"

/* What was processed before has left no claim: it is not expected. */
#define CLAIMS_FROM_NOW                                                                            \
	"(coalesce(known.guarantee, '') = 'at-least-once'"                                         \
	" AND coalesce(excluded.guarantee, '') <> 'at-least-once')"

static const struct semel_pg_query put_subscription = {
	"note the subscription",
	"INSERT INTO semel_subscription AS known (scope, topics, guarantee, claim, poison, "
	"\"order\","
	" dedup_by, handler, bind, from_latest, since)"
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::timestamptz)"
	" ON CONFLICT (scope) DO UPDATE SET topics = excluded.topics,"
	" guarantee = excluded.guarantee, claim = excluded.claim, poison = excluded.poison,"
	" \"order\" = excluded.\"order\", dedup_by = excluded.dedup_by, handler = excluded.handler,"
	" bind = excluded.bind, from_latest = known.from_latest OR " CLAIMS_FROM_NOW ","
	" since = CASE WHEN " CLAIMS_FROM_NOW " THEN excluded.since ELSE known.since END"
};
/* What is there is written only when it changes: the statement is run at every start. */
static const struct semel_pg_query note_topics = {
	"note the topics",
	"WITH now_read (topic) AS (SELECT jsonb_array_elements_text($2::jsonb)),"
	" gone AS (UPDATE semel_subscription_topic SET removed_at = $3::timestamptz"
	" WHERE scope = $1 AND removed_at IS NULL AND topic NOT IN (SELECT topic FROM now_read))"
	" INSERT INTO semel_subscription_topic AS known (scope, topic, since)"
	" SELECT DISTINCT $1, topic, $3::timestamptz FROM now_read"
	" ON CONFLICT (scope, topic) DO UPDATE SET removed_at = NULL"
	" WHERE known.removed_at IS NOT NULL"
};
static const struct semel_pg_query each_topic = {
	"read the topics",
	"SELECT topic, " SEMEL_PG_MS("since") ", " SEMEL_PG_MS(
		"removed_at") " FROM semel_subscription_topic WHERE scope = $1 ORDER BY topic"
};
static const struct semel_pg_query list_subscriptions = {
	"list the subscriptions",
	"SELECT scope, topics, guarantee, claim, poison, \"order\", dedup_by, handler, "
	"bind, from_latest, " SEMEL_PG_MS(
		"since") ", paused FROM semel_subscription ORDER BY scope LIMIT $1"
};
static const struct semel_pg_query pause_subscription = {
	"pause the subscription",
	"UPDATE semel_subscription SET paused = $2 WHERE scope = $1 RETURNING 1"
};
static const struct semel_pg_query look_for_pause = {
	"see whether the subscription is paused",
	"SELECT paused FROM semel_subscription WHERE scope = $1"
};
static const struct semel_pg_query prepare_inbox = { "make the inbox's partitions",
						     "SELECT semel_inbox_prepare()" };

/* Nothing depends on them: a role that may not have them made works without. */
static semel_status make_weeks(semel_store *store, semel_error *error)
{
	semel_error refused = { .status = SEMEL_OK };
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &prepare_inbox, NULL, NULL, &refused);
	if (status == SEMEL_CONFIG) {
		semel_logf(SEMEL_LOG_WARN, "the inbox gets no partitions for its weeks: %s",
			   refused.text);
		return SEMEL_OK;
	}
	if (status != SEMEL_OK && error != NULL)
		*error = refused;
	return status;
}

semel_status semel_pg_subscription_put(semel_store *store, const struct semel_subscription_row *row,
				       int64_t now_ms, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	const struct semel_text texts[] = { row->scope,    row->topics,  row->guarantee,
					    row->claim,    row->poison,  row->order,
					    row->dedup_by, row->handler, row->bind };
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		semel_pg_add_text(&params, texts[i]);
	semel_pg_add_bool(&params, row->from_latest);
	semel_pg_add_time(&params, now_ms);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &put_subscription, &params, NULL, error);
	struct semel_pg_params topics = { 0 };
	semel_pg_add_text(&topics, row->scope);
	semel_pg_add_text(&topics, row->topics);
	semel_pg_add_time(&topics, now_ms);
	if (status == SEMEL_OK)
		status = semel_pg_run(semel_pg_tx(store), &note_topics, &topics, NULL, error);
	else
		semel_pg_params_free(&topics);
	if (status != SEMEL_OK || semel_pg_in_transaction(semel_pg_tx(store)))
		return status;
	return make_weeks(store, error);
}

static void read_subscription(const PGresult *result, int at, struct semel_arena *arena,
			      struct semel_subscription_row *row)
{
	struct semel_text *const texts[] = { &row->scope,    &row->topics,  &row->guarantee,
					     &row->claim,    &row->poison,  &row->order,
					     &row->dedup_by, &row->handler, &row->bind };
	for (int i = 0; i < (int)(sizeof(texts) / sizeof(texts[0])); i++)
		*texts[i] = semel_pg_text(result, at, i, arena);
	row->from_latest = semel_pg_bool(result, at, 9);
	row->since_ms = semel_pg_int(result, at, 10);
	row->paused = semel_pg_bool(result, at, 11);
}

semel_status semel_pg_subscription_list(semel_store *store, struct semel_arena *arena,
					struct semel_subscription_row *rows_out, uint32_t limit,
					uint32_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, limit);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &list_subscriptions, &params, &result, error);
	*count_out = (uint32_t)semel_pg_rows(result);
	for (int row = 0; row < semel_pg_rows(result); row++)
		read_subscription(result, row, arena, &rows_out[row]);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_subscription_topics(semel_store *store, struct semel_text scope,
					  semel_topic_visitor seen, void *user, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &each_topic, &params, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++)
		seen(semel_text_of(semel_pg_value(result, row, 0)), semel_pg_int(result, row, 1),
		     semel_pg_int(result, row, 2), user);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_subscription_pause(semel_store *store, struct semel_text scope, bool paused,
					 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_pg_add_bool(&params, paused);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &pause_subscription, &params, &result, error);
	bool found = semel_pg_rows(result) > 0;
	semel_pg_clear(result);
	return status == SEMEL_OK && !found
		       ? semel_error_set(error, SEMEL_NOT_FOUND, "no subscription has the scope %s",
					 semel_text_shown(scope))
		       : status;
}

semel_status semel_pg_subscription_is_paused(semel_store *store, struct semel_text scope,
					     bool *paused_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &look_for_pause, &params, &result, error);
	*paused_out = semel_pg_rows(result) > 0 && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}
