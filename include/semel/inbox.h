/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: who has processed which event. Exactly one claimer of (scope, event id, week) wins. */
#ifndef SEMEL_INBOX_H
#define SEMEL_INBOX_H

#include <semel/store.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A plain input: zero what you do not use. event_id, event_time_ms and topic have to be given;
 * scope too, unless the store has a default one. */
typedef struct semel_claim {
	const char *scope;
	const char *event_id;
	int64_t event_time_ms; /* the event's own time, never the consumer's clock */
	const char *topic;
	int32_t partition;
	int64_t offset;
	const char *handler_version; /* may be NULL */
} semel_claim;

typedef enum semel_claim_outcome {
	SEMEL_CLAIMED = 1, /* yours: apply the effect */
	SEMEL_DUPLICATE,   /* processed before: skip, and acknowledge */
	SEMEL_IN_PROGRESS  /* another consumer processes it: retry later, do not acknowledge */
} semel_claim_outcome;

/* Joins the caller's transaction: the claim commits with the effect, or neither does.
 * Without an open transaction: SEMEL_NO_TRANSACTION. */
SEMEL_API SEMEL_MUST_CHECK semel_status
semel_inbox_try_claim_same_tx(semel_tx tx, const semel_claim *claim,
			      semel_claim_outcome *outcome_out, semel_error *error);

/* Commits the claim in a transaction of its own, before the effect: at most once on failure. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_inbox_try_claim(semel_store *store,
							      const semel_claim *claim,
							      semel_claim_outcome *outcome_out,
							      semel_error *error);

#ifdef __cplusplus
}
#endif
#endif
