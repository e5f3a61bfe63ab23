/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions commit in another order than they draw numbers, so a number is passed for good only
 * when nobody can come late with a lower one.
 *
 * - A producer's transaction has its own number (xid) before it draws one for its event: the
 *   schema's default for seq sees to it.
 * - So when N is the highest number drawn, and a transaction of ours gets the xid M after that was
 *   seen, then everybody with a number up to N has an xid below M.
 * - Once a snapshot's xmin has reached M, all of them have ended: what is at or below N is in that
 *   snapshot, or never will be.
 * A snapshot's own xmax will not do for M: it only tells what has ended, and younger transactions
 * may be open already.
 */
#include "store/postgres/postgres.h"

#include <string.h>

void semel_pg_horizon_saw(struct semel_pg_store *store, int64_t drawn_seq)
{
	if (drawn_seq > store->horizon.drawn_seq)
		store->horizon.drawn_seq = drawn_seq;
}

void semel_pg_horizon_note(struct semel_pg_store *store, uint64_t xid)
{
	uint32_t count = store->horizon.count;
	struct semel_pg_note *last = count == 0 ? NULL : &store->horizon.notes[count - 1];
	int64_t seq = store->horizon.drawn_seq;
	if (seq <= store->horizon.proven_seq || (last != NULL && last->seq >= seq))
		return;
	if (count < SEMEL_PG_NOTES_MAX) /* full: somebody is open for long; a later one will do */
		store->horizon.notes[store->horizon.count++] =
			(struct semel_pg_note){ .seq = seq, .xid = xid };
}

int64_t semel_pg_horizon_reach(struct semel_pg_store *store, uint64_t xmin)
{
	uint32_t reached = 0;
	while (reached < store->horizon.count && store->horizon.notes[reached].xid <= xmin)
		store->horizon.proven_seq = store->horizon.notes[reached++].seq;
	store->horizon.count -= reached;
	memmove(store->horizon.notes, store->horizon.notes + reached,
		store->horizon.count * sizeof(store->horizon.notes[0]));
	return store->horizon.proven_seq;
}
