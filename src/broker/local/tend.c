/* SPDX-License-Identifier: Apache-2.0 */
/* Members and shares: who reads which partition of a subscription.
 *
 * - A share belongs to the owner and epoch in its row; every change of a cursor is checked against
 *   both. A new owner makes the epoch one higher, so an old one can settle nothing any more.
 * - An owner lives while its member row is renewed. It is dead when that has run out, or at once
 *   when its process is known to be gone from this machine.
 * - Looking is cheap and reads only; the write transaction, which looks again, comes when something
 *   is to be done: a heartbeat, a dead member, a share to take or to give.
 * - What this process believes to hold changes only after the commit.
 */
#include "base/balance.h"
#include "base/error.h"
#include "broker/local/local.h"
#include "fault/plant.h"

#include <stdio.h>
#include <string.h>

#define LOOK_EVERY_MS 50
#define DEAD_MAX      64

/* One subscription, as the file has it now. */
struct survey {
	uint32_t members, rank; /* living ones; our place among them */
	bool member;            /* we are there */
	int64_t dead[DEAD_MAX]; /* members to be taken out */
	uint32_t dead_count;
	char asked[SEMEL_OWNER_SIZE]; /* the last owner asked about, and the answer */
	bool asked_lives;
};

static bool is_ours(const struct semel_local *local, const char *owner)
{
	return owner != NULL && strcmp(owner, local->owner) == 0;
}

static bool is_alive(const struct semel_local *local, const char *owner, int64_t expires_at_ms)
{
	return owner != NULL && expires_at_ms > semel_now_ms(local->env) &&
	       !semel_owner_is_dead(owner);
}

/* Neighbouring shares mostly have one owner, and asking the system is not free. */
static bool is_alive_asked_once(const struct semel_local *local, struct survey *survey,
				const char *owner, int64_t expires_at_ms)
{
	if (owner == NULL)
		return false;
	if (strcmp(owner, survey->asked) != 0) {
		snprintf(survey->asked, sizeof(survey->asked), "%s", owner);
		survey->asked_lives = is_alive(local, owner, expires_at_ms);
	}
	return survey->asked_lives;
}

static const char *owner_in(const struct semel_local *local, enum semel_local_sql which, int column)
{
	return (const char *)sqlite3_column_text(local->statements[which], column);
}

/* ---- looking -------------------------------------------------------------------------------- */

static void note_member(const struct semel_local *local, struct survey *survey)
{
	const char *owner = owner_in(local, SEMEL_LOCAL_MEMBERS, 2);
	if (is_ours(local, owner)) {
		survey->member = true;
		survey->rank = survey->members++;
	} else if (is_alive(local, owner, semel_local_int(local, SEMEL_LOCAL_MEMBERS, 1))) {
		survey->members++;
	} else if (survey->dead_count < DEAD_MAX) {
		survey->dead[survey->dead_count++] = semel_local_int(local, SEMEL_LOCAL_MEMBERS, 0);
	}
}

static semel_status look_at_members(struct semel_local *local, int64_t subscription,
				    struct survey *survey, semel_error *error)
{
	bool row = true;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_MEMBERS, SEMEL_LOCAL_INTS(subscription), error);
	while (status == SEMEL_OK && row) {
		status = semel_local_next(local, SEMEL_LOCAL_MEMBERS, &row, error);
		if (status == SEMEL_OK && row)
			note_member(local, survey);
	}
	return status;
}

/* Fills in the seat and returns whose it is. A share that is ours in the file, but not in memory,
 * comes from a commit whose answer was lost: it is free to be taken anew. */
static enum semel_balance_holder note_share(struct semel_local *local,
					    struct semel_local_share *share, struct survey *survey)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_SHARES;
	const char *owner = owner_in(local, rows, 5);
	share->seat = (struct semel_local_seat){
		.epoch = semel_local_int(local, rows, 0),
		.cursor = semel_local_int(local, rows, 1),
		.fetched_to = semel_local_int(local, rows, 2),
		.delayed_fetched_to = semel_local_int(local, rows, 3),
		.abandoned = owner != NULL,
	};
	bool ours = is_ours(local, owner);
	if (share->held && (!ours || share->epoch != share->seat.epoch))
		semel_local_share_drop(local, share);
	if (share->held)
		return SEMEL_BALANCE_MINE;
	if (ours || !is_alive_asked_once(local, survey, owner, semel_local_int(local, rows, 4)))
		return SEMEL_BALANCE_FREE;
	return SEMEL_BALANCE_OTHER;
}

static semel_status look_at_shares(struct semel_local *local,
				   struct semel_local_subscription *subscription,
				   struct survey *survey, semel_error *error)
{
	struct semel_balance_part views[SEMEL_LOCAL_PARTITIONS_MAX] = { 0 };
	enum semel_balance_move moves[SEMEL_LOCAL_PARTITIONS_MAX];
	uint32_t count = 0, partitions = subscription->topic->partitions;
	bool row = true;
	semel_status status = semel_local_bind(local, SEMEL_LOCAL_SHARES,
					       SEMEL_LOCAL_INTS(subscription->number), error);
	while (status == SEMEL_OK && row) {
		status = semel_local_next(local, SEMEL_LOCAL_SHARES, &row, error);
		if (status != SEMEL_OK || !row || count == partitions)
			continue;
		struct semel_local_share *share = &subscription->shares[count];
		views[count].holder = note_share(local, share, survey);
		views[count].in_flight = !semel_local_share_is_idle(share);
		count++;
	}
	if (status != SEMEL_OK || !survey->member)
		return status;
	uint32_t fair = semel_balance_quota(partitions, survey->members, survey->rank);
	semel_balance_decide(views, count, fair, moves);
	for (uint32_t i = 0; i < count; i++) {
		subscription->shares[i].seat.move = moves[i];
		subscription->shares[i].leaving = moves[i] == SEMEL_BALANCE_DRAIN;
	}
	return SEMEL_OK;
}

static semel_status look(struct semel_local *local, struct semel_local_subscription *subscription,
			 struct survey *survey, semel_error *error)
{
	memset(survey, 0, sizeof(*survey));
	semel_status status = look_at_members(local, subscription->number, survey, error);
	if (status == SEMEL_OK)
		status = look_at_shares(local, subscription, survey, error);
	return status;
}

static bool is_something_to_do(const struct semel_local_subscription *subscription,
			       const struct survey *survey)
{
	if (!survey->member || survey->dead_count > 0)
		return true;
	for (uint32_t i = 0; i < subscription->topic->partitions; i++) {
		enum semel_balance_move move = subscription->shares[i].seat.move;
		if (move == SEMEL_BALANCE_TAKE || move == SEMEL_BALANCE_RELEASE)
			return true;
	}
	return false;
}

/* Reads only. */
static semel_status look_at_all(struct semel_local *local, bool *to_do_out, semel_error *error)
{
	struct survey survey;
	*to_do_out = false;
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < local->subscription_count && status == SEMEL_OK; i++) {
		status = look(local, &local->subscriptions[i], &survey, error);
		*to_do_out = *to_do_out || is_something_to_do(&local->subscriptions[i], &survey);
	}
	semel_local_rollback(local);
	return status;
}

/* ---- acting --------------------------------------------------------------------------------- */

static semel_status take(struct semel_local *local, int64_t subscription, uint32_t partition,
			 semel_error *error)
{
	semel_status status = semel_local_bind(local, SEMEL_LOCAL_SHARE_TAKE,
					       SEMEL_LOCAL_INTS(subscription, partition), error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_SHARE_TAKE, 3, semel_text_of(local->owner));
	return semel_local_run(local, SEMEL_LOCAL_SHARE_TAKE, error);
}

static semel_status give(struct semel_local *local, int64_t subscription, uint32_t partition,
			 const struct semel_local_share *share, semel_error *error)
{
	int64_t delayed_to_ms =
		share->delayed_count > 0 ? semel_now_ms(local->env) : share->delayed_seen_to_ms;
	int64_t fetched_to = share->read > share->seen_to ? share->read : share->seen_to;
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_SHARE_GIVE,
		SEMEL_LOCAL_INTS(subscription, partition, share->epoch, fetched_to, delayed_to_ms),
		error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_SHARE_GIVE, 6, semel_text_of(local->owner));
	return semel_local_run(local, SEMEL_LOCAL_SHARE_GIVE, error);
}

static semel_status act(struct semel_local *local,
			const struct semel_local_subscription *subscription,
			const struct survey *survey, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < survey->dead_count && status == SEMEL_OK; i++)
		status = semel_local_run_ints(local, SEMEL_LOCAL_MEMBER_REMOVE,
					      SEMEL_LOCAL_INTS(survey->dead[i]), error);
	for (uint32_t i = 0; i < subscription->topic->partitions && status == SEMEL_OK; i++) {
		if (subscription->shares[i].seat.move == SEMEL_BALANCE_TAKE)
			status = take(local, subscription->number, i, error);
		if (subscription->shares[i].seat.move == SEMEL_BALANCE_RELEASE)
			status = give(local, subscription->number, i, &subscription->shares[i],
				      error);
	}
	return status;
}

/* After the commit: memory follows the file. */
static void adopt(struct semel_local *local, struct semel_local_share *share)
{
	const struct semel_local_seat *seat = &share->seat;
	semel_local_share_drop(local, share);
	share->held = true;
	share->epoch = seat->epoch + 1;
	share->cursor = share->read = seat->cursor;
	share->seen_to = seat->fetched_to;
	share->suspects = seat->abandoned ? local->prefetch : 0;
	share->delayed_seen_to_ms =
		seat->abandoned ? semel_now_ms(local->env) : seat->delayed_fetched_to;
	share->backward = SEMEL_PLANTED("order-ignored-on-hand-over") && seat->epoch > 0;
}

static void follow(struct semel_local *local, struct semel_local_subscription *subscription)
{
	for (uint32_t i = 0; i < subscription->topic->partitions; i++) {
		if (subscription->shares[i].seat.move == SEMEL_BALANCE_TAKE)
			adopt(local, &subscription->shares[i]);
		if (subscription->shares[i].seat.move == SEMEL_BALANCE_RELEASE)
			semel_local_share_drop(local, &subscription->shares[i]);
	}
}

semel_status semel_local_beat(struct semel_local *local, semel_error *error)
{
	semel_status status = SEMEL_OK;
	int64_t expires_at_ms = semel_now_ms(local->env) + local->lease_ms;
	for (uint32_t i = 0; i < local->subscription_count && status == SEMEL_OK; i++) {
		status = semel_local_bind(
			local, SEMEL_LOCAL_MEMBER_PUT,
			SEMEL_LOCAL_INTS(local->subscriptions[i].number, expires_at_ms), error);
		if (status != SEMEL_OK)
			break;
		semel_local_bind_text(local, SEMEL_LOCAL_MEMBER_PUT, 3,
				      semel_text_of(local->owner));
		status = semel_local_run(local, SEMEL_LOCAL_MEMBER_PUT, error);
	}
	return status;
}

bool semel_local_beat_is_due(const struct semel_local *local)
{
	return !local->member ||
	       semel_steady_ms(local->env) - local->beat_at_ms >= local->lease_ms / 3;
}

static semel_status act_on_all(struct semel_local *local, semel_error *error)
{
	struct survey survey;
	semel_status status = semel_local_beat(local, error);
	for (uint32_t i = 0; i < local->subscription_count && status == SEMEL_OK; i++) {
		status = look(local, &local->subscriptions[i], &survey, error);
		if (status == SEMEL_OK)
			status = act(local, &local->subscriptions[i], &survey, error);
	}
	return status;
}

static semel_status tend_now(struct semel_local *local, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	int64_t now_ms = semel_steady_ms(local->env);
	status = act_on_all(local, error);
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		return status;
	}
	status = semel_local_commit(local, error);
	if (status != SEMEL_OK)
		return status;
	local->member = true;
	local->beat_at_ms = now_ms;
	for (uint32_t i = 0; i < local->subscription_count; i++)
		follow(local, &local->subscriptions[i]);
	return SEMEL_OK;
}

semel_status semel_local_tend(struct semel_local *local, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(local->env);
	bool to_do = semel_local_beat_is_due(local);
	if (!to_do && now_ms - local->look_at_ms < LOOK_EVERY_MS)
		return SEMEL_OK;
	semel_status status = SEMEL_OK;
	if (!to_do)
		status = look_at_all(local, &to_do, error);
	if (status == SEMEL_OK && to_do)
		status = tend_now(local, error);
	if (status == SEMEL_OK)
		local->look_at_ms = now_ms;
	return status;
}

void semel_local_leave(struct semel_local *local)
{
	if (!local->member || semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, NULL) != SEMEL_OK)
		return;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_MEMBER_LEAVE, SEMEL_LOCAL_NO_INTS, NULL);
	if (status == SEMEL_OK) {
		semel_local_bind_text(local, SEMEL_LOCAL_MEMBER_LEAVE, 1,
				      semel_text_of(local->owner));
		status = semel_local_run(local, SEMEL_LOCAL_MEMBER_LEAVE, NULL);
	}
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++)
			if (status == SEMEL_OK && subscription->shares[p].held)
				status = give(local, subscription->number, p,
					      &subscription->shares[p], NULL);
	}
	if (status == SEMEL_OK)
		(void)semel_local_commit(local, NULL);
	else
		semel_local_rollback(local);
}
