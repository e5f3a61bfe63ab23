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

/* ---- for followers.c, and between the two ---- */
typedef semel_status (*semel_run_item)(struct semel_consumer *consumer, struct semel_item *item,
				       semel_error *error);

/* Runs the items that may run now, in their order. Nothing of a key runs behind an item that is not
 * decided, or was deferred: it is deferred too. But where a topic waits as a whole, the event that
 * it waits for may stand there. */
semel_status semel_batch_run_in_order(struct semel_consumer *consumer, struct semel_item *items,
				      uint32_t count, semel_run_item run, semel_error *error);
/* In the open transaction, behind a savepoint. */
semel_status semel_batch_run_one(struct semel_consumer *consumer, struct semel_item *item,
				 semel_error *error);
/* The store has refused to commit what it did, alone, and nothing of it happened: its run counts as
 * failed. */
void semel_batch_commit_refused(struct semel_consumer *consumer, struct semel_item *item,
				const semel_error *error);
/* The status of a commit says something about the event: the store refused its effect. */
bool semel_batch_is_verdict(semel_status status);
/* True: the handler has ended the transaction that it ran in (RAISE(ROLLBACK), OR ROLLBACK, or a
 * COMMIT in a C handler). Savepoint and claim are gone, and so is all that others did in it. The
 * item has status and reason for its dead letter. */
bool semel_batch_has_ended_transaction(struct semel_consumer *consumer, struct semel_item *item,
				       const semel_error *handler_error);
/* Before the commit: how far the deliveries are settled by it. INTERNAL: an item was moved as no
 * table allows. */
semel_status semel_batch_write_positions(struct semel_consumer *consumer,
					 const struct semel_item *items, uint32_t count,
					 semel_error *error);
void semel_batch_report_to_breaker(struct semel_consumer *consumer, const struct semel_item *item);

/* ---- separate_claim.c ---- */
/* With the claim of each committed before it runs. */
semel_status semel_batch_claim_first(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t count, semel_error *error);
/* Before anything else is taken: the claim that an outage left unfinished is released, or its event
 * becomes a dead letter in doubt. */
semel_status semel_unfinished_claim_resolve(struct semel_consumer *consumer, semel_error *error);
void semel_unfinished_claim_free(struct semel_unfinished_claim *claim);

#endif
