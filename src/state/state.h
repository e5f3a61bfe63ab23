/* SPDX-License-Identifier: Apache-2.0 */
/* The state machines of an event at a subscription and of the hold of an ordering key: every state,
 * every transition, who may make it, and in which transaction.
 *
 * An event has one state at a subscription. It is derived from the rows of the scope (claim, dead
 * letter, parked row, hold); a copy of the event at the broker carries no authority of its own, it
 * only makes the consumer read them. So a copy may be lost, repeated or late: what may run is
 * decided here, from what the store says.
 *
 * These tables are the source of docs/states.md and of the sentences of `semel trace`.
 *
 * To change here: a new state or move is a row of a table, with who makes it and in which
 * transaction; then docs/states.md is regenerated (semel states), and tests/model checks it. Rules
 * move items and holds through these functions only. Nothing here decides when.
 */
#ifndef SEMEL_STATE_STATE_H
#define SEMEL_STATE_STATE_H

#include "store/store.h"

enum semel_state {
	SEMEL_STATE_UNSEEN,    /* the scope's tables have no row of it */
	SEMEL_STATE_RECEIVED,  /* in flight at a consumer, nothing is decided; not durable */
	SEMEL_STATE_CLAIMED,   /* claimed: its handler runs, or its consumer died */
	SEMEL_STATE_DONE,      /* processed */
	SEMEL_STATE_RETRYING,  /* failed, and will be retried; a delayed copy is at the broker */
	SEMEL_STATE_PARKED,    /* in the store, behind an earlier event of its ordering key */
	SEMEL_STATE_DEAD,      /* a dead letter that an operator decides about */
	SEMEL_STATE_IN_DOUBT,  /* the same, and it is unknown whether its effect happened */
	SEMEL_STATE_DISCARDED, /* an operator has given it up */
	SEMEL_STATE_REPLAYED,  /* an operator has authorised another run */
	SEMEL_STATE_EXPIRED,   /* its dead letter is past its retention */
	SEMEL_STATE_COUNT
};

enum semel_actor {
	SEMEL_BY_CONSUMER,
	SEMEL_BY_REPLAY,    /* semel dlq replay */
	SEMEL_BY_DISCARD,   /* semel dlq discard */
	SEMEL_BY_REPROCESS, /* semel replay --reprocess */
	SEMEL_BY_PRUNE,
	SEMEL_BY_REPAIR,
	SEMEL_ACTOR_COUNT
};

/* One row of a table. from and to: enum semel_state, or enum semel_hold_state. */
struct semel_transition {
	int from, to;
	enum semel_actor by;
	const char *when;
	const char *transaction; /* in which it is written */
};

struct semel_transitions {
	const struct semel_transition *rows;
	size_t count;
};

struct semel_transitions semel_state_transitions(void);
struct semel_transitions semel_hold_transitions(void);

const char *semel_state_name(enum semel_state state);
/* What the state means for the event, and what ends it: a clause for `trace` and docs. */
const char *semel_state_sentence(enum semel_state state);
const char *semel_hold_state_sentence(enum semel_hold_state state);
const char *semel_actor_name(enum semel_actor actor);

/* OK, or INTERNAL: the transition is not in the table. That is our bug, so it is an assertion in
 * debug builds. */
semel_status semel_state_check(enum semel_state from, enum semel_state to, enum semel_actor by,
			       semel_error *error);

/* The only function that changes a hold. from: as holds->get or holds->states_read has just read
 * and locked it in this transaction; to->state NONE removes it. INTERNAL as above. */
semel_status semel_hold_move(semel_tx tx, struct semel_text scope, const struct semel_hold *from,
			     const struct semel_hold *to, enum semel_actor by, semel_error *error);
/* The same for a key that was not held a moment ago, and has no row to lock; *added_out false: it
 * is held by now, and its hold was not changed. */
semel_status semel_hold_add(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			    enum semel_actor by, bool *added_out, semel_error *error);
/* The head is settled: releases the hold so that its followers may run, or removes it if there are
 * none. */
semel_status semel_hold_release(semel_tx tx, struct semel_text scope, const struct semel_hold *from,
				enum semel_actor by, struct semel_arena *arena, semel_error *error);

/* May a copy of an event run, as far as its dead letter says? */
enum semel_authority {
	SEMEL_AUTHORITY_CLAIMS,    /* there is no undecided letter: the claims decide */
	SEMEL_AUTHORITY_REPLAY,    /* an operator has authorised this run */
	SEMEL_AUTHORITY_SUPERSEDED /* a letter accounts for the event: the copy is dropped */
};

/* Pure. answer: what holds->states_read found; copy_replay: the number that the copy carries. */
enum semel_authority semel_letter_authority(const struct semel_state_result *answer,
					    uint32_t copy_replay);

#endif
