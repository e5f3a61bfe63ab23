/* SPDX-License-Identifier: Apache-2.0 */
/* The holds of a store: aggregates (or topics) that must wait in a scope, what is known of an event
 * when it is admitted, and what waits. The followers that are parked behind a hold are in
 * dead_letters.h.
 *
 * Thread: that of the store. Ownership: what is read goes into the caller's arena. Errors: those of
 * store.h.
 *
 * To change here: how holds are stored and locked. When an aggregate is held, and
 * when it is released, is decided in src/consume; the states are src/state's. What takes a tx is
 * part of the open transaction.
 */
#ifndef SEMEL_STORE_HOLDS_H
#define SEMEL_STORE_HOLDS_H

#include "store/dead_letters.h"

/* ---- holds ---------------------------------------------------------------------------------- */

enum semel_hold_state {
	SEMEL_HOLD_NONE,    /* not held */
	SEMEL_HOLD_RETRY,   /* its head is under delayed retry */
	SEMEL_HOLD_DEAD,    /* its head is a dead letter */
	SEMEL_HOLD_GAP,     /* its head waits for a predecessor that was not seen (strict) */
	SEMEL_HOLD_RELEASED /* the head is settled; the parked followers may run, in order */
};

/* What is held: an aggregate, or with a blank type the topic that id names (total order). */
struct semel_hold_key {
	struct semel_text type, id;
};

/* Under which keys an event can be held in a scope: its aggregate, or its whole topic where the
 * subscription keeps total order. If the subscription is unknown, check both. */
enum semel_hold_by { SEMEL_HOLD_BY_AGGREGATE, SEMEL_HOLD_BY_TOPIC, SEMEL_HOLD_BY_COUNT };

/* Texts of the event: they live as long as its own. */
static inline struct semel_hold_key semel_hold_key_of(const struct semel_event *event,
						      enum semel_hold_by by)
{
	if (by == SEMEL_HOLD_BY_TOPIC)
		return (struct semel_hold_key){ .type = SEMEL_TEXT(""), .id = event->topic };
	return (struct semel_hold_key){ .type = event->aggregate_type, .id = event->aggregate_id };
}

struct semel_hold {
	/* A blank aggregate_type holds the whole topic that aggregate_id names (total order). */
	struct semel_text aggregate_type, aggregate_id;
	struct semel_text head_id; /* the event that everything of the aggregate waits for */
	enum semel_hold_state state;
	uint32_t attempts; /* RETRY: runs of the head so far; RELEASED: of the first follower;
			    * DEAD: which replay failed last */
	int64_t due_ms;    /* RETRY: the head is due; GAP: waiting ends; RELEASED: not before */
	bool blocks;       /* poison policy block: a drain does not finish while the hold exists */
};

struct semel_holds {
	struct semel_arena *arena;
	struct semel_hold *holds;
	uint32_t capacity, count;
};

struct semel_hold_counts {
	uint64_t waiting;    /* events behind RETRY, GAP or RELEASED, and the heads of GAPs */
	uint64_t blocked;    /* events behind DEAD with blocks */
	uint64_t parked;     /* events behind DEAD without blocks */
	int64_t next_due_ms; /* of the GAPs and the RELEASED; 0: none */
};

typedef semel_status semel_hold_has_any_fn(semel_tx tx, struct semel_text scope, bool *any_out,
					   semel_error *error);
/* Is anything held under keys of the other kind: whole topics (total order), or, where `total` is
 * the order of the caller, aggregates? */
typedef semel_status semel_hold_has_other_kind_fn(semel_tx tx, struct semel_text scope, bool total,
						  bool *other_out, semel_error *error);
/* The hold of this key; state NONE: it is not held. In an open transaction the hold is locked until
 * its end: read it before you park behind it, or release the last follower. */
typedef semel_status semel_hold_get_fn(semel_tx tx, struct semel_text scope,
				       const struct semel_hold_key *key, struct semel_arena *arena,
				       struct semel_hold *hold_out, semel_error *error);
typedef semel_status semel_hold_put_fn(semel_tx tx, struct semel_text scope,
				       const struct semel_hold *hold, semel_error *error);
/* Adds a hold for a key that is not held; *added_out false: it is held by now, and its hold was not
 * changed. */
typedef semel_status semel_hold_add_fn(semel_tx tx, struct semel_text scope,
				       const struct semel_hold *hold, bool *added_out,
				       semel_error *error);
typedef semel_status semel_hold_remove_fn(semel_tx tx, struct semel_text scope,
					  const struct semel_hold *hold, semel_error *error);
/* Lists RELEASED holds that are due, and GAPs whose waiting has ended. In the open transaction; if
 * the engine can, locks them, and skips those locked by others. */
typedef semel_status semel_hold_list_ready_fn(semel_tx tx, struct semel_text scope, int64_t now_ms,
					      struct semel_holds *holds, semel_error *error);
/* When the first GAP or RELEASED hold becomes due, in the past or in the future; 0: none. Cheap,
 * however many events are parked. */
typedef semel_status semel_hold_next_due_fn(semel_store *store, struct semel_text scope,
					    int64_t *due_ms_out, semel_error *error);
typedef semel_status semel_hold_count_fn(semel_store *store, struct semel_text scope,
					 struct semel_hold_counts *counts_out, semel_error *error);

/* ---- admission: what is known of an event at a scope ---------------------------------------- */

struct semel_state_query {
	struct semel_text event_id;
	struct semel_hold_key key; /* texts with data NULL: it has none */
};

struct semel_state_result {
	struct semel_hold hold;        /* of the key; state NONE: it is not held */
	enum semel_dead_status letter; /* of the event; ANY: it has none */
	uint32_t replay_count;         /* of the letter */
	bool settled;                  /* REPLAYED: the replay was processed */
};

/* Results in the order of the queries; what they point to is in the arena. */
struct semel_state_batch {
	struct semel_arena *arena;
	const struct semel_state_query *queries;
	struct semel_state_result *results;
	size_t count;
};

/* Does the scope have any hold, or any dead letter with an event id? Cheap. */
typedef semel_status semel_states_exist_fn(semel_tx tx, struct semel_text scope, bool *any_out,
					   semel_error *error);
/* Reads the hold of each event's key, and its dead letter. In the open transaction. The holds are
 * locked as by get, and so are letters whose replay was not processed yet: of two consumers, the
 * second sees what the first has settled. One statement for the whole batch if the engine can. */
typedef semel_status semel_states_read_fn(semel_tx tx, struct semel_text scope,
					  struct semel_state_batch *batch, semel_error *error);

/* ---- waits: what waits in a scope, and not for an operator ---------------------------------- */

enum semel_wait_kind {
	SEMEL_WAIT_PARKED, /* a parked event; not those behind a dead letter that is PENDING */
	SEMEL_WAIT_HOLD,   /* the head of a hold in RETRY; or in DEAD, without a PENDING letter */
	SEMEL_WAIT_REPLAY, /* a dead letter that is REPLAYED and not settled, nor parked itself */
	SEMEL_WAIT_CLAIM   /* a claim that is not finished, of an event that is not parked */
};

struct semel_wait {
	enum semel_wait_kind kind;
	struct semel_text event_id;
	struct semel_hold_key key;     /* of the event, or of the hold that it is behind */
	enum semel_hold_state state;   /* PARKED, HOLD: of that hold; NONE: there is none */
	struct semel_text head_id;     /* of that hold */
	enum semel_dead_status letter; /* of the hold's head, or of the event; ANY: none */
	bool settled;                  /* REPLAYED: the replay was processed */
	struct semel_text entry_id;    /* of that letter */
	struct semel_text owner;       /* CLAIM */
	int64_t due_ms; /* HOLD: that of the hold; CLAIM: its lease ends; REPLAY: it was replayed */
};

/* The texts live until the call returns. */
typedef semel_status (*semel_wait_visitor)(const struct semel_wait *wait, void *user);

/* Visits everything in the scope that waits for something other than an operator, kind by kind. */
typedef semel_status semel_waits_each_fn(semel_store *store, struct semel_text scope,
					 semel_wait_visitor visit, void *user, semel_error *error);

/* ---- the table ------------------------------------------------------------------------------ */

/* All are required. */
struct semel_hold_functions {
	semel_hold_has_any_fn *has_any;
	semel_hold_has_other_kind_fn *has_other_kind;
	semel_hold_get_fn *get;
	semel_hold_put_fn *put;
	semel_hold_add_fn *add;
	semel_hold_remove_fn *remove;
	semel_hold_list_ready_fn *list_ready;
	semel_hold_next_due_fn *next_due;
	semel_hold_count_fn *count;

	semel_states_exist_fn *states_exist;
	semel_states_read_fn *states_read;
	semel_waits_each_fn *waits_each;
};

#endif
