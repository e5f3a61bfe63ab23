/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes parts evenly over members: decides which parts this member takes, keeps and releases.
 * Pure: takes the state, returns the moves. */
#ifndef SEMEL_BASE_BALANCE_H
#define SEMEL_BASE_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

enum semel_balance_holder {
	SEMEL_BALANCE_FREE, /* no holder, or one that is dead or silent for too long */
	SEMEL_BALANCE_MINE,
	SEMEL_BALANCE_OTHER
};

enum semel_balance_move {
	SEMEL_BALANCE_KEEP,
	SEMEL_BALANCE_TAKE,
	SEMEL_BALANCE_DRAIN, /* fetch no more; release it when nothing of it is in flight */
	SEMEL_BALANCE_RELEASE
};

struct semel_balance_part {
	enum semel_balance_holder holder;
	bool in_flight; /* MINE: something of it is in flight */
};

/* How many parts the member of this rank (from 0) should hold. The quotas of all members add up to
 * all parts, and differ by at most one. */
uint32_t semel_balance_quota(uint32_t parts, uint32_t members, uint32_t rank);

/* Takes free parts up to the quota, or releases the surplus, idle parts first. */
void semel_balance_decide(const struct semel_balance_part *parts, uint32_t count, uint32_t quota,
			  enum semel_balance_move *moves_out);

#endif
