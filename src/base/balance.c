/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts a member takes, keeps and releases.
 *
 * - A part whose holder is alive is never taken: the holder has to release it.
 * - A part is released only when nothing of it is in flight, so the next holder starts where this
 *   one stopped, and the order is kept.
 * - A surplus part with something in flight is drained: nothing more of it is fetched.
 */
#include "base/balance.h"

#include <assert.h>

uint32_t semel_balance_quota(uint32_t parts, uint32_t members, uint32_t rank)
{
	assert(rank < members);
	return parts / members + (rank < parts % members ? 1 : 0);
}

static uint32_t count_mine(const struct semel_balance_part *parts, uint32_t count)
{
	uint32_t mine = 0;
	for (uint32_t i = 0; i < count; i++)
		mine += parts[i].holder == SEMEL_BALANCE_MINE ? 1 : 0;
	return mine;
}

static void take_free(const struct semel_balance_part *parts, uint32_t count, uint32_t missing,
		      enum semel_balance_move *moves)
{
	for (uint32_t i = 0; i < count && missing > 0; i++) {
		if (parts[i].holder != SEMEL_BALANCE_FREE)
			continue;
		moves[i] = SEMEL_BALANCE_TAKE;
		missing--;
	}
}

/* Returns how many of the surplus remain. */
static uint32_t drop_mine(const struct semel_balance_part *parts, uint32_t count, uint32_t surplus,
			  enum semel_balance_move *moves, bool in_flight)
{
	for (uint32_t i = count; i > 0 && surplus > 0; i--) {
		const struct semel_balance_part *part = &parts[i - 1];
		if (part->holder != SEMEL_BALANCE_MINE || part->in_flight != in_flight)
			continue;
		moves[i - 1] = in_flight ? SEMEL_BALANCE_DRAIN : SEMEL_BALANCE_RELEASE;
		surplus--;
	}
	return surplus;
}

void semel_balance_decide(const struct semel_balance_part *parts, uint32_t count, uint32_t quota,
			  enum semel_balance_move *moves_out)
{
	for (uint32_t i = 0; i < count; i++)
		moves_out[i] = SEMEL_BALANCE_KEEP;
	uint32_t mine = count_mine(parts, count);
	if (mine < quota) {
		take_free(parts, count, quota - mine, moves_out);
		return;
	}
	uint32_t surplus = drop_mine(parts, count, mine - quota, moves_out, false);
	drop_mine(parts, count, surplus, moves_out, true);
}
