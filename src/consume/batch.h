/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers inside the transaction: a batch in one transaction (batch.c), or, where the claim is
 * committed before the effect, one event at a time (separate_claim.c). */
#ifndef SEMEL_CONSUME_BATCH_H
#define SEMEL_CONSUME_BATCH_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_item;
struct semel_unfinished_claim;

semel_status semel_batch_process(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, semel_error *error);

/* ---- for followers.c, and between batch.c and separate_claim.c ---- */
typedef semel_status (*semel_run_item)(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error);

/* Runs the items that may run now, in their order. No item runs after an undecided or deferred item
 * of its key; after a deferred one it is deferred as well. Exception: where a whole topic waits,
 * the event that it waits for runs after deferred items. */
semel_status semel_batch_run_in_order(struct semel_consumer *consumer, struct semel_item *items,
				      uint32_t count, semel_run_item run, semel_error *error);
/* Runs the item in the open transaction, with a savepoint. */
semel_status semel_batch_run_one(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error);
/* The store refused to commit the item's transaction, in which nothing else ran, and rolled it
 * back: the item's run counts as failed. */
void semel_batch_commit_refused(struct semel_consumer *consumer, struct semel_item *item,
				const semel_error *error);
/* Is the status of a commit a verdict on the event, because the store refused its effect? */
bool semel_batch_is_verdict(semel_status status);
/* True: the handler has ended the transaction that it ran in (RAISE(ROLLBACK), OR ROLLBACK, or a
 * COMMIT in a C handler). The savepoint and the claim are gone, and so is everything else that was
 * done in the transaction. The item has the status and the reason for its dead letter. */
bool semel_batch_has_ended_transaction(struct semel_consumer *consumer, struct semel_item *item,
				       const semel_error *handler_error);
/* Before the commit: writes how far the deliveries will be settled by it. INTERNAL: an item made a
 * transition that docs/states.md does not list. */
semel_status semel_batch_write_positions(struct semel_consumer *consumer,
					 const struct semel_item *items, uint32_t count,
					 semel_error *error);
void semel_batch_report_to_breaker(struct semel_consumer *consumer, const struct semel_item *item);

/* ---- separate_claim.c ---- */
/* Runs the items one by one; the claim of each is committed before it runs. */
semel_status semel_batch_claim_first(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t count, semel_error *error);
/* Called before anything is fetched. Releases the claim that an outage left unfinished, or makes
 * its event a dead letter in doubt. */
semel_status semel_unfinished_claim_resolve(struct semel_consumer *consumer, semel_error *error);
void semel_unfinished_claim_free(struct semel_unfinished_claim *claim);

#endif
