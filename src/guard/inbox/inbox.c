/* SPDX-License-Identifier: Apache-2.0 */
/* The default guard: the inbox of the consumer's own store. Its claims are part of the store's
 * transaction, so a rolled back effect leaves no claim.
 *
 * To change here: calls are passed on to the store's inbox; SQL belongs to the store's driver. */
#include "base/error.h"
#include "guard/guard.h"

#include <stdlib.h>

struct inbox_guard {
	struct semel_guard base;
	semel_store *store;
};

extern const struct semel_guard_driver semel_guard_inbox;

static semel_store *store_of(struct semel_guard *guard)
{
	return ((struct inbox_guard *)guard)->store; /* base is its first member */
}

static semel_tx tx_of(struct semel_guard *guard)
{
	semel_store *store = store_of(guard);
	return store->driver->tx(store);
}

static semel_status inbox_open(const struct semel_url *url, semel_store *store,
			       struct semel_guard **guard_out, semel_error *error)
{
	if (url->path[0] != '\0' || url->param_count > 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the guard inbox: takes no path and no parameters: it is a "
				       "table of the consumer's store (try: inbox:)");
	struct inbox_guard *guard = calloc(1, sizeof(*guard));
	if (guard == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a guard");
	guard->base.driver = &semel_guard_inbox;
	guard->store = store;
	*guard_out = &guard->base;
	return SEMEL_OK;
}

static semel_status inbox_claim(struct semel_guard *guard, const struct semel_inbox_claim *claims,
				size_t count, int64_t now_ms,
				struct semel_claim_result *results_out, semel_error *error)
{
	return store_of(guard)->driver->inbox->claim(tx_of(guard), claims, count, now_ms,
						     results_out, error);
}

static semel_status inbox_change(struct semel_guard *guard, const struct semel_inbox_claim *claim,
				 const struct semel_inbox_change *change, bool *changed_out,
				 semel_error *error)
{
	return store_of(guard)->driver->inbox->change(tx_of(guard), claim, change, changed_out,
						      error);
}

static semel_status inbox_forget(struct semel_guard *guard, const struct semel_inbox_claim *claim,
				 semel_error *error)
{
	return store_of(guard)->driver->inbox->forget(tx_of(guard), claim, error);
}

static semel_status inbox_renew(struct semel_guard *guard, const char *owner,
				int64_t lease_until_ms, semel_error *error)
{
	return store_of(guard)->driver->inbox->renew(store_of(guard), owner, lease_until_ms, error);
}

static semel_status inbox_is_settled(struct semel_guard *guard, struct semel_text scope,
				     struct semel_text event_id, bool *settled_out,
				     semel_error *error)
{
	return store_of(guard)->driver->inbox->is_settled(tx_of(guard), scope, event_id,
							  settled_out, error);
}

static semel_status inbox_known_since(struct semel_guard *guard, int64_t *time_ms_out,
				      semel_error *error)
{
	return store_of(guard)->driver->inbox->known_since(store_of(guard), time_ms_out, error);
}

static void inbox_close(struct semel_guard *guard)
{
	free(guard);
}

const struct semel_guard_driver semel_guard_inbox = {
	.scheme = "inbox",
	.form = "inbox:",
	.joins = true,
	.open = inbox_open,
	.claim = inbox_claim,
	.change = inbox_change,
	.forget = inbox_forget,
	.renew = inbox_renew,
	.is_settled = inbox_is_settled,
	.known_since = inbox_known_since,
	.close = inbox_close,
};
