/* SPDX-License-Identifier: Apache-2.0 */
/* Which lanes this relay owns.
 *
 * - A lane has one owner at a time. A relay that takes it raises its epoch; every mark is checked
 *   against the epoch, in the transaction of the mark, so an owner whose lease expired marks
 *   nothing.
 * - A lease is renewed after a third of its length, and by every mark; also while the relay waits
 *   for the broker.
 * - The lane of an owner that is known to be dead is free at once.
 * - A relay that reads the change stream owns all lanes or none: it waits until no other relay owns
 *   one, and releases its lanes when another relay takes one.
 * - Polling relays divide the lanes evenly. A lane is released only when none of its rows is in
 *   flight, so the order holds through the hand-over.
 */
#ifndef SEMEL_RELAY_LANES_H
#define SEMEL_RELAY_LANES_H

#include "store/store.h"

#define SEMEL_LANES_MAX 256

enum semel_lease_state { SEMEL_LEASE_MINE, SEMEL_LEASE_FREE, SEMEL_LEASE_TAKEN };

/* Pure: may this lease be taken? */
enum semel_lease_state semel_lease_state(const struct semel_lease *lease, const char *me,
					 bool owner_is_gone);

struct semel_lane {
	struct semel_lease lease;
	bool mine;
	bool leaving;       /* is read no further: it will be released */
	uint32_t in_flight; /* its unmarked batches; counted by the pipeline */
	int64_t cursor;     /* every row at or below it was read */
	int64_t read_to;    /* the highest number that was read */
};

struct semel_lanes {
	const struct semel_env *env;
	char owner[SEMEL_OWNER_SIZE];
	int64_t lease_ms;
	int64_t maintain_at_ms; /* steady: the next time that lanes are taken or released */
	int64_t renew_at_ms;    /* steady: when the leases are due for renewal */
	bool all_or_none;       /* owns all lanes or no lane */
	int64_t generation;     /* grows whenever a lane is taken or lost */
	int32_t count;
	struct semel_lane *lanes;
};

semel_status semel_lanes_open(struct semel_lanes *lanes, semel_store *store,
			      const struct semel_env *env, int64_t lease_ms, semel_error *error);
/* Renews our leases and takes or releases lanes, when that is due. A lane that was lost has mine
 * false. */
semel_status semel_lanes_maintain(struct semel_lanes *lanes, semel_store *store,
				  semel_error *error);
/* Only renews our leases, when that is due: for use while batches are in flight, when lanes can
 * neither be taken nor released. */
semel_status semel_lanes_renew(struct semel_lanes *lanes, semel_store *store, semel_error *error);
bool semel_lanes_has_all(const struct semel_lanes *lanes);
/* When a lease that is renewed now expires. */
int64_t semel_lanes_expiry(const struct semel_lanes *lanes);
/* After a reconnect, perhaps to a server that has lost data: no lane is ours until the store says
 * so, and reading starts at the low marks that the store has. */
void semel_lanes_rewind(struct semel_lanes *lanes);
/* Releases the lanes, so that another relay need not wait. store NULL: it is unreachable. */
void semel_lanes_close(struct semel_lanes *lanes, semel_store *store);

#endif
