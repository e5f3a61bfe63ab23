/* SPDX-License-Identifier: Apache-2.0 */
/* The default guard: the inbox of the consumer's own store. Its claims are part of the store's
 * transaction, so a rolled back effect leaves no claim. */
#include "base/error.h"
#include "guard/guard.h"

#include <stdlib.h>

struct inbox_guard {
	struct semel_guard base;
	semel_store *store;
};

static semel_store *store_of(struct semel_guard *guard)
{
	return ((struct inbox_guard *)guard)->store; /* base is its first member */
}

static semel_tx tx_of(struct semel_guard *guard)
{
	semel_store *store = store_of(guard);
	return store->driver->tx(store);
}

static semel_status claim_all(struct semel_guard *guard, const struct semel_inbox_claim *claims,
			      size_t count, int64_t now_ms, struct semel_claim_result *answers_out,
			      semel_error *error)
{
	return store_of(guard)->driver->inbox_claim(tx_of(guard), claims, count, now_ms,
						    answers_out, error);
}

static semel_status change(struct semel_guard *guard, const struct semel_inbox_claim *claim,
			   const struct semel_inbox_change *wanted, bool *taken_out,
			   semel_error *error)
{
	return store_of(guard)->driver->inbox_change(tx_of(guard), claim, wanted, taken_out, error);
}

static semel_status forget(struct semel_guard *guard, const struct semel_inbox_claim *claim,
			   semel_error *error)
{
	return store_of(guard)->driver->inbox_forget(tx_of(guard), claim, error);
}

static semel_status renew(struct semel_guard *guard, const char *owner, int64_t lease_until_ms,
			  semel_error *error)
{
	return store_of(guard)->driver->inbox_renew(store_of(guard), owner, lease_until_ms, error);
}

static void close_guard(struct semel_guard *guard)
{
	free(guard);
}

static const struct semel_guard_driver inbox_driver = {
	.scheme = "inbox",
	.joins = true,
	.claim = claim_all,
	.change = change,
	.forget = forget,
	.renew = renew,
	.close = close_guard,
};

semel_status semel_guard_open_inbox(semel_store *store, struct semel_guard **guard_out,
				    semel_error *error)
{
	struct inbox_guard *guard = calloc(1, sizeof(*guard));
	if (guard == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a guard");
	guard->base.driver = &inbox_driver;
	guard->store = store;
	*guard_out = &guard->base;
	return SEMEL_OK;
}
