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
	return wait->due_ms <= now_ms || semel_owner_is_dead(owner);
}

/* Of what stands behind a hold, or without one. */
static struct semel_wait_fix need_of_held(const struct semel_wait *wait)
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
		return need_of_held(wait);
	case SEMEL_WAIT_REPLAY:
		return itself;
	case SEMEL_WAIT_CLAIM:
		if (is_abandoned(wait, now_ms))
			return itself;
		break;
	}
	return (struct semel_wait_fix){ SEMEL_FIX_NONE, { NULL, 0 } };
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Twice: a copy may be on its way from one queue to the next while they are looked through. A
 * broker that does not tell what consumers have in hand (it has the slot in_flight) leaves that to
 * what they say themselves. */
semel_status semel_stuck_check_is_gone(const struct semel_stuck_check *stuck, struct semel_text id,
				       bool *gone_out, semel_error *error)
{
	struct semel_broker *broker = stuck->broker;
	const char *wanted = semel_text_to_string(id);
	bool waiting = false;
	semel_status status = SEMEL_OK;

	*gone_out = false;
	if (!broker || !wanted || (broker->driver->count_in_flight && stuck->in_flight > 0))
		return SEMEL_OK;
	for (int i = 0; i < 2 && status == SEMEL_OK && !waiting; i++)
		status = broker->driver->find_event(broker, stuck->scope, stuck->topics, wanted,
						    &waiting, error);
	*gone_out = status == SEMEL_OK && !waiting;
	return status;
}

static const bool *answer_for(const struct semel_stuck_check *stuck, struct semel_text id)
{
	for (uint32_t i = 0; i < stuck->count; i++)
		if (semel_text_equal(stuck->asked[i], id))
			return &stuck->gone[i];
	return NULL;
}

static bool may_be_late(const struct semel_stuck_check *stuck, const struct semel_wait *wait)
{
	return stuck->overdue_ms == 0 || wait->due_ms == 0 ||
	       wait->due_ms < stuck->now_ms - stuck->overdue_ms;
}

static semel_status wait_seen(const struct semel_wait *wait, void *user)
{
	struct semel_stuck_check *stuck = user;
	struct semel_wait_fix need = semel_wait_find_fix(wait, stuck->now_ms);
	bool gone = false;

	if (need.fix != SEMEL_FIX_RESEND || !need.awaited_id.data || !may_be_late(stuck, wait) ||
	    stuck->count == SEMEL_STUCK_QUERIES_MAX || answer_for(stuck, need.awaited_id))
		return SEMEL_OK;
	struct semel_text id =
		semel_arena_text(stuck->arena, need.awaited_id.data, need.awaited_id.length);
	if (!id.data)
		return SEMEL_INTERNAL;
	semel_status status = semel_stuck_check_is_gone(stuck, id, &gone, NULL);
	stuck->asked[stuck->count] = id;
	stuck->gone[stuck->count++] = gone;
	return status;
}

semel_status semel_stuck_check_run(struct semel_stuck_check *stuck, semel_error *error)
{
	stuck->count = 0;
	semel_error_clear(error);
	semel_status status = stuck->store->driver->holds->waits_each(
		stuck->store, semel_text_of(stuck->scope), wait_seen, stuck, error);
	if (status != SEMEL_OK && error && !error->text[0])
		return semel_error_set(error, status,
				       "the broker could not be asked what is on its way to %s",
				       stuck->scope);
	return status;
}

bool semel_stuck_check_confirms(const struct semel_stuck_check *stuck,
				const struct semel_wait *wait)
{
	struct semel_wait_fix need = semel_wait_find_fix(wait, stuck->now_ms);

	if (SEMEL_PLANTED("verify-trusts-parked"))
		return false;
	if (need.fix == SEMEL_FIX_RELEASE)
		return true;
	const bool *gone = need.fix == SEMEL_FIX_RESEND ? answer_for(stuck, need.awaited_id) : NULL;
	return gone && *gone;
}

struct counting {
	const struct semel_stuck_check *stuck;
	uint64_t count;
};

static semel_status count_wait(const struct semel_wait *wait, void *user)
{
	struct counting *counting = user;
	bool told_as_replay = wait->kind == SEMEL_WAIT_HOLD &&
			      wait->letter == SEMEL_DEAD_REPLAYED && !wait->settled;

	counting->count += !told_as_replay && semel_stuck_check_confirms(counting->stuck, wait);
	return SEMEL_OK;
}

semel_status semel_stuck_count(struct semel_stuck_check *stuck, uint64_t *count_out,
			       semel_error *error)
{
	struct counting counting = { stuck, 0 };
	semel_status status = semel_stuck_check_run(stuck, error);

	if (status == SEMEL_OK)
		status = stuck->store->driver->holds->waits_each(
			stuck->store, semel_text_of(stuck->scope), count_wait, &counting, error);
	*count_out = counting.count;
	return status;
}
