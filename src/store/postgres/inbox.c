/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox: who has processed which event.
 *
 * - Exactly one claimer of (scope, event, week) wins: the primary key decides. Whoever meets a
 *   claim that is not committed yet waits for its end.
 * - A batch of claims is one statement, and one more for those that were there already.
 * - A business key is unique over the whole window; its row is written before the claim's, and both
 *   commit together.
 * - An event whose key was used by another one is recorded as processed, so that it is accounted
 *   for; its effect never ran.
 * - A FAILED claim is taken over by a replay with a higher number than the last taker's: once per
 *   replay.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <string.h>

static const char *const status_names[] = { [SEMEL_INBOX_CLAIMED] = "CLAIMED",
					    [SEMEL_INBOX_PROCESSED] = "PROCESSED",
					    [SEMEL_INBOX_FAILED] = "FAILED" };

/* $1 to $11: one array per column; $12 now. What comes back stands in the order of the arrays. */
static const struct semel_pg_query insert_claims = {
	"claim events",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, topic, \"partition\","
	" \"offset\", handler_version, owner, lease_until, replay, first_seen_at, processed_at)"
	" SELECT c.*, $12::timestamptz,"
	" CASE WHEN c.status = 'PROCESSED' THEN $12::timestamptz END"
	" FROM unnest($1::text[], $2::text[], $3::date[], $4::text[], $5::text[], $6::int[],"
	" $7::bigint[], $8::text[], $9::text[], $10::timestamptz[], $11::int[])"
	" AS c (scope, event_id, week_start, status, topic, p, o, v, w, l, r)"
	" ON CONFLICT DO NOTHING RETURNING scope, event_id, week_start"
};
static const struct semel_pg_query find_claims = {
	"look up claims",
	"SELECT i.status, i.owner, " SEMEL_PG_MS(
		"i.lease_until") " FROM unnest($1::text[], $2::text[], $3::date[]) WITH ORDINALITY"
				 " AS c (scope, event_id, week_start, number) LEFT JOIN "
				 "semel_inbox i"
				 " ON i.scope = c.scope AND i.event_id = c.event_id AND "
				 "i.week_start = c.week_start"
				 " ORDER BY c.number"
};
static const struct semel_pg_query find_in_any_week = {
	"look up a claim",
	"SELECT status, owner, " SEMEL_PG_MS(
		"lease_until") " FROM semel_inbox WHERE scope = $1 AND event_id = $2 LIMIT 1"
};
static const struct semel_pg_query insert_key = {
	"claim a business key", "INSERT INTO semel_inbox_key (scope, key, event_id, first_seen_at)"
				" VALUES ($1, $2, $3, $4::timestamptz) ON CONFLICT DO NOTHING"
};
static const struct semel_pg_query find_key = {
	"look up a business key",
	"SELECT event_id FROM semel_inbox_key WHERE scope = $1 AND key = $2"
};
static const struct semel_pg_query note_duplicate = {
	"note a duplicate",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, topic, \"partition\","
	" \"offset\", handler_version, replay, first_seen_at, processed_at, error_code)"
	" VALUES ($1, $2, $3::date, 'PROCESSED', $4, $5, $6, $7, $8, $9::timestamptz,"
	" $9::timestamptz, 'duplicate-key') ON CONFLICT DO NOTHING"
};
static const struct semel_pg_query change_claim = {
	"change a claim",
	"UPDATE semel_inbox SET status = $3, owner = coalesce($4, owner),"
	" lease_until = $5::timestamptz, processed_at = $6::timestamptz, error_code = $7,"
	" replay = greatest(replay, $8::int)"
	" WHERE scope = $1 AND event_id = $2 AND status = $9 AND ($10::text IS NULL OR owner = $10)"
	" AND ($9 <> 'FAILED' OR replay < $8::int)"
};
static const struct semel_pg_query forget_claim = {
	"forget a claim",
	"WITH gone AS (DELETE FROM semel_inbox WHERE scope = $1 AND event_id = $2"
	" AND ($3::text IS NULL OR (status = 'CLAIMED' AND owner = $3)) RETURNING 1)"
	" DELETE FROM semel_inbox_key WHERE scope = $1 AND event_id = $2"
	" AND ($3::text IS NULL OR EXISTS (SELECT 1 FROM gone))"
};
static const struct semel_pg_query renew_claims = {
	"renew the claims at work", "UPDATE semel_inbox SET lease_until = $2::timestamptz"
				    " WHERE status = 'CLAIMED' AND owner = $1"
};
static const struct semel_pg_query is_settled = {
	"ask whether an event is settled",
	"SELECT EXISTS (SELECT 1 FROM semel_inbox WHERE scope = $1 AND event_id = $2"
	" AND status <> 'CLAIMED') OR EXISTS (SELECT 1 FROM semel_dead_letter WHERE scope = $1"
	" AND event_id = $2 AND parked_behind IS NULL)"
};

/* ---- many at once ---------------------------------------------------------------------------- */

enum column {
	SCOPE,
	EVENT_ID,
	WEEK,
	STATUS,
	TOPIC,
	PARTITION,
	OFFSET,
	VERSION,
	OWNER,
	LEASE,
	REPLAY,
	COLUMNS
};

static void week_of(const struct semel_inbox_claim *claim, char week_out[SEMEL_DATE_SIZE])
{
	semel_time_format_date(semel_time_week_start(claim->event_time_ms), week_out);
}

static void add_key(struct semel_buffer *arrays, const struct semel_inbox_claim *claim)
{
	char week[SEMEL_DATE_SIZE];
	week_of(claim, week);
	semel_pg_array_text(&arrays[SCOPE], claim->scope);
	semel_pg_array_text(&arrays[EVENT_ID], claim->event_id);
	semel_pg_array_text(&arrays[WEEK], semel_text_of(week));
}

static void add_claim(struct semel_buffer *arrays, const struct semel_inbox_claim *claim)
{
	char lease[SEMEL_TIME_SIZE];
	bool leased = claim->status == SEMEL_INBOX_CLAIMED && claim->lease_until_ms != 0;
	add_key(arrays, claim);
	semel_pg_array_text(&arrays[STATUS], semel_text_of(status_names[claim->status]));
	semel_pg_array_text(&arrays[TOPIC], claim->topic);
	semel_pg_array_int(&arrays[PARTITION], claim->partition);
	semel_pg_array_int(&arrays[OFFSET], claim->offset);
	semel_pg_array_text(&arrays[VERSION], claim->handler_version);
	semel_pg_array_text(&arrays[OWNER], semel_text_of(claim->owner));
	if (leased)
		semel_time_format(claim->lease_until_ms, lease);
	semel_pg_array_text(&arrays[LEASE], semel_text_of(leased ? lease : NULL));
	semel_pg_array_int(&arrays[REPLAY], claim->replay);
}

/* now_ms 0: the keys alone are wanted. The arrays are used up. */
static semel_status run_with_arrays(semel_tx tx, struct semel_buffer *arrays, int64_t now_ms,
				    PGresult **result_out, semel_error *error)
{
	const struct semel_pg_query *query = now_ms == 0 ? &find_claims : &insert_claims;
	int count = now_ms == 0 ? WEEK + 1 : COLUMNS;
	struct semel_pg_params params = { 0 };
	bool failed = false;
	for (int i = 0; i < count; i++) {
		semel_pg_add_array(&params, &arrays[i]);
		failed = failed || arrays[i].failed;
	}
	if (now_ms != 0)
		semel_pg_add_time(&params, now_ms);
	semel_status status = failed ? semel_error_set(error, SEMEL_INTERNAL, "no memory to claim")
				     : semel_pg_run(tx, query, &params, result_out, error);
	for (int i = 0; i < count; i++)
		semel_buffer_free(&arrays[i]);
	return status;
}

static bool is_claim(const PGresult *result, int row, const struct semel_inbox_claim *claim)
{
	char week[SEMEL_DATE_SIZE];
	week_of(claim, week);
	return row < semel_pg_rows(result) &&
	       strcmp(semel_pg_value(result, row, EVENT_ID), claim->event_id.data) == 0 &&
	       strcmp(semel_pg_value(result, row, WEEK), week) == 0 &&
	       strcmp(semel_pg_value(result, row, SCOPE), claim->scope.data) == 0;
}

static void read_answer(const PGresult *result, int row, struct semel_inbox_answer *answer)
{
	const char *status = semel_pg_value(result, row, 0);
	answer->found = SEMEL_FOUND_PROCESSED;
	if (strcmp(status, status_names[SEMEL_INBOX_CLAIMED]) == 0)
		answer->found = SEMEL_FOUND_CLAIMED;
	else if (strcmp(status, status_names[SEMEL_INBOX_FAILED]) == 0)
		answer->found = SEMEL_FOUND_FAILED;
	semel_pg_copy(result, row, 1, answer->owner, sizeof(answer->owner));
	answer->lease_until_ms = semel_pg_int(result, row, 2);
}

/* Those that were not new: what stands there. */
static semel_status look_up(semel_tx tx, const struct semel_inbox_claim *claims, size_t count,
			    struct semel_inbox_answer *answers, semel_error *error)
{
	struct semel_buffer arrays[COLUMNS] = { { 0 } };
	PGresult *result = NULL;
	int row = 0;
	for (size_t i = 0; i < count; i++)
		if (answers[i].found != SEMEL_FOUND_NEW)
			add_key(arrays, &claims[i]);
	semel_status status = run_with_arrays(tx, arrays, 0, &result, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++) {
		if (answers[i].found == SEMEL_FOUND_NEW)
			continue;
		if (semel_pg_is_null(result, row, 0))
			status = semel_error_set(error, SEMEL_OUTAGE,
						 "a claim went away while it was looked at");
		read_answer(result, row++, &answers[i]);
	}
	semel_pg_clear(result);
	return status;
}

static semel_status claim_all(semel_tx tx, const struct semel_inbox_claim *claims, size_t count,
			      int64_t now_ms, struct semel_inbox_answer *answers,
			      semel_error *error)
{
	struct semel_buffer arrays[COLUMNS] = { { 0 } };
	PGresult *result = NULL;
	int row = 0;
	for (size_t i = 0; i < count; i++)
		add_claim(arrays, &claims[i]);
	semel_status status = run_with_arrays(tx, arrays, now_ms, &result, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		bool new = is_claim(result, row, &claims[i]);
		answers[i] = (struct semel_inbox_answer){ .found = new ? SEMEL_FOUND_NEW
								       : SEMEL_FOUND_PROCESSED };
		row += new;
	}
	bool all_new = semel_pg_rows(result) == (int)count;
	bool explained = row == semel_pg_rows(result);
	semel_pg_clear(result);
	if (!explained)
		return semel_error_set(error, SEMEL_INTERNAL, "claims came back in another order");
	return all_new ? SEMEL_OK : look_up(tx, claims, count, answers, error);
}

/* ---- business keys --------------------------------------------------------------------------- */

/* holder_out: the other event that has the key; length 0: it is ours. */
static semel_status claim_key(semel_tx tx, const struct semel_inbox_claim *claim, int64_t now_ms,
			      char holder_out[SEMEL_NAME_MAX + 1], semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	uint64_t written = 0;
	holder_out[0] = '\0';
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->key);
	semel_pg_add_text(&params, claim->event_id);
	semel_pg_add_time(&params, now_ms);
	semel_status status = semel_pg_change(tx, &insert_key, &params, &written, error);
	if (status != SEMEL_OK || written == 1)
		return status;
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->key);
	status = semel_pg_run(tx, &find_key, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		semel_pg_copy(result, 0, 0, holder_out, SEMEL_NAME_MAX + 1);
	semel_pg_clear(result);
	if (semel_text_equal(semel_text_of(holder_out), claim->event_id))
		holder_out[0] = '\0';
	return status;
}

static semel_status look_up_holder(semel_tx tx, struct semel_text scope, const char *holder,
				   struct semel_inbox_answer *answer, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_pg_add_string(&params, holder);
	semel_status status = semel_pg_run(tx, &find_in_any_week, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		read_answer(result, 0, answer);
	semel_pg_clear(result);
	return status;
}

static semel_status note(semel_tx tx, const struct semel_inbox_claim *claim, int64_t now_ms,
			 semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->event_id);
	semel_pg_add_week(&params, claim->event_time_ms);
	semel_pg_add_text(&params, claim->topic);
	semel_pg_add_int(&params, claim->partition);
	semel_pg_add_int(&params, claim->offset);
	semel_pg_add_text(&params, claim->handler_version);
	semel_pg_add_int(&params, claim->replay);
	semel_pg_add_time(&params, now_ms);
	return semel_pg_run(tx, &note_duplicate, &params, NULL, error);
}

static semel_status claim_with_key(semel_tx tx, const struct semel_inbox_claim *claim,
				   int64_t now_ms, struct semel_inbox_answer *answer,
				   semel_error *error)
{
	char holder[SEMEL_NAME_MAX + 1] = "";
	*answer = (struct semel_inbox_answer){ 0 };
	semel_status status = claim_key(tx, claim, now_ms, holder, error);
	if (status != SEMEL_OK)
		return status;
	if (holder[0] == '\0')
		return claim_all(tx, claim, 1, now_ms, answer, error);

	status = look_up_holder(tx, claim->scope, holder, answer, error);
	answer->twin = true;
	if (status != SEMEL_OK || answer->found == SEMEL_FOUND_CLAIMED)
		return status; /* the other one is at work: come back later */
	answer->found = SEMEL_FOUND_KEY;
	return note(tx, claim, now_ms, error);
}

/* ---- the slots ------------------------------------------------------------------------------- */

semel_status semel_pg_inbox_claim(semel_tx tx, const struct semel_inbox_claim *claims, size_t count,
				  int64_t now_ms, struct semel_inbox_answer *answers_out,
				  semel_error *error)
{
	semel_status status = semel_pg_demand_transaction(tx, insert_claims.what, error);
	bool keys = false;
	for (size_t i = 0; i < count; i++)
		keys = keys || claims[i].key.data != NULL;
	if (status != SEMEL_OK || count == 0)
		return status;
	if (!keys)
		return claim_all(tx, claims, count, now_ms, answers_out, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = claims[i].key.data == NULL
				 ? claim_all(tx, &claims[i], 1, now_ms, &answers_out[i], error)
				 : claim_with_key(tx, &claims[i], now_ms, &answers_out[i], error);
	return status;
}

semel_status semel_pg_inbox_change(semel_tx tx, const struct semel_inbox_claim *claim,
				   const struct semel_inbox_change *change, bool *taken_out,
				   semel_error *error)
{
	bool at_work = claim->status == SEMEL_INBOX_CLAIMED;
	struct semel_pg_params params = { 0 };
	uint64_t changed = 0;
	*taken_out = false;
	semel_status status = semel_pg_demand_transaction(tx, change_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->event_id);
	semel_pg_add_string(&params, status_names[claim->status]);
	semel_pg_add_string(&params, at_work ? claim->owner : NULL);
	semel_pg_add_time(&params, at_work ? claim->lease_until_ms : 0);
	semel_pg_add_time(&params, at_work ? 0 : change->now_ms);
	semel_pg_add_string(&params, change->error_code);
	semel_pg_add_int(&params, claim->replay);
	semel_pg_add_string(&params, status_names[change->from]);
	semel_pg_add_string(&params, change->from_owner);
	status = semel_pg_change(tx, &change_claim, &params, &changed, error);
	*taken_out = status == SEMEL_OK && changed > 0;
	return status;
}

semel_status semel_pg_inbox_forget(semel_tx tx, const struct semel_inbox_claim *claim,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_demand_transaction(tx, forget_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->event_id);
	semel_pg_add_string(&params, claim->owner);
	return semel_pg_run(tx, &forget_claim, &params, NULL, error);
}

semel_status semel_pg_inbox_renew(semel_store *store, const char *owner, int64_t lease_until_ms,
				  semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_string(&params, owner);
	semel_pg_add_time(&params, lease_until_ms);
	return semel_pg_run(semel_pg_tx(store), &renew_claims, &params, NULL, error);
}

semel_status semel_pg_inbox_settled(semel_tx tx, struct semel_text scope, struct semel_text id,
				    bool *settled_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, id);
	semel_status status = semel_pg_run(tx, &is_settled, &params, &result, error);
	*settled_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}
