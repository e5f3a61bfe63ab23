/* SPDX-License-Identifier: Apache-2.0 */
/* The dead letters of a store: events that were given up, per scope, kept whole until an operator
 * replays or discards them; and the followers that are parked behind a hold, kept in the same way.
 *
 * Thread: that of the store. Ownership: entries are read into the caller's arena. Errors: those of
 * store.h; NOT_FOUND, NOT_PENDING and REPLAY_LIMIT where an entry is named.
 *
 * To change here: how entries are stored and moved. The states are src/state's, the rules of a move
 * are in rules.c, for all drivers. What takes a tx is part of the open transaction.
 */
#ifndef SEMEL_STORE_DEAD_LETTERS_H
#define SEMEL_STORE_DEAD_LETTERS_H

#include "base/arena.h"
#include "event/event.h"
#include "store/visitors.h"

#include <semel/deadletter.h>
#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_hold; /* holds.h */

struct semel_dead_letter_row {
	struct semel_text entry_id;
	struct semel_event event;
	struct semel_text scope, reason, discard_reason, saga_id, correlation_id;
	struct semel_text parked_behind; /* event id of the head; data NULL: a dead letter itself */
	int64_t failed_at_ms;
	int32_t partition;
	int64_t offset;
	uint32_t attempts, replay_count;
	enum semel_dead_status status;
	int64_t settled_at_ms; /* REPLAYED: when the replay was processed; 0: not yet */
	uint64_t parked;       /* followers behind it; filled in by get and list */
	uint64_t payload_size; /* likewise: bytes, also where the payload was not read */
};

/* An existing entry of the same scope and event is reused, and becomes PENDING (not settled), with
 * the higher replay_count of both and the new attempts, reason and time. entry_id is created by the
 * caller, and overwritten with the one in use. A blank event id always makes a new entry. */
typedef semel_status semel_dead_add_fn(semel_tx tx, struct semel_dead_letter_row *entry,
				       struct semel_arena *arena, semel_error *error);
/* NOT_FOUND also for a parked follower: it is handled with its head. */
typedef semel_status semel_dead_get_fn(semel_store *store, const char *entry_id,
				       struct semel_arena *arena,
				       struct semel_dead_letter_row *entry_out, semel_error *error);
/* Without the parked followers. Texts are cut (SEMEL_DEAD_BRIEF); get returns them whole.
 * entries_out has room for filter->limit entries, which is at least 1 here. */
typedef semel_status semel_dead_list_fn(semel_store *store, const semel_dead_letter_filter *filter,
					struct semel_arena *arena,
					struct semel_dead_letter_row *entries_out,
					uint32_t *count_out, semel_error *error);
typedef semel_status semel_dead_count_fn(semel_store *store, const char *scope, uint64_t *count_out,
					 semel_error *error);
/* PENDING → REPLAYED (replay_count + 1; REPLAY_LIMIT at the limit; not settled, except for one of
 * the relay, which the outbox accounts for from then on) or DISCARDED. NOT_FOUND; NOT_PENDING, also
 * when its replay_count is no longer that of *entry: it has failed again in the meantime. In the
 * open transaction: the entry is locked. */
typedef semel_status semel_dead_move_fn(semel_tx tx, const struct semel_dead_letter_row *entry,
					enum semel_dead_status status, const char *reason,
					int64_t now_ms, semel_error *error);
/* Called when a delivery of the event was processed; replay: the number of the replay that it was
 * (0: none). Settles an entry that is REPLAYED and not settled. An entry that is still PENDING with
 * a lower count (the process that replayed it died before it could move it) becomes REPLAYED and
 * settled. */
typedef semel_status semel_dead_settle_fn(semel_tx tx, struct semel_text scope,
					  struct semel_text event_id, uint32_t replay,
					  int64_t now_ms, semel_error *error);
/* An operator authorises another run of the event (--reprocess): its entry, whatever its status,
 * becomes REPLAYED and not settled; its count is unchanged. Does nothing if there is no entry. */
typedef semel_status semel_dead_authorize_fn(semel_tx tx, struct semel_text scope,
					     struct semel_text event_id, int64_t now_ms,
					     semel_error *error);
/* A dead letter of the relay returns to the outbox as a due exception, in the transaction of its
 * move; on discard its hold is removed. */
typedef semel_status semel_dead_return_to_outbox_fn(semel_tx tx,
						    const struct semel_dead_letter_row *entry,
						    bool discard, semel_error *error);
/* Ids with an entry in the scope; parked followers too, with the status PARKED. */
typedef semel_status semel_dead_each_fn(semel_store *store, struct semel_text scope,
					semel_id_visitor visit, void *user, semel_error *error);

/* ---- parked followers ----------------------------------------------------------------------- */

/* Parks a follower behind a head; the same event twice is parked once. */
typedef semel_status semel_parked_add_fn(semel_tx tx, const struct semel_dead_letter_row *entry,
					 semel_error *error);
/* The first follower of the aggregate in the scope; entry_id data NULL: none. */
typedef semel_status semel_parked_first_fn(semel_tx tx, struct semel_text scope,
					   const struct semel_hold *hold, struct semel_arena *arena,
					   struct semel_dead_letter_row *entry_out,
					   semel_error *error);
/* The same if every follower is parked behind its own predecessor: the hold's head itself, else the
 * first whose predecessor is settled, else the first whose predecessor is not parked. */
typedef semel_status semel_parked_next_fn(semel_tx tx, struct semel_text scope,
					  const struct semel_hold *hold, struct semel_arena *arena,
					  struct semel_dead_letter_row *entry_out,
					  semel_error *error);
/* Does the follower still exist? Another consumer may have settled it. It is locked until the end
 * of the transaction. */
typedef semel_status semel_parked_exists_fn(semel_tx tx, struct semel_text entry_id,
					    bool *exists_out, semel_error *error);
typedef semel_status semel_parked_remove_fn(semel_tx tx, struct semel_text entry_id,
					    semel_error *error);

/* ---- the table ------------------------------------------------------------------------------ */

/* All are required. */
struct semel_dead_letter_functions {
	semel_dead_add_fn *add;
	semel_dead_get_fn *get;
	semel_dead_list_fn *list;
	semel_dead_count_fn *count;
	semel_dead_move_fn *move;
	semel_dead_settle_fn *settle;
	semel_dead_authorize_fn *authorize;
	semel_dead_return_to_outbox_fn *return_to_outbox;
	semel_dead_each_fn *each;

	semel_parked_add_fn *parked_add;
	semel_parked_first_fn *parked_first;
	semel_parked_next_fn *parked_next;
	semel_parked_exists_fn *parked_exists;
	semel_parked_remove_fn *parked_remove;
};

#endif
