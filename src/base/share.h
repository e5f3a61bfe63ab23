/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts should this member hold: partitions of a subscription, lanes of an outbox? Pure: the
 * state comes in, the moves go out. */
#ifndef SEMEL_BASE_SHARE_H
#define SEMEL_BASE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

enum semel_share_holder {
	SEMEL_SHARE_FREE, /* nobody's, or that of an owner who is dead or silent for too long */
	SEMEL_SHARE_MINE,
	SEMEL_SHARE_OTHERS
};

enum semel_share_move {
	SEMEL_SHARE_STAY,
	SEMEL_SHARE_TAKE,
	SEMEL_SHARE_LEAVE, /* read no further; give it up when nothing of it is in flight */
	SEMEL_SHARE_GIVE
};

struct semel_share_view {
	enum semel_share_holder holder;
	bool in_flight; /* mine: something fetched from it is not settled yet */
};

/* How many partitions the member that came rank-th (from 0) should hold. The members' shares add up
 * to all partitions, and differ by one at most. */
uint32_t semel_share_fair(uint32_t partitions, uint32_t members, uint32_t rank);

/* Takes free ones up to the fair number, or gets rid of the surplus, idle ones first. */
void semel_share_decide(const struct semel_share_view *views, uint32_t count, uint32_t fair,
			enum semel_share_move *moves_out);

#endif
