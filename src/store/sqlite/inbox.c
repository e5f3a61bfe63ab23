/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox: which event was processed, and by which consumer.
 *
 * - Exactly one claimer of (scope, event, week) wins: the primary key decides.
 * - A business key is unique over the whole window; its row is written before the claim's, and both
 *   commit together.
 * - An event whose key was used by another event is recorded as processed, so that it is accounted
 *   for; its effect never ran.
 * - A FAILED claim is taken over by a replay whose number is higher than that of the last replay
 *   that took it: once per replay.
 */
#include "store/sqlite/sqlite.h"

#include "store/rules.h"

static const struct semel_sqlite_statement insert_claim = {
	SEMEL_SQLITE_INBOX_CLAIM, "claim an event",
	"INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at,"
	" handler_version, topic, \"partition\", \"offset\", error_code, owner, lease_until, "
	"replay)"
	" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
	" ON CONFLICT DO NOTHING"
};
static const struct semel_sqlite_statement find_claim = {
	SEMEL_SQLITE_INBOX_FIND, "find a claim",
	"SELECT status, owner, lease_until FROM semel_inbox"
	" WHERE scope = ?1 AND event_id = ?2 AND (?3 IS NULL OR week_start = ?3)"
};
static const struct semel_sqlite_statement insert_key = {
	SEMEL_SQLITE_KEY_CLAIM, "claim a business key",
	"INSERT INTO semel_inbox_key (scope, key, event_id, first_seen_at)"
	" VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING"
};
static const struct semel_sqlite_statement find_key = {
	SEMEL_SQLITE_KEY_FIND, "find a business key",
	"SELECT event_id FROM semel_inbox_key WHERE scope = ?1 AND key = ?2"
};
static const struct semel_sqlite_statement change_claim = {
	SEMEL_SQLITE_INBOX_CHANGE, "change a claim",
	"UPDATE semel_inbox SET status = ?3, owner = coalesce(?4, owner), lease_until = ?5,"
	" processed_at = ?6, error_code = ?7, replay = max(replay, ?8)"
	" WHERE scope = ?1 AND event_id = ?2 AND status = ?9 AND (?10 IS NULL OR owner = ?10)"
	" AND (?9 <> 'FAILED' OR replay < ?8)"
};
static const struct semel_sqlite_statement forget_claim = {
	SEMEL_SQLITE_ONCE, "forget a claim",
	"DELETE FROM semel_inbox WHERE scope = ?1 AND event_id = ?2"
	" AND (?3 IS NULL OR (status = 'CLAIMED' AND owner = ?3))"
};
static const struct semel_sqlite_statement forget_key = {
	SEMEL_SQLITE_ONCE, "forget a business key",
	"DELETE FROM semel_inbox_key WHERE scope = ?1 AND event_id = ?2 AND (?3 IS NULL"
	" OR NOT EXISTS (SELECT 1 FROM semel_inbox WHERE scope = ?1 AND event_id = ?2))"
};
static const struct semel_sqlite_statement renew_claims = {
	SEMEL_SQLITE_ONCE, "renew unfinished claims",
	"UPDATE semel_inbox SET lease_until = ?2 WHERE status = 'CLAIMED' AND owner = ?1"
};
static const struct semel_sqlite_statement is_settled = {
	SEMEL_SQLITE_INBOX_SETTLED, "check whether an event is settled",
	"SELECT EXISTS (SELECT 1 FROM semel_inbox WHERE scope = ?1 AND event_id = ?2"
	" AND status <> 'CLAIMED') OR EXISTS (SELECT 1 FROM semel_dead_letter WHERE scope = ?1"
	" AND event_id = ?2 AND parked_behind IS NULL)"
};

/* The statements of one call, prepared once for all its claims; the key's only when one is used. */
struct claiming {
	semel_tx tx;
	sqlite3_stmt *claim, *find, *key, *find_key;
	char now[SEMEL_TIME_SIZE];
};

static semel_status take_once(semel_tx tx, const struct semel_sqlite_statement *statement,
			      sqlite3_stmt **prepared, semel_error *error)
{
	return *prepared != NULL ? SEMEL_OK
				 : semel_sqlite_borrow_statement(tx, statement, prepared, error);
}

/* Reads the claim with this id; week NULL: of any week. FOUND_NEW: there is none. */
static semel_status find_existing(struct claiming *claiming, struct semel_text scope,
				  struct semel_text event_id, const char *week,
				  struct semel_claim_result *answer, semel_error *error)
{
	bool row = false;
	semel_status status = take_once(claiming->tx, &find_claim, &claiming->find, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(claiming->find, 1, scope);
	semel_sqlite_bind_text(claiming->find, 2, event_id);
	semel_sqlite_bind_string(claiming->find, 3, week);
	status = semel_sqlite_step(claiming->tx, &find_claim, claiming->find, &row, error);
	answer->found = SEMEL_FOUND_NEW;
	if (row) {
		answer->found =
			semel_claim_found_of((const char *)sqlite3_column_text(claiming->find, 0));
		semel_sqlite_copy(claiming->find, 1, answer->owner, sizeof(answer->owner));
		answer->lease_until_ms = semel_sqlite_time(claiming->find, 2);
	}
	sqlite3_reset(claiming->find);
	return status;
}

/* Writes the claim. FOUND_NEW: it was written now. */
static semel_status insert(struct claiming *claiming, const struct semel_inbox_claim *claim,
			   const char *error_code, struct semel_claim_result *answer,
			   semel_error *error)
{
	char week[SEMEL_DATE_SIZE], lease[SEMEL_TIME_SIZE];
	bool processed = claim->status == SEMEL_INBOX_PROCESSED || error_code != NULL;
	sqlite3_stmt *prepared = claiming->claim;
	semel_time_format_date(semel_time_week_start(claim->event_time_ms), week);
	semel_sqlite_bind_text(prepared, 1, claim->scope);
	semel_sqlite_bind_text(prepared, 2, claim->event_id);
	semel_sqlite_bind_string(prepared, 3, week);
	semel_sqlite_bind_string(
		prepared, 4,
		semel_inbox_status_name(processed ? SEMEL_INBOX_PROCESSED : claim->status));
	semel_sqlite_bind_string(prepared, 5, claiming->now);
	semel_sqlite_bind_string(prepared, 6, processed ? claiming->now : NULL);
	semel_sqlite_bind_text(prepared, 7, claim->handler_version);
	semel_sqlite_bind_text(prepared, 8, claim->topic);
	sqlite3_bind_int(prepared, 9, claim->partition);
	sqlite3_bind_int64(prepared, 10, claim->offset);
	semel_sqlite_bind_string(prepared, 11, error_code);
	semel_sqlite_bind_string(prepared, 12, claim->owner);
	semel_sqlite_bind_time(prepared, 13, processed ? 0 : claim->lease_until_ms, lease);
	sqlite3_bind_int64(prepared, 14, claim->replay);
	semel_status status = semel_sqlite_run(claiming->tx, &insert_claim, prepared, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_sqlite_changes(claiming->tx) == 1) {
		answer->found = SEMEL_FOUND_NEW;
		return SEMEL_OK;
	}
	return find_existing(claiming, claim->scope, claim->event_id, week, answer, error);
}

/* holder_out: the other event that has the key; empty: the key is ours. */
static semel_status claim_key(struct claiming *claiming, const struct semel_inbox_claim *claim,
			      char *holder_out, size_t holder_size, semel_error *error)
{
	bool row = false;
	holder_out[0] = '\0';
	semel_status status = take_once(claiming->tx, &insert_key, &claiming->key, error);
	if (status != SEMEL_OK)
		return status;
	status = take_once(claiming->tx, &find_key, &claiming->find_key, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(claiming->key, 1, claim->scope);
	semel_sqlite_bind_text(claiming->key, 2, claim->key);
	semel_sqlite_bind_text(claiming->key, 3, claim->event_id);
	semel_sqlite_bind_string(claiming->key, 4, claiming->now);
	status = semel_sqlite_run(claiming->tx, &insert_key, claiming->key, error);
	if (status != SEMEL_OK || semel_sqlite_changes(claiming->tx) == 1)
		return status;
	semel_sqlite_bind_text(claiming->find_key, 1, claim->scope);
	semel_sqlite_bind_text(claiming->find_key, 2, claim->key);
	status = semel_sqlite_step(claiming->tx, &find_key, claiming->find_key, &row, error);
	if (row)
		semel_sqlite_copy(claiming->find_key, 0, holder_out, holder_size);
	sqlite3_reset(claiming->find_key);
	if (semel_text_equal(semel_text_of(holder_out), claim->event_id))
		holder_out[0] = '\0';
	return status;
}

static semel_status claim_one(struct claiming *claiming, const struct semel_inbox_claim *claim,
			      struct semel_claim_result *answer, semel_error *error)
{
	char holder[SEMEL_FOREIGN_NAME_MAX + 1] = "";
	semel_status status = SEMEL_OK;
	*answer = (struct semel_claim_result){ 0 };
	if (claim->key.data != NULL)
		status = claim_key(claiming, claim, holder, sizeof(holder), error);
	if (status != SEMEL_OK)
		return status;
	if (holder[0] == '\0')
		return insert(claiming, claim, NULL, answer, error);

	status = find_existing(claiming, claim->scope, semel_text_of(holder), NULL, answer, error);
	answer->key_conflict = true;
	if (status != SEMEL_OK || answer->found == SEMEL_FOUND_CLAIMED)
		return status; /* the other event is being processed: retry later */
	status = insert(claiming, claim, "duplicate-key", answer, error);
	answer->found = SEMEL_FOUND_KEY;
	return status;
}

semel_status semel_sqlite_inbox_claim(semel_tx tx, const struct semel_inbox_claim *claims,
				      size_t count, int64_t now_ms,
				      struct semel_claim_result *answers_out, semel_error *error)
{
	struct claiming claiming = { .tx = tx };
	semel_status status = semel_sqlite_require_transaction(tx, insert_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_borrow_statement(tx, &insert_claim, &claiming.claim, error);
	if (status != SEMEL_OK)
		return status;
	semel_time_format(now_ms, claiming.now);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = claim_one(&claiming, &claims[i], &answers_out[i], error);
	semel_sqlite_return_statement(tx, &insert_claim, claiming.claim);
	semel_sqlite_return_statement(tx, &find_claim, claiming.find);
	semel_sqlite_return_statement(tx, &insert_key, claiming.key);
	semel_sqlite_return_statement(tx, &find_key, claiming.find_key);
	return status;
}

semel_status semel_sqlite_inbox_change(semel_tx tx, const struct semel_inbox_claim *claim,
				       const struct semel_inbox_change *change, bool *taken_out,
				       semel_error *error)
{
	char lease[SEMEL_TIME_SIZE], now[SEMEL_TIME_SIZE];
	bool at_work = claim->status == SEMEL_INBOX_CLAIMED;
	sqlite3_stmt *prepared = NULL;
	*taken_out = false;
	semel_status status = semel_sqlite_require_transaction(tx, change_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_borrow_statement(tx, &change_claim, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(prepared, 1, claim->scope);
	semel_sqlite_bind_text(prepared, 2, claim->event_id);
	semel_sqlite_bind_string(prepared, 3, semel_inbox_status_name(claim->status));
	semel_sqlite_bind_string(prepared, 4, at_work ? claim->owner : NULL);
	semel_sqlite_bind_time(prepared, 5, at_work ? claim->lease_until_ms : 0, lease);
	semel_sqlite_bind_time(prepared, 6, at_work ? 0 : change->now_ms, now);
	semel_sqlite_bind_string(prepared, 7, change->error_code);
	sqlite3_bind_int64(prepared, 8, claim->replay);
	semel_sqlite_bind_string(prepared, 9, semel_inbox_status_name(change->from));
	semel_sqlite_bind_string(prepared, 10, change->from_owner);
	status = semel_sqlite_run(tx, &change_claim, prepared, error);
	*taken_out = status == SEMEL_OK && semel_sqlite_changes(tx) > 0;
	semel_sqlite_return_statement(tx, &change_claim, prepared);
	return status;
}

static semel_status forget(semel_tx tx, const struct semel_sqlite_statement *statement,
			   const struct semel_inbox_claim *claim, semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(prepared, 1, claim->scope);
	semel_sqlite_bind_text(prepared, 2, claim->event_id);
	semel_sqlite_bind_string(prepared, 3, claim->owner);
	status = semel_sqlite_run(tx, statement, prepared, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}

semel_status semel_sqlite_inbox_forget(semel_tx tx, const struct semel_inbox_claim *claim,
				       semel_error *error)
{
	semel_status status = semel_sqlite_require_transaction(tx, forget_claim.what, error);
	if (status != SEMEL_OK)
		return status;
	status = forget(tx, &forget_claim, claim, error);
	if (status != SEMEL_OK)
		return status;
	return forget(tx, &forget_key, claim, error);
}

semel_status semel_sqlite_inbox_renew(semel_store *store, const char *owner, int64_t lease_until_ms,
				      semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	char lease[SEMEL_TIME_SIZE];
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, &renew_claims, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_string(prepared, 1, owner);
	semel_sqlite_bind_time(prepared, 2, lease_until_ms, lease);
	status = semel_sqlite_run(tx, &renew_claims, prepared, error);
	semel_sqlite_return_statement(tx, &renew_claims, prepared);
	return status;
}

semel_status semel_sqlite_inbox_is_settled(semel_tx tx, struct semel_text scope,
					   struct semel_text id, bool *settled_out,
					   semel_error *error)
{
	sqlite3_stmt *prepared = NULL;
	bool row = false;
	*settled_out = false;
	semel_status status = semel_sqlite_borrow_statement(tx, &is_settled, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(prepared, 1, scope);
	semel_sqlite_bind_bytes(prepared, 2, id);
	status = semel_sqlite_step(tx, &is_settled, prepared, &row, error);
	*settled_out = row && sqlite3_column_int(prepared, 0) != 0;
	semel_sqlite_return_statement(tx, &is_settled, prepared);
	return status;
}
