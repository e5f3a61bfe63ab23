/* SPDX-License-Identifier: Apache-2.0 */
/* The outbox of a store: events that wait for the broker, the lanes that divide them among relays,
 * and the leases of these lanes.
 *
 * Thread: that of the store. Ownership: rows are read into the caller's arena. Errors: those of
 * store.h; LEASE_LOST where a fence is checked.
 *
 * To change here: what the relay reads and writes. Nothing decides here whether an event is retried
 * or given up: marks say what was decided. Each mark checks the fence in its own transaction.
 */
#ifndef SEMEL_STORE_OUTBOX_H
#define SEMEL_STORE_OUTBOX_H

#include "base/arena.h"
#include "base/owner.h"
#include "event/event.h"
#include "store/visitors.h"

#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

/* ---- lanes ---------------------------------------------------------------------------------- */

/* A lane is a part of the aggregates; one relay owns it at a time. The epoch grows with every new
 * owner: it is the fence that a mark is checked against. low_seq: no row at or below it waits,
 * except for exceptions; a hint, which may be lower than necessary. */
struct semel_lease {
	int32_t lane;
	int64_t epoch;
	int64_t expires_at_ms;
	int64_t low_seq;
	bool streamed; /* in: rows come through a change stream; none is read below low_seq */
	char owner[SEMEL_OWNER_SIZE]; /* empty: none */
};

/* The relays at work on this store, and our rank among them (from 0). */
struct semel_relay_group {
	uint32_t members, rank;
};

/* Is there anything to read in this lane? */
struct semel_lane_probe {
	int32_t lane;
	int64_t after_seq;    /* in: probe for rows above it; INT64_MAX: for none */
	bool run, due;        /* out: fetch, fetch_due may find something */
	int64_t complete_seq; /* out: as in a batch; where run is false, no row up to it waits */
};

typedef int32_t semel_lane_count_fn(semel_store *store);
/* Registers this relay as alive until expires_at_ms, and returns the group it is in. A store with
 * one lane returns a group of one. */
typedef semel_status semel_relay_join_fn(semel_store *store, const char *owner, int64_t now_ms,
					 int64_t expires_at_ms, struct semel_relay_group *group_out,
					 semel_error *error);
typedef void semel_relay_leave_fn(semel_store *store, const char *owner);
/* Called when the relay is about to sleep: from now on commits notify the wake that was given to
 * watch(). True: they did not notify before, or one already has: read once more before sleeping.
 * only_if_armed: does not change whether they notify. */
typedef bool semel_outbox_arm_wakeup_fn(semel_store *store, bool only_if_armed);
/* Called when the relay is awake. False: commits notify, and none has. */
typedef bool semel_outbox_check_wakeup_fn(semel_store *store);
/* Optional; for a change stream, which wakes the relay itself: commits need not notify. */
typedef void semel_outbox_disarm_wakeup_fn(semel_store *store);
/* All lanes, in order; leases_out has lane_count elements. */
typedef semel_status semel_lease_list_fn(semel_store *store, struct semel_lease *leases_out,
					 semel_error *error);
/* Takes the lane over if its epoch is still that of *lease; fills in the new one. LEASE_LOST:
 * another relay was faster. */
typedef semel_status semel_lease_acquire_fn(semel_store *store, struct semel_lease *lease,
					    const char *owner, int64_t expires_at_ms,
					    semel_error *error);
/* Moves the low mark up to that of *lease. LEASE_LOST when the lane has a newer epoch. Returns a
 * higher epoch and a lower low_seq if rows below the low mark were never sent: the lane is still
 * ours, and is read from there (sweep.c, in both drivers). */
typedef semel_status semel_lease_renew_fn(semel_store *store, struct semel_lease *lease,
					  int64_t expires_at_ms, semel_error *error);
typedef void semel_lease_release_fn(semel_store *store, const struct semel_lease *lease);

/* ---- rows ----------------------------------------------------------------------------------- */

struct semel_outbox_row {
	struct semel_event event;
	int64_t seq;
	int32_t lane; /* of a row from the change stream; otherwise that of its batch */
	uint32_t attempts;
	bool marked;     /* check: published already, or set aside as an exception */
	bool held;       /* an earlier event of its aggregate is an exception that holds it back */
	bool exception;  /* read from the exceptions, not from the run of the table */
	uint32_t replay; /* how often its dead letter was replayed */
	uint64_t transaction; /* of the change stream: the same for what was committed together */
	int64_t commit_order; /* grows with the order of commits, where the store knows it; 0: not
			       * known */
	uint32_t xid;         /* the transaction, as the database numbers it */
	struct semel_text previous; /* id of the event before it in its aggregate; data NULL: none,
				     * or not known */
};

/* Rows read: the caller provides arena, rows with capacity, and bytes_max of payload. */
struct semel_outbox_batch {
	struct semel_arena *arena;
	struct semel_outbox_row *rows;
	uint32_t capacity;
	uint64_t bytes_max;
	uint32_t count;
	bool cut;             /* out: rows were left out because of bytes_max, or may have been */
	int64_t complete_seq; /* every number at or below it is visible now or never will be */
	bool by_commit;       /* out: they come in the order of commits, not of numbers */
};

/* One lane of a fetch over several. */
struct semel_lane_read {
	const struct semel_lease *lease;
	int64_t after_seq;
	struct semel_outbox_batch *batch;
};

struct semel_outbox_filter { /* for replay; NULL, 0: no bound */
	const char *id;      /* this event alone; the other members are ignored */
	const char *type, *aggregate_type, *aggregate_id;
	int64_t since_ms, until_ms; /* the event's own time; until is exclusive */
};

/* In the open transaction. DUPLICATE_ID names the id. */
typedef semel_status semel_outbox_insert_fn(semel_tx tx, const struct semel_event *events,
					    size_t count, semel_error *error);
/* Probes many lanes at once, so that idle lanes cost nothing. If a probe costs as much as a fetch,
 * it may return true without reading, and after_seq as complete_seq. */
typedef semel_status semel_outbox_probe_fn(semel_store *store, struct semel_lane_probe *probes,
					   size_t count, int64_t now_ms, semel_error *error);
/* Reads NEW rows above after_seq that are not exceptions, ascending, until the batch is full by
 * count or by bytes (at least one row); by_commit if the order of commits is known. */
typedef semel_status semel_outbox_fetch_fn(semel_store *store, const struct semel_lease *lease,
					   int64_t after_seq, struct semel_outbox_batch *batch,
					   semel_error *error);
/* Optional. The same for several lanes, each once, in one statement. */
typedef semel_status semel_outbox_fetch_lanes_fn(semel_store *store,
						 const struct semel_lane_read *reads, size_t count,
						 semel_error *error);
/* Reads exceptions of the lane that are due and not held by an earlier one, ascending; so at most
 * one per aggregate. */
typedef semel_status semel_outbox_fetch_due_fn(semel_store *store, const struct semel_lease *lease,
					       int64_t now_ms, struct semel_outbox_batch *batch,
					       semel_error *error);
/* Only with a change stream: fills in `marked` and `held` of rows that came through it. */
typedef semel_status semel_outbox_check_fn(semel_store *store, struct semel_outbox_row *rows,
					   size_t count, semel_error *error);

/* ---- marks ---------------------------------------------------------------------------------- */

enum semel_mark_kind {
	SEMEL_MARK_PUBLISHED, /* the broker has confirmed it */
	SEMEL_MARK_RETRY,  /* refused; comes back at due_ms, and holds its aggregate until then */
	SEMEL_MARK_FAILED, /* given up; a dead letter in the same transaction */
	SEMEL_MARK_PARKED  /* waits behind an earlier exception of its aggregate */
};

struct semel_mark {
	const struct semel_outbox_row *row;
	enum semel_mark_kind kind;
	uint32_t attempts;  /* RETRY, FAILED: the new count */
	int64_t due_ms;     /* RETRY */
	const char *reason; /* RETRY, FAILED */
	bool holds;         /* FAILED: later events of the aggregate wait (all policies but skip) */
	bool blocks;        /* FAILED: and a drain is not finished while they wait (policy block) */
};

struct semel_mark_batch {
	const struct semel_mark *marks;
	size_t count;
	int64_t low_seq; /* the lane's new low mark */
	int64_t now_ms;
	int64_t expires_at_ms; /* the lease's new end */
	bool accept_invisible; /* a refused row is not visible, and was waited for long enough */
};

/* One lane of a mark over several. */
struct semel_lane_marks {
	struct semel_lease *lease;
	struct semel_mark_batch batch;
	bool lost; /* out: the lease was lost, and nothing of the lane is marked */
};

/* One transaction: checks the fence, applies the marks, moves the low mark and renews the lease.
 * LEASE_LOST: nothing was done. NOT_FINISHED: nothing was done either, because a refused row came
 * through the change stream and is not visible yet; repeat the call later. A FAILED mark of an
 * event whose dead letter was REPLAYED reuses that entry. A PUBLISHED mark of an exception makes
 * the next one of its aggregate due. */
typedef semel_status semel_outbox_mark_fn(semel_store *store, struct semel_lease *lease,
					  const struct semel_mark_batch *batch, semel_error *error);
/* Optional. The same for several lanes in one transaction; a lane may occur more than once, with
 * the same low_seq. All marks are PUBLISHED, and none is of an exception. */
typedef semel_status semel_outbox_mark_lanes_fn(semel_store *store, struct semel_lane_marks *marks,
						size_t count, semel_error *error);

/* ---- reading for replay, verify and counts ----------------------------------------------------
 */

struct semel_outbox_counts {
	uint64_t waiting;  /* NEW, and may be published now */
	uint64_t retrying; /* refused and in backoff, and the events behind them */
	uint64_t parked;   /* behind a FAILED one */
	uint64_t blocked;  /* behind a FAILED one that blocks: a drain waits for them */
	uint64_t failed;
	int64_t next_due_ms;  /* of the retrying; 0: none */
	int64_t oldest_ms;    /* when the oldest that waits was committed; 0: none */
	char last_error[256]; /* of one that is retried or failed */
};

typedef void (*semel_aggregate_visitor)(struct semel_text type, struct semel_text id, void *user);
typedef semel_status (*semel_routing_visitor)(struct semel_text id, struct semel_text routing_key,
					      void *user);

/* Only with a change stream: visits every aggregate that has exceptions. */
typedef semel_status semel_outbox_exceptions_each_fn(semel_store *store,
						     semel_aggregate_visitor visit, void *user,
						     semel_error *error);
typedef semel_status semel_outbox_count_fn(semel_store *store,
					   struct semel_outbox_counts *counts_out,
					   semel_error *error);
/* Retained rows that match, PUBLISHED only, seq above after_seq, ascending. */
typedef semel_status semel_outbox_select_fn(semel_store *store,
					    const struct semel_outbox_filter *filter,
					    int64_t after_seq, struct semel_outbox_batch *batch,
					    semel_error *error);
typedef semel_status semel_outbox_each_fn(semel_store *store, semel_id_visitor visit, void *user,
					  semel_error *error);
/* The topics of the newest few thousand events, each once. Cheap, however many events are
 * retained. */
typedef semel_status semel_outbox_topics_each_fn(semel_store *store, semel_text_visitor visit,
						 void *user, semel_error *error);
/* Ids in ascending byte order, and the key that a binding is compared with. */
typedef semel_status semel_outbox_routing_each_fn(semel_store *store, semel_routing_visitor visit,
						  void *user, semel_error *error);
/* The newest own time of an event that prune has removed (prune counts from the commit); 0: nothing
 * was ever pruned. */
typedef semel_status semel_outbox_pruned_until_fn(semel_store *store, int64_t *time_ms_out,
						  semel_error *error);

/* ---- adoption ---------------------------------------------------------------------------------
 */

/* A table that another library uses as its outbox. */
struct semel_adoption {
	const char *table;
	const char *mapping; /* JSON: the columns of the event's members, and the topic */
	bool existing;       /* existing rows become events too */
};

/* Both optional: for a store that can turn rows of another table into events. Called outside of a
 * transaction. CONFIG when the table or a column does not exist; *fresh_out: it was not adopted
 * before. */
typedef semel_status semel_outbox_adopt_fn(semel_store *store,
					   const struct semel_adoption *adoption, bool *fresh_out,
					   semel_error *error);
/* CONFIG when it is not adopted, or with another mapping. */
typedef semel_status semel_outbox_check_adoption_fn(semel_store *store,
						    const struct semel_adoption *adoption,
						    semel_error *error);

/* ---- the table --------------------------------------------------------------------------------
 */

/* Required, unless the type says otherwise; check and exceptions_each with a change stream only. */
struct semel_outbox_functions {
	semel_outbox_insert_fn *insert;

	semel_lane_count_fn *lane_count;
	semel_relay_join_fn *relay_join;
	semel_relay_leave_fn *relay_leave;
	semel_outbox_arm_wakeup_fn *arm_wakeup;
	semel_outbox_check_wakeup_fn *check_wakeup;
	semel_outbox_disarm_wakeup_fn *disarm_wakeup;
	semel_lease_list_fn *lease_list;
	semel_lease_acquire_fn *lease_acquire;
	semel_lease_renew_fn *lease_renew;
	semel_lease_release_fn *lease_release;

	semel_outbox_probe_fn *probe;
	semel_outbox_fetch_fn *fetch;
	semel_outbox_fetch_lanes_fn *fetch_lanes;
	semel_outbox_fetch_due_fn *fetch_due;
	semel_outbox_check_fn *check;
	semel_outbox_mark_fn *mark;
	semel_outbox_mark_lanes_fn *mark_lanes;

	semel_outbox_count_fn *count;
	semel_outbox_select_fn *select;
	semel_outbox_each_fn *each;
	semel_outbox_exceptions_each_fn *exceptions_each;
	semel_outbox_topics_each_fn *topics_each;
	semel_outbox_routing_each_fn *routing_each;
	semel_outbox_pruned_until_fn *pruned_until;

	semel_outbox_adopt_fn *adopt;
	semel_outbox_check_adoption_fn *check_adoption;
};

#endif
