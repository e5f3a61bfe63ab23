/* SPDX-License-Identifier: Apache-2.0 */
/* A store keeps Semel's tables in the application's database.
 *
 * Rules of delivery are not here: a driver knows its own engine, does what one slot says, in one
 * transaction where the slot says so, and reports. It never decides about retries or verdicts.
 *
 * Threads: one store belongs to one thread. Time comes in as now_ms.
 * Ownership: rows are read into the caller's arena.
 * Errors: every slot may answer OUTAGE (cannot be reached), BUSY (locked for long), STORAGE_FULL,
 * NO_SCHEMA, SCHEMA_NEWER, INTERNAL. After OUTAGE the caller closes and reopens; an open
 * transaction is gone then.
 * Batches: arrays, so that a remote store can send them in one round trip.
 * Every driver passes tests/contract/store_suite.c.
 */
#ifndef SEMEL_STORE_STORE_H
#define SEMEL_STORE_STORE_H

#include "base/arena.h"
#include "base/env.h"
#include "base/finding.h"
#include "base/owner.h"
#include "base/url.h"
#include "base/wake.h"
#include "event/event.h"
#include "store/audit.h"

#include <semel/deadletter.h>
#include <semel/inbox.h>
#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_changes_driver; /* changes.h */

struct semel_store {
	const struct semel_store_driver *driver;
	char *default_scope;         /* owned; NULL: none */
	const struct semel_env *env; /* NULL while it is being opened: the machine's */
};

/* ---- lanes ---------------------------------------------------------------------------------- */

/* A share of the aggregates that one relay owns at a time. The epoch grows with every new owner:
 * it is the fence that a mark is checked against. low_seq: nothing at or below it is waiting, but
 * for the exceptions; a hint that may always be lower. */
struct semel_lease {
	int32_t lane;
	int64_t epoch;
	int64_t expires_at_ms;
	int64_t low_seq;
	bool streamed; /* in: rows come by a change stream; none are looked for below low_seq */
	char owner[SEMEL_OWNER_SIZE]; /* empty: nobody */
};

/* The relays at work on this store, and our place among them (from 0). */
struct semel_relay_group {
	uint32_t members, rank;
};

/* ---- outbox --------------------------------------------------------------------------------- */

struct semel_outbox_row {
	struct semel_event event;
	int64_t seq;
	int32_t lane; /* of a row from the change stream; else it is its load's */
	uint32_t attempts;
	bool marked;     /* outbox_check: published already, or set aside as an exception */
	bool held;       /* an earlier event of its aggregate is an exception that holds it back */
	bool exception;  /* it comes from the exceptions, not from the run of the table */
	uint32_t replay; /* how often its dead letter was replayed */
	uint64_t transaction; /* of the change stream: the same for what was committed together */
	int64_t commit_order; /* grows with the order of commits, as far as the store knows it; 0:
				 not */
	uint32_t xid;         /* the same, as the database numbers it */
	struct semel_text previous; /* id of the event before it in its aggregate; data NULL: none,
				     * or not known */
};

/* Rows read: the caller gives arena, rows with capacity, and bytes_max of payload. */
struct semel_outbox_batch {
	struct semel_arena *arena;
	struct semel_outbox_row *rows;
	uint32_t capacity;
	uint64_t bytes_max;
	uint32_t count;
	bool cut;             /* out: bytes_max left rows out that were there, or may be */
	int64_t complete_seq; /* every number at or below it is visible now or never will be */
	bool by_commit;       /* out: they come in the order of commits, not of numbers */
};

/* Is there anything to read in this lane? */
struct semel_lane_probe {
	int32_t lane;
	int64_t after_seq;    /* in: the run is asked for above it; INT64_MAX: not at all */
	bool run, due;        /* out: outbox_fetch, outbox_fetch_due may find something */
	int64_t complete_seq; /* out: as in a batch; where run is false, nothing up to it waits */
};

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
	bool blocks; /* FAILED: and a drain is not finished before they went (policy block) */
};

struct semel_mark_batch {
	const struct semel_mark *marks;
	size_t count;
	int64_t low_seq; /* the lane's new low mark */
	int64_t now_ms;
	int64_t expires_at_ms; /* the lease's new end */
	bool accept_invisible; /* a refused row that cannot be seen has been waited for long enough
				*/
};

/* One lane of a fetch over several, and of a mark. */
struct semel_lane_read {
	const struct semel_lease *lease;
	int64_t after_seq;
	struct semel_outbox_batch *batch;
};
struct semel_lane_marks {
	struct semel_lease *lease;
	struct semel_mark_batch batch;
	bool lost; /* out: the lease was, and nothing of the lane is marked */
};

struct semel_outbox_filter { /* for replay; NULL, 0: no bound */
	const char *id;      /* this event alone; the others do not count then */
	const char *type, *aggregate_type, *aggregate_id;
	int64_t since_ms, until_ms; /* the event's own time; until is exclusive */
};

/* ---- inbox ---------------------------------------------------------------------------------- */

enum semel_inbox_status { SEMEL_INBOX_CLAIMED, SEMEL_INBOX_PROCESSED, SEMEL_INBOX_FAILED };

/* One claim. status PROCESSED: the claim commits with the effect (same-tx). CLAIMED: it is held by
 * owner until lease_until_ms and finished later. key: a business key that must be new over the
 * whole window, whatever the week; data NULL: dedup by id alone. */
struct semel_inbox_claim {
	struct semel_text scope, event_id, topic, handler_version, key;
	int64_t event_time_ms;
	int32_t partition;
	int64_t offset;
	enum semel_inbox_status status;
	const char *owner;
	int64_t lease_until_ms;
	uint32_t replay; /* which replay of its dead letter this delivery is; 0: none */
};

/* What inbox_change asks for. A FAILED claim is taken over only by a replay with a higher number
 * than the last one that took it: once per replay. */
struct semel_inbox_change {
	enum semel_inbox_status from;
	const char *from_owner; /* NULL: whoever */
	const char *error_code; /* NULL: none */
	int64_t now_ms;
};

enum semel_claim_found {
	SEMEL_FOUND_NEW,       /* claimed now: this caller won */
	SEMEL_FOUND_PROCESSED, /* by id */
	SEMEL_FOUND_KEY,       /* another event with this business key was processed */
	SEMEL_FOUND_CLAIMED,   /* not finished; owner and lease_until_ms tell whose it is */
	SEMEL_FOUND_FAILED     /* finished without success (separate) */
};

struct semel_claim_result {
	enum semel_claim_found found;
	bool key_conflict; /* CLAIMED: by another event with this business key */
	char owner[SEMEL_OWNER_SIZE];
	int64_t lease_until_ms;
};

/* ---- holds: aggregates that must wait, per scope --------------------------------------------- */

enum semel_hold_state {
	SEMEL_HOLD_NONE,    /* not held */
	SEMEL_HOLD_RETRY,   /* its head is under delayed retry */
	SEMEL_HOLD_DEAD,    /* its head is a dead letter */
	SEMEL_HOLD_GAP,     /* its head waits for a predecessor that was not seen (strict) */
	SEMEL_HOLD_RELEASED /* the head is settled; the parked followers may go, in order */
};

/* What is held: an aggregate, or with a blank type the topic that id names (total order). */
struct semel_hold_key {
	struct semel_text type, id;
};

struct semel_hold {
	/* A blank aggregate_type holds the whole topic that aggregate_id names (total order). */
	struct semel_text aggregate_type, aggregate_id;
	struct semel_text head_id; /* the event that everything of the aggregate waits for */
	enum semel_hold_state state;
	uint32_t attempts; /* RETRY: runs of the head so far; RELEASED: of the first follower;
			    * DEAD: which replay failed last */
	int64_t due_ms; /* RETRY: the head is expected; GAP: waiting ends; RELEASED: not before */
	bool blocks;    /* poison policy block: a drain is not finished before it is gone */
};

struct semel_holds {
	struct semel_arena *arena;
	struct semel_hold *holds;
	uint32_t capacity, count;
};

struct semel_hold_counts {
	uint64_t waiting;    /* events behind RETRY, GAP or RELEASED, and the heads of GAPs */
	uint64_t blocked;    /* events behind DEAD with blocks */
	uint64_t parked;     /* events behind DEAD without */
	int64_t next_due_ms; /* of the GAPs and the RELEASED; 0: none */
};

/* ---- positions: how far a scope has read a log of the broker --------------------------------- */

/* A stream, or a partition of a topic, whose offsets are kept here, with the effects. It has one
 * reader at a time: the epoch grows with every new one, and is the fence that a put is checked
 * against. */
struct semel_position {
	struct semel_text scope, topic;
	int32_t partition;
	int64_t next;  /* the first offset that is not settled; -1: never read */
	int64_t epoch; /* 0: nobody has ever read it */
	int64_t expires_at_ms;
	struct semel_anchor anchor;
	char owner[SEMEL_OWNER_SIZE]; /* empty: nobody */
};

/* ---- presence: consumers at work ------------------------------------------------------------- */

/* What a consumer says of itself. */
struct semel_presence {
	struct semel_text scope, owner;
	uint64_t in_flight;       /* deliveries that were fetched and are not settled */
	uint32_t breaker;         /* 0 closed, 1 half-open, 2 open */
	struct semel_text reason; /* why it takes nothing; data NULL: it does */
	int64_t next_try_ms;      /* 0: not known */
	bool paused;
	int64_t waits_since_ms; /* 0: it does not wait */
	int64_t updated_ms;
	int64_t expires_at_ms; /* of its lease: later it is dead */
};

/* The texts live until the call returns. */
typedef void (*semel_presence_visitor)(const struct semel_presence *presence, void *user);

/* A run that a crash may end. */
struct semel_running {
	struct semel_text scope, event_id;
	const char *owner;
	int64_t now_ms;
	int64_t forget_ms; /* what was begun in the scope before this, and not ended, is forgotten
			    */
};

/* ---- dead letters --------------------------------------------------------------------------- */

struct semel_dead_entry {
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
	uint64_t parked;       /* followers behind it; filled by get and list */
	uint64_t payload_size; /* likewise: bytes, also where the payload was not read */
};

/* ---- what is known of an event at a scope ---------------------------------------------------- */

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

/* Answers in the order of the queries; what they point to is in the arena. */
struct semel_state_batch {
	struct semel_arena *arena;
	const struct semel_state_query *queries;
	struct semel_state_result *results;
	size_t count;
};

/* ---- retention, trace, verify ---------------------------------------------------------------- */

struct semel_retention_cutoffs { /* rows older than these go; 0: keep all */
	int64_t outbox_ms, inbox_ms, dead_ms, requests_ms;
};

struct semel_prune_counts {
	uint64_t outbox, inbox, dead, requests;
};

struct semel_subscription_row {
	struct semel_text scope, topics; /* topics: JSON array of texts */
	struct semel_text guarantee, claim, poison, order, dedup_by, handler;
	struct semel_text bind; /* it wants such routing keys; data NULL: all */
	bool from_latest;
	int64_t since_ms; /* when it was first seen */
	bool paused;      /* by a person; put leaves it as it is */
};

/* A topic that a scope reads, or has read once. */
typedef void (*semel_topic_visitor)(struct semel_text topic, int64_t since_ms,
				    int64_t removed_at_ms /* 0: it still does */, void *user);

/* ---- what waits in a scope, and not for a person --------------------------------------------- */

enum semel_wait_kind {
	SEMEL_WAIT_PARKED, /* a parked event; not those behind a dead letter that is PENDING */
	SEMEL_WAIT_HOLD,   /* the head of a hold in RETRY; or in DEAD, without a PENDING letter */
	SEMEL_WAIT_REPLAY, /* a dead letter that is REPLAYED and not settled, nor parked itself */
	SEMEL_WAIT_CLAIM   /* a claim that is not finished, of an event that is not parked */
};

struct semel_wait {
	enum semel_wait_kind kind;
	struct semel_text event_id;
	struct semel_hold_key key;     /* of the event, or of the hold that keeps it */
	enum semel_hold_state state;   /* PARKED, HOLD: of that hold; NONE: there is none */
	struct semel_text head_id;     /* of that hold */
	enum semel_dead_status letter; /* of the hold's head, or of the event; ANY: none */
	bool settled;                  /* REPLAYED: the replay was processed */
	struct semel_text entry_id;    /* of that letter */
	struct semel_text owner;       /* CLAIM */
	int64_t due_ms; /* HOLD: as in the hold; CLAIM: its lease ends; REPLAY: it was replayed */
};

/* The texts live until the call returns. */
typedef semel_status (*semel_wait_visitor)(const struct semel_wait *wait, void *user);

typedef semel_status (*semel_routing_visitor)(struct semel_text id, struct semel_text routing_key,
					      void *user);

/* One fact in the life of an event; texts in the arena. */
struct semel_trace_entry {
	int64_t time_ms;
	const char *what; /* "committed", "published", "claimed", "processed", "dead-lettered", … */
	const char *scope;  /* NULL: the producer's side */
	const char *detail; /* NULL: none */
	const char *quoted; /* of it, by others, goes behind the detail; NULL: nothing */
};

typedef void (*semel_trace_visitor)(const struct semel_trace_entry *fact, void *user);
/* Ids in ascending byte order. status: the row's, as text. time_ms: the event's own; all that the
 * inbox knows of it is the start of its week. */
typedef semel_status (*semel_id_visitor)(struct semel_text id, const char *status,
					 struct semel_text topic, int64_t time_ms, void *user);

typedef void (*semel_text_visitor)(struct semel_text text, void *user);
typedef void (*semel_aggregate_visitor)(struct semel_text type, struct semel_text id, void *user);

struct semel_outbox_counts {
	uint64_t waiting;  /* NEW and free to go */
	uint64_t retrying; /* refused, backoff running, and those behind them */
	uint64_t parked;   /* behind a FAILED one */
	uint64_t blocked;  /* behind a FAILED one that blocks: a drain waits for them */
	uint64_t failed;
	int64_t next_due_ms;  /* of the retrying; 0: none */
	int64_t oldest_ms;    /* when the oldest that waits was committed; 0: none */
	char last_error[256]; /* of one that is retried or failed */
};

/* What is known of the slot of the change stream. */
struct semel_slot_status {
	bool exists;
	bool lost;   /* the database has removed parts of the log that it needs */
	bool active; /* somebody reads from it */
	uint64_t retained;
	int64_t limit; /* bytes that the server keeps at most; -1: no limit */
};

/* An outbox of somebody else's making. */
struct semel_adoption {
	const char *table;
	const char *mapping; /* JSON: which column is what, where the events go */
	bool existing;       /* rows that are there already become events, too */
};

/* ---- the driver ------------------------------------------------------------------------------ */

struct semel_store_driver {
	const char *scheme; /* "sqlite" */

	/* NULL: the store has no change stream, and needs no outbox_check, outbox_exceptions. */
	const struct semel_changes_driver *changes;

	/* All slots are required unless they say otherwise. */

	/* Opens a connection and checks the schema's version. CONFIG when the URL cannot be right.
	 */
	semel_status (*open)(const struct semel_url *url, semel_store **store_out,
			     semel_error *error);
	void (*close)(semel_store *store);
	/* Creates or upgrades the tables, in one transaction. */
	semel_status (*init)(const struct semel_url *url, semel_error *error);
	/* Optional, both: a store that can make rows of another table events. Outside of a
	 * transaction. CONFIG when the table or a column is not there; *fresh_out: it was not
	 * adopted before. adopted: CONFIG when it is not, or otherwise. */
	semel_status (*adopt)(semel_store *store, const struct semel_adoption *adoption,
			      bool *fresh_out, semel_error *error);
	semel_status (*adopted)(semel_store *store, const struct semel_adoption *adoption,
				semel_error *error);
	/* Adds what wakes a sleeper when a commit may have happened. The wake outlives the store.
	 */
	void (*watch)(semel_store *store, struct semel_wake *wake);

	/* Transactions. begin takes the write lock at once. A commit that answers OUTAGE is in
	 * doubt; one that answers HANDLER_REJECT or HANDLER_RETRY was refused because of what was
	 * written (a constraint that is checked at the end), and is rolled back. Savepoints are not
	 * nested: one is open at most. */
	semel_status (*begin)(semel_store *store, semel_error *error);
	semel_status (*commit)(semel_store *store, semel_error *error);
	void (*rollback)(semel_store *store);
	semel_status (*savepoint)(semel_store *store, semel_error *error);
	semel_status (*release)(semel_store *store, semel_error *error);
	semel_status (*rollback_to)(semel_store *store, semel_error *error);
	semel_tx (*tx)(semel_store *store);
	bool (*in_transaction)(semel_tx tx);

	/* Runs any statements (the business change of `publish --sql`). INVALID with the engine's
	 * words when one is wrong. In the open transaction. */
	semel_status (*execute)(semel_store *store, const char *sql, semel_error *error);

	/* -- producing. In the open transaction. DUPLICATE_ID names the id. */
	semel_status (*outbox_insert)(semel_tx tx, const struct semel_event *events, size_t count,
				      semel_error *error);

	/* -- lanes. */
	int32_t (*lane_count)(semel_store *store);
	/* Says that this relay is alive until expires_at_ms, and tells of how many it is one. Where
	 * there is one lane only, everybody is alone. */
	semel_status (*relay_join)(semel_store *store, const char *owner, int64_t now_ms,
				   int64_t expires_at_ms, struct semel_relay_group *group_out,
				   semel_error *error);
	void (*relay_leave)(semel_store *store, const char *owner);
	/* The relay is about to sleep: from now on commits ring what watch() has added. True: they
	 * did not before, or have rung already: look once more first. lightly: whether they ring
	 * is left as it is. rouse: it is awake; false: commits ring, and none did. */
	bool (*doze)(semel_store *store, bool lightly);
	bool (*rouse)(semel_store *store);
	/* With a change stream. The relay is woken by that: no commit needs to ring. */
	void (*hush)(semel_store *store);
	/* All lanes, in order; leases_out has lane_count places. */
	semel_status (*lease_list)(semel_store *store, struct semel_lease *leases_out,
				   semel_error *error);
	/* Takes the lane over if its epoch is still that of *lease; fills in the new one.
	 * LEASE_LOST: somebody was quicker. */
	semel_status (*lease_take)(semel_store *store, struct semel_lease *lease, const char *owner,
				   int64_t expires_at_ms, semel_error *error);
	/* Moves the low mark up to that of *lease. LEASE_LOST when the fence has moved on. A higher
	 * epoch and a lower low_seq come back where rows below the low mark were never sent: the
	 * lane is still ours, and is read from there (sweep.c, in both drivers). */
	semel_status (*lease_renew)(semel_store *store, struct semel_lease *lease,
				    int64_t expires_at_ms, semel_error *error);
	void (*lease_release)(semel_store *store, const struct semel_lease *lease);

	/* -- relaying. Looks at many lanes at once, so that idle ones cost nothing. Where a look
	 * is as dear as a fetch, the answer may be yes without one, and complete_seq after_seq. */
	semel_status (*outbox_look)(semel_store *store, struct semel_lane_probe *looks,
				    size_t count, int64_t now_ms, semel_error *error);
	/* Rows NEW above after_seq that are no exceptions, ascending, until the batch
	 * is full by count or by bytes (at least one row); by_commit where that can be known. */
	semel_status (*outbox_fetch)(semel_store *store, const struct semel_lease *lease,
				     int64_t after_seq, struct semel_outbox_batch *batch,
				     semel_error *error);
	/* Optional. The same for several lanes, each once, in one statement. */
	semel_status (*outbox_fetch_lanes)(semel_store *store, const struct semel_lane_read *reads,
					   size_t count, semel_error *error);
	/* Exceptions of the lane that are due and not held by an earlier one, ascending; so at most
	 * one per aggregate. */
	semel_status (*outbox_fetch_due)(semel_store *store, const struct semel_lease *lease,
					 int64_t now_ms, struct semel_outbox_batch *batch,
					 semel_error *error);
	/* One transaction: checks the fence, applies the marks, moves the low mark and renews the
	 * lease. LEASE_LOST: nothing was done. NOT_FINISHED: neither, for a refused row came
	 * through the change stream and cannot be seen yet; the same call later. A FAILED mark of
	 * an event whose dead letter was REPLAYED returns to that entry. PUBLISHED of an exception
	 * lets the next one of its aggregate go. */
	semel_status (*outbox_mark)(semel_store *store, struct semel_lease *lease,
				    const struct semel_mark_batch *batch, semel_error *error);
	/* Optional. The same for several, a lane more than once with the same low_seq, in one
	 * transaction: all are PUBLISHED and none is an exception. */
	semel_status (*outbox_mark_lanes)(semel_store *store, struct semel_lane_marks *marks,
					  size_t count, semel_error *error);
	/* With a change stream. Fills in `settled` and `held` of rows that came through it. */
	semel_status (*outbox_check)(semel_store *store, struct semel_outbox_row *rows,
				     size_t count, semel_error *error);
	/* With a change stream. Every aggregate that has exceptions. */
	semel_status (*outbox_exceptions)(semel_store *store, semel_aggregate_visitor seen,
					  void *user, semel_error *error);
	semel_status (*outbox_counts)(semel_store *store, int64_t now_ms,
				      struct semel_outbox_counts *counts_out, semel_error *error);
	/* Retained rows that match, PUBLISHED only, seq above after_seq, ascending. */
	semel_status (*outbox_select)(semel_store *store, const struct semel_outbox_filter *filter,
				      int64_t after_seq, struct semel_outbox_batch *batch,
				      semel_error *error);
	semel_status (*outbox_each)(semel_store *store, semel_id_visitor seen, void *user,
				    semel_error *error);
	/* The topics of the newest events, some thousands, each once. Cheap, whatever is kept. */
	semel_status (*outbox_topics)(semel_store *store, semel_text_visitor seen, void *user,
				      semel_error *error);
	/* Ids in ascending byte order, and what a binding is compared with. */
	semel_status (*outbox_routing_each)(semel_store *store, semel_routing_visitor seen,
					    void *user, semel_error *error);
	/* The newest own time of an event that prune has removed (it goes by when an event was
	 * committed); 0: nothing was ever pruned. */
	semel_status (*outbox_pruned_until)(semel_store *store, int64_t *time_ms_out,
					    semel_error *error);

	/* -- consuming. Claims in the open transaction, answers in order. Two claims of one id in
	 * one call: the second finds the first. */
	semel_status (*inbox_claim)(semel_tx tx, const struct semel_inbox_claim *claims,
				    size_t count, int64_t now_ms,
				    struct semel_claim_result *answers_out, semel_error *error);
	/* The claim of scope and event, found in the state change->from, becomes claim->status;
	 * owner and lease are taken over when that is CLAIMED. taken_out false: it was not so any
	 * more. */
	semel_status (*inbox_change)(semel_tx tx, const struct semel_inbox_claim *claim,
				     const struct semel_inbox_change *change, bool *taken_out,
				     semel_error *error);
	/* Forgets the claim (and its key), so that the event can be processed. With an owner: only
	 * while the claim is unfinished and that owner's. */
	semel_status (*inbox_forget)(semel_tx tx, const struct semel_inbox_claim *claim,
				     semel_error *error);
	/* Longer leases for the claims of this owner that are not finished. */
	semel_status (*inbox_renew)(semel_store *store, const char *owner, int64_t lease_until_ms,
				    semel_error *error);
	/* Was it settled in this scope: processed, failed or a dead letter of any status? */
	semel_status (*inbox_settled)(semel_tx tx, struct semel_text scope, struct semel_text id,
				      bool *settled_out, semel_error *error);
	semel_status (*inbox_each)(semel_store *store, struct semel_text scope,
				   semel_id_visitor seen, void *user, semel_error *error);
	/* Has any scope claimed an event of this topic? Reads the whole inbox if none has. */
	semel_status (*inbox_has_topic)(semel_store *store, struct semel_text topic, bool *has_out,
					semel_error *error);
	/* The oldest week that the inbox still knows; 0: it has forgotten nothing. */
	semel_status (*inbox_known_since)(semel_store *store, int64_t *time_ms_out,
					  semel_error *error);

	/* -- SQL handlers. Prepares the statements once; INVALID with the engine's words and, for
	 * an unknown parameter, the nearest right one. */
	semel_status (*effect_prepare)(semel_store *store, const char *const *statements,
				       size_t count, semel_error *error);
	/* Runs them for one event in the open transaction. HANDLER_REJECT: constraint or type;
	 * HANDLER_RETRY: anything else about this event. A driver may defer the answer to a later
	 * effect, the savepoint's release or the commit; the caller then redoes the batch one by
	 * one. */
	semel_status (*effect_run)(semel_store *store, const struct semel_event *event,
				   uint32_t attempt, semel_error *error);
	/* One SQL expression over the same parameters that yields a text (an upcaster). Not in a
	 * hurry; may be prepared each time. */
	semel_status (*evaluate)(semel_store *store, const char *expression,
				 const struct semel_event *event, struct semel_arena *arena,
				 struct semel_text *value_out, semel_error *error);

	/* -- admission. Does the scope have any hold, or any dead letter with an event id? Cheap.
	 */
	semel_status (*states_any)(semel_tx tx, struct semel_text scope, bool *any_out,
				   semel_error *error);
	/* What the scope's tables say of each event: the hold of its key and its dead letter. In
	 * the open transaction. Holds that are found are locked as by hold_get, and so are letters
	 * whose replay is not processed yet: of two consumers the second sees what the first has
	 * settled. One statement for the batch where the engine can. */
	semel_status (*states_look)(semel_tx tx, struct semel_text scope,
				    struct semel_state_batch *batch, semel_error *error);

	/* -- holds. */
	semel_status (*hold_any)(semel_tx tx, struct semel_text scope, bool *any_out,
				 semel_error *error);
	/* Is anything held under keys of the other kind: whole topics (total order), or, for one
	 * who keeps total order, aggregates? */
	semel_status (*hold_other)(semel_tx tx, struct semel_text scope, bool total,
				   bool *other_out, semel_error *error);
	/* The hold of this key; state NONE: it is not held. In an open transaction it is locked
	 * until its end: whoever parks behind it, or lets the last one behind it go, looks at it
	 * first. */
	semel_status (*hold_get)(semel_tx tx, struct semel_text scope,
				 const struct semel_hold_key *key, struct semel_arena *arena,
				 struct semel_hold *hold_out, semel_error *error);
	semel_status (*hold_put)(semel_tx tx, struct semel_text scope,
				 const struct semel_hold *hold, semel_error *error);
	semel_status (*hold_remove)(semel_tx tx, struct semel_text scope,
				    const struct semel_hold *hold, semel_error *error);
	/* The same for a key that is not held; *added_out false: it is by now, and was left alone.
	 */
	semel_status (*hold_add)(semel_tx tx, struct semel_text scope,
				 const struct semel_hold *hold, bool *added_out,
				 semel_error *error);
	/* RELEASED ones that are due, GAPs whose waiting ended; locked for this transaction where
	 * the engine can, those of others skipped. In the open transaction. */
	semel_status (*hold_ready)(semel_tx tx, struct semel_text scope, int64_t now_ms,
				   struct semel_holds *holds, semel_error *error);
	/* When the first GAP or RELEASED one becomes due, whether past or to come; 0: none. Cheap,
	 * whatever is parked. */
	semel_status (*hold_due)(semel_store *store, struct semel_text scope, int64_t *due_ms_out,
				 semel_error *error);
	semel_status (*hold_counts)(semel_store *store, struct semel_text scope,
				    struct semel_hold_counts *counts_out, semel_error *error);

	/* -- positions. Fills in the rest for scope, topic and partition. */
	semel_status (*position_get)(semel_store *store, struct semel_position *position,
				     semel_error *error);
	/* Takes it over if its epoch is still that of *position; fills in the new one. LEASE_LOST:
	 * somebody was quicker. */
	semel_status (*position_take)(semel_store *store, struct semel_position *position,
				      const char *owner, int64_t expires_at_ms, semel_error *error);
	/* Writes next and the lease's new end, in the open transaction if there is one. LEASE_LOST:
	 * another one reads now, and nothing was written. */
	semel_status (*position_put)(semel_tx tx, const struct semel_position *position,
				     semel_error *error);
	void (*position_release)(semel_store *store, const struct semel_position *position);

	/* -- dead letters and parked followers. In the open transaction where a tx is given.
	 * add: an entry of the same scope and event is used again and becomes PENDING (not
	 * settled): replay_count the higher of both, attempts, reason and time brought up to date.
	 * entry_id is made by the caller and overwritten with the one used. A blank event id is
	 * always a new entry. */
	semel_status (*dead_add)(semel_tx tx, struct semel_dead_entry *entry,
				 struct semel_arena *arena, semel_error *error);
	/* NOT_FOUND also for a parked follower: it goes with its head. */
	semel_status (*dead_get)(semel_store *store, const char *entry_id,
				 struct semel_arena *arena, struct semel_dead_entry *entry_out,
				 semel_error *error);
	/* Without the parked followers; in brief (SEMEL_DEAD_BRIEF): dead_get has the whole. */
	semel_status (*dead_list)(semel_store *store, const semel_dead_filter *filter,
				  struct semel_arena *arena, struct semel_dead_entry *entries_out,
				  uint32_t *count_out, semel_error *error);
	semel_status (*dead_count)(semel_store *store, const char *scope, uint64_t *count_out,
				   semel_error *error);
	/* PENDING → REPLAYED (replay_count + 1; REPLAY_LIMIT at the limit; not settled, but for
	 * one of the relay, which the outbox accounts for from then on) or DISCARDED. NOT_FOUND;
	 * NOT_PENDING, also when its replay_count is no longer that of
	 * *entry: it came back in the meantime. In the open transaction: it is locked. */
	semel_status (*dead_move)(semel_tx tx, const struct semel_dead_entry *entry,
				  enum semel_dead_status status, const char *reason, int64_t now_ms,
				  semel_error *error);
	/* A delivery of the event, which is the replay of this number (0: none), was processed: an
	 * entry that is REPLAYED and not settled is settled now. One that is still PENDING with a
	 * lower count (the replayer died before it could mark it) becomes REPLAYED, and settled. */
	semel_status (*dead_settle)(semel_tx tx, struct semel_text scope,
				    struct semel_text event_id, uint32_t replay, int64_t now_ms,
				    semel_error *error);
	/* The event is to run once more, by the word of a person (--reprocess): its entry, whatever
	 * its status, becomes REPLAYED and not settled; its count stays. Without one: nothing. */
	semel_status (*dead_authorize)(semel_tx tx, struct semel_text scope,
				       struct semel_text event_id, int64_t now_ms,
				       semel_error *error);
	/* A dead letter of the relay goes back to the outbox as a due exception, same transaction
	 * as its dead_move; on discard its hold is lifted. */
	semel_status (*dead_relay_return)(semel_tx tx, const struct semel_dead_entry *entry,
					  bool discard, int64_t now_ms, semel_error *error);
	/* Ids with an entry in the scope; parked followers too, with the status PARKED. */
	semel_status (*dead_each)(semel_store *store, struct semel_text scope,
				  semel_id_visitor seen, void *user, semel_error *error);
	/* Keeps a follower behind a head; the same event twice is kept once. */
	semel_status (*parked_add)(semel_tx tx, const struct semel_dead_entry *entry,
				   semel_error *error);
	/* The first follower of the aggregate in the scope; entry_id data NULL: none. */
	semel_status (*parked_first)(semel_tx tx, struct semel_text scope,
				     const struct semel_hold *hold, struct semel_arena *arena,
				     struct semel_dead_entry *entry_out, semel_error *error);
	/* The same where every follower is parked behind its own predecessor: the hold's head
	 * itself, else the first whose predecessor is settled, else the first whose predecessor is
	 * not parked. */
	semel_status (*parked_next)(semel_tx tx, struct semel_text scope,
				    const struct semel_hold *hold, struct semel_arena *arena,
				    struct semel_dead_entry *entry_out, semel_error *error);
	/* Is it still there? Another consumer may have settled it. Locked until the transaction's
	 * end. */
	semel_status (*parked_has)(semel_tx tx, struct semel_text entry_id, bool *parked_out,
				   semel_error *error);
	semel_status (*parked_remove)(semel_tx tx, struct semel_text entry_id, semel_error *error);

	/* Everything in the scope that waits for something else than a person, kind by kind. */
	semel_status (*waits_each)(semel_store *store, struct semel_text scope,
				   semel_wait_visitor seen, void *user, semel_error *error);

	/* -- presence. Writes the consumer's row. Outside of a transaction. */
	semel_status (*presence_put)(semel_store *store, const struct semel_presence *presence,
				     semel_error *error);
	/* Removes it; and those of the scope whose lease ended before forget_ms. */
	semel_status (*presence_remove)(semel_store *store, const struct semel_presence *presence,
					int64_t forget_ms, semel_error *error);
	/* Of one scope (data NULL: of all), ordered by scope and owner; also those whose lease is
	 * over. */
	semel_status (*presence_each)(semel_store *store, struct semel_text scope,
				      semel_presence_visitor seen, void *user, semel_error *error);
	/* -- runs that a crash may end. In the open transaction. begin: runs_out tells how many
	 * owners have begun it since it ended last, this one included. */
	semel_status (*running_begin)(semel_tx tx, const struct semel_running *running,
				      uint32_t *runs_out, semel_error *error);
	semel_status (*running_end)(semel_tx tx, struct semel_text scope,
				    struct semel_text event_id, semel_error *error);

	/* -- subscriptions, retention, trace. put also remembers which topics the scope reads: one
	 * that is not among them any more was removed now. A scope that kept no claims and does so
	 * from now on begins now (from_latest). */
	semel_status (*subscription_put)(semel_store *store,
					 const struct semel_subscription_row *row, int64_t now_ms,
					 semel_error *error);
	semel_status (*subscription_list)(semel_store *store, struct semel_arena *arena,
					  struct semel_subscription_row *rows_out, uint32_t limit,
					  uint32_t *count_out, semel_error *error);
	/* Every topic that the scope has ever read, in byte order. */
	semel_status (*subscription_topics)(semel_store *store, struct semel_text scope,
					    semel_topic_visitor seen, void *user,
					    semel_error *error);
	/* NOT_FOUND when there is none of that scope. */
	semel_status (*subscription_pause)(semel_store *store, struct semel_text scope, bool paused,
					   semel_error *error);
	/* One that is not known is not paused. */
	semel_status (*subscription_paused)(semel_store *store, struct semel_text scope,
					    bool *paused_out, semel_error *error);
	/* number_out: for audit_finish; may be NULL. */
	semel_status (*audit_add)(semel_store *store, const struct semel_audit_row *row,
				  int64_t *number_out, semel_error *error);
	semel_status (*audit_finish)(semel_store *store, int64_t number, const char *outcome,
				     semel_error *error);
	/* The newest first. */
	semel_status (*audit_list)(semel_store *store, struct semel_arena *arena,
				   struct semel_audit_row *rows_out, uint32_t limit,
				   uint32_t *count_out, semel_error *error);
	/* Deletes a bounded number of rows in a short transaction, or counts (dry run: all that
	 * would go). more_out: call again. Only PUBLISHED rows of the outbox (and FAILED ones whose
	 * dead letter has gone), finished claims, and dead letters without followers go, but none
	 * whose replay is not settled. A dead letter with an event id leaves a FAILED claim in its
	 * scope, unless there is a claim. */
	semel_status (*prune)(semel_store *store, const struct semel_retention_cutoffs *cutoffs,
			      bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
			      semel_error *error);
	semel_status (*trace)(semel_store *store, const char *event_id, struct semel_arena *arena,
			      semel_trace_visitor seen, void *user, semel_error *error);

	/* -- for those who watch. Are the tables (still) those of this program? NO_SCHEMA,
	 * SCHEMA_NEWER, as open says. */
	semel_status (*check_schema)(semel_store *store, semel_error *error);
	/* With a change stream: the slot of this name. */
	semel_status (*slot_look)(semel_store *store, const char *slot,
				  struct semel_slot_status *look_out, semel_error *error);
	/* Tells all that can be seen of the database, from reaching it to its disk; changes
	 * nothing. What is wrong is a finding; another answer than OK means that the store cannot
	 * be opened, which was told too. */
	semel_status (*examine)(const struct semel_url *url,
				const struct semel_examination *examination);
};

/* ---- callers use these ----------------------------------------------------------------------- */

/* The registry: one line per driver in registry.c. CONFIG, with what is known, when none fits. */
semel_status semel_store_driver_find(const char *scheme,
				     const struct semel_store_driver **driver_out,
				     semel_error *error);
/* The driver's examine. CONFIG, when the URL names none; told as a finding too. */
semel_status semel_store_examine(const char *url, const struct semel_examination *examination);
/* How many lanes there are, and how many of them no relay holds at this moment. */
struct semel_lanes_state {
	int32_t count, unheld;
	int64_t low_sum; /* of their low marks: it grows when events are published */
};
semel_status semel_store_lanes(semel_store *store, int64_t now_ms,
			       struct semel_lanes_state *state_out, semel_error *error);
/* As semel_store_open, in an environment that outlives the store. */
semel_status semel_store_open_in(const struct semel_env *env, const char *url,
				 semel_store **store_out, semel_error *error);
/* The environment of a store, and that of its transactions; the machine's for a connection of the
 * caller's own. */
const struct semel_env *semel_store_env(const semel_store *store);
const struct semel_env *semel_tx_env(semel_tx tx);
/* Like semel_store_open_in, tried again (with backoff, until wake rings or wait_ms passed) while
 * the answer is an outage. */
semel_status semel_store_reopen(const char *url, const struct semel_env *env,
				struct semel_wake *wake, int64_t wait_ms, semel_store **store_out,
				semel_error *error);

#endif
