/* SPDX-License-Identifier: Apache-2.0 */
/* Events that were committed together are published together, or not at all, where the broker has
 * transactions.
 *
 * Invariants:
 * - The broker commits only between two transactions of the source, or when one alone fills the
 *   window: then it is published in parts, and the log says so.
 * - Once an event of a transaction is rejected for good, the rest of that transaction is refused.
 * - The transactional session begins only when the first batch is offered: the lanes are ours then,
 *   and an earlier producer of the same name is fenced off.
 */
#ifndef SEMEL_RELAY_TRANSACTIONS_H
#define SEMEL_RELAY_TRANSACTIONS_H

#include "relay/source.h"

enum semel_transactions_state {
	SEMEL_TRANSACTIONS_OFF,
	SEMEL_TRANSACTIONS_REQUESTED, /* the broker has no session yet */
	SEMEL_TRANSACTIONS_JOINED,
};

struct semel_transactions {
	enum semel_transactions_state state;
	uint64_t number;        /* of the row offered last; more of it may come. 0: none */
	semel_status rejection; /* of one of its events; OK: none */
};

void semel_transactions_open(struct semel_transactions *transactions, bool requested);
/* After a reconnect the broker has no session. */
void semel_transactions_reset(struct semel_transactions *transactions);
/* Before a batch is offered. FULL: the broker is not ready; renew the leases and call again. */
semel_status semel_transactions_join(struct semel_transactions *transactions,
				     struct semel_source *source, struct semel_broker *broker,
				     semel_error *error);
/* The transaction number for this row, which is offered next; 0: none. */
uint64_t semel_transactions_enter(struct semel_transactions *transactions,
				  const struct semel_outbox_row *row);
/* The broker reported the outcome of an event of this transaction. */
void semel_transactions_record_outcome(struct semel_transactions *transactions, uint64_t number,
				       semel_status outcome);
/* The last row that was read has others behind it that were committed with it. */
bool semel_transactions_in_transaction(const struct semel_transactions *transactions,
				       const struct semel_source *source);

static inline bool semel_transactions_are_joined(const struct semel_transactions *transactions)
{
	return transactions->state == SEMEL_TRANSACTIONS_JOINED;
}

#endif
