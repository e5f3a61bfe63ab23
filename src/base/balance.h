/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts should this member hold: partitions of a subscription, lanes of an outbox? Pure: the
 * state comes in, the moves go out. */
#ifndef SEMEL_BASE_BALANCE_H
#define SEMEL_BASE_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

enum semel_balance_holder {
	SEMEL_BALANCE_FREE, /* nobody's, or that of an owner who is dead or silent for too long */
	SEMEL_BALANCE_MINE,
	SEMEL_BALANCE_OTHER
};

enum semel_balance_move {
	SEMEL_BALANCE_KEEP,
	SEMEL_BALANCE_TAKE,
	SEMEL_BALANCE_DRAIN, /* read no further; give it up when nothing of it is in flight */
	SEMEL_BALANCE_RELEASE
};

struct semel_balance_part {
	enum semel_balance_holder holder;
	bool in_flight; /* mine: something fetched from it is not settled yet */
};

/* How many partitions the member that came rank-th (from 0) should hold. The members' shares add up
 * to all partitions, and differ by one at most. */
uint32_t semel_balance_quota(uint32_t partitions, uint32_t members, uint32_t rank);

/* Takes free ones up to the fair number, or gets rid of the surplus, idle ones first. */
void semel_balance_decide(const struct semel_balance_part *views, uint32_t count, uint32_t fair,
			  enum semel_balance_move *moves_out);

#endif
