/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the SQLite store share: the store itself, and how statements are run.
 *
 * A store of our own keeps its statements prepared, one place per slot. On a borrowed connection
 * they are kept by kept.c until it is closed; no setting is changed there.
 */
#ifndef SEMEL_STORE_SQLITE_SQLITE_H
#define SEMEL_STORE_SQLITE_SQLITE_H

#include "base/sqlite_file.h"
#include "base/time.h"
#include "store/store.h"

#define SEMEL_SQLITE_SCHEMA 4 /* the newest version that this code knows */

/* The statements of the hot paths; ONCE is never kept. */
enum semel_sqlite_slot {
	SEMEL_SQL_ONCE,
	SEMEL_SQL_BEGIN,
	SEMEL_SQL_COMMIT,
	SEMEL_SQL_SAVEPOINT,
	SEMEL_SQL_RELEASE,
	SEMEL_SQL_ROLLBACK_TO,
	SEMEL_SQL_OUTBOX_INSERT,
	SEMEL_SQL_OUTBOX_NEWEST,
	SEMEL_SQL_OUTBOX_FETCH,
	SEMEL_SQL_OUTBOX_FETCH_DUE,
	SEMEL_SQL_MARK_FENCE,
	SEMEL_SQL_MARK_PUBLISHED,
	SEMEL_SQL_INBOX_CLAIM,
	SEMEL_SQL_INBOX_FIND,
	SEMEL_SQL_INBOX_CHANGE,
	SEMEL_SQL_INBOX_SETTLED,
	SEMEL_SQL_KEY_CLAIM,
	SEMEL_SQL_KEY_FIND,
	SEMEL_SQL_STATES_ANY,
	SEMEL_SQL_STATES_LOOK,
	SEMEL_SQL_HOLD_ANY,
	SEMEL_SQL_HOLD_OTHER,
	SEMEL_SQL_HOLD_GET,
	SEMEL_SQL_HOLD_PUT,
	SEMEL_SQL_HOLD_READY,
	SEMEL_SQL_POSITION_PUT,
	SEMEL_SQL_PARKED_ADD,
	SEMEL_SQL_PARKED_FIRST,
	SEMEL_SQL_PARKED_REMOVE,
	SEMEL_SQL_COUNT
};

struct semel_sqlite_query {
	enum semel_sqlite_slot slot;
	const char *what; /* for messages: "mark events" */
	const char *sql;
};

extern const struct semel_store_driver semel_store_sqlite;

struct semel_sqlite_effects; /* the prepared SQL handler, in effect.c */

struct semel_sqlite_store {
	semel_store base;
	sqlite3 *db;
	char *path;
	bool savepoint_open;
	sqlite3_stmt *statements[SEMEL_SQL_COUNT];
	struct semel_sqlite_effects *effects;
	struct { /* see sweep.c */
		int64_t after_seq;
		int64_t began_ms, next_ms; /* steady */
	} sweep;
	struct { /* where the last bounded prune stopped */
		int64_t seq;
		struct semel_buffer scope, event_id; /* no data: at the start */
	} prune;
};

/* ---- running statements (statements.c) ------------------------------------------------------- */

static inline struct semel_sqlite_store *semel_sqlite_of(semel_store *store)
{
	return (struct semel_sqlite_store *)store; /* base is its first member */
}

semel_tx semel_sqlite_tx(semel_store *store);
bool semel_sqlite_in_transaction(semel_tx tx);
/* NO_TRANSACTION, saying what was wanted, unless one is open. */
semel_status semel_sqlite_demand_transaction(semel_tx tx, const char *what, semel_error *error);

/* The statement, ready to be bound; every take has its give. NO_SCHEMA when the tables of a
 * borrowed connection are missing. */
semel_status semel_sqlite_take(semel_tx tx, const struct semel_sqlite_query *query,
			       sqlite3_stmt **statement_out, semel_error *error);
/* For take: a statement that stays prepared on a borrowed connection until that is closed. NULL: it
 * cannot be kept, or is at work. */
sqlite3_stmt *semel_sqlite_kept(sqlite3 *db, const char *sql);
bool semel_sqlite_is_kept(sqlite3_stmt *statement);
/* statement may be NULL. */
void semel_sqlite_give(semel_tx tx, const struct semel_sqlite_query *query,
		       sqlite3_stmt *statement);
/* One step; row_out tells whether there is a row. Without a row, or failed, it is reset. */
semel_status semel_sqlite_step(semel_tx tx, const struct semel_sqlite_query *query,
			       sqlite3_stmt *statement, bool *row_out, semel_error *error);
/* To the end, rows passed over, and reset: bind and run again at will. */
semel_status semel_sqlite_run(semel_tx tx, const struct semel_sqlite_query *query,
			      sqlite3_stmt *statement, semel_error *error);
/* Rows changed by the statement that ran last. */
int64_t semel_sqlite_changes(semel_tx tx);
/* In a transaction of its own, unless one is open already. */
semel_status semel_sqlite_enter(semel_store *store, bool *entered_out, semel_error *error);
semel_status semel_sqlite_leave(semel_store *store, bool entered, semel_status status,
				semel_error *error);

/* Text where it is text, a blob where it is not UTF-8 or holds a zero byte; NULL for no data. */
void semel_sqlite_bind_bytes(sqlite3_stmt *statement, int at, struct semel_text text);
/* string may be NULL. */
void semel_sqlite_bind_string(sqlite3_stmt *statement, int at, const char *string);
/* 0 is bound as NULL. The buffer must outlive the step. */
void semel_sqlite_bind_time(sqlite3_stmt *statement, int at, int64_t time_ms,
			    char buffer[SEMEL_TIME_SIZE]);
/* 0 for NULL and for what is no time. Also reads SQLite's own "2026-11-15 12:00:00". */
int64_t semel_sqlite_time(sqlite3_stmt *statement, int column);
/* Cut to size, never overrun; empty for NULL. */
void semel_sqlite_copy(sqlite3_stmt *statement, int column, char *out, size_t size);

/* ---- the slots ------------------------------------------------------------------------------- */

/* transaction.c */
semel_status semel_sqlite_begin(semel_store *store, semel_error *error);
semel_status semel_sqlite_commit(semel_store *store, semel_error *error);
void semel_sqlite_rollback(semel_store *store);
semel_status semel_sqlite_savepoint(semel_store *store, semel_error *error);
semel_status semel_sqlite_release(semel_store *store, semel_error *error);
semel_status semel_sqlite_rollback_to(semel_store *store, semel_error *error);

/* open.c */
semel_status semel_sqlite_store_open(const struct semel_url *url, semel_store **store_out,
				     semel_error *error);
void semel_sqlite_store_close(semel_store *store);
semel_status semel_sqlite_store_init(const struct semel_url *url, semel_error *error);
void semel_sqlite_store_watch(semel_store *store, struct semel_wake *wake);
semel_status semel_sqlite_check_schema(semel_store *store, semel_error *error);
semel_status semel_sqlite_store_examine(const struct semel_url *url,
					const struct semel_examination *examination);

/* outbox.c */
semel_status semel_sqlite_outbox_insert(semel_tx tx, const struct semel_event *events, size_t count,
					semel_error *error);
semel_status semel_sqlite_outbox_look(semel_store *store, struct semel_lane_probe *looks,
				      size_t count, int64_t now_ms, semel_error *error);
semel_status semel_sqlite_outbox_fetch(semel_store *store, const struct semel_lease *lease,
				       int64_t after_seq, struct semel_outbox_batch *batch,
				       semel_error *error);
semel_status semel_sqlite_outbox_fetch_due(semel_store *store, const struct semel_lease *lease,
					   int64_t now_ms, struct semel_outbox_batch *batch,
					   semel_error *error);
semel_status semel_sqlite_outbox_select(semel_store *store,
					const struct semel_outbox_filter *filter, int64_t after_seq,
					struct semel_outbox_batch *batch, semel_error *error);
/* outbox_counts.c */
semel_status semel_sqlite_outbox_counts(semel_store *store, int64_t now_ms,
					struct semel_outbox_counts *counts_out, semel_error *error);

/* lease.c */
int32_t semel_sqlite_lane_count(semel_store *store);
semel_status semel_sqlite_relay_join(semel_store *store, const char *owner, int64_t now_ms,
				     int64_t expires_at_ms, struct semel_relay_group *group_out,
				     semel_error *error);
void semel_sqlite_relay_leave(semel_store *store, const char *owner);
bool semel_sqlite_doze(semel_store *store, bool lightly);
bool semel_sqlite_rouse(semel_store *store);
semel_status semel_sqlite_lease_list(semel_store *store, struct semel_lease *leases_out,
				     semel_error *error);
semel_status semel_sqlite_lease_take(semel_store *store, struct semel_lease *lease,
				     const char *owner, int64_t expires_at_ms, semel_error *error);
semel_status semel_sqlite_lease_renew(semel_store *store, struct semel_lease *lease,
				      int64_t expires_at_ms, semel_error *error);
void semel_sqlite_lease_release(semel_store *store, const struct semel_lease *lease);
/* A bounded look at the lane, which is ours. *found_out: the first row at or below the low mark
 * that was never sent; 0: none so far. */
semel_status semel_sqlite_sweep(semel_store *store, const struct semel_lease *lease,
				int64_t *found_out, semel_error *error);

/* mark.c */
semel_status semel_sqlite_outbox_mark(semel_store *store, struct semel_lease *lease,
				      const struct semel_mark_batch *batch, semel_error *error);
semel_status semel_sqlite_dead_relay_return(semel_tx tx, const struct semel_dead_entry *entry,
					    bool discard, int64_t now_ms, semel_error *error);

/* inbox.c */
semel_status semel_sqlite_inbox_claim(semel_tx tx, const struct semel_inbox_claim *claims,
				      size_t count, int64_t now_ms,
				      struct semel_claim_result *answers_out, semel_error *error);
semel_status semel_sqlite_inbox_change(semel_tx tx, const struct semel_inbox_claim *claim,
				       const struct semel_inbox_change *change, bool *taken_out,
				       semel_error *error);
semel_status semel_sqlite_inbox_forget(semel_tx tx, const struct semel_inbox_claim *claim,
				       semel_error *error);
semel_status semel_sqlite_inbox_renew(semel_store *store, const char *owner, int64_t lease_until_ms,
				      semel_error *error);
semel_status semel_sqlite_inbox_settled(semel_tx tx, struct semel_text scope, struct semel_text id,
					bool *settled_out, semel_error *error);

/* effect.c */
semel_status semel_sqlite_execute(semel_store *store, const char *sql, semel_error *error);
semel_status semel_sqlite_effect_prepare(semel_store *store, const char *const *statements,
					 size_t count, semel_error *error);
semel_status semel_sqlite_effect_run(semel_store *store, const struct semel_event *event,
				     uint32_t attempt, semel_error *error);
semel_status semel_sqlite_evaluate(semel_store *store, const char *expression,
				   const struct semel_event *event, struct semel_arena *arena,
				   struct semel_text *value_out, semel_error *error);
void semel_sqlite_effects_free(struct semel_sqlite_effects *effects);

/* states.c */
semel_status semel_sqlite_states_any(semel_tx tx, struct semel_text scope, bool *any_out,
				     semel_error *error);
semel_status semel_sqlite_states_look(semel_tx tx, struct semel_text scope,
				      struct semel_state_batch *batch, semel_error *error);
/* hold.c: a row of these columns */
#define SEMEL_SQLITE_HOLD_WIDTH 7
#define SEMEL_SQLITE_HOLD_COLUMNS                                                                  \
	"aggregate_type, aggregate_id, state, head_id, attempts, due_at, blocks"
void semel_sqlite_hold_read(sqlite3_stmt *statement, struct semel_arena *arena,
			    struct semel_hold *hold);
semel_status semel_sqlite_hold_other(semel_tx tx, struct semel_text scope, bool total,
				     bool *other_out, semel_error *error);
semel_status semel_sqlite_hold_any(semel_tx tx, struct semel_text scope, bool *any_out,
				   semel_error *error);
semel_status semel_sqlite_hold_get(semel_tx tx, struct semel_text scope,
				   const struct semel_hold_key *key, struct semel_arena *arena,
				   struct semel_hold *hold_out, semel_error *error);
semel_status semel_sqlite_hold_put(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, semel_error *error);
semel_status semel_sqlite_hold_add(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, bool *added_out,
				   semel_error *error);
semel_status semel_sqlite_hold_remove(semel_tx tx, struct semel_text scope,
				      const struct semel_hold *hold, semel_error *error);
semel_status semel_sqlite_hold_ready(semel_tx tx, struct semel_text scope, int64_t now_ms,
				     struct semel_holds *holds, semel_error *error);
semel_status semel_sqlite_hold_due(semel_store *store, struct semel_text scope, int64_t *due_ms_out,
				   semel_error *error);
semel_status semel_sqlite_hold_counts(semel_store *store, struct semel_text scope,
				      struct semel_hold_counts *counts_out, semel_error *error);

/* position.c */
semel_status semel_sqlite_position_get(semel_store *store, struct semel_position *position,
				       semel_error *error);
semel_status semel_sqlite_position_take(semel_store *store, struct semel_position *position,
					const char *owner, int64_t expires_at_ms,
					semel_error *error);
semel_status semel_sqlite_position_put(semel_tx tx, const struct semel_position *position,
				       semel_error *error);
void semel_sqlite_position_release(semel_store *store, const struct semel_position *position);

/* dead.c */
semel_status semel_sqlite_dead_add(semel_tx tx, struct semel_dead_entry *entry,
				   struct semel_arena *arena, semel_error *error);
semel_status semel_sqlite_dead_get(semel_store *store, const char *entry_id,
				   struct semel_arena *arena, struct semel_dead_entry *entry_out,
				   semel_error *error);
semel_status semel_sqlite_dead_list(semel_store *store, const semel_dead_filter *filter,
				    struct semel_arena *arena, struct semel_dead_entry *entries_out,
				    uint32_t *count_out, semel_error *error);
semel_status semel_sqlite_dead_count(semel_store *store, const char *scope, uint64_t *count_out,
				     semel_error *error);
semel_status semel_sqlite_dead_move(semel_tx tx, const struct semel_dead_entry *entry,
				    enum semel_dead_status status, const char *reason,
				    int64_t now_ms, semel_error *error);
semel_status semel_sqlite_dead_settle(semel_tx tx, struct semel_text scope,
				      struct semel_text event_id, uint32_t replay, int64_t now_ms,
				      semel_error *error);
semel_status semel_sqlite_dead_authorize(semel_tx tx, struct semel_text scope,
					 struct semel_text event_id, int64_t now_ms,
					 semel_error *error);
semel_status semel_sqlite_parked_add(semel_tx tx, const struct semel_dead_entry *entry,
				     semel_error *error);
semel_status semel_sqlite_parked_first(semel_tx tx, struct semel_text scope,
				       const struct semel_hold *hold, struct semel_arena *arena,
				       struct semel_dead_entry *entry_out, semel_error *error);
semel_status semel_sqlite_parked_next(semel_tx tx, struct semel_text scope,
				      const struct semel_hold *hold, struct semel_arena *arena,
				      struct semel_dead_entry *entry_out, semel_error *error);
semel_status semel_sqlite_parked_has(semel_tx tx, struct semel_text entry_id, bool *parked_out,
				     semel_error *error);
semel_status semel_sqlite_parked_remove(semel_tx tx, struct semel_text entry_id,
					semel_error *error);

/* each.c */
semel_status semel_sqlite_outbox_each(semel_store *store, semel_id_visitor seen, void *user,
				      semel_error *error);
semel_status semel_sqlite_inbox_each(semel_store *store, struct semel_text scope,
				     semel_id_visitor seen, void *user, semel_error *error);
semel_status semel_sqlite_dead_each(semel_store *store, struct semel_text scope,
				    semel_id_visitor seen, void *user, semel_error *error);
semel_status semel_sqlite_trace(semel_store *store, const char *event_id, struct semel_arena *arena,
				semel_trace_visitor seen, void *user, semel_error *error);

/* retention.c */
semel_status semel_sqlite_prune(semel_store *store, const struct semel_retention_cutoffs *cutoffs,
				bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
				semel_error *error);
semel_status semel_sqlite_outbox_pruned_until(semel_store *store, int64_t *time_ms_out,
					      semel_error *error);
semel_status semel_sqlite_inbox_known_since(semel_store *store, int64_t *time_ms_out,
					    semel_error *error);

/* waits.c */
semel_status semel_sqlite_waits_each(semel_store *store, struct semel_text scope,
				     semel_wait_visitor seen, void *user, semel_error *error);
semel_status semel_sqlite_outbox_topics(semel_store *store, semel_text_visitor seen, void *user,
					semel_error *error);
semel_status semel_sqlite_inbox_has_topic(semel_store *store, struct semel_text topic,
					  bool *has_out, semel_error *error);
semel_status semel_sqlite_outbox_routing_each(semel_store *store, semel_routing_visitor seen,
					      void *user, semel_error *error);

/* running.c */
semel_status semel_sqlite_running_begin(semel_tx tx, const struct semel_running *running,
					uint32_t *runs_out, semel_error *error);
semel_status semel_sqlite_running_end(semel_tx tx, struct semel_text scope,
				      struct semel_text event_id, semel_error *error);
/* presence.c */
semel_status semel_sqlite_presence_put(semel_store *store, const struct semel_presence *presence,
				       semel_error *error);
semel_status semel_sqlite_presence_remove(semel_store *store, const struct semel_presence *presence,
					  int64_t forget_ms, semel_error *error);
semel_status semel_sqlite_presence_each(semel_store *store, struct semel_text scope,
					semel_presence_visitor seen, void *user,
					semel_error *error);

/* subscription.c */
semel_status semel_sqlite_subscription_topics(semel_store *store, struct semel_text scope,
					      semel_topic_visitor seen, void *user,
					      semel_error *error);
semel_status semel_sqlite_subscription_put(semel_store *store,
					   const struct semel_subscription_row *row, int64_t now_ms,
					   semel_error *error);
semel_status semel_sqlite_subscription_list(semel_store *store, struct semel_arena *arena,
					    struct semel_subscription_row *rows_out, uint32_t limit,
					    uint32_t *count_out, semel_error *error);
semel_status semel_sqlite_subscription_pause(semel_store *store, struct semel_text scope,
					     bool paused, semel_error *error);
semel_status semel_sqlite_subscription_paused(semel_store *store, struct semel_text scope,
					      bool *paused_out, semel_error *error);
semel_status semel_sqlite_audit_add(semel_store *store, const struct semel_audit_row *row,
				    int64_t *number_out, semel_error *error);
semel_status semel_sqlite_audit_finish(semel_store *store, int64_t number, const char *outcome,
				       semel_error *error);
semel_status semel_sqlite_audit_list(semel_store *store, struct semel_arena *arena,
				     struct semel_audit_row *rows_out, uint32_t limit,
				     uint32_t *count_out, semel_error *error);

#endif
