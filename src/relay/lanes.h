/* SPDX-License-Identifier: Apache-2.0 */
/* Which lanes this relay owns.
 *
 * - A lane has one owner at a time. Whoever takes it raises its epoch; every mark is checked
 * against the epoch, in the transaction of the mark, so an owner that slept too long can mark
 * nothing.
 * - A lease is renewed at a third of its length, and by every mark; also while the broker is waited
 * for.
 * - The lane of an owner that is known to be dead is free at once.
 * - A relay that reads the change stream has all lanes or none: it waits until nobody holds one,
 * and gives up what it has when somebody else takes one.
 * - Polling relays share the lanes evenly. One is given up only when nothing of it is in flight, so
 * that the order holds through the hand-over.
 */
#ifndef SEMEL_RELAY_LANES_H
#define SEMEL_RELAY_LANES_H

#include "store/store.h"

#define SEMEL_LANES_MAX 256

enum semel_lease_state { SEMEL_LEASE_MINE, SEMEL_LEASE_FREE, SEMEL_LEASE_TAKEN };

/* Pure: may this lease be taken? */
enum semel_lease_state semel_lease_state(const struct semel_lease *lease, const char *me,
					 int64_t now_ms, bool owner_is_dead);

struct semel_lane {
	struct semel_lease lease;
	bool mine;
	bool leaving;       /* read no further: it is to be given up */
	uint32_t in_flight; /* batches of it that are not marked; the pipeline counts them */
	int64_t cursor;     /* everything at or below it was read */
	int64_t read_to;    /* the highest number that was read */
};

struct semel_lanes {
	const struct semel_env *env;
	char owner[SEMEL_OWNER_SIZE];
	int64_t lease_ms;
	int64_t maintain_at_ms; /* steady: when the leases are looked at again, */
	int64_t renew_at_ms;    /* and when they are renewed at the latest */
	bool all_or_none;       /* all or none */
	int64_t generation;     /* grows whenever a lane is taken or lost */
	int32_t count;
	struct semel_lane *lanes;
};

semel_status semel_lanes_open(struct semel_lanes *lanes, semel_store *store,
			      const struct semel_env *env, int64_t lease_ms, semel_error *error);
/* Renews what is ours and takes what is free, when it is time to. A lane that was lost has mine
 * false. */
semel_status semel_lanes_maintain(struct semel_lanes *lanes, semel_store *store,
				  semel_error *error);
/* Only renews what is ours, when it is time to: for places where a lane can neither come nor go
 * because batches are on their way. */
semel_status semel_lanes_renew(struct semel_lanes *lanes, semel_store *store, semel_error *error);
bool semel_lanes_are_all_mine(const struct semel_lanes *lanes);
/* When a lease that is renewed now ends. */
int64_t semel_lanes_expiry(const struct semel_lanes *lanes);
/* Another connection, and perhaps another server that lacks what the last one had: forget all. The
 * lanes are ours again when the store says so, from the low marks that it has. */
void semel_lanes_rewind(struct semel_lanes *lanes);
/* Gives the lanes back, so that another relay need not wait. store NULL: it is not reachable. */
void semel_lanes_close(struct semel_lanes *lanes, semel_store *store);

#endif
