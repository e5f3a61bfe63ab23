/* SPDX-License-Identifier: Apache-2.0 */
/* Which partitions a consumer takes, keeps and gives up.
 *
 * - A partition of a living owner is never taken: it has to be given.
 * - One is given up only when nothing fetched from it is in flight, so its next owner starts where
 *   this one stopped, and the order holds.
 * - What is surplus and still in flight is read no further, so that it runs dry.
 */
#include "base/balance.h"

#include <assert.h>

uint32_t semel_balance_quota(uint32_t partitions, uint32_t members, uint32_t rank)
{
	assert(rank < members);
	return partitions / members + (rank < partitions % members ? 1 : 0);
}

static uint32_t count_mine(const struct semel_balance_part *views, uint32_t count)
{
	uint32_t mine = 0;
	for (uint32_t i = 0; i < count; i++)
		mine += views[i].holder == SEMEL_BALANCE_MINE ? 1 : 0;
	return mine;
}

static void take_free(const struct semel_balance_part *views, uint32_t count, uint32_t wanted,
		      enum semel_balance_move *moves)
{
	for (uint32_t i = 0; i < count && wanted > 0; i++) {
		if (views[i].holder != SEMEL_BALANCE_FREE)
			continue;
		moves[i] = SEMEL_BALANCE_TAKE;
		wanted--;
	}
}

/* Returns how many are still to be got rid of. */
static uint32_t drop_mine(const struct semel_balance_part *views, uint32_t count, uint32_t surplus,
			  enum semel_balance_move *moves, bool in_flight)
{
	for (uint32_t i = count; i > 0 && surplus > 0; i--) {
		const struct semel_balance_part *view = &views[i - 1];
		if (view->holder != SEMEL_BALANCE_MINE || view->in_flight != in_flight)
			continue;
		moves[i - 1] = in_flight ? SEMEL_BALANCE_DRAIN : SEMEL_BALANCE_RELEASE;
		surplus--;
	}
	return surplus;
}

void semel_balance_decide(const struct semel_balance_part *views, uint32_t count, uint32_t fair,
			  enum semel_balance_move *moves_out)
{
	for (uint32_t i = 0; i < count; i++)
		moves_out[i] = SEMEL_BALANCE_KEEP;
	uint32_t mine = count_mine(views, count);
	if (mine < fair) {
		take_free(views, count, fair - mine, moves_out);
		return;
	}
	uint32_t surplus = drop_mine(views, count, mine - fair, moves_out, false);
	drop_mine(views, count, surplus, moves_out, true);
}
