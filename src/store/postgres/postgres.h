/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the PostgreSQL store have in common: the store itself, and how statements are
 * run.
 *
 * What the seam requires of every SQL store: driver (the tables of functions), connect, schema,
 * transaction, engine (statements), outbox, mark, lease, inbox, effect, holds, upkeep, retention,
 * examine.
 * PostgreSQL's own: commit_order, watermark and previous, for its many writers; sweep; wakeup;
 * sql_text. Optional parts of the seam: trial; and changes, stream, pgoutput, visible and flush,
 * which are the change stream (changes.h).
 *
 * On our own connection each statement is prepared when it is first used. On a borrowed connection
 * a statement is parsed each time: nothing is kept there, and no setting is changed.
 *
 * To change here: what is the same in SQLite belongs to store/sql. No column that a mark changes
 * may be indexed; a low mark passes a number only with the proof of watermark.c; the fence is
 * checked by the statement that marks. Tables change by a new numbered file of schema/, functions
 * in functions.sql.
 */
#ifndef SEMEL_STORE_POSTGRES_POSTGRES_H
#define SEMEL_STORE_POSTGRES_POSTGRES_H

#include "base/time.h"
#include "store/postgres/libpq.h"
#include "store/sql/sql.h"
#include "store/store.h"

#define SEMEL_PG_SCHEMA                9  /* the newest version that this code knows */
#define SEMEL_PG_LANES                 16 /* as the schema's trigger computes them */
#define SEMEL_PG_PARAMS_MAX            26
#define SEMEL_PG_PREPARED_MAX          256 /* more than there are; the others run unprepared */
#define SEMEL_PG_NAME_SIZE             48
#define SEMEL_PG_WATERMARK_ENTRIES_MAX 64

/* A time column as milliseconds; takes the name of the column. */
#define SEMEL_PG_MS(column) SEMEL_SQL_POSTGRES_MS(column)

/* When a row of the outbox was committed. For a row older than the column: its own time, but not
 * later than when the column was added. Takes the name of the row. */
#define SEMEL_PG_COMMITTED_AT(row) SEMEL_SQL_POSTGRES_COMMITTED_AT(row)

/* The place of an event in the order of commits, for polling: the commit time in microseconds,
 * minus a constant that makes it negative. Places above 0 are those of the change stream: the
 * position of the commit in the server's WAL. 0: unknown. Of two places of one kind the lower one
 * was committed first; otherwise the numbers decide. A row without a commit time was committed
 * before all rows that have one. */
#define SEMEL_PG_COMMIT_ORDER_OF(time)                                                             \
	"(coalesce((date_part('epoch', " time ") * 1000000)::bigint, 0) - 4611686018427387904)"
#define SEMEL_PG_COMMIT_ORDER(row)                                                                 \
	SEMEL_PG_COMMIT_ORDER_OF("pg_xact_commit_timestamp(" row ".xmin)")

struct semel_pg_statement {
	const char *what; /* for messages: "mark events" */
	const char *sql;
};

/* The values of one statement. Texts are copied only if they have to be repaired. */
struct semel_pg_params {
	int count;
	const char *values[SEMEL_PG_PARAMS_MAX];
	int lengths[SEMEL_PG_PARAMS_MAX], formats[SEMEL_PG_PARAMS_MAX];
	char scratch[SEMEL_PG_PARAMS_MAX][SEMEL_TIME_SIZE];
	char *owned[SEMEL_PG_PARAMS_MAX];
};

/* "Every number up to seq was drawn by a transaction older than xid." */
struct semel_pg_watermark_entry {
	int64_t seq;
	uint64_t xid;
};

/* "Beyond from_seq and up to to_seq, nothing that is still to be sent was committed before latest."
 * None: to_seq is 0. */
struct semel_pg_commit_bound {
	int64_t from_seq, to_seq, latest;
};

/* Where the last bounded prune stopped; see retention.c. */
struct semel_pg_prune_place {
	size_t kind;
	int64_t lane, seq;
	int64_t dead_ms;
};

struct semel_pg_previous; /* the last events of aggregates, in previous.c */
struct semel_pg_wakeup;   /* what wakes a sleeping relay, in wakeup.c */
struct semel_pg_effects;  /* the prepared SQL handler, in effect.c */

extern const struct semel_store_driver semel_store_postgres;
extern const struct semel_changes_driver semel_pg_changes_driver;
extern const struct semel_sql_engine semel_pg_engine;
extern const struct semel_trial_functions semel_pg_trial;

struct semel_pg_store {
	semel_store base;
	PGconn *connection;
	char *url;
	bool savepoint_open;
	bool relays;                                 /* its connection was set up for a relay */
	bool commit_times;                           /* the server keeps them */
	int64_t clock_offset_ms;                     /* server's clock minus ours (lease.c) */
	const void *prepared[SEMEL_PG_PREPARED_MAX]; /* ours, or of the statement layer */
	size_t prepared_count;
	struct semel_pg_effects *effects;
	uint32_t effect_generations;
	uint32_t pessimistic_batches; /* until claims are optimistic again */
	uint32_t unread_effects; /* effects that were sent, and whose answers were not read yet */
	struct semel_wake *wake; /* NULL: nothing to wake */
	struct semel_pg_wakeup *wakeup;
	int64_t wakeup_after_ms; /* steady; no new attempt before */
	struct semel_pg_previous *previous;
	uint32_t previous_loaded; /* bits of the lanes that `previous` has loaded */
	struct {                  /* what is known of late commits; see watermark.c */
		int64_t drawn_seq, complete_seq;
		int64_t numbers; /* the file of the sequence that generated them; 0: not known */
		struct semel_pg_watermark_entry entries[SEMEL_PG_WATERMARK_ENTRIES_MAX];
		uint32_t count;
		int64_t waiting_since_ms, checked_at_ms, logged_at_ms; /* steady */
		char *writers; /* owned; those who wrote when drawn_seq was writers_seq */
		int64_t writers_seq;
	} watermark;
	struct semel_pg_commit_bound
		commit_bounds[SEMEL_PG_LANES]; /* of each lane; see commit_order.c */
	struct {                               /* of each lane; see sweep.c */
		int64_t after_seq[SEMEL_PG_LANES];
		int64_t began_ms[SEMEL_PG_LANES], next_ms[SEMEL_PG_LANES]; /* steady */
	} sweep;
	struct semel_pg_prune_place prune;
};

static inline struct semel_pg_store *semel_pg_of(semel_store *store)
{
	return (struct semel_pg_store *)store; /* base is its first member */
}

/* ---- connections (connect.c) ----------------------------------------------------------------- */

/* OUTAGE when the server does not answer; CONFIG when the URL cannot be right. */
semel_status semel_pg_connect(const char *url, PGconn **connection_out, semel_error *error);
/* The same for an optional connection: does not wait for a pooler that has no free session. */
semel_status semel_pg_connect_briefly(const char *url, PGconn **connection_out, semel_error *error);
/* The same, for the change stream of the database. */
semel_status semel_pg_connect_stream(const char *url, PGconn **connection_out, semel_error *error);

semel_store_open_fn semel_pg_store_open;
semel_store_close_fn semel_pg_store_close;

/* ---- tables (schema.c) ----------------------------------------------------------------------- */

semel_store_init_fn semel_pg_store_init;
/* Overloads of PostgreSQL's functions by other roles in our search_path: each with its owner, and
 * whether statements of init could run it; those that could come first. */
extern const char semel_pg_overloads_sql[];
/* NO_SCHEMA, SCHEMA_NEWER. */
semel_status semel_pg_check_version(PGconn *connection, semel_error *error);
semel_outbox_adopt_fn semel_pg_adopt;
semel_outbox_check_adoption_fn semel_pg_check_adoption;

/* ---- running statements (engine.c) ----------------------------------------------------------- */

/* NULL for no data; invalid text (broken UTF-8, NUL bytes) is repaired. */
void semel_pg_add_text(struct semel_pg_params *params, struct semel_text text);
void semel_pg_add_string(struct semel_pg_params *params, const char *string);
/* Two parameters: the text, or NULL and the bytes. */
void semel_pg_add_bytes(struct semel_pg_params *params, struct semel_text text);
void semel_pg_add_int(struct semel_pg_params *params, int64_t number);
void semel_pg_add_bool(struct semel_pg_params *params, bool value);
/* 0 is NULL. */
void semel_pg_add_time(struct semel_pg_params *params, int64_t time_ms);
/* semel_pg_run frees them itself. */
void semel_pg_params_free(struct semel_pg_params *params);

/* Runs the statement; params may be NULL and are consumed. result_out may be NULL; otherwise the
 * caller clears it; it is NULL on failure. */
semel_status semel_pg_run(semel_tx tx, const struct semel_pg_statement *statement,
			  struct semel_pg_params *params, PGresult **result_out,
			  semel_error *error);
/* The same, when only the number of rows changed is of interest; changes_out may be NULL. */
semel_status semel_pg_change(semel_tx tx, const struct semel_pg_statement *statement,
			     struct semel_pg_params *params, uint64_t *changes_out,
			     semel_error *error);
/* Statements without parameters or results, several at once. */
semel_status semel_pg_execute_plain(PGconn *connection, const char *sql, const char *what,
				    semel_error *error);
/* The status and message of a failed result. result NULL: those of the connection. */
semel_status semel_pg_error(PGconn *connection, const PGresult *result, const char *what,
			    semel_error *error);
/* The statement exceeded its timeout, or was cancelled. */
bool semel_pg_was_cancelled(const PGresult *result);
/* A statement name that no other connection uses: a pooler may give us another client's session,
 * where the name must be missing rather than denote another statement. */
void semel_pg_name(PGconn *connection, const char *kind, size_t number,
		   char name_out[SEMEL_PG_NAME_SIZE]);
/* Sends the statement and does not wait for the answer; params are consumed. */
semel_status semel_pg_send(struct semel_pg_store *store, const struct semel_pg_statement *statement,
			   struct semel_pg_params *params, semel_error *error);

/* Reading results. */
int semel_pg_rows(const PGresult *result);
bool semel_pg_is_null(const PGresult *result, int row, int column);
int64_t semel_pg_int(const PGresult *result, int row, int column);
bool semel_pg_bool(const PGresult *result, int row, int column);
/* Never NULL; empty for NULL. */
const char *semel_pg_value(const PGresult *result, int row, int column);
void semel_pg_copy(const PGresult *result, int row, int column, char *out, size_t size);
struct semel_text semel_pg_text(const PGresult *result, int row, int column,
				struct semel_arena *arena);
/* A text, or the bytes in the next column. */
struct semel_text semel_pg_bytes(const PGresult *result, int row, int column,
				 struct semel_arena *arena);
void semel_pg_clear(PGresult *result);

/* Arrays as PostgreSQL writes them: {1,2}, {"a","b",NULL}. */
void semel_pg_array_int(struct semel_buffer *buffer, int64_t number);
void semel_pg_array_text(struct semel_buffer *buffer, struct semel_text text);
/* Closes the array; as a parameter, the buffer must outlive the run. */
struct semel_text semel_pg_array_end(struct semel_buffer *buffer);
/* Closes the array and adds it; the buffer must outlive the run. */
void semel_pg_add_array(struct semel_pg_params *params, struct semel_buffer *buffer);

/* ---- late commits (watermark.c) -------------------------------------------------------------- */

/* Numbers up to drawn_seq were drawn before now. If it is lower than before, the numbers went
 * back. */
void semel_pg_watermark_observe(struct semel_pg_store *store, int64_t drawn_seq);
/* numbers: the file of the sequence. If it has changed, the numbering was restarted. */
void semel_pg_watermark_check_sequence(struct semel_pg_store *store, int64_t numbers);
/* A transaction of ours has got this xid since. */
void semel_pg_watermark_record_xid(struct semel_pg_store *store, uint64_t xid);
/* xmin: the oldest open transaction of a snapshot. Returns the number at or below which everything
 * is in that snapshot, or never will be. */
int64_t semel_pg_watermark_advance(struct semel_pg_store *store, uint64_t xmin);
/* Call it periodically: when a transaction stays open for long, finds the writers, and logs the
 * transaction. The findings are valid for later snapshots. */
semel_status semel_pg_watermark_maintain(struct semel_pg_store *store, semel_error *error);

/* ---- the order of commits (commit_order.c) --------------------------------------------------- */

/* Arranges a batch of the run; full: there may be more rows beyond it. */
semel_status semel_pg_order_by_commit(struct semel_pg_store *store, int32_t lane, bool full,
				      struct semel_outbox_batch *batch, semel_error *error);
/* Whether a batch that ends at end_seq, with this latest commit, needs no read beyond it. */
bool semel_pg_is_bounded(const struct semel_pg_commit_bound *proof, int64_t end_seq,
			 int64_t latest);
/* Fetches the rows of the batch of which only the numbers are known; seqs lists them. Rows that no
 * longer exist are left out. */
semel_status semel_pg_outbox_fetch_seqs(struct semel_pg_store *store, int32_t lane,
					struct semel_buffer *seqs, struct semel_outbox_batch *batch,
					semel_error *error);

/* ---- the event before (previous.c) ----------------------------------------------------------- */

/* Fills in row->previous if it is known, and caches the row. Rows of an aggregate arrive in the
 * order of their numbers; the predecessor of a row that arrives again is not known. *cache is
 * created when it is first needed; without memory, no predecessor is known. */
void semel_pg_previous_fill(struct semel_pg_previous **cache, struct semel_outbox_row *row,
			    struct semel_arena *arena);
/* Caches what was published from these lanes before reading begins after these numbers: the last
 * 500 rows of each lane. */
semel_status semel_pg_previous_load(struct semel_pg_previous **cache, semel_tx tx,
				    const int32_t *lanes, const int64_t *after_seqs, size_t count,
				    semel_error *error);
/* Another relay may have published events of these aggregates: clears the cache, which may be NULL.
 */
void semel_pg_previous_clear(struct semel_pg_previous *cache);
void semel_pg_previous_free(struct semel_pg_previous *cache);

/* ---- manual changes (sweep.c) ---------------------------------------------------------------- */

/* Reads a bounded range of a lane that we own. *found_out: the first row at or below the low mark
 * that was never sent; 0: none so far. */
semel_status semel_pg_sweep(struct semel_pg_store *store, const struct semel_lease *lease,
			    int64_t *found_out, semel_error *error);

/* ---- clock differences (lease.c) ------------------------------------------------------------- */

/* Compares our clock with the server's; call it periodically, since ours may be set. */
semel_status semel_pg_clock_compare(struct semel_pg_store *store, semel_error *error);
/* Converts a time of a lease to the server's clock, and back; 0 stays 0. */
int64_t semel_pg_clock_to_server(semel_tx tx, int64_t time_ms);
int64_t semel_pg_clock_to_local(semel_tx tx, int64_t time_ms);

/* ---- functions of the seam ------------------------------------------------------------------- */

/* transaction.c */
semel_store_tx_fn semel_pg_tx;
semel_store_in_transaction_fn semel_pg_in_transaction;
/* NO_TRANSACTION, naming the operation, unless one is open and not failed. CONFIG if the client
 * encoding of a borrowed connection is not UTF-8. */
semel_status semel_pg_require_transaction(semel_tx tx, const char *what, semel_error *error);
semel_store_begin_fn semel_pg_begin;
semel_store_commit_fn semel_pg_commit;
semel_store_rollback_fn semel_pg_rollback;
semel_store_savepoint_fn semel_pg_savepoint;
semel_store_release_fn semel_pg_release;
semel_store_rollback_to_fn semel_pg_rollback_to;

/* wakeup.c */
semel_store_watch_fn semel_pg_watch;
semel_outbox_arm_wakeup_fn semel_pg_arm_wakeup;
semel_outbox_check_wakeup_fn semel_pg_check_wakeup;
semel_outbox_disarm_wakeup_fn semel_pg_disarm_wakeup;
/* After a large batch: the relay is busy, and need not be woken. */
void semel_pg_wakeup_disarm(struct semel_pg_store *store);
/* Reads the notifications that have arrived. */
void semel_pg_wakeup_collect(struct semel_pg_store *store);
void semel_pg_wakeup_free(struct semel_pg_wakeup *wakeup);

/* outbox.c */
semel_outbox_insert_fn semel_pg_outbox_insert;
semel_outbox_probe_fn semel_pg_outbox_probe;
semel_outbox_fetch_fn semel_pg_outbox_fetch;
semel_outbox_fetch_lanes_fn semel_pg_outbox_fetch_lanes;
semel_outbox_fetch_due_fn semel_pg_outbox_fetch_due;
semel_outbox_select_fn semel_pg_outbox_select;
semel_outbox_check_fn semel_pg_outbox_check;
semel_outbox_exceptions_each_fn semel_pg_outbox_exceptions_each;

/* lease.c */
semel_lane_count_fn semel_pg_lane_count;
/* Once per connection. */
semel_status semel_pg_relay_set_up(struct semel_pg_store *store, semel_error *error);
semel_relay_join_fn semel_pg_relay_join;
semel_relay_leave_fn semel_pg_relay_leave;
semel_lease_list_fn semel_pg_lease_list;
semel_lease_acquire_fn semel_pg_lease_acquire;
semel_lease_renew_fn semel_pg_lease_renew;
semel_lease_release_fn semel_pg_lease_release;

/* mark.c */
semel_outbox_mark_lanes_fn semel_pg_outbox_mark_lanes;
semel_outbox_mark_fn semel_pg_outbox_mark;
semel_dead_return_to_outbox_fn semel_pg_dead_return_to_outbox;
semel_dead_move_fn semel_pg_dead_move;

/* inbox.c */
semel_inbox_claim_fn semel_pg_inbox_claim;
semel_inbox_change_fn semel_pg_inbox_change;
semel_inbox_forget_fn semel_pg_inbox_forget;
semel_inbox_renew_fn semel_pg_inbox_renew;
semel_inbox_is_settled_fn semel_pg_inbox_is_settled;

/* holds.c */
semel_states_read_fn semel_pg_states_read;

/* upkeep.c */
semel_subscription_put_fn semel_pg_subscription_put;

/* effect.c */
semel_store_execute_fn semel_pg_execute;
semel_effect_prepare_fn semel_pg_effect_prepare;
semel_effect_run_fn semel_pg_effect_run;
semel_inbox_evaluate_fn semel_pg_evaluate;
/* Reads the answers of pipelined effects; the first failure is the result. Every other use of the
 * connection calls this first. */
semel_status semel_pg_effects_collect(struct semel_pg_store *store, semel_error *error);
void semel_pg_effects_free(struct semel_pg_effects *effects);

/* examine.c */
semel_store_check_schema_fn semel_pg_check_schema;
semel_slot_read_fn semel_pg_slot_read;
semel_store_examine_fn semel_pg_store_examine;

/* retention.c */
semel_store_prune_fn semel_pg_prune;

#endif
