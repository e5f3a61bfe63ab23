/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox: which event was processed, and by which consumer.
 *
 * - Exactly one claimer of (scope, event, week) wins: the primary key decides. A claimer that
 *   meets a claim that is not committed yet waits for its end.
 * - A batch of claims is one optimistic statement, which assumes that all of them are new. If one
 *   is not, two more follow: one that inserts each claim independently, and one that reads the
 *   existing rows. Business keys take one more statement, and two more if another event has one of
 *   them.
 * - A business key is unique over the whole window; its row is written before the claim's, and both
 *   commit together.
 * - An event whose key was used by another event is recorded as processed, so that it is accounted
 *   for; its effect never ran.
 * - A FAILED claim is taken over by a replay whose number is higher than that of the last replay
 *   that took it: once per replay.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "store/rules.h"

#include <stdlib.h>
#include <string.h>

#define DAY_MS INT64_C(86400000)

/* For fewer claims the optimistic statement costs more than it saves. */
#define OPTIMISTIC_MIN 4
/* Duplicates come in bursts: after one, this many batches are not claimed optimistically. */
#define PESSIMISTIC_BATCHES 16

/* $1 to $12: one array per column; $13: now. Claims all and yields true, or none and false. */
static const struct semel_pg_statement claim_new = {
	"claim new events",
	"SELECT semel_inbox_claim_new($1::text[], $2::text[], $3::date[], $4::text[], $5::text[],"
	" $6::int[], $7::bigint[], $8::text[], $9::text[], $10::timestamptz[], $11::int[],"
	" $12::text[], $13::timestamptz)"
};
/* The same parameters. Rows are returned in the order of the arrays. */
static const struct semel_pg_statement insert_claims = {
	"claim events",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, topic, \"partition\","
	" \"offset\", handler_version, owner, lease_until, replay, error_code, first_seen_at,"
	" processed_at) SELECT c.*, $13::timestamptz,"
	" CASE WHEN c.status = 'PROCESSED' THEN $13::timestamptz END"
	" FROM unnest($1::text[], $2::text[], $3::date[], $4::text[], $5::text[], $6::int[],"
	" $7::bigint[], $8::text[], $9::text[], $10::timestamptz[], $11::int[], $12::text[])"
	" AS c (scope, event_id, week_start, status, topic, p, o, v, w, l, r, e)"
	" ON CONFLICT DO NOTHING RETURNING scope, event_id, week_start - DATE '1970-01-01'"
};
#define ANSWER "i.status, i.owner, " SEMEL_PG_MS("i.lease_until")
static const struct semel_pg_statement find_claims = {
	"find claims",
	"SELECT " ANSWER " FROM unnest($1::text[], $2::text[], $3::date[]) WITH ORDINALITY"
	" AS c (scope, event_id, week_start, number) LEFT JOIN semel_inbox i"
	" ON i.scope = c.scope AND i.event_id = c.event_id AND i.week_start = c.week_start"
	" ORDER BY c.number"
};
static const struct semel_pg_statement find_in_any_week = {
	"find claims",
	"SELECT " ANSWER " FROM unnest($1::text[], $2::text[]) WITH ORDINALITY"
	" AS c (scope, event_id, number) LEFT JOIN LATERAL (SELECT * FROM semel_inbox s"
	" WHERE s.scope = c.scope AND s.event_id = c.event_id LIMIT 1) AS i ON true"
	" ORDER BY c.number"
};
/* If two events of a batch have the same key, the first one gets it. */
static const struct semel_pg_statement insert_keys = {
	"claim business keys",
	"INSERT INTO semel_inbox_key (scope, event_id, key, first_seen_at)"
	" SELECT c.*, $4::timestamptz FROM unnest($1::text[], $2::text[], $3::text[])"
	" AS c (scope, event_id, key) ON CONFLICT DO NOTHING"
};
static const struct semel_pg_statement find_holders = {
	"find business keys", "SELECT k.event_id, k.event_id IS DISTINCT FROM c.event_id"
			      " FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY"
			      " AS c (scope, event_id, key, number) LEFT JOIN semel_inbox_key k"
			      " ON k.scope = c.scope AND k.key = c.key ORDER BY c.number"
};
static const struct semel_pg_statement change_claim = {
	"change a claim",
	"UPDATE semel_inbox SET status = $3, owner = coalesce($4, owner),"
	" lease_until = $5::timestamptz, processed_at = $6::timestamptz, error_code = $7,"
	" replay = greatest(replay, $8::int)"
	" WHERE scope = $1 AND event_id = $2 AND status = $9 AND ($10::text IS NULL OR owner = $10)"
	" AND ($9 <> 'FAILED' OR replay < $8::int)"
};
static const struct semel_pg_statement forget_claim = {
	"forget a claim",
	"WITH gone AS (DELETE FROM semel_inbox WHERE scope = $1 AND event_id = $2"
	" AND ($3::text IS NULL OR (status = 'CLAIMED' AND owner = $3)) RETURNING 1)"
	" DELETE FROM semel_inbox_key WHERE scope = $1 AND event_id = $2"
	" AND ($3::text IS NULL OR EXISTS (SELECT 1 FROM gone))"
};
static const struct semel_pg_statement renew_claims = {
	"renew unfinished claims", "UPDATE semel_inbox SET lease_until = $2::timestamptz"
				   " WHERE status = 'CLAIMED' AND owner = $1"
};
static const struct semel_pg_statement is_settled = {
	"check whether an event is settled",
	"SELECT EXISTS (SELECT 1 FROM semel_inbox WHERE scope = $1 AND event_id = $2"
	" AND status <> 'CLAIMED') OR EXISTS (SELECT 1 FROM semel_dead_letter WHERE scope = $1"
	" AND event_id = $2 AND parked_behind IS NULL)"
};

/* ---- statements over arrays ------------------------------------------------------------------ */

enum column {
	SCOPE,
	EVENT_ID,
	WEEK,
	KEY = WEEK, /* of the statements about keys */
	STATUS,
	TOPIC,
	PARTITION,
	OFFSET,
	VERSION,
	OWNER,
	LEASE,
	REPLAY,
	ERROR_CODE,
	COLUMNS
};

/* The claims of a batch, and their results in the same order. */
struct claims {
	const struct semel_inbox_claim *claims;
	size_t count;
	int64_t now_ms;
	struct semel_claim_result *answers;
};

/* A statement with one array per column, and its other parameters. */
struct call {
	const struct semel_pg_statement *statement;
	int columns;
	int64_t now_ms; /* 0: not a parameter */
	struct semel_buffer arrays[COLUMNS];
};

static void add_id(struct call *call, const struct semel_inbox_claim *claim)
{
	semel_pg_array_text(&call->arrays[SCOPE], claim->scope);
	semel_pg_array_text(&call->arrays[EVENT_ID], claim->event_id);
}

static void add_key_columns(struct call *call, const struct semel_inbox_claim *claim)
{
	char week[SEMEL_DATE_SIZE];
	semel_time_format_date(semel_time_week_start(claim->event_time_ms), week);
	add_id(call, claim);
	semel_pg_array_text(&call->arrays[WEEK], semel_text_of(week));
}

static void add_claim(struct call *call, const struct semel_inbox_claim *claim,
		      int64_t lease_until_ms, const char *error_code)
{
	struct semel_buffer *arrays = call->arrays;
	char lease[SEMEL_TIME_SIZE];
	bool leased = claim->status == SEMEL_INBOX_CLAIMED && lease_until_ms != 0;
	add_key_columns(call, claim);
	semel_pg_array_text(&arrays[STATUS], semel_text_of(semel_inbox_status_name(claim->status)));
	semel_pg_array_text(&arrays[TOPIC], claim->topic);
	semel_pg_array_int(&arrays[PARTITION], claim->partition);
	semel_pg_array_int(&arrays[OFFSET], claim->offset);
	semel_pg_array_text(&arrays[VERSION], claim->handler_version);
	semel_pg_array_text(&arrays[OWNER], semel_text_of(claim->owner));
	if (leased)
		semel_time_format(lease_until_ms, lease);
	semel_pg_array_text(&arrays[LEASE], semel_text_of(leased ? lease : NULL));
	semel_pg_array_int(&arrays[REPLAY], claim->replay);
	semel_pg_array_text(&arrays[ERROR_CODE], semel_text_of(error_code));
}

/* Consumes the arrays. If they are empty, no statement is run, and there is no result. */
static semel_status make_call(semel_tx tx, struct call *call, PGresult **result_out,
			      semel_error *error)
{
	struct semel_pg_params params = { 0 };
	bool failed = false, empty = call->arrays[SCOPE].length == 0;
	for (int i = 0; i < call->columns; i++) {
		semel_pg_add_array(&params, &call->arrays[i]);
		failed = failed || call->arrays[i].failed;
	}
	if (call->now_ms != 0)
		semel_pg_add_time(&params, call->now_ms);
	semel_status status = SEMEL_OK;
	if (failed)
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for a claim");
	else if (!empty)
		status = semel_pg_run(tx, call->statement, &params, result_out, error);
	for (int i = 0; i < call->columns; i++)
		semel_buffer_free(&call->arrays[i]);
	return status;
}

static bool is_claim(const PGresult *result, int row, const struct semel_inbox_claim *claim)
{
	return row < semel_pg_rows(result) &&
	       semel_text_equals_string(claim->event_id, semel_pg_value(result, row, EVENT_ID)) &&
	       semel_pg_int(result, row, WEEK) * DAY_MS ==
		       semel_time_week_start(claim->event_time_ms) &&
	       semel_text_equals_string(claim->scope, semel_pg_value(result, row, SCOPE));
}

static void read_answer(semel_tx tx, const PGresult *result, int row,
			struct semel_claim_result *answer)
{
	answer->found = semel_claim_found_of(semel_pg_value(result, row, 0));
	semel_pg_copy(result, row, 1, answer->owner, sizeof(answer->owner));
	answer->lease_until_ms = semel_pg_clock_to_local(tx, semel_pg_int(result, row, 2));
}

static semel_status error_of_absence(semel_error *error)
{
	return semel_error_set(error, SEMEL_OUTAGE, "a claim was removed while it was read");
}

/* Claims with a key conflict are answered from their keys, see below. */
static bool is_existing(const struct semel_claim_result *answer)
{
	return !answer->key_conflict && answer->found != SEMEL_FOUND_NEW;
}

/* Reads the existing rows of the claims that were not new. */
static semel_status find_existing(semel_tx tx, const struct claims *all, semel_error *error)
{
	struct semel_claim_result *answers = all->answers;
	struct call call = { .statement = &find_claims, .columns = WEEK + 1 };
	PGresult *result = NULL;
	int row = 0;
	for (size_t i = 0; i < all->count; i++)
		if (is_existing(&answers[i]))
			add_key_columns(&call, &all->claims[i]);
	semel_status status = make_call(tx, &call, &result, error);
	for (size_t i = 0; i < all->count && status == SEMEL_OK; i++) {
		if (!is_existing(&answers[i]))
			continue;
		if (semel_pg_is_null(result, row, 0))
			status = error_of_absence(error);
		read_answer(tx, result, row++, &answers[i]);
	}
	semel_pg_clear(result);
	return status;
}

/* With all claims except those with a key conflict. */
static semel_status call_with_claims(semel_tx tx, const struct semel_pg_statement *statement,
				     const struct claims *all, PGresult **result_out,
				     semel_error *error)
{
	struct call call = { .statement = statement, .columns = COLUMNS, .now_ms = all->now_ms };
	for (size_t i = 0; i < all->count; i++)
		if (!all->answers[i].key_conflict)
			add_claim(&call, &all->claims[i],
				  semel_pg_clock_to_server(tx, all->claims[i].lease_until_ms),
				  NULL);
	return make_call(tx, &call, result_out, error);
}

/* Assumes that all claims are new; if they are, they are claimed, and *done_out is set. */
static semel_status claim_optimistically(semel_tx tx, const struct claims *all, bool *done_out,
					 semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = call_with_claims(tx, &claim_new, all, &result, error);
	*done_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	for (size_t i = 0; i < all->count && *done_out; i++)
		all->answers[i].found = SEMEL_FOUND_NEW;
	semel_pg_clear(result);
	return status;
}

/* Claims each event independently, and reads the existing rows of those that were not new. */
static semel_status claim_each(semel_tx tx, const struct claims *all, semel_error *error)
{
	struct semel_claim_result *answers = all->answers;
	PGresult *result = NULL;
	int row = 0;
	bool all_new = true;
	semel_status status = call_with_claims(tx, &insert_claims, all, &result, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < all->count; i++) {
		bool new = !answers[i].key_conflict &&is_claim(result, row, &all->claims[i]);
		answers[i].found = new ? SEMEL_FOUND_NEW : SEMEL_FOUND_PROCESSED;
		all_new = all_new && (new || answers[i].key_conflict);
		row += new;
	}
	bool explained = row == semel_pg_rows(result);
	semel_pg_clear(result);
	if (!explained)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "claims were returned in another order");
	return all_new ? SEMEL_OK : find_existing(tx, all, error);
}

/* Whether to claim a batch optimistically; counts the pessimistic batches down. */
static bool is_optimistic(semel_tx tx, size_t count)
{
	struct semel_pg_store *store = tx.store == NULL ? NULL : semel_pg_of(tx.store);
	if (store == NULL || count < OPTIMISTIC_MIN)
		return false;
	if (store->pessimistic_batches == 0)
		return true;
	store->pessimistic_batches--;
	return false;
}

static semel_status claim_all(semel_tx tx, const struct claims *all, semel_error *error)
{
	bool done = false;
	if (!is_optimistic(tx, all->count))
		return claim_each(tx, all, error);
	semel_status status = claim_optimistically(tx, all, &done, error);
	if (status != SEMEL_OK || done)
		return status;
	semel_pg_of(tx.store)->pessimistic_batches = PESSIMISTIC_BATCHES;
	return claim_each(tx, all, error);
}

/* ---- business keys --------------------------------------------------------------------------- */

static semel_status call_with_keys(semel_tx tx, const struct semel_pg_statement *statement,
				   const struct claims *all, PGresult **result_out,
				   semel_error *error)
{
	struct call call = { .statement = statement,
			     .columns = KEY + 1,
			     .now_ms = statement == &insert_keys ? all->now_ms : 0 };
	for (size_t i = 0; i < all->count; i++) {
		if (all->claims[i].key.data == NULL)
			continue;
		add_id(&call, &all->claims[i]);
		semel_pg_array_text(&call.arrays[KEY], all->claims[i].key);
	}
	return make_call(tx, &call, result_out, error);
}

/* Writes the keys that are new. A claim whose key belongs to another event is a key conflict;
 * *holders_out then has a row for every claim with a key, and is NULL if there is no conflict. */
static semel_status claim_keys(semel_tx tx, const struct claims *all, PGresult **holders_out,
			       semel_error *error)
{
	PGresult *written = NULL;
	int row = 0, keys = 0;
	for (size_t i = 0; i < all->count; i++)
		keys += all->claims[i].key.data != NULL;
	semel_status status = call_with_keys(tx, &insert_keys, all, &written, error);
	bool all_new =
		status == SEMEL_OK && strtol(semel_libpq.cmdTuples(written), NULL, 10) == keys;
	semel_pg_clear(written);
	if (status != SEMEL_OK || all_new)
		return status;
	status = call_with_keys(tx, &find_holders, all, holders_out, error);
	for (size_t i = 0; i < all->count && status == SEMEL_OK; i++) {
		if (all->claims[i].key.data == NULL)
			continue;
		if (semel_pg_is_null(*holders_out, row, 0))
			status = error_of_absence(error);
		all->answers[i].key_conflict = semel_pg_bool(*holders_out, row++, 1);
	}
	return status;
}

/* Reads the claims of the events that hold the conflicting keys. A holder whose claim was dropped
 * with its week was processed: its key outlives the claim. */
static semel_status find_key_holders(semel_tx tx, const struct claims *all, const PGresult *holders,
				     semel_error *error)
{
	struct call call = { .statement = &find_in_any_week, .columns = EVENT_ID + 1 };
	PGresult *result = NULL;
	int row = 0;
	for (size_t i = 0, key = 0; i < all->count; i++) {
		if (all->answers[i].key_conflict) {
			semel_pg_array_text(&call.arrays[SCOPE], all->claims[i].scope);
			semel_pg_array_text(&call.arrays[EVENT_ID],
					    semel_text_of(semel_pg_value(holders, (int)key, 0)));
		}
		key += all->claims[i].key.data != NULL;
	}
	semel_status status = make_call(tx, &call, &result, error);
	for (size_t i = 0; i < all->count && status == SEMEL_OK; i++) {
		if (!all->answers[i].key_conflict)
			continue;
		read_answer(tx, result, row++, &all->answers[i]);
		if (all->answers[i].found != SEMEL_FOUND_CLAIMED)
			all->answers[i].found = SEMEL_FOUND_KEY;
	}
	semel_pg_clear(result);
	return status;
}

static semel_status record_duplicates(semel_tx tx, const struct claims *all, semel_error *error)
{
	struct call call = { .statement = &insert_claims,
			     .columns = COLUMNS,
			     .now_ms = all->now_ms };
	PGresult *result = NULL;
	for (size_t i = 0; i < all->count; i++) {
		struct semel_inbox_claim claim = all->claims[i];
		claim.status = SEMEL_INBOX_PROCESSED;
		claim.owner = NULL;
		if (all->answers[i].found == SEMEL_FOUND_KEY)
			add_claim(&call, &claim, 0, "duplicate-key");
	}
	semel_status status = make_call(tx, &call, &result, error);
	semel_pg_clear(result);
	return status;
}

static semel_status claim_with_keys(semel_tx tx, const struct claims *all, semel_error *error)
{
	PGresult *holders = NULL;
	semel_status status = claim_keys(tx, all, &holders, error);
	if (status != SEMEL_OK)
		goto clear_holders;
	status = claim_each(tx, all, error);
	if (status != SEMEL_OK || holders == NULL)
		goto clear_holders;
	status = find_key_holders(tx, all, holders, error);
	if (status != SEMEL_OK)
		goto clear_holders;
	status = record_duplicates(tx, all, error);

clear_holders:
	semel_pg_clear(holders);
	return status;
}

/* ---- functions of the seam ------------------------------------------------------------------- */

semel_status semel_pg_inbox_claim(semel_tx tx, const struct semel_inbox_claim *claims, size_t count,
				  int64_t now_ms, struct semel_claim_result *answers_out,
				  semel_error *error)
{
	const struct claims all = { claims, count, now_ms, answers_out };
	semel_status status = semel_pg_require_transaction(tx, insert_claims.what, error);
	bool keys = false;
	for (size_t i = 0; i < count; i++) {
		answers_out[i] = (struct semel_claim_result){ 0 };
		keys = keys || claims[i].key.data != NULL;
	}
	if (status != SEMEL_OK || count == 0)
		return status;
	return keys ? claim_with_keys(tx, &all, error) : claim_all(tx, &all, error);
}

semel_status semel_pg_inbox_change(semel_tx tx, const struct semel_inbox_claim *claim,
				   const struct semel_inbox_change *change, bool *taken_out,
				   semel_error *error)
{
	bool at_work = claim->status == SEMEL_INBOX_CLAIMED;
	struct semel_pg_params params = { 0 };
	uint64_t changed = 0;
	*taken_out = false;
	semel_status status = semel_pg_require_transaction(tx, change_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, claim->scope);
	semel_pg_add_text(&params, claim->event_id);
	semel_pg_add_string(&params, semel_inbox_status_name(claim->status));
	semel_pg_add_string(&params, at_work ? claim->owner : NULL);
	semel_pg_add_time(&params,
			  at_work ? semel_pg_clock_to_server(tx, claim->lease_until_ms) : 0);
	semel_pg_add_time(&params, at_work ? 0 : change->now_ms);
	semel_pg_add_string(&params, change->error_code);
	semel_pg_add_int(&params, claim->replay);
	semel_pg_add_string(&params, semel_inbox_status_name(change->from));
	semel_pg_add_string(&params, change->from_owner);
	status = semel_pg_change(tx, &change_claim, &params, &changed, error);
	*taken_out = status == SEMEL_OK && changed > 0;
	return status;
}

semel_status semel_pg_inbox_forget(semel_tx tx, const struct semel_inbox_claim *claim,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_require_transaction(tx, forget_claim.what, error);
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
	semel_tx tx = semel_pg_tx(store);
	semel_status status = semel_pg_clock_compare(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_string(&params, owner);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, lease_until_ms));
	return semel_pg_run(tx, &renew_claims, &params, NULL, error);
}

semel_status semel_pg_inbox_is_settled(semel_tx tx, struct semel_text scope, struct semel_text id,
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
