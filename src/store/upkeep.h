/* SPDX-License-Identifier: Apache-2.0 */
/* What a store has besides events: the presence of consumers, runs that a crash may end,
 * subscriptions and the audit log; and what concerns all tables: retention, the trace of an event,
 * the state of the replication slot.
 *
 * Thread: that of the store. Ownership: lists are read into the caller's arena; a visitor's texts
 * live until it returns. Errors: those of store.h.
 *
 * To change here: nothing on the path of an event, but for running_begin and running_end, which are
 * part of the open transaction. Everything else is outside of one.
 */
#ifndef SEMEL_STORE_UPKEEP_H
#define SEMEL_STORE_UPKEEP_H

#include "base/arena.h"
#include "base/text.h"

#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

/* ---- presence: consumers at work ------------------------------------------------------------ */

/* What a consumer reports about itself. */
struct semel_presence {
	struct semel_text scope, owner;
	uint64_t in_flight;       /* deliveries that were fetched and are not settled */
	uint32_t breaker;         /* 0 closed, 1 half-open, 2 open */
	struct semel_text reason; /* why it fetches nothing; data NULL: it does */
	int64_t next_try_ms;      /* 0: not known */
	bool paused;
	int64_t waits_since_ms; /* 0: it does not wait */
	int64_t updated_ms;
	int64_t expires_at_ms; /* end of its lease: after it, the consumer is dead */
};

typedef void (*semel_presence_visitor)(const struct semel_presence *presence, void *user);

/* Writes the consumer's row. */
typedef semel_status semel_presence_put_fn(semel_store *store,
					   const struct semel_presence *presence,
					   semel_error *error);
/* Removes the consumer's row, and those of the scope whose lease ended before forget_ms. */
typedef semel_status semel_presence_remove_fn(semel_store *store,
					      const struct semel_presence *presence,
					      int64_t forget_ms, semel_error *error);
/* The rows of one scope (data NULL: of all), ordered by scope and owner; also those with an expired
 * lease. */
typedef semel_status semel_presence_each_fn(semel_store *store, struct semel_text scope,
					    semel_presence_visitor visit, void *user,
					    semel_error *error);

/* ---- runs that a crash may end -------------------------------------------------------------- */

struct semel_running {
	struct semel_text scope, event_id;
	const char *owner;
	int64_t now_ms;
	int64_t forget_ms; /* runs of the scope that began before this and did not end are
			    * forgotten */
};

/* In the open transaction. *runs_out: how many owners have begun the run since it last ended,
 * including this one. */
typedef semel_status semel_running_begin_fn(semel_tx tx, const struct semel_running *running,
					    uint32_t *runs_out, semel_error *error);
typedef semel_status semel_running_end_fn(semel_tx tx, struct semel_text scope,
					  struct semel_text event_id, semel_error *error);

/* ---- subscriptions -------------------------------------------------------------------------- */

struct semel_subscription_row {
	struct semel_text scope, topics; /* topics: JSON array of texts */
	struct semel_text guarantee, claim, poison, order, dedup_by, handler;
	struct semel_text bind; /* only these routing keys; data NULL: all */
	bool from_latest;
	int64_t since_ms; /* when it was first registered */
	bool paused;      /* by an operator; put leaves it as it is */
};

/* A topic that a scope reads, or has read once. */
typedef void (*semel_topic_visitor)(struct semel_text topic, int64_t since_ms,
				    int64_t removed_at_ms /* 0: it still reads it */, void *user);

/* Also records which topics the scope reads; a topic that it no longer reads is recorded as removed
 * now. A scope that wrote no claims before, and does so from now on, begins now (from_latest). */
typedef semel_status semel_subscription_put_fn(semel_store *store,
					       const struct semel_subscription_row *row,
					       int64_t now_ms, semel_error *error);
typedef semel_status semel_subscription_list_fn(semel_store *store, struct semel_arena *arena,
						struct semel_subscription_row *rows_out,
						uint32_t limit, uint32_t *count_out,
						semel_error *error);
/* Every topic that the scope has ever read, in byte order. */
typedef semel_status semel_subscription_topics_fn(semel_store *store, struct semel_text scope,
						  semel_topic_visitor visit, void *user,
						  semel_error *error);
/* NOT_FOUND when the scope has no subscription. */
typedef semel_status semel_subscription_pause_fn(semel_store *store, struct semel_text scope,
						 bool paused, semel_error *error);
/* A subscription that is not registered is not paused. */
typedef semel_status semel_subscription_is_paused_fn(semel_store *store, struct semel_text scope,
						     bool *paused_out, semel_error *error);

/* ---- the audit log -------------------------------------------------------------------------- */

/* Characters of a target or a detail; what is longer ends in an ellipsis. */
#define SEMEL_AUDIT_TEXT "4096"
/* The outcome while the action runs; it stays if the process ends meanwhile. */
#define SEMEL_AUDIT_BEGUN "begun"

/* What an operator did, or tried to do. */
struct semel_audit_row {
	int64_t at_ms;
	struct semel_text who, what, target, detail; /* target, detail: data NULL: none */
	/* "begun", "done", "done: …", "refused: not-pending", "failed: outage"; data NULL: the row
	 * was written before there was a column for it. */
	struct semel_text outcome;
};

/* number_out: for audit_finish; may be NULL. */
typedef semel_status semel_audit_add_fn(semel_store *store, const struct semel_audit_row *row,
					int64_t *number_out, semel_error *error);
typedef semel_status semel_audit_finish_fn(semel_store *store, int64_t number, const char *outcome,
					   semel_error *error);
/* The newest first. */
typedef semel_status semel_audit_list_fn(semel_store *store, struct semel_arena *arena,
					 struct semel_audit_row *rows_out, uint32_t limit,
					 uint32_t *count_out, semel_error *error);

/* ---- retention ------------------------------------------------------------------------------ */

struct semel_retention_cutoffs { /* older rows are removed; 0: none */
	int64_t outbox_ms, inbox_ms, dead_ms;
};

struct semel_prune_counts {
	uint64_t outbox, inbox, dead;
};

/* Deletes a bounded number of rows in a short transaction, or counts (dry run: all rows that would
 * be deleted). *more_out: call again. Deletes only PUBLISHED rows of the outbox (and FAILED ones
 * whose dead letter was deleted), finished claims, and dead letters without followers, except those
 * whose replay is not settled. A dead letter with an event id leaves a FAILED claim in its scope,
 * unless there is a claim already. */
typedef semel_status semel_store_prune_fn(semel_store *store,
					  const struct semel_retention_cutoffs *cutoffs,
					  bool dry_run, struct semel_prune_counts *counts_out,
					  bool *more_out, semel_error *error);

/* ---- the trace of an event ------------------------------------------------------------------ */

/* One entry in the history of an event; texts in the arena. */
struct semel_trace_entry {
	int64_t time_ms;
	const char *what; /* "committed", "published", "claimed", "processed", "dead-lettered", … */
	const char *scope;  /* NULL: the producer's side */
	const char *detail; /* NULL: none */
	const char *quoted; /* a text from outside (an error of a handler, a reason), shown after
			     * the detail; NULL: none */
};

typedef void (*semel_trace_visitor)(const struct semel_trace_entry *entry, void *user);

typedef semel_status semel_store_trace_fn(semel_store *store, const char *event_id,
					  struct semel_arena *arena, semel_trace_visitor visit,
					  void *user, semel_error *error);

/* ---- the replication slot ------------------------------------------------------------------- */

struct semel_slot_status {
	bool exists;
	bool lost;   /* the database has removed WAL that it needs */
	bool active; /* a session reads from it */
	uint64_t retained;
	int64_t limit; /* bytes that the server keeps at most; -1: no limit */
};

/* Only with a change stream: reads the slot of this name. */
typedef semel_status semel_slot_read_fn(semel_store *store, const char *slot,
					struct semel_slot_status *status_out, semel_error *error);

/* ---- the table ------------------------------------------------------------------------------ */

/* Required, except for slot_read, which only stores with a change stream have. */
struct semel_upkeep_functions {
	semel_presence_put_fn *presence_put;
	semel_presence_remove_fn *presence_remove;
	semel_presence_each_fn *presence_each;

	semel_running_begin_fn *running_begin;
	semel_running_end_fn *running_end;

	semel_subscription_put_fn *subscription_put;
	semel_subscription_list_fn *subscription_list;
	semel_subscription_topics_fn *subscription_topics;
	semel_subscription_pause_fn *subscription_pause;
	semel_subscription_is_paused_fn *subscription_is_paused;

	semel_audit_add_fn *audit_add;
	semel_audit_finish_fn *audit_finish;
	semel_audit_list_fn *audit_list;

	semel_store_prune_fn *prune;
	semel_store_trace_fn *trace;
	semel_slot_read_fn *slot_read;
};

#endif
