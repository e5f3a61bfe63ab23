/* SPDX-License-Identifier: Apache-2.0 */
/* Members and assignments: which consumer reads which partition of a subscription.
 *
 * - An assignment belongs to the owner and epoch in its row (semel_share); every change of a cursor
 *   is checked against both. A new owner increments the epoch, so an earlier owner can no longer
 *   ack anything.
 * - An owner is alive while its member row is renewed. It is dead when that row has expired, or at
 *   once when its process no longer runs on this machine.
 * - The check is cheap and only reads; the write transaction, which checks again, follows when
 *   there is something to write: a heartbeat, a dead member, an assignment to acquire or to
 *   release.
 * - The assignments that this process considers its own change only after the commit.
 */
#include "base/balance.h"
#include "base/error.h"
#include "broker/local/local.h"
#include "fault/plant.h"

#include <stdio.h>
#include <string.h>

#define CHECK_EVERY_MS 50
#define DEAD_MAX       64

/* One subscription, as the file has it now. */
struct membership {
	uint32_t members, rank; /* those alive; our rank among them */
	bool member;            /* we are a member */
	int64_t dead[DEAD_MAX]; /* members to be removed */
	uint32_t dead_count;
	char checked_owner[SEMEL_OWNER_SIZE]; /* the last owner asked about, and the answer */
	bool checked_alive;
};

static bool is_ours(const struct semel_local *local, const char *owner)
{
	return owner != NULL && strcmp(owner, local->owner) == 0;
}

static bool is_alive(const struct semel_local *local, const char *owner, int64_t expires_at_ms)
{
	return owner != NULL &&
	       !semel_owner_is_gone(owner, expires_at_ms, semel_now_ms(local->env));
}

/* Neighbouring assignments mostly have the same owner, and asking the system is not free. */
static bool is_alive_cached(const struct semel_local *local, struct membership *membership,
			    const char *owner, int64_t expires_at_ms)
{
	if (owner == NULL)
		return false;
	if (strcmp(owner, membership->checked_owner) != 0) {
		snprintf(membership->checked_owner, sizeof(membership->checked_owner), "%s", owner);
		membership->checked_alive = is_alive(local, owner, expires_at_ms);
	}
	return membership->checked_alive;
}

static const char *owner_in(const struct semel_local *local, enum semel_local_sql which, int column)
{
	return (const char *)sqlite3_column_text(local->statements[which], column);
}

/* ---- reading -------------------------------------------------------------------------------- */

static void count_member(const struct semel_local *local, struct membership *membership)
{
	const char *owner = owner_in(local, SEMEL_LOCAL_MEMBERS, 2);
	if (is_ours(local, owner)) {
		membership->member = true;
		membership->rank = membership->members++;
	} else if (is_alive(local, owner, semel_local_int(local, SEMEL_LOCAL_MEMBERS, 1))) {
		membership->members++;
	} else if (membership->dead_count < DEAD_MAX) {
		membership->dead[membership->dead_count++] =
			semel_local_int(local, SEMEL_LOCAL_MEMBERS, 0);
	}
}

static semel_status read_members(struct semel_local *local, int64_t subscription,
				 struct membership *membership, semel_error *error)
{
	bool row = true;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_MEMBERS, SEMEL_LOCAL_INTS(subscription), error);
	if (status != SEMEL_OK)
		return status;
	while (row) {
		status = semel_local_next(local, SEMEL_LOCAL_MEMBERS, &row, error);
		if (status != SEMEL_OK)
			return status;
		if (row)
			count_member(local, membership);
	}
	return SEMEL_OK;
}

/* Fills in the ownership and returns whose it is. An assignment that is ours in the file, but not
 * in memory, comes from a commit whose answer was lost: it is free to be acquired again. */
static enum semel_balance_holder read_ownership(struct semel_local *local,
						struct semel_local_assignment *assignment,
						struct membership *membership)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_ASSIGNMENTS_READ;
	const char *owner = owner_in(local, rows, 5);
	assignment->ownership = (struct semel_local_ownership){
		.epoch = semel_local_int(local, rows, 0),
		.cursor = semel_local_int(local, rows, 1),
		.fetched_to = semel_local_int(local, rows, 2),
		.delayed_fetched_to = semel_local_int(local, rows, 3),
		.abandoned = owner != NULL,
	};
	bool ours = is_ours(local, owner);
	if (assignment->owned && (!ours || assignment->epoch != assignment->ownership.epoch))
		semel_local_assignment_end(local, assignment);
	if (assignment->owned)
		return SEMEL_BALANCE_MINE;
	if (ours || !is_alive_cached(local, membership, owner, semel_local_int(local, rows, 4)))
		return SEMEL_BALANCE_FREE;
	return SEMEL_BALANCE_OTHER;
}

static semel_status read_assignments(struct semel_local *local,
				     struct semel_local_subscription *subscription,
				     struct membership *membership, semel_error *error)
{
	struct semel_balance_part views[SEMEL_LOCAL_PARTITIONS_MAX] = { 0 };
	enum semel_balance_move moves[SEMEL_LOCAL_PARTITIONS_MAX];
	uint32_t count = 0, partitions = subscription->topic->partitions;
	bool row = true;
	semel_status status = semel_local_bind(local, SEMEL_LOCAL_ASSIGNMENTS_READ,
					       SEMEL_LOCAL_INTS(subscription->number), error);
	if (status != SEMEL_OK)
		return status;
	while (row) {
		status = semel_local_next(local, SEMEL_LOCAL_ASSIGNMENTS_READ, &row, error);
		if (status != SEMEL_OK)
			return status;
		if (!row || count == partitions)
			continue;
		struct semel_local_assignment *assignment = &subscription->assignments[count];
		views[count].holder = read_ownership(local, assignment, membership);
		views[count].in_flight = !semel_local_assignment_is_idle(assignment);
		count++;
	}
	if (!membership->member)
		return SEMEL_OK;
	uint32_t quota = semel_balance_quota(partitions, membership->members, membership->rank);
	semel_balance_decide(views, count, quota, moves);
	for (uint32_t i = 0; i < count; i++) {
		subscription->assignments[i].ownership.move = moves[i];
		subscription->assignments[i].releasing = moves[i] == SEMEL_BALANCE_DRAIN;
	}
	return SEMEL_OK;
}

static semel_status read_membership(struct semel_local *local,
				    struct semel_local_subscription *subscription,
				    struct membership *membership, semel_error *error)
{
	memset(membership, 0, sizeof(*membership));
	semel_status status = read_members(local, subscription->number, membership, error);
	if (status != SEMEL_OK)
		return status;
	return read_assignments(local, subscription, membership, error);
}

static bool needs_write(const struct semel_local_subscription *subscription,
			const struct membership *membership)
{
	if (!membership->member || membership->dead_count > 0)
		return true;
	for (uint32_t i = 0; i < subscription->topic->partitions; i++) {
		enum semel_balance_move move = subscription->assignments[i].ownership.move;
		if (move == SEMEL_BALANCE_TAKE || move == SEMEL_BALANCE_RELEASE)
			return true;
	}
	return false;
}

/* Reads only. */
static semel_status read_all_memberships(struct semel_local *local, bool *write_needed_out,
					 semel_error *error)
{
	struct membership membership;
	*write_needed_out = false;
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		status = read_membership(local, &local->subscriptions[i], &membership, error);
		if (status != SEMEL_OK)
			break;
		*write_needed_out =
			*write_needed_out || needs_write(&local->subscriptions[i], &membership);
	}
	semel_local_rollback(local);
	return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

static semel_status acquire(struct semel_local *local, int64_t subscription, uint32_t partition,
			    semel_error *error)
{
	semel_status status = semel_local_bind(local, SEMEL_LOCAL_ASSIGNMENT_ACQUIRE,
					       SEMEL_LOCAL_INTS(subscription, partition), error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_ASSIGNMENT_ACQUIRE, 3,
			      semel_text_of(local->owner));
	return semel_local_run(local, SEMEL_LOCAL_ASSIGNMENT_ACQUIRE, error);
}

static semel_status release(struct semel_local *local, int64_t subscription, uint32_t partition,
			    const struct semel_local_assignment *assignment, semel_error *error)
{
	int64_t delayed_to_ms = assignment->delayed_count > 0
					? semel_now_ms(local->env)
					: assignment->delayed_redelivered_to_ms;
	int64_t fetched_to = assignment->read > assignment->redelivered_to
				     ? assignment->read
				     : assignment->redelivered_to;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_ASSIGNMENT_RELEASE,
				 SEMEL_LOCAL_INTS(subscription, partition, assignment->epoch,
						  fetched_to, delayed_to_ms),
				 error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_ASSIGNMENT_RELEASE, 6,
			      semel_text_of(local->owner));
	return semel_local_run(local, SEMEL_LOCAL_ASSIGNMENT_RELEASE, error);
}

static semel_status write_changes(struct semel_local *local,
				  const struct semel_local_subscription *subscription,
				  const struct membership *membership, semel_error *error)
{
	for (uint32_t i = 0; i < membership->dead_count; i++) {
		semel_status status =
			semel_local_run_ints(local, SEMEL_LOCAL_MEMBER_REMOVE,
					     SEMEL_LOCAL_INTS(membership->dead[i]), error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < subscription->topic->partitions; i++) {
		const struct semel_local_assignment *assignment = &subscription->assignments[i];
		semel_status status = SEMEL_OK;
		if (assignment->ownership.move == SEMEL_BALANCE_TAKE)
			status = acquire(local, subscription->number, i, error);
		else if (assignment->ownership.move == SEMEL_BALANCE_RELEASE)
			status = release(local, subscription->number, i, assignment, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Updates the in-memory state after the commit. */
static void start_assignment(struct semel_local *local, struct semel_local_assignment *assignment)
{
	const struct semel_local_ownership *ownership = &assignment->ownership;
	semel_local_assignment_end(local, assignment);
	assignment->owned = true;
	assignment->epoch = ownership->epoch + 1;
	assignment->cursor = assignment->read = ownership->cursor;
	assignment->redelivered_to = ownership->fetched_to;
	assignment->maybe_redelivered = ownership->abandoned ? local->prefetch : 0;
	assignment->delayed_redelivered_to_ms =
		ownership->abandoned ? semel_now_ms(local->env) : ownership->delayed_fetched_to;
	assignment->backward = SEMEL_PLANTED("order-ignored-on-hand-over") && ownership->epoch > 0;
}

static void apply_changes(struct semel_local *local, struct semel_local_subscription *subscription)
{
	for (uint32_t i = 0; i < subscription->topic->partitions; i++) {
		if (subscription->assignments[i].ownership.move == SEMEL_BALANCE_TAKE)
			start_assignment(local, &subscription->assignments[i]);
		if (subscription->assignments[i].ownership.move == SEMEL_BALANCE_RELEASE)
			semel_local_assignment_end(local, &subscription->assignments[i]);
	}
}

semel_status semel_local_heartbeat(struct semel_local *local, semel_error *error)
{
	int64_t expires_at_ms = semel_now_ms(local->env) + local->lease_ms;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		semel_status status = semel_local_bind(
			local, SEMEL_LOCAL_MEMBER_PUT,
			SEMEL_LOCAL_INTS(local->subscriptions[i].number, expires_at_ms), error);
		if (status != SEMEL_OK)
			return status;
		semel_local_bind_text(local, SEMEL_LOCAL_MEMBER_PUT, 3,
				      semel_text_of(local->owner));
		status = semel_local_run(local, SEMEL_LOCAL_MEMBER_PUT, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

bool semel_local_heartbeat_is_due(const struct semel_local *local)
{
	return !local->member ||
	       semel_steady_ms(local->env) - local->heartbeat_at_ms >= local->lease_ms / 3;
}

static semel_status write_all_changes(struct semel_local *local, semel_error *error)
{
	struct membership membership;
	semel_status status = semel_local_heartbeat(local, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		status = read_membership(local, &local->subscriptions[i], &membership, error);
		if (status != SEMEL_OK)
			return status;
		status = write_changes(local, &local->subscriptions[i], &membership, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status maintain_now(struct semel_local *local, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	int64_t now_ms = semel_steady_ms(local->env);
	status = write_all_changes(local, error);
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		return status;
	}
	status = semel_local_commit(local, error);
	if (status != SEMEL_OK)
		return status;
	local->member = true;
	local->heartbeat_at_ms = now_ms;
	for (uint32_t i = 0; i < local->subscription_count; i++)
		apply_changes(local, &local->subscriptions[i]);
	return SEMEL_OK;
}

semel_status semel_local_maintain(struct semel_local *local, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(local->env);
	bool write_needed = semel_local_heartbeat_is_due(local);
	if (!write_needed && now_ms - local->checked_at_ms < CHECK_EVERY_MS)
		return SEMEL_OK;
	if (!write_needed) {
		semel_status status = read_all_memberships(local, &write_needed, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (write_needed) {
		semel_status status = maintain_now(local, error);
		if (status != SEMEL_OK)
			return status;
	}
	local->checked_at_ms = now_ms;
	return SEMEL_OK;
}

/* In an open write transaction. */
static semel_status write_leave(struct semel_local *local)
{
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_MEMBER_LEAVE, SEMEL_LOCAL_NO_INTS, NULL);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_MEMBER_LEAVE, 1, semel_text_of(local->owner));
	status = semel_local_run(local, SEMEL_LOCAL_MEMBER_LEAVE, NULL);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			if (!subscription->assignments[p].owned)
				continue;
			status = release(local, subscription->number, p,
					 &subscription->assignments[p], NULL);
			if (status != SEMEL_OK)
				return status;
		}
	}
	return SEMEL_OK;
}

void semel_local_leave(struct semel_local *local)
{
	if (!local->member || semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, NULL) != SEMEL_OK)
		return;
	if (write_leave(local) == SEMEL_OK)
		(void)semel_local_commit(local, NULL);
	else
		semel_local_rollback(local);
}
