/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's claims: the only file of this room that calls the guard. All but renew and expire
 * are called in the open transaction. */
#ifndef SEMEL_CONSUME_CLAIMS_H
#define SEMEL_CONSUME_CLAIMS_H

#include "guard/guard.h"

struct semel_consumer;
struct semel_item;

/* Makes one claim for each undecided item; the results are in the order of the items, in the arena.
 * NULL results: no item is undecided. */
semel_status semel_claims_new(struct semel_consumer *consumer, struct semel_item *items,
			      uint32_t count, struct semel_arena *arena,
			      struct semel_claim_result **results_out, semel_error *error);
/* The item's claim replaces the one that was found. *taken_out false: the found claim has changed
 * meanwhile. */
semel_status semel_claims_take_over(struct semel_consumer *consumer, const struct semel_item *item,
				    const struct semel_claim_result *found, bool *taken_out,
				    semel_error *error);
/* The item's own claim becomes PROCESSED, or FAILED with an error code. Logs if another consumer
 * has taken the claim over. */
semel_status semel_claims_finish(struct semel_consumer *consumer, const struct semel_item *item,
				 enum semel_inbox_status to, const char *error_code,
				 semel_error *error);
/* The claim of a dead consumer becomes FAILED, so that only a replay can take it. */
semel_status semel_claims_fail_in_doubt(struct semel_consumer *consumer,
					const struct semel_item *item, semel_error *error);
/* Removes the item's claim, so that the event can be claimed again. */
semel_status semel_claims_forget(struct semel_consumer *consumer, const struct semel_item *item,
				 semel_error *error);
/* The item's handler did not run: removes this consumer's claim, whether it is unfinished or counts
 * as processed already (at most once). */
semel_status semel_claims_release(struct semel_consumer *consumer,
				  const struct semel_inbox_claim *claim, semel_error *error);
/* Was the event settled in this scope? For strict order. */
semel_status semel_claims_is_settled(struct semel_consumer *consumer, struct semel_text event_id,
				     bool *settled_out, semel_error *error);

/* Does the item still belong to this consumer? Checked in the transaction that runs or settles it:
 * a consumer that was suspended for a long time has lost its claims and partitions without
 * noticing.
 * - An unfinished claim has an owner. Checking it also renews its lease.
 * - A follower that is no longer parked was settled by another consumer.
 * - Without claims, a key that is held for another event shows that others have continued. */
semel_status semel_claims_check_owned(struct semel_consumer *consumer,
				      const struct semel_item *item, struct semel_arena *arena,
				      bool *owned_out, semel_error *error);

/* Extends the leases of all unfinished claims of this consumer. */
semel_status semel_claims_renew(struct semel_consumer *consumer, semel_error *error);
/* No call runs here any more: ends the leases of the unfinished claims now. */
void semel_claims_expire(struct semel_consumer *consumer);

#endif
