/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/stuck.h"

#include "base/error.h"
#include "fault/plant.h"

#include <stdio.h>

/* ---- the rule -------------------------------------------------------------------------------- */

static bool is_abandoned(const struct semel_wait *wait, int64_t now_ms)
{
	char owner[SEMEL_OWNER_SIZE];

	snprintf(owner, sizeof owner, "%s", semel_text_shown_or(wait->owner, ""));
	return semel_owner_is_gone(owner, wait->due_ms, now_ms); /* due: the end of its lease */
}

/* The fix for a row that waits behind a hold, or without one. */
static struct semel_wait_fix fix_held(const struct semel_wait *wait)
{
	struct semel_wait_fix nothing = { SEMEL_FIX_NONE, { NULL, 0 } };
	struct semel_wait_fix release = { SEMEL_FIX_RELEASE, { NULL, 0 } };
	struct semel_wait_fix head = { SEMEL_FIX_RESEND, wait->head_id };

	switch (wait->state) {
	case SEMEL_HOLD_NONE:
		return release;
	case SEMEL_HOLD_RETRY:
		return head;
	case SEMEL_HOLD_DEAD:
		return wait->letter == SEMEL_DEAD_PENDING                      ? nothing
		       : wait->letter == SEMEL_DEAD_REPLAYED && !wait->settled ? head
									       : release;
	case SEMEL_HOLD_GAP:
	case SEMEL_HOLD_RELEASED:
		break;
	}
	return nothing;
}

struct semel_wait_fix semel_wait_find_fix(const struct semel_wait *wait, int64_t now_ms)
{
	struct semel_wait_fix itself = { SEMEL_FIX_RESEND, wait->event_id };

	switch (wait->kind) {
	case SEMEL_WAIT_PARKED:
	case SEMEL_WAIT_HOLD:
		return fix_held(wait);
	case SEMEL_WAIT_REPLAY:
		return itself;
	case SEMEL_WAIT_CLAIM:
		if (is_abandoned(wait, now_ms))
			return itself;
		break;
	}
	return (struct semel_wait_fix){ SEMEL_FIX_NONE, { NULL, 0 } };
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Queries twice, because a copy may move from one queue to another during the query. At a broker
 * with the function count_in_flight, copies in flight are not in the queues; there the consumers'
 * own reports count. */
semel_status semel_stuck_check_is_gone(const struct semel_stuck_check *stuck, struct semel_text id,
				       bool *gone_out, semel_error *error)
{
	struct semel_broker *broker = stuck->broker;
	const char *id_text = semel_text_to_string(id);
	bool waiting = false;

	*gone_out = false;
	if (!broker || !id_text || (broker->driver->count_in_flight && stuck->in_flight > 0))
		return SEMEL_OK;
	for (int i = 0; i < 2 && !waiting; i++) {
		semel_status status = broker->driver->find_event(
			broker, stuck->scope, stuck->topics, id_text, &waiting, error);
		if (status != SEMEL_OK)
			return status;
	}
	*gone_out = !waiting;
	return SEMEL_OK;
}

static const bool *find_result(const struct semel_stuck_check *stuck, struct semel_text id)
{
	for (uint32_t i = 0; i < stuck->count; i++)
		if (semel_text_equal(stuck->queried[i], id))
			return &stuck->gone[i];
	return NULL;
}

static bool is_overdue(const struct semel_stuck_check *stuck, const struct semel_wait *wait)
{
	return stuck->overdue_ms == 0 || wait->due_ms == 0 ||
	       wait->due_ms < stuck->now_ms - stuck->overdue_ms;
}

static semel_status query_copy(const struct semel_wait *wait, void *user)
{
	struct semel_stuck_check *stuck = user;
	struct semel_wait_fix fix = semel_wait_find_fix(wait, stuck->now_ms);
	bool gone = false;

	if (fix.kind != SEMEL_FIX_RESEND || !fix.awaited_id.data || !is_overdue(stuck, wait) ||
	    stuck->count == SEMEL_STUCK_QUERIES_MAX || find_result(stuck, fix.awaited_id))
		return SEMEL_OK;
	struct semel_text id =
		semel_arena_text(stuck->arena, fix.awaited_id.data, fix.awaited_id.length);
	if (!id.data)
		return SEMEL_INTERNAL;
	semel_status status = semel_stuck_check_is_gone(stuck, id, &gone, NULL);
	stuck->queried[stuck->count] = id;
	stuck->gone[stuck->count++] = gone;
	return status;
}

semel_status semel_stuck_check_run(struct semel_stuck_check *stuck, semel_error *error)
{
	stuck->count = 0;
	semel_error_clear(error);
	semel_status status = stuck->store->driver->holds->waits_each(
		stuck->store, semel_text_of(stuck->scope), query_copy, stuck, error);
	if (status != SEMEL_OK && error && !error->text[0])
		return semel_error_set(error, status,
				       "cannot query the broker for events in transit to %s",
				       stuck->scope);
	return status;
}

bool semel_stuck_check_is_confirmed(const struct semel_stuck_check *stuck,
				    const struct semel_wait *wait)
{
	struct semel_wait_fix fix = semel_wait_find_fix(wait, stuck->now_ms);

	if (SEMEL_PLANTED("verify-trusts-parked"))
		return false;
	if (fix.kind == SEMEL_FIX_RELEASE)
		return true;
	const bool *gone = fix.kind == SEMEL_FIX_RESEND ? find_result(stuck, fix.awaited_id) : NULL;
	return gone && *gone;
}

struct counting {
	const struct semel_stuck_check *stuck;
	uint64_t count;
};

static semel_status count_wait(const struct semel_wait *wait, void *user)
{
	struct counting *counting = user;
	bool counted_as_replay = wait->kind == SEMEL_WAIT_HOLD &&
				 wait->letter == SEMEL_DEAD_REPLAYED && !wait->settled;

	counting->count +=
		!counted_as_replay && semel_stuck_check_is_confirmed(counting->stuck, wait);
	return SEMEL_OK;
}

semel_status semel_stuck_count(struct semel_stuck_check *stuck, uint64_t *count_out,
			       semel_error *error)
{
	struct counting counting = { stuck, 0 };
	semel_status status = semel_stuck_check_run(stuck, error);

	*count_out = 0;
	if (status != SEMEL_OK)
		return status;
	status = stuck->store->driver->holds->waits_each(stuck->store, semel_text_of(stuck->scope),
							 count_wait, &counting, error);
	*count_out = counting.count;
	return status;
}
