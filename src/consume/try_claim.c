/* SPDX-License-Identifier: Apache-2.0 */
/* Claims for applications that run their own consumers.
 *
 * - Everything that identifies a claim is required: a blank scope or id, no topic or no time is an
 *   error, and no row is written.
 * - The claim is made in the inbox itself and not through a guard: the transaction may be the
 *   application's own, which a guard elsewhere could not join.
 * - semel_inbox_try_claim_same_tx joins the caller's transaction and never begins one;
 *   semel_inbox_try_claim commits its own.
 */
#include "base/error.h"
#include "base/time.h"
#include "store/store.h"

#include <semel/inbox.h>

static semel_status check(const semel_claim *claim, const semel_store *store,
			  const semel_claim_outcome *outcome_out, const char **scope_out,
			  semel_error *error)
{
	if (claim == NULL || outcome_out == NULL)
		return semel_error_set(error, SEMEL_INVALID,
				       "claim and outcome_out must not be NULL");
	*scope_out = claim->scope;
	if (claim->scope == NULL && store != NULL)
		*scope_out = store->default_scope;
	if (*scope_out == NULL)
		return semel_error_set(error, SEMEL_INVALID,
				       "the claim has no scope, and the store no default one (name "
				       "it, or call semel_store_set_default_scope)");
	if (semel_string_is_blank(*scope_out))
		return semel_error_set(error, SEMEL_INVALID, "the claim's scope is blank");
	if (semel_string_is_blank(claim->event_id))
		return semel_error_set(error, SEMEL_INVALID, "the claim has no event id");
	if (semel_string_is_blank(claim->topic))
		return semel_error_set(error, SEMEL_INVALID, "the claim has no topic");
	if (claim->event_time_ms == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "the claim has no event time (give the event's own time, "
				       "not the current time)");
	if (!semel_time_is_in_calendar(claim->event_time_ms))
		return semel_error_set(error, SEMEL_INVALID,
				       "the claim's event time is outside the years 1 to 9999 "
				       "(give milliseconds since 1970)");
	return SEMEL_OK;
}

static semel_claim_outcome outcome_of(enum semel_claim_found found)
{
	switch (found) {
	case SEMEL_FOUND_NEW:
		return SEMEL_CLAIMED;
	case SEMEL_FOUND_CLAIMED:
		return SEMEL_IN_PROGRESS;
	case SEMEL_FOUND_PROCESSED:
	case SEMEL_FOUND_KEY:
	case SEMEL_FOUND_FAILED:
		break;
	}
	return SEMEL_DUPLICATE;
}

static semel_status claim_in(semel_tx tx, const semel_claim *claim, const char *scope,
			     semel_claim_outcome *outcome_out, semel_error *error)
{
	const struct semel_inbox_claim row = {
		.scope = semel_text_of(scope),
		.event_id = semel_text_of(claim->event_id),
		.topic = semel_text_of(claim->topic),
		.handler_version = semel_text_of(claim->handler_version),
		.event_time_ms = claim->event_time_ms,
		.partition = claim->partition,
		.offset = claim->offset,
		.status = SEMEL_INBOX_PROCESSED,
	};
	struct semel_claim_result answer = { 0 };
	semel_status status = tx.driver->inbox->claim(tx, &row, 1, semel_now_ms(semel_tx_env(tx)),
						      &answer, error);
	if (status != SEMEL_OK)
		return status;
	*outcome_out = outcome_of(answer.found);
	return SEMEL_OK;
}

semel_status semel_inbox_try_claim_same_tx(semel_tx tx, const semel_claim *claim,
					   semel_claim_outcome *outcome_out, semel_error *error)
{
	const char *scope = NULL;
	if (tx.driver == NULL || tx.native == NULL)
		return semel_error_set(error, SEMEL_INVALID,
				       "no connection was given (semel_borrow_sqlite and "
				       "semel_borrow_postgres make a semel_tx from one)");
	semel_status status = check(claim, tx.store, outcome_out, &scope, error);
	if (status != SEMEL_OK)
		return status;
	if (!tx.driver->in_transaction(tx))
		return semel_error_set(error, SEMEL_NO_TRANSACTION,
				       "no transaction is open on this connection: BEGIN, "
				       "claim, apply the effect, then COMMIT (or claim with "
				       "semel_inbox_try_claim, which commits by itself)");
	return claim_in(tx, claim, scope, outcome_out, error);
}

semel_status semel_inbox_try_claim(semel_store *store, const semel_claim *claim,
				   semel_claim_outcome *outcome_out, semel_error *error)
{
	const char *scope = NULL;
	if (store == NULL)
		return semel_error_set(error, SEMEL_INVALID, "store must not be NULL");
	semel_status status = check(claim, store, outcome_out, &scope, error);
	if (status != SEMEL_OK)
		return status;
	if (store->driver->in_transaction(store->driver->tx(store)))
		return semel_error_set(error, SEMEL_INVALID,
				       "a transaction is open on this store: join it with "
				       "semel_inbox_try_claim_same_tx, or commit it first");
	status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;
	status = claim_in(store->driver->tx(store), claim, scope, outcome_out, error);
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	return store->driver->commit(store, error);
}
