/* SPDX-License-Identifier: Apache-2.0 */
/* The guard remembers which event was claimed, and processed, in which scope. The default is the
 * inbox of the consumer's own store; a shared set of ids (Redis, memcached) would be another
 * driver.
 *
 * To change here: this header is the seam. A driver is its folder and its line in
 * registry.c; it includes this header, the store's seam, and what is below, never a rule. Rules
 * call a guard through this table alone.
 *
 * Transactions. `joins` defines for the rules what a claim is part of:
 * - true: every call is part of the store's open transaction. A rolled back effect leaves no claim,
 *   so a claim may be made as PROCESSED in the transaction of the effect (same-tx).
 * - false: every call is durable at once. The rules then claim as CLAIMED, commit, and run the
 *   handler (semel_consumer_is_same_tx), as they do for handlers outside the transaction. A discard
 *   and a replay that reprocesses refuse such a guard (semel_guard_check_joins): they change claims
 *   in a transaction of the store, and a rollback would leave the changed claims. There is no such
 *   driver yet, and the consumer would need one change for it: it changes a claim to PROCESSED or
 *   FAILED before the store's commit, and would have to do that after it.
 *
 * Everything that reads or changes claims uses a guard, except for these, which use the inbox as a
 * table of the store:
 * - semel_inbox_try_claim*: joins a transaction of the application.
 * - verify: merges all ids of a scope, in order, with those of the outbox; a guard on another
 *   server could not.
 * - trace: shows the rows of the store as they are.
 * - prune, and doctor's findings about retention: they maintain the tables.
 * - strict order (parked_next), the waits of a scope (waits_each), and whether a topic was ever
 *   read (has_topic): they join claims with other tables; another guard would have to be queried
 *   id by id.
 *
 * Threads: one guard belongs to the thread of its store.
 * Every driver passes tests/contract/guard_suite.c.
 */
#ifndef SEMEL_GUARD_GUARD_H
#define SEMEL_GUARD_GUARD_H

#include "base/url.h"
#include "store/store.h"

struct semel_guard {
	const struct semel_guard_driver *driver;
};

/* The store outlives the guard. CONFIG when the URL cannot be right, OUTAGE when the guard's server
 * is unreachable. */
typedef semel_status semel_guard_open_fn(const struct semel_url *url, semel_store *store,
					 struct semel_guard **guard_out, semel_error *error);
/* Makes the claims that are new, all in one call; the results are in the order of the claims. If
 * two claims have the same id, the second finds the first. A claim as CLAIMED has an owner and a
 * lease; an expired lease changes nothing here: the caller decides whether to take it over. */
typedef semel_status semel_guard_claim_fn(struct semel_guard *guard,
					  const struct semel_inbox_claim *claims, size_t count,
					  int64_t now_ms, struct semel_claim_result *results_out,
					  semel_error *error);
/* Compare and set: the claim of scope and event, if it is in the state change->from (and
 * from_owner's), becomes claim->status. *changed_out false: it was not, and nothing was changed. */
typedef semel_status semel_guard_change_fn(struct semel_guard *guard,
					   const struct semel_inbox_claim *claim,
					   const struct semel_inbox_change *change,
					   bool *changed_out, semel_error *error);
/* Forgets the claim and its business key, so that the event can be claimed again. With an owner:
 * only while the claim is unfinished and that owner's. A missing claim is not an error. */
typedef semel_status semel_guard_forget_fn(struct semel_guard *guard,
					   const struct semel_inbox_claim *claim,
					   semel_error *error);
/* Sets the end of the lease of every unfinished claim of this owner. */
typedef semel_status semel_guard_renew_fn(struct semel_guard *guard, const char *owner,
					  int64_t lease_until_ms, semel_error *error);
/* Is the event settled in the scope: processed or failed, as far as claims show? A guard that joins
 * also counts dead letters, which same-tx leaves without a claim. */
typedef semel_status semel_guard_is_settled_fn(struct semel_guard *guard, struct semel_text scope,
					       struct semel_text event_id, bool *settled_out,
					       semel_error *error);
/* Claims of events of this time and later are certainly retained; 0: all claims are. */
typedef semel_status semel_guard_known_since_fn(struct semel_guard *guard, int64_t *time_ms_out,
						semel_error *error);
typedef void semel_guard_close_fn(struct semel_guard *guard);

/* All functions are required. If the guard joins, they are called between `begin` and the end of
 * the store's transaction (otherwise NO_TRANSACTION); if it does not, at any time. renew and
 * known_since are always called outside of transactions. */
struct semel_guard_driver {
	const char *scheme; /* first word of the URL: "inbox" */
	const char *form;   /* of its URLs, for messages: "inbox:" */
	bool joins;

	semel_guard_open_fn *open;
	semel_guard_claim_fn *claim;
	semel_guard_change_fn *change;
	semel_guard_forget_fn *forget;
	semel_guard_renew_fn *renew;
	semel_guard_is_settled_fn *is_settled;
	semel_guard_known_since_fn *known_since;
	semel_guard_close_fn *close;
};

/* Opens the guard that the URL names, for this store. CONFIG, naming the known schemes, when none
 * matches. */
semel_status semel_guard_open(const char *url, semel_store *store, struct semel_guard **guard_out,
			      semel_error *error);
/* Opens the guard that the rules use: inbox:. No option names another one yet. */
semel_status semel_guard_open_default(semel_store *store, struct semel_guard **guard_out,
				      semel_error *error);
/* CONFIG unless the guard joins; action, for the message: "discarding a dead letter". */
semel_status semel_guard_check_joins(const struct semel_guard *guard, const char *action,
				     semel_error *error);
/* guard may be NULL. */
void semel_guard_close(struct semel_guard *guard);

#endif
