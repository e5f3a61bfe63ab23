/* SPDX-License-Identifier: Apache-2.0 */
/* What was committed together is shown together, or not at all, where the broker can do that.
 *
 * Invariants:
 * - The broker is told that what it has is whole only between two transactions of the source, or
 *   when one alone fills the window: then it is shown in parts, and the log says so.
 * - Once an event of a transaction is rejected for good, the rest of that transaction is refused.
 * - The broker is joined only when the first batch is offered: the lanes are ours then, and whoever
 *   published under the same name before is fenced off.
 */
#ifndef SEMEL_RELAY_TRANSACTIONS_H
#define SEMEL_RELAY_TRANSACTIONS_H

#include "relay/source.h"

enum semel_transactions_state {
	SEMEL_TRANSACTIONS_OFF,
	SEMEL_TRANSACTIONS_REQUESTED, /* the broker does not know of them yet */
	SEMEL_TRANSACTIONS_JOINED,
};

struct semel_transactions {
	enum semel_transactions_state state;
	uint64_t number;        /* of the row offered last; more of it may come. 0: none */
	semel_status rejection; /* by the refusal of one of its events */
};

void semel_transactions_open(struct semel_transactions *transactions, bool requested);
/* Another connection: the broker knows nothing. */
void semel_transactions_reset(struct semel_transactions *transactions);
/* Before a batch is offered. FULL: the broker is not ready; again, after the leases were seen to.
 */
semel_status semel_transactions_join(struct semel_transactions *transactions,
				     struct semel_source *source, struct semel_broker *broker,
				     semel_error *error);
/* The number under which the broker is to take this row; 0: none. The row is the next offered. */
uint64_t semel_transactions_enter(struct semel_transactions *transactions,
				  const struct semel_outbox_row *row);
/* The broker answered for an event of this transaction. */
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
