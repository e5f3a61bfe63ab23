/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the SQLite store have in common: the store itself, and how statements are run.
 *
 * Our own connection keeps its statements prepared, one per id. On a borrowed connection they are
 * cached until it is closed (engine.c); no setting is changed there.
 *
 * What the seam requires of every SQL store: driver (the tables of functions), open (and init,
 * examine), transaction, engine (statements), outbox, mark, lease, inbox, effect, retention.
 * SQLite's own: sweep. Optional part of the seam: baseline.
 *
 * To change here: what is the same in PostgreSQL belongs to store/sql. No connection of ours
 * checkpoints by itself (base/sqlite_file.h), and a borrowed one keeps its own settings. Tables
 * change by a new numbered file of schema/.
 */
#ifndef SEMEL_STORE_SQLITE_SQLITE_H
#define SEMEL_STORE_SQLITE_SQLITE_H

#include "base/sqlite_file.h"
#include "base/time.h"
#include "store/sql/sql.h"
#include "store/store.h"

#define SEMEL_SQLITE_SCHEMA     5 /* the newest version that this code knows */
#define SEMEL_SQLITE_SHARED_MAX 24

/* The statements of the hot paths; ONCE is never cached. */
enum semel_sqlite_statement_id {
	SEMEL_SQLITE_ONCE,
	SEMEL_SQLITE_BEGIN,
	SEMEL_SQLITE_COMMIT,
	SEMEL_SQLITE_SAVEPOINT,
	SEMEL_SQLITE_RELEASE,
	SEMEL_SQLITE_ROLLBACK_TO,
	SEMEL_SQLITE_OUTBOX_INSERT,
	SEMEL_SQLITE_OUTBOX_NEWEST,
	SEMEL_SQLITE_OUTBOX_FETCH,
	SEMEL_SQLITE_OUTBOX_FETCH_DUE,
	SEMEL_SQLITE_MARK_FENCE,
	SEMEL_SQLITE_MARK_PUBLISHED,
	SEMEL_SQLITE_INBOX_CLAIM,
	SEMEL_SQLITE_INBOX_FIND,
	SEMEL_SQLITE_INBOX_CHANGE,
	SEMEL_SQLITE_INBOX_SETTLED,
	SEMEL_SQLITE_KEY_CLAIM,
	SEMEL_SQLITE_KEY_FIND,
	SEMEL_SQLITE_COUNT,
	SEMEL_SQLITE_SHARED /* of the statement layer, and often used: cached by its text */
};

struct semel_sqlite_statement {
	enum semel_sqlite_statement_id id;
	const char *what; /* for messages: "mark events" */
	const char *sql;
};

extern const struct semel_store_driver semel_store_sqlite;
extern const struct semel_baseline_functions semel_sqlite_baseline;
extern const struct semel_sql_engine semel_sqlite_engine;

struct semel_sqlite_effects; /* the prepared SQL handler, in effect.c */

struct semel_sqlite_store {
	semel_store base;
	sqlite3 *db;
	char *path;
	bool savepoint_open;
	sqlite3_stmt *prepared[SEMEL_SQLITE_COUNT];
	struct {
		const char *sql;
		sqlite3_stmt *prepared;
	} shared[SEMEL_SQLITE_SHARED_MAX]; /* those of SEMEL_SQLITE_SHARED */
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

/* ---- running statements (engine.c) ----------------------------------------------------------- */

static inline struct semel_sqlite_store *semel_sqlite_of(semel_store *store)
{
	return (struct semel_sqlite_store *)store; /* base is its first member */
}

/* The statement, ready to be bound; return it after use. NO_SCHEMA when the tables of a borrowed
 * connection are missing. */
semel_status semel_sqlite_borrow_statement(semel_tx tx,
					   const struct semel_sqlite_statement *statement,
					   sqlite3_stmt **prepared_out, semel_error *error);
/* prepared may be NULL. */
void semel_sqlite_return_statement(semel_tx tx, const struct semel_sqlite_statement *statement,
				   sqlite3_stmt *prepared);
/* Runs one step; *row_out: there is a row. The statement is reset if there is none, or on failure.
 */
semel_status semel_sqlite_step(semel_tx tx, const struct semel_sqlite_statement *statement,
			       sqlite3_stmt *prepared, bool *row_out, semel_error *error);
/* Runs the statement to its end, skips its rows, and resets it, so that it can be bound again. */
semel_status semel_sqlite_run(semel_tx tx, const struct semel_sqlite_statement *statement,
			      sqlite3_stmt *prepared, semel_error *error);
/* Rows changed by the statement that ran last. */
int64_t semel_sqlite_changes(semel_tx tx);

/* Binds text, or a blob if it is not UTF-8 or holds a NUL byte; NULL for no data. */
void semel_sqlite_bind_bytes(sqlite3_stmt *prepared, int at, struct semel_text text);
/* string may be NULL. */
void semel_sqlite_bind_string(sqlite3_stmt *prepared, int at, const char *string);
/* 0 is bound as NULL. The buffer must outlive the step. */
void semel_sqlite_bind_time(sqlite3_stmt *prepared, int at, int64_t time_ms,
			    char buffer[SEMEL_TIME_SIZE]);
/* 0 for NULL and for invalid times. Also reads SQLite's own format, "2026-11-15 12:00:00". */
int64_t semel_sqlite_time(sqlite3_stmt *prepared, int column);
/* Truncated to the size of the buffer; empty for NULL. */
void semel_sqlite_copy(sqlite3_stmt *prepared, int column, char *out, size_t size);

/* ---- functions of the seam ------------------------------------------------------------------- */

/* transaction.c */
semel_store_tx_fn semel_sqlite_tx;
semel_store_in_transaction_fn semel_sqlite_in_transaction;
/* NO_TRANSACTION, naming the operation, unless one is open. */
semel_status semel_sqlite_require_transaction(semel_tx tx, const char *what, semel_error *error);
semel_store_begin_fn semel_sqlite_begin;
semel_store_commit_fn semel_sqlite_commit;
semel_store_rollback_fn semel_sqlite_rollback;
semel_store_savepoint_fn semel_sqlite_savepoint;
semel_store_release_fn semel_sqlite_release;
semel_store_rollback_to_fn semel_sqlite_rollback_to;

/* open.c */
semel_store_open_fn semel_sqlite_store_open;
semel_store_close_fn semel_sqlite_store_close;
semel_store_init_fn semel_sqlite_store_init;
semel_store_watch_fn semel_sqlite_store_watch;
semel_store_check_schema_fn semel_sqlite_check_schema;
semel_store_examine_fn semel_sqlite_store_examine;

/* outbox.c */
semel_outbox_insert_fn semel_sqlite_outbox_insert;
semel_outbox_probe_fn semel_sqlite_outbox_probe;
semel_outbox_fetch_fn semel_sqlite_outbox_fetch;
semel_outbox_fetch_due_fn semel_sqlite_outbox_fetch_due;
semel_outbox_select_fn semel_sqlite_outbox_select;

/* lease.c, sweep.c */
semel_lane_count_fn semel_sqlite_lane_count;
semel_relay_join_fn semel_sqlite_relay_join;
semel_relay_leave_fn semel_sqlite_relay_leave;
semel_outbox_arm_wakeup_fn semel_sqlite_arm_wakeup;
semel_outbox_check_wakeup_fn semel_sqlite_check_wakeup;
semel_lease_list_fn semel_sqlite_lease_list;
semel_lease_acquire_fn semel_sqlite_lease_acquire;
semel_lease_renew_fn semel_sqlite_lease_renew;
semel_lease_release_fn semel_sqlite_lease_release;
/* Reads a bounded range of the lane, which we own. *found_out: the first row at or below the low
 * mark that was never sent; 0: none so far. */
semel_status semel_sqlite_sweep(semel_store *store, const struct semel_lease *lease,
				int64_t *found_out, semel_error *error);

/* mark.c */
semel_outbox_mark_fn semel_sqlite_outbox_mark;
semel_dead_return_to_outbox_fn semel_sqlite_dead_return_to_outbox;

/* inbox.c */
semel_inbox_claim_fn semel_sqlite_inbox_claim;
semel_inbox_change_fn semel_sqlite_inbox_change;
semel_inbox_forget_fn semel_sqlite_inbox_forget;
semel_inbox_renew_fn semel_sqlite_inbox_renew;
semel_inbox_is_settled_fn semel_sqlite_inbox_is_settled;

/* effect.c */
semel_store_execute_fn semel_sqlite_execute;
semel_effect_prepare_fn semel_sqlite_effect_prepare;
semel_effect_run_fn semel_sqlite_effect_run;
semel_inbox_evaluate_fn semel_sqlite_evaluate;
void semel_sqlite_effects_free(struct semel_sqlite_effects *effects);

/* retention.c */
semel_store_prune_fn semel_sqlite_prune;

#endif
