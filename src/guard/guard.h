/* SPDX-License-Identifier: Apache-2.0 */
/* A guard remembers which event was processed in which scope. The store's inbox is the default; a
 * shared memory of ids (Redis) may stand in for it later.
 *
 * A guard answers for a whole batch at once. `joins` tells whether its claims are part of the
 * store's transaction: then a rolled back effect leaves no claim, and same-tx is possible.
 *
 * Threads: one guard belongs to the consumer's thread.
 * Every driver passes tests/contract/guard_suite.c.
 */
#ifndef SEMEL_GUARD_GUARD_H
#define SEMEL_GUARD_GUARD_H

#include "store/store.h"

struct semel_guard {
	const struct semel_guard_driver *driver;
};

struct semel_guard_driver {
	const char *scheme; /* "inbox" */
	bool joins;

	/* All slots are required; see the inbox slots of the store for their meaning. */
	semel_status (*claim)(struct semel_guard *guard, const struct semel_inbox_claim *claims,
			      size_t count, int64_t now_ms, struct semel_claim_result *answers_out,
			      semel_error *error);
	semel_status (*change)(struct semel_guard *guard, const struct semel_inbox_claim *claim,
			       const struct semel_inbox_change *change, bool *taken_out,
			       semel_error *error);
	semel_status (*forget)(struct semel_guard *guard, const struct semel_inbox_claim *claim,
			       semel_error *error);
	semel_status (*renew)(struct semel_guard *guard, const char *owner, int64_t lease_until_ms,
			      semel_error *error);
	void (*close)(struct semel_guard *guard);
};

/* The inbox of this store, which must outlive the guard. */
semel_status semel_guard_open_inbox(semel_store *store, struct semel_guard **guard_out,
				    semel_error *error);

#endif
