/* SPDX-License-Identifier: Apache-2.0 */
#include "state/state.h"

#include "base/error.h"
#include "fault/plant.h"
#include "store/rules.h"

#include <assert.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- an event at a subscription -------------------------------------------------------------- */

#define FETCH    "none: nothing is durable"
#define ADMIT    "the one that reads holds, dead letters and claims"
#define EFFECT   "the one of the effect"
#define VERDICT  "the one that records the verdict"
#define OPERATOR "one of its own"

#define MOVE(from, to, by, when, transaction)                                                      \
	{                                                                                          \
		SEMEL_STATE_##from, SEMEL_STATE_##to, SEMEL_BY_##by, when, transaction             \
	}

/* The moves of most events come first: every event is checked here twice. */
static const struct semel_transition moves[] = {
	MOVE(RECEIVED, CLAIMED, CONSUMER, "admitted: it may run", ADMIT),
	MOVE(CLAIMED, DONE, CONSUMER, "the handler returns done", EFFECT),
	MOVE(UNSEEN, RECEIVED, CONSUMER, "a copy is fetched", FETCH),
	MOVE(RETRYING, RECEIVED, CONSUMER, "its delayed copy, or another one, is fetched", FETCH),
	MOVE(REPLAYED, RECEIVED, CONSUMER, "any copy of it is fetched", FETCH),
	MOVE(DEAD, RECEIVED, CONSUMER,
	     "the copy of a replay is fetched before its replayer has committed", FETCH),
	MOVE(IN_DOUBT, RECEIVED, CONSUMER,
	     "the copy of a replay is fetched before its replayer has committed", FETCH),
	MOVE(RECEIVED, RECEIVED, CONSUMER, "deferred: another consumer runs it, or its topic waits",
	     FETCH),
	MOVE(RECEIVED, PARKED, CONSUMER, "its ordering key is held by an earlier event", ADMIT),
	MOVE(RECEIVED, RETRYING, CONSUMER, "an early copy of the head of a hold is requeued",
	     ADMIT),
	MOVE(RECEIVED, DONE, CONSUMER, "the claim proves that it was processed", ADMIT),
	MOVE(RECEIVED, DEAD, CONSUMER, "it breaks the contract", ADMIT),
	MOVE(RECEIVED, IN_DOUBT, CONSUMER, "its separate claim is that of a consumer that died",
	     ADMIT),
	MOVE(CLAIMED, RECEIVED, CONSUMER, "it runs again at once, or an outage costs no attempt",
	     VERDICT),
	MOVE(CLAIMED, RETRYING, CONSUMER, "the handler returns retry, and attempts are left",
	     VERDICT),
	MOVE(CLAIMED, PARKED, CONSUMER,
	     "the handler returns retry for a follower, which stays in the store", VERDICT),
	MOVE(CLAIMED, DEAD, CONSUMER, "the handler rejects it, or its attempts are exhausted",
	     VERDICT),
	MOVE(CLAIMED, IN_DOUBT, CONSUMER, "its one run did not answer in time", VERDICT),
	MOVE(RETRYING, DEAD, CONSUMER, "the broker refuses the delayed copy", VERDICT),
	MOVE(PARKED, RECEIVED, CONSUMER, "its hold is released, and it is the next one", FETCH),
	MOVE(DEAD, REPLAYED, REPLAY, "an operator replays the entry", OPERATOR),
	MOVE(IN_DOUBT, REPLAYED, REPLAY, "an operator replays the entry", OPERATOR),
	MOVE(DEAD, DISCARDED, DISCARD, "an operator discards the entry", OPERATOR),
	MOVE(IN_DOUBT, DISCARDED, DISCARD, "an operator discards the entry", OPERATOR),
	MOVE(DEAD, REPLAYED, REPROCESS, "an operator reprocesses it", OPERATOR),
	MOVE(IN_DOUBT, REPLAYED, REPROCESS, "an operator reprocesses it", OPERATOR),
	MOVE(DISCARDED, REPLAYED, REPROCESS, "an operator reprocesses it", OPERATOR),
	MOVE(DONE, UNSEEN, REPROCESS, "an operator reprocesses it: its claim is deleted", OPERATOR),
	MOVE(EXPIRED, UNSEEN, REPROCESS, "an operator reprocesses it: its claim is deleted",
	     OPERATOR),
	MOVE(DEAD, EXPIRED, PRUNE, "the dead letter is past its retention", OPERATOR),
	MOVE(IN_DOUBT, EXPIRED, PRUNE, "the dead letter is past its retention", OPERATOR),
	MOVE(DISCARDED, EXPIRED, PRUNE, "the dead letter is past its retention", OPERATOR),
	MOVE(DONE, UNSEEN, PRUNE, "the claim is past the inbox's retention", OPERATOR),
	MOVE(EXPIRED, UNSEEN, PRUNE, "the claim is past the inbox's retention", OPERATOR),
	MOVE(REPLAYED, REPLAYED, REPAIR, "the copy of the replay is lost, and is sent again",
	     OPERATOR),
};

struct state_row {
	const char *name, *sentence;
};

static const struct state_row states[SEMEL_STATE_COUNT] = {
	[SEMEL_STATE_UNSEEN] = { "unseen", "not received yet" },
	[SEMEL_STATE_RECEIVED] = { "received", "in flight at a consumer" },
	[SEMEL_STATE_CLAIMED] = { "claimed", "its handler runs" },
	[SEMEL_STATE_DONE] = { "done", "processed" },
	[SEMEL_STATE_RETRYING] = { "retrying", "failed, and will be retried" },
	[SEMEL_STATE_PARKED] = { "parked", "waits behind an earlier event of its ordering key" },
	[SEMEL_STATE_DEAD] = { "dead", "a dead letter: replay or discard it" },
	[SEMEL_STATE_IN_DOUBT] = { "in doubt",
				   "a dead letter in doubt: find out whether the effect "
				   "happened, then replay or discard it" },
	[SEMEL_STATE_DISCARDED] = { "discarded", "given up by an operator" },
	[SEMEL_STATE_REPLAYED] = { "replayed", "runs again as soon as a copy of it arrives" },
	[SEMEL_STATE_EXPIRED] = { "expired", "its dead letter is past its retention" },
};

static const char *const actors[SEMEL_ACTOR_COUNT] = {
	[SEMEL_BY_CONSUMER] = "consumer",
	[SEMEL_BY_REPLAY] = "`semel dlq replay`",
	[SEMEL_BY_DISCARD] = "`semel dlq discard`",
	[SEMEL_BY_REPROCESS] = "`semel replay --reprocess`",
	[SEMEL_BY_PRUNE] = "`semel prune`",
	[SEMEL_BY_REPAIR] = "`semel repair`",
};

struct semel_transitions semel_state_transitions(void)
{
	return (struct semel_transitions){ moves, COUNT_OF(moves) };
}

const char *semel_state_name(enum semel_state state)
{
	return states[state].name;
}

const char *semel_state_sentence(enum semel_state state)
{
	return states[state].sentence;
}

const char *semel_actor_name(enum semel_actor actor)
{
	return actors[actor];
}

static bool is_listed(struct semel_transitions table, int from, int to, enum semel_actor by)
{
	for (size_t i = 0; i < table.count; i++)
		if (table.rows[i].from == from && table.rows[i].to == to && table.rows[i].by == by)
			return true;
	return false;
}

semel_status semel_state_check(enum semel_state from, enum semel_state to, enum semel_actor by,
			       semel_error *error)
{
	bool legal = is_listed(semel_state_transitions(), (int)from, (int)to, by);

	assert(legal);
	return legal ? SEMEL_OK
		     : semel_error_set(
			       error, SEMEL_INTERNAL,
			       "an event cannot move from %s to %s by %s (see docs/states.md)",
			       semel_state_name(from), semel_state_name(to), semel_actor_name(by));
}

/* ---- holds ----------------------------------------------------------------------------------- */

#define HOLD(from, to, by, when, transaction)                                                      \
	{                                                                                          \
		SEMEL_HOLD_##from, SEMEL_HOLD_##to, SEMEL_BY_##by, when, transaction               \
	}

static const struct semel_transition hold_moves[] = {
	HOLD(NONE, RETRY, CONSUMER,
	     "an event fails and will be retried: the later ones wait for it", VERDICT),
	HOLD(NONE, DEAD, CONSUMER, "an event becomes a dead letter: the later ones wait for it",
	     VERDICT),
	HOLD(NONE, GAP, CONSUMER, "strict order: the predecessor has not been seen", ADMIT),
	HOLD(NONE, RELEASED, CONSUMER,
	     "total order: an event fails and will be retried; it stays in the store", VERDICT),
	HOLD(RETRY, RETRY, CONSUMER, "the head fails again", VERDICT),
	HOLD(RETRY, DEAD, CONSUMER, "the head becomes a dead letter", VERDICT),
	HOLD(RETRY, RELEASED, CONSUMER, "the head is settled, and events are parked behind it",
	     EFFECT),
	HOLD(RETRY, NONE, CONSUMER, "the head is settled, and nothing waits behind it", EFFECT),
	HOLD(DEAD, DEAD, CONSUMER, "the head was replayed, and is a dead letter again", VERDICT),
	HOLD(DEAD, RETRY, CONSUMER, "the head was replayed, fails, and will be retried", VERDICT),
	HOLD(DEAD, RELEASED, CONSUMER,
	     "the head's replay is settled, and events are parked behind it", EFFECT),
	HOLD(DEAD, NONE, CONSUMER, "the head's replay is settled, and nothing waits behind it",
	     EFFECT),
	HOLD(DEAD, RELEASED, DISCARD, "the head is discarded, and events are parked behind it",
	     OPERATOR),
	HOLD(DEAD, NONE, DISCARD, "the head is discarded, and nothing waits behind it", OPERATOR),
	HOLD(RETRY, RELEASED, DISCARD,
	     "the head is discarded while a replay whose dead letter is still PENDING is retried, "
	     "and events are parked behind it",
	     OPERATOR),
	HOLD(RETRY, NONE, DISCARD,
	     "the head is discarded while a replay whose dead letter is still PENDING is retried, "
	     "and nothing waits behind it",
	     OPERATOR),
	HOLD(DEAD, NONE, PRUNE,
	     "the head's dead letter is past its retention, and nothing waits "
	     "behind it",
	     OPERATOR),
	HOLD(GAP, GAP, CONSUMER, "the next follower has a predecessor that was not seen either",
	     ADMIT),
	HOLD(GAP, RETRY, CONSUMER, "an event of the key fails and will be retried", VERDICT),
	HOLD(GAP, DEAD, CONSUMER, "an event of the key becomes a dead letter", VERDICT),
	HOLD(GAP, RELEASED, CONSUMER,
	     "the predecessor arrived, or the wait for it timed out, and events are parked",
	     EFFECT),
	HOLD(GAP, NONE, CONSUMER,
	     "the predecessor arrived, or the wait for it timed out, and nothing is parked",
	     EFFECT),
	HOLD(RELEASED, RELEASED, CONSUMER, "a follower is settled, or is retried later", EFFECT),
	HOLD(RELEASED, DEAD, CONSUMER, "a follower becomes a dead letter, and the head", VERDICT),
	HOLD(RELEASED, GAP, CONSUMER, "strict order: the next follower's predecessor is missing",
	     ADMIT),
	HOLD(RELEASED, NONE, CONSUMER, "the last follower is settled", EFFECT),
	HOLD(NONE, RELEASED, REPAIR, "events are parked, and nothing holds them", OPERATOR),
	HOLD(NONE, DEAD, REPAIR, "events are parked behind a dead letter, and nothing holds them",
	     OPERATOR),
	HOLD(DEAD, RELEASED, REPAIR,
	     "the head's dead letter is settled or gone, and events are parked behind it",
	     OPERATOR),
	HOLD(DEAD, NONE, REPAIR,
	     "the head's dead letter is settled or gone, and nothing is parked behind it",
	     OPERATOR),
};

static const char *const hold_sentences[] = {
	[SEMEL_HOLD_NONE] = "the ordering key is free",
	[SEMEL_HOLD_RETRY] = "the head is retried later; its copy is at the broker",
	[SEMEL_HOLD_DEAD] = "the head is a dead letter; an operator replays or discards it",
	[SEMEL_HOLD_GAP] =
		"a predecessor has not been seen; the hold waits for it, for a limited time",
	[SEMEL_HOLD_RELEASED] = "the head is settled; a consumer runs the parked events, in order",
};

struct semel_transitions semel_hold_transitions(void)
{
	return (struct semel_transitions){ hold_moves, COUNT_OF(hold_moves) };
}

const char *semel_hold_state_sentence(enum semel_hold_state state)
{
	return hold_sentences[state];
}

static semel_status check_hold(enum semel_hold_state from, enum semel_hold_state to,
			       enum semel_actor by, semel_error *error)
{
	bool legal = is_listed(semel_hold_transitions(), (int)from, (int)to, by) ||
		     (from == SEMEL_HOLD_NONE && to == SEMEL_HOLD_NONE);

	assert(legal);
	return legal ? SEMEL_OK
		     : semel_error_set(
			       error, SEMEL_INTERNAL,
			       "a hold cannot move from %s to %s by %s (see docs/states.md)",
			       semel_hold_state_name(from), semel_hold_state_name(to),
			       semel_actor_name(by));
}

semel_status semel_hold_add(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			    enum semel_actor by, bool *added_out, semel_error *error)
{
	semel_status status = check_hold(SEMEL_HOLD_NONE, hold->state, by, error);

	*added_out = false;
	if (status != SEMEL_OK)
		return status;
	return tx.driver->holds->add(tx, scope, hold, added_out, error);
}

semel_status semel_hold_move(semel_tx tx, struct semel_text scope, const struct semel_hold *from,
			     const struct semel_hold *to, enum semel_actor by, semel_error *error)
{
	semel_status status = check_hold(from->state, to->state, by, error);

	if (status != SEMEL_OK)
		return status;
	if (to->state == SEMEL_HOLD_NONE)
		return tx.driver->holds->remove(tx, scope, from, error);
	return tx.driver->holds->put(tx, scope, to, error);
}

semel_status semel_hold_release(semel_tx tx, struct semel_text scope, const struct semel_hold *from,
				enum semel_actor by, struct semel_arena *arena, semel_error *error)
{
	struct semel_dead_letter_row first = { .status = SEMEL_DEAD_PENDING };
	/* The other fields are not kept: the counts were those of the head. */
	struct semel_hold to = { .aggregate_type = from->aggregate_type,
				 .aggregate_id = from->aggregate_id,
				 .head_id = from->head_id,
				 .state = SEMEL_HOLD_RELEASED };
	semel_status status =
		tx.driver->dead_letters->parked_first(tx, scope, from, arena, &first, error);

	if (status != SEMEL_OK)
		return status;
	if (!first.entry_id.data)
		to.state = SEMEL_HOLD_NONE;
	return semel_hold_move(tx, scope, from, &to, by, error);
}

/* ---- dead letters ---------------------------------------------------------------------------- */

enum semel_authority semel_letter_authority(const struct semel_state_result *answer,
					    uint32_t copy_replay)
{
	switch (answer->letter) {
	case SEMEL_DEAD_PENDING:
		return copy_replay > answer->replay_count ? SEMEL_AUTHORITY_REPLAY
							  : SEMEL_AUTHORITY_SUPERSEDED;
	case SEMEL_DEAD_DISCARDED:
		return SEMEL_AUTHORITY_SUPERSEDED;
	case SEMEL_DEAD_REPLAYED:
		if (SEMEL_PLANTED("replay-by-lost-copy") && copy_replay < answer->replay_count)
			return SEMEL_AUTHORITY_SUPERSEDED;
		return answer->settled ? SEMEL_AUTHORITY_CLAIMS : SEMEL_AUTHORITY_REPLAY;
	case SEMEL_DEAD_ANY:
		break;
	}
	return SEMEL_AUTHORITY_CLAIMS;
}
