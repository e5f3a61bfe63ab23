/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/lanes.h"

#include "base/error.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

enum semel_lease_look semel_lease_look(const struct semel_lease *lease, const char *me,
				       int64_t now_ms, bool owner_is_dead)
{
	if (strcmp(lease->owner, me) == 0)
		return SEMEL_LEASE_MINE;
	if (lease->owner[0] == '\0' || owner_is_dead || lease->expires_at_ms <= now_ms)
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
	lanes->count = store->driver->lane_count(store);
	lanes->lanes = calloc((size_t)lanes->count, sizeof *lanes->lanes);
	if (!lanes->lanes)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for %d lanes",
				       lanes->count);
	return SEMEL_OK;
}

static void lose(struct semel_lane *lane)
{
	if (lane->mine)
		semel_logf(SEMEL_LOG_WARN, "lane %d has moved to another relay", lane->lease.lane);
	lane->mine = false;
}

static void start_reading(struct semel_lane *lane)
{
	lane->mine = true;
	lane->cursor = lane->lease.low_seq;
}

/* The row as it is in the store: keep it, take it, or leave it to its owner. */
static semel_status tend_lane(struct semel_lanes *lanes, semel_store *store,
			      struct semel_lane *lane, const struct semel_lease *found,
			      semel_error *error)
{
	int64_t expiry_ms = semel_lanes_expiry(lanes);
	bool dead = semel_owner_is_dead(found->owner);
	semel_status status = SEMEL_OK;

	switch (semel_lease_look(found, lanes->owner, semel_now_ms(lanes->env), dead)) {
	case SEMEL_LEASE_TAKEN:
		lose(lane);
		break;
	case SEMEL_LEASE_FREE:
		lose(lane);
		lane->lease = *found;
		status = store->driver->lease_take(store, &lane->lease, lanes->owner, expiry_ms,
						   error);
		if (status == SEMEL_OK)
			start_reading(lane);
		break;
	case SEMEL_LEASE_MINE:
		if (!lane->mine) {
			lane->lease = *found;
			start_reading(lane);
		}
		status = store->driver->lease_renew(store, &lane->lease, expiry_ms, error);
		if (status == SEMEL_LEASE_LOST)
			lose(lane);
		break;
	}
	return status == SEMEL_LEASE_LOST ? SEMEL_OK : status;
}

semel_status semel_lanes_tend(struct semel_lanes *lanes, semel_store *store, semel_error *error)
{
	int64_t steady_ms = semel_steady_ms(lanes->env);
	if (steady_ms < lanes->tend_at_ms)
		return SEMEL_OK;

	struct semel_lease *found = calloc((size_t)lanes->count, sizeof *found);
	if (!found)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the leases");

	semel_status status = store->driver->lease_list(store, found, error);
	for (int32_t i = 0; status == SEMEL_OK && i < lanes->count; i++)
		status = tend_lane(lanes, store, &lanes->lanes[i], &found[i], error);
	if (status == SEMEL_OK)
		lanes->tend_at_ms = steady_ms + lanes->lease_ms / 3;
	free(found);
	return status;
}

void semel_lanes_rewind(struct semel_lanes *lanes)
{
	for (int32_t i = 0; i < lanes->count; i++)
		lanes->lanes[i].cursor = lanes->lanes[i].lease.low_seq;
	lanes->tend_at_ms = 0;
}

void semel_lanes_close(struct semel_lanes *lanes, semel_store *store)
{
	for (int32_t i = 0; store && i < lanes->count; i++)
		if (lanes->lanes[i].mine)
			store->driver->lease_release(store, &lanes->lanes[i].lease);
	free(lanes->lanes);
	lanes->lanes = NULL;
	lanes->count = 0;
}
