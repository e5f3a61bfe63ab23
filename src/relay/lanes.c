/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/lanes.h"

#include "base/balance.h"
#include "base/error.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One lane as the store has it, and what is done with it. */
struct plan {
	struct semel_lease lease;
	struct semel_balance_part view;
	enum semel_balance_move move;
};

enum semel_lease_state semel_lease_state(const struct semel_lease *lease, const char *me,
					 bool owner_is_gone)
{
	if (strcmp(lease->owner, me) == 0)
		return SEMEL_LEASE_MINE;
	if (lease->owner[0] == '\0' || owner_is_gone)
		return SEMEL_LEASE_FREE;
	return SEMEL_LEASE_TAKEN;
}

int64_t semel_lanes_expiry(const struct semel_lanes *lanes)
{
	return semel_now_ms(lanes->env) + lanes->lease_ms;
}

semel_status semel_lanes_open(struct semel_lanes *lanes, semel_store *store,
			      const struct semel_env *env, int64_t lease_ms, semel_error *error)
{
	*lanes = (struct semel_lanes){ .env = env, .lease_ms = lease_ms };
	semel_owner_make(env, lanes->owner);
	lanes->count = store->driver->outbox->lane_count(store);
	assert(lanes->count > 0 && lanes->count <= SEMEL_LANES_MAX);
	lanes->lanes = calloc((size_t)lanes->count, sizeof *lanes->lanes);
	if (!lanes->lanes)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for %d lanes",
				       lanes->count);
	return SEMEL_OK;
}

bool semel_lanes_has_all(const struct semel_lanes *lanes)
{
	bool all = true;
	for (int32_t i = 0; i < lanes->count; i++)
		all = all && lanes->lanes[i].mine;
	return all;
}

static void lose_lane(struct semel_lanes *lanes, struct semel_lane *lane)
{
	if (lane->mine) {
		semel_log_detail(SEMEL_LOG_WARN, "lost a lane to another relay", "lane %d",
				 lane->lease.lane);
		semel_series_add(semel_series(SEMEL_METRIC_LEASES_LOST, NULL, NULL), 1);
		lanes->generation++;
	}
	lane->mine = false;
}

static void start_reading(struct semel_lane *lane)
{
	lane->mine = true;
	lane->cursor = lane->read_to = lane->lease.low_seq;
}

static semel_status take_lane(struct semel_lanes *lanes, semel_store *store,
			      struct semel_lane *lane, const struct semel_lease *found,
			      semel_error *error)
{
	lane->lease = *found;
	lane->lease.streamed = lanes->all_or_none;
	semel_status status = store->driver->outbox->lease_acquire(
		store, &lane->lease, lanes->owner, semel_lanes_expiry(lanes), error);
	if (status != SEMEL_OK)
		return status;
	start_reading(lane);
	lanes->generation++;
	return SEMEL_OK;
}

/* Where the store has moved the low mark back to rows that were skipped, reading starts there. */
static semel_status renew_lane(struct semel_lanes *lanes, semel_store *store,
			       struct semel_lane *lane, semel_error *error)
{
	int64_t epoch = lane->lease.epoch;
	lane->lease.streamed = lanes->all_or_none;
	semel_status status = store->driver->outbox->lease_renew(store, &lane->lease,
								 semel_lanes_expiry(lanes), error);
	if (status == SEMEL_LEASE_LOST)
		lose_lane(lanes, lane);
	if (status != SEMEL_OK || lane->lease.epoch == epoch)
		return status;
	semel_log_detail(SEMEL_LOG_WARN,
			 "found unpublished events below the low mark, reading the lane again",
			 "lane %d from %lld", lane->lease.lane, (long long)lane->lease.low_seq);
	start_reading(lane);
	lanes->generation++;
	return SEMEL_OK;
}

static semel_status keep_lane(struct semel_lanes *lanes, semel_store *store,
			      struct semel_lane *lane, const struct semel_lease *found,
			      semel_error *error)
{
	if (!lane->mine) {
		lane->lease = *found;
		start_reading(lane);
		lanes->generation++;
	}
	/* Nothing is in flight: every row up to the cursor is marked. */
	if (lane->in_flight == 0 && lane->cursor > lane->lease.low_seq)
		lane->lease.low_seq = lane->cursor;
	return renew_lane(lanes, store, lane, error);
}

static void release_lane(struct semel_lanes *lanes, semel_store *store, struct semel_lane *lane)
{
	store->driver->outbox->lease_release(store, &lane->lease);
	lane->mine = false;
	lanes->generation++;
}

static enum semel_balance_holder holder_of(const struct semel_lanes *lanes,
					   const struct semel_lease *lease)
{
	bool gone =
		semel_owner_is_gone(lease->owner, lease->expires_at_ms, semel_now_ms(lanes->env));

	switch (semel_lease_state(lease, lanes->owner, gone)) {
	case SEMEL_LEASE_MINE:
		return SEMEL_BALANCE_MINE;
	case SEMEL_LEASE_FREE:
		return SEMEL_BALANCE_FREE;
	case SEMEL_LEASE_TAKEN:
		break;
	}
	return SEMEL_BALANCE_OTHER;
}

static semel_status apply_plan(struct semel_lanes *lanes, semel_store *store,
			       struct semel_lane *lane, const struct plan *plan, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (plan->view.holder != SEMEL_BALANCE_MINE)
		lose_lane(lanes, lane);
	lane->leaving = plan->move == SEMEL_BALANCE_DRAIN;
	if (plan->move == SEMEL_BALANCE_TAKE)
		status = take_lane(lanes, store, lane, &plan->lease, error);
	else if (plan->move == SEMEL_BALANCE_RELEASE)
		release_lane(lanes, store, lane);
	else if (plan->view.holder == SEMEL_BALANCE_MINE)
		status = keep_lane(lanes, store, lane, &plan->lease, error);
	return status == SEMEL_LEASE_LOST ? SEMEL_OK : status;
}

static void decide(const struct semel_lanes *lanes, struct plan *plans,
		   const struct semel_relay_group *group)
{
	uint32_t count = (uint32_t)lanes->count;
	struct semel_balance_part views[SEMEL_LANES_MAX];
	enum semel_balance_move moves[SEMEL_LANES_MAX];

	for (uint32_t i = 0; i < count; i++) {
		plans[i].view = (struct semel_balance_part){
			.holder = holder_of(lanes, &plans[i].lease),
			.in_flight = lanes->lanes[i].in_flight > 0,
		};
		views[i] = plans[i].view;
	}
	semel_balance_decide(views, count, semel_balance_quota(count, group->members, group->rank),
			     moves);
	for (uint32_t i = 0; i < count; i++)
		plans[i].move = moves[i];
}

/* With the change stream: all lanes when no other relay owns one, otherwise none. */
static void decide_whole(const struct semel_lanes *lanes, struct plan *plans)
{
	bool taken = false;

	for (int32_t i = 0; i < lanes->count; i++) {
		plans[i].view.holder = holder_of(lanes, &plans[i].lease);
		taken = taken || plans[i].view.holder == SEMEL_BALANCE_OTHER;
	}
	for (int32_t i = 0; i < lanes->count; i++) {
		enum semel_balance_holder holder = plans[i].view.holder;
		plans[i].move = SEMEL_BALANCE_KEEP;
		if (taken && holder == SEMEL_BALANCE_MINE)
			plans[i].move = SEMEL_BALANCE_RELEASE;
		if (!taken && holder == SEMEL_BALANCE_FREE)
			plans[i].move = SEMEL_BALANCE_TAKE;
	}
}

/* A relay that owns all lanes or none does not join the relay group. */
static semel_status decide_all(struct semel_lanes *lanes, semel_store *store, struct plan *plans,
			       semel_error *error)
{
	struct semel_relay_group group = { .members = 1 };

	if (lanes->all_or_none) {
		decide_whole(lanes, plans);
		return SEMEL_OK;
	}
	semel_status status =
		store->driver->outbox->relay_join(store, lanes->owner, semel_now_ms(lanes->env),
						  semel_lanes_expiry(lanes), &group, error);
	if (status != SEMEL_OK)
		return status;
	decide(lanes, plans, &group);
	return SEMEL_OK;
}

semel_status semel_lanes_maintain(struct semel_lanes *lanes, semel_store *store, semel_error *error)
{
	int64_t steady_ms = semel_steady_ms(lanes->env);
	struct semel_lease found[SEMEL_LANES_MAX];
	struct plan plans[SEMEL_LANES_MAX] = { 0 };

	if (steady_ms < lanes->maintain_at_ms)
		return SEMEL_OK;
	semel_status status = store->driver->outbox->lease_list(store, found, error);
	if (status != SEMEL_OK)
		return status;
	for (int32_t i = 0; i < lanes->count; i++)
		plans[i].lease = found[i];
	status = decide_all(lanes, store, plans, error);
	if (status != SEMEL_OK)
		return status;
	for (int32_t i = 0; i < lanes->count; i++) {
		status = apply_plan(lanes, store, &lanes->lanes[i], &plans[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	lanes->maintain_at_ms = lanes->renew_at_ms = steady_ms + lanes->lease_ms / 3;
	return SEMEL_OK;
}

semel_status semel_lanes_renew(struct semel_lanes *lanes, semel_store *store, semel_error *error)
{
	int64_t steady_ms = semel_steady_ms(lanes->env);

	if (steady_ms < lanes->renew_at_ms)
		return SEMEL_OK;
	for (int32_t i = 0; i < lanes->count; i++) {
		struct semel_lane *lane = &lanes->lanes[i];
		if (!lane->mine)
			continue;
		semel_status status = renew_lane(lanes, store, lane, error);
		if (status != SEMEL_OK && status != SEMEL_LEASE_LOST)
			return status;
	}
	lanes->renew_at_ms = steady_ms + lanes->lease_ms / 3;
	return SEMEL_OK;
}

void semel_lanes_rewind(struct semel_lanes *lanes)
{
	for (int32_t i = 0; i < lanes->count; i++) {
		lanes->lanes[i].mine = false;
		lanes->lanes[i].in_flight = 0;
	}
	lanes->maintain_at_ms = 0;
}

void semel_lanes_close(struct semel_lanes *lanes, semel_store *store)
{
	for (int32_t i = 0; store && i < lanes->count; i++)
		if (lanes->lanes[i].mine)
			store->driver->outbox->lease_release(store, &lanes->lanes[i].lease);
	if (store && lanes->count > 0 && !lanes->all_or_none)
		store->driver->outbox->relay_leave(store, lanes->owner);
	free(lanes->lanes);
	lanes->lanes = NULL;
	lanes->count = 0;
}
