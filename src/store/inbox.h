/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox of a store: the claims, by which an event is processed once in a scope, the
 * effects of SQL handlers, and how far a scope has read a log of the broker.
 *
 * Thread: that of the store. Ownership: results are filled in by value, or read into the caller's
 * arena. Errors: those of store.h; HANDLER_REJECT and HANDLER_RETRY of effects, LEASE_LOST of
 * positions.
 *
 * To change here: what becomes durable with an effect. What takes a tx is part of the open
 * transaction, so that claim, effect and position commit together or not at all.
 */
#ifndef SEMEL_STORE_INBOX_H
#define SEMEL_STORE_INBOX_H

#include "base/arena.h"
#include "base/owner.h"
#include "event/event.h"
#include "store/visitors.h"

#include <semel/inbox.h>
#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

/* ---- claims --------------------------------------------------------------------------------- */

enum semel_inbox_status { SEMEL_INBOX_CLAIMED, SEMEL_INBOX_PROCESSED, SEMEL_INBOX_FAILED };

/* One claim. status PROCESSED: the claim commits with the effect (same-tx). CLAIMED: it is held by
 * owner until lease_until_ms and finished later. key: a business key that must be new within the
 * whole window, in any week; data NULL: deduplication by id alone. */
struct semel_inbox_claim {
	struct semel_text scope, event_id, topic, handler_version, key;
	int64_t event_time_ms;
	int32_t partition;
	int64_t offset;
	enum semel_inbox_status status;
	const char *owner;
	int64_t lease_until_ms;
	uint32_t replay; /* which replay of its dead letter this delivery is; 0: none */
};

/* A change of a claim. A FAILED claim is taken over only by a replay with a higher number than the
 * last one that took it: once per replay. */
struct semel_inbox_change {
	enum semel_inbox_status from;
	const char *from_owner; /* NULL: any */
	const char *error_code; /* NULL: none */
	int64_t now_ms;
};

enum semel_claim_found {
	SEMEL_FOUND_NEW,       /* claimed now: this caller won */
	SEMEL_FOUND_PROCESSED, /* by id */
	SEMEL_FOUND_KEY,       /* another event with this business key was processed */
	SEMEL_FOUND_CLAIMED,   /* not finished; owner and lease_until_ms are the claim's */
	SEMEL_FOUND_FAILED     /* finished without success (separate) */
};

struct semel_claim_result {
	enum semel_claim_found found;
	bool key_conflict; /* CLAIMED: by another event with this business key */
	char owner[SEMEL_OWNER_SIZE];
	int64_t lease_until_ms;
};

/* Claims events in the open transaction; the results are in the order of the claims. If two claims
 * of one call have the same id, the second finds the first. */
typedef semel_status semel_inbox_claim_fn(semel_tx tx, const struct semel_inbox_claim *claims,
					  size_t count, int64_t now_ms,
					  struct semel_claim_result *results_out,
					  semel_error *error);
/* Changes the claim of scope and event from the state change->from to claim->status; if that is
 * CLAIMED, also sets owner and lease. *taken_out false: it was in another state by now. */
typedef semel_status semel_inbox_change_fn(semel_tx tx, const struct semel_inbox_claim *claim,
					   const struct semel_inbox_change *change, bool *taken_out,
					   semel_error *error);
/* Forgets the claim (and its key), so that the event can be processed. With an owner: only while
 * the claim is unfinished and that owner's. */
typedef semel_status semel_inbox_forget_fn(semel_tx tx, const struct semel_inbox_claim *claim,
					   semel_error *error);
/* Extends the leases of this owner's unfinished claims. */
typedef semel_status semel_inbox_renew_fn(semel_store *store, const char *owner,
					  int64_t lease_until_ms, semel_error *error);
/* Was it settled in this scope: processed, failed or a dead letter of any status? */
typedef semel_status semel_inbox_is_settled_fn(semel_tx tx, struct semel_text scope,
					       struct semel_text id, bool *settled_out,
					       semel_error *error);
typedef semel_status semel_inbox_each_fn(semel_store *store, struct semel_text scope,
					 semel_id_visitor visit, void *user, semel_error *error);
/* Has any scope claimed an event of this topic? Reads the whole inbox if none has. */
typedef semel_status semel_inbox_has_topic_fn(semel_store *store, struct semel_text topic,
					      bool *has_out, semel_error *error);
/* The oldest week whose claims are still retained; 0: no week was ever pruned. */
typedef semel_status semel_inbox_known_since_fn(semel_store *store, int64_t *time_ms_out,
						semel_error *error);

/* ---- effects of SQL handlers ---------------------------------------------------------------- */

/* Prepares the statements once. INVALID with the engine's message and, for an unknown parameter,
 * the nearest known one. */
typedef semel_status semel_effect_prepare_fn(semel_store *store, const char *const *statements,
					     size_t count, semel_error *error);
/* Runs them for one event in the open transaction. HANDLER_REJECT: constraint or type;
 * HANDLER_RETRY: anything else about this event. A driver may defer the result to a later effect,
 * the savepoint's release or the commit; the caller then repeats the batch one by one. */
typedef semel_status semel_effect_run_fn(semel_store *store, const struct semel_event *event,
					 uint32_t attempt, semel_error *error);
/* One SQL expression over the same parameters that yields a text (an upcaster). Need not be fast;
 * may be prepared each time. */
typedef semel_status semel_inbox_evaluate_fn(semel_store *store, const char *expression,
					     const struct semel_event *event,
					     struct semel_arena *arena,
					     struct semel_text *value_out, semel_error *error);

/* ---- positions: how far a scope has read a log of the broker -------------------------------- */

/* A stream, or a partition of a topic, whose offsets are stored here, with the effects. It has one
 * reader at a time: the epoch grows with every new reader, and is the fence that a put is checked
 * against. */
struct semel_position {
	struct semel_text scope, topic;
	int32_t partition;
	int64_t next;  /* the first offset that is not settled; -1: never read */
	int64_t epoch; /* 0: it never had a reader */
	int64_t expires_at_ms;
	struct semel_anchor anchor;
	char owner[SEMEL_OWNER_SIZE]; /* empty: none */
};

/* Fills in the other fields for the given scope, topic and partition. */
typedef semel_status semel_position_get_fn(semel_store *store, struct semel_position *position,
					   semel_error *error);
/* Takes it over if its epoch is still that of *position; fills in the new one. LEASE_LOST: another
 * reader was faster. */
typedef semel_status semel_position_acquire_fn(semel_store *store, struct semel_position *position,
					       const char *owner, int64_t expires_at_ms,
					       semel_error *error);
/* Writes next and the lease's new end, in the open transaction if there is one. LEASE_LOST: it has
 * another reader now, and nothing was written. */
typedef semel_status semel_position_put_fn(semel_tx tx, const struct semel_position *position,
					   semel_error *error);
typedef void semel_position_release_fn(semel_store *store, const struct semel_position *position);

/* ---- the table ------------------------------------------------------------------------------ */

/* All are required. */
struct semel_inbox_functions {
	semel_inbox_claim_fn *claim;
	semel_inbox_change_fn *change;
	semel_inbox_forget_fn *forget;
	semel_inbox_renew_fn *renew;
	semel_inbox_is_settled_fn *is_settled;
	semel_inbox_each_fn *each;
	semel_inbox_has_topic_fn *has_topic;
	semel_inbox_known_since_fn *known_since;

	semel_effect_prepare_fn *effect_prepare;
	semel_effect_run_fn *effect_run;
	semel_inbox_evaluate_fn *evaluate;

	semel_position_get_fn *position_get;
	semel_position_acquire_fn *position_acquire;
	semel_position_put_fn *position_put;
	semel_position_release_fn *position_release;
};

#endif
