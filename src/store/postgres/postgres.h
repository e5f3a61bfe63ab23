/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the PostgreSQL store share: the store itself, and how statements are run.
 *
 * A store of our own prepares each statement when it is first used. On a borrowed connection a
 * statement is parsed on the spot: nothing is kept there, no setting is changed.
 */
#ifndef SEMEL_STORE_POSTGRES_POSTGRES_H
#define SEMEL_STORE_POSTGRES_POSTGRES_H

#include "base/time.h"
#include "store/postgres/libpq.h"
#include "store/postgres/previous.h"
#include "store/store.h"

#define SEMEL_PG_SCHEMA       8  /* the newest version that this code knows */
#define SEMEL_PG_LANES        16 /* as the schema's generated column makes them */
#define SEMEL_PG_PARAMS_MAX   26
#define SEMEL_PG_PREPARED_MAX 96
#define SEMEL_PG_NAME_SIZE    48
#define SEMEL_PG_NOTES_MAX    64

/* A time of the table as milliseconds; a name of a column goes in. */
#define SEMEL_PG_MS(column) "(date_part('epoch', " column ") * 1000)::bigint"

/* When a row of the outbox was committed; it was written before there was a column for it: its own
 * time, or when the column came. The name of the row goes in. */
#define SEMEL_PG_COMMITTED_AT(row)                                                                 \
	"coalesce(" row ".committed_at, least(" row ".created_at, (SELECT applied_at"              \
	" FROM semel_schema WHERE version = 6)))"

/* The place of an event in the order of commits, for polling: the time of a commit in microseconds,
 * less so much that it is below 0. Above 0 are places of the change stream: where the commit is in
 * the server's log. 0: not known. Among places of one kind the lower one was committed first; else
 * the numbers decide. A row without a commit time was committed before all that have one. */
#define SEMEL_PG_PLACE_OF(time)                                                                    \
	"(coalesce((date_part('epoch', " time ") * 1000000)::bigint, 0) - 4611686018427387904)"
#define SEMEL_PG_COMMIT_PLACE(row) SEMEL_PG_PLACE_OF("pg_xact_commit_timestamp(" row ".xmin)")

struct semel_pg_query {
	const char *what; /* for messages: "mark events" */
	const char *sql;
};

/* The values of one statement. Texts are not copied, unless they have to be mended. */
struct semel_pg_params {
	int count;
	const char *values[SEMEL_PG_PARAMS_MAX];
	int lengths[SEMEL_PG_PARAMS_MAX], formats[SEMEL_PG_PARAMS_MAX];
	char scratch[SEMEL_PG_PARAMS_MAX][SEMEL_TIME_SIZE];
	char *owned[SEMEL_PG_PARAMS_MAX];
};

/* "Every number up to seq was drawn by a transaction older than xid." */
struct semel_pg_note {
	int64_t seq;
	uint64_t xid;
};

/* "Beyond from_seq and up to to_seq, nothing that is still to be sent was committed before latest."
 * None: to_seq is 0. */
struct semel_pg_proof {
	int64_t from_seq, to_seq, latest;
};

struct semel_pg_bell;    /* what rings while the relay sleeps, in bell.c */
struct semel_pg_effects; /* the prepared SQL handler, in effect.c */

extern const struct semel_store_driver semel_store_postgres;
extern const struct semel_changes_driver semel_pg_changes_driver;

struct semel_pg_store {
	semel_store base;
	PGconn *connection;
	char *url;
	bool savepoint_open;
	bool relays;       /* its connection was set up for a relay */
	bool commit_times; /* the server keeps them */
	int64_t ahead_ms;  /* the server's clock, of ours; see clock.c */
	const struct semel_pg_query *prepared[SEMEL_PG_PREPARED_MAX];
	size_t prepared_count;
	struct semel_pg_effects *effects;
	uint32_t effect_generations;
	uint32_t careful;        /* batches of claims before they are taken to be new again */
	uint32_t unheard;        /* effects on their way whose answers were not read yet */
	struct semel_wake *wake; /* NULL: nobody sleeps on it */
	struct semel_pg_bell *bell;
	int64_t bell_after_ms; /* steady; before it, none is tried again */
	struct semel_pg_previous *previous;
	uint32_t recalled; /* lanes, as bits, whose last published events are in it */
	struct {           /* what is known of late commits; see horizon.c */
		int64_t drawn_seq, proven_seq;
		int64_t numbers; /* the file of the sequence that gave them out; 0: not known */
		struct semel_pg_note notes[SEMEL_PG_NOTES_MAX];
		uint32_t count;
		int64_t waiting_since_ms, asked_at_ms, told_at_ms; /* steady */
		char *suspects; /* owned; those who wrote when drawn_seq was suspects_seq */
		int64_t suspects_seq;
	} horizon;
	struct semel_pg_proof proofs[SEMEL_PG_LANES]; /* of each lane; see commit_order.c */
	struct {                                      /* of each lane; see sweep.c */
		int64_t after_seq[SEMEL_PG_LANES];
		int64_t began_ms[SEMEL_PG_LANES], next_ms[SEMEL_PG_LANES]; /* steady */
	} sweep;
	struct { /* where the last bounded prune stopped; see retention.c */
		size_t kind;
		int64_t lane, seq;
		int64_t dead_ms;
	} prune;
};

/* ---- connections (connect.c) ----------------------------------------------------------------- */

/* OUTAGE when nobody answers; CONFIG when the URL cannot be right. */
semel_status semel_pg_connect(const char *url, PGconn **connection_out, semel_error *error);
/* The same for a connection that is no must: a pooler that has no session left is not waited for.
 */
semel_status semel_pg_connect_briefly(const char *url, PGconn **connection_out, semel_error *error);
/* The same, for the change stream of the database. */
semel_status semel_pg_connect_stream(const char *url, PGconn **connection_out, semel_error *error);

/* ---- poolers (pooler.c) ---------------------------------------------------------------------- */

/* Does somebody stand between this connection and the server? OUTAGE: no answer in that time. */
semel_status semel_pg_find_pooler(PGconn *connection, int wait_ms, bool *found_out,
				  semel_error *error);
/* Two connections of one URL, neither in a transaction: do they share sessions? */
bool semel_pg_is_swapped(PGconn *first, PGconn *second, int wait_ms);
/* CONFIG, with what to do. */
semel_status semel_pg_refuse_pooler(semel_error *error);
semel_status semel_pg_store_open(const struct semel_url *url, semel_store **store_out,
				 semel_error *error);
/* NO_SCHEMA, SCHEMA_NEWER. */
/* What others have in our search_path under names of PostgreSQL's (overload.c). */
extern const char semel_pg_overloads_sql[];
/* CONFIG: init would run one of them, perhaps. */
semel_status semel_pg_refuse_overloads(PGconn *connection, semel_error *error);
semel_status semel_pg_check_version(PGconn *connection, semel_error *error);
void semel_pg_store_close(semel_store *store);
semel_status semel_pg_store_init(const struct semel_url *url, semel_error *error);

/* ---- running statements (query.c) ------------------------------------------------------------ */

static inline struct semel_pg_store *semel_pg_of(semel_store *store)
{
	return (struct semel_pg_store *)store; /* base is its first member */
}

semel_tx semel_pg_tx(semel_store *store);
bool semel_pg_in_transaction(semel_tx tx);
/* NO_TRANSACTION, saying what was wanted, unless one is open and sound. A borrowed connection must
 * take its texts as UTF-8, or it is CONFIG. */
semel_status semel_pg_demand_transaction(semel_tx tx, const char *what, semel_error *error);

/* NULL for no data; what is no text (broken UTF-8, zero bytes) is mended. */
void semel_pg_add_text(struct semel_pg_params *params, struct semel_text text);
void semel_pg_add_string(struct semel_pg_params *params, const char *string);
/* Two parameters: the text, or NULL and the bytes. */
void semel_pg_add_bytes(struct semel_pg_params *params, struct semel_text text);
void semel_pg_add_int(struct semel_pg_params *params, int64_t number);
void semel_pg_add_bool(struct semel_pg_params *params, bool value);
/* 0 is NULL. */
void semel_pg_add_time(struct semel_pg_params *params, int64_t time_ms);
/* The week of this moment. */
void semel_pg_add_week(struct semel_pg_params *params, int64_t time_ms);
/* Run frees them by itself. */
void semel_pg_params_free(struct semel_pg_params *params);

/* Runs the statement; params may be NULL and are used up. result_out may be NULL; else it is the
 * caller's to clear, and NULL on failure. */
semel_status semel_pg_run(semel_tx tx, const struct semel_pg_query *query,
			  struct semel_pg_params *params, PGresult **result_out,
			  semel_error *error);
/* The same, when only the number of rows changed is of interest; changes_out may be NULL. */
semel_status semel_pg_change(semel_tx tx, const struct semel_pg_query *query,
			     struct semel_pg_params *params, uint64_t *changes_out,
			     semel_error *error);
/* Statements without parameters or results, several at once. */
semel_status semel_pg_execute_plain(PGconn *connection, const char *sql, const char *what,
				    semel_error *error);
/* What a failed result means. result may be NULL: the connection tells. */
semel_status semel_pg_error(PGconn *connection, const PGresult *result, const char *what,
			    semel_error *error);
/* The statement ran for longer than it may, or somebody has cancelled it. */
bool semel_pg_was_cancelled(const PGresult *result);
/* In a transaction of its own, unless one is open already. */
semel_status semel_pg_enter(semel_store *store, bool *entered_out, semel_error *error);
semel_status semel_pg_leave(semel_store *store, bool entered, semel_status status,
			    semel_error *error);
/* A name that no other connection gives to a statement: a pooler may show us another's session, and
 * there it must be missing, not mean something else. */
void semel_pg_name(PGconn *connection, const char *kind, size_t number,
		   char name_out[SEMEL_PG_NAME_SIZE]);
/* The name of the query on this connection, prepared when it is new. */
semel_status semel_pg_prepare(struct semel_pg_store *store, const struct semel_pg_query *query,
			      char name_out[SEMEL_PG_NAME_SIZE], semel_error *error);

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
/* A text, or the bytes in the column behind it. */
struct semel_text semel_pg_bytes(const PGresult *result, int row, int column,
				 struct semel_arena *arena);
void semel_pg_clear(PGresult *result);

/* Arrays as PostgreSQL writes them: {1,2}, {"a","b",NULL}. */
void semel_pg_array_int(struct semel_buffer *buffer, int64_t number);
void semel_pg_array_text(struct semel_buffer *buffer, struct semel_text text);
/* Closes the array and adds it; the buffer must outlive the run. */
void semel_pg_add_array(struct semel_pg_params *params, struct semel_buffer *buffer);

/* ---- what commits late (horizon.c) ----------------------------------------------------------- */

/* Numbers up to seq were drawn before now. Lower than what was seen before: they went back. */
void semel_pg_horizon_saw(struct semel_pg_store *store, int64_t drawn_seq);
/* The file of the sequence; another one than before: its numbers began anew. */
void semel_pg_horizon_of(struct semel_pg_store *store, int64_t numbers);
/* A transaction of ours has got this number since. */
void semel_pg_horizon_note(struct semel_pg_store *store, uint64_t xid);
/* The oldest transaction that a snapshot knows to be open. The result: everything at or below it
 * is in that snapshot, or never will be. */
int64_t semel_pg_horizon_reach(struct semel_pg_store *store, uint64_t xmin);
/* From time to time: looks closer when somebody is open for long, and names him in the log. What it
 * finds out holds for later snapshots. */
semel_status semel_pg_horizon_tend(struct semel_pg_store *store, semel_error *error);

/* ---- the order of commits (commit_order.c) ----------------------------------------------------
 */

/* Arranges a batch of the run; full: there may be more rows beyond it. */
semel_status semel_pg_order_by_commit(struct semel_pg_store *store, int32_t lane, bool full,
				      struct semel_outbox_batch *batch, semel_error *error);
/* Does a batch that ends there, with this latest commit, need no look at what lies beyond it? */
bool semel_pg_is_proven(const struct semel_pg_proof *proof, int64_t end_seq, int64_t latest);
/* Fills in the rows of the batch that have no more than their numbers; seqs has those. What is not
 * there any more is left out. */
semel_status semel_pg_outbox_fetch_seqs(struct semel_pg_store *store, int32_t lane,
					struct semel_buffer *seqs, struct semel_outbox_batch *batch,
					semel_error *error);

/* ---- what was changed by hand (sweep.c) -------------------------------------------------------
 */

/* A bounded look at the lane, which is ours. *found_out: the first row at or below the low mark
 * that was never sent; 0: none so far. */
semel_status semel_pg_sweep(struct semel_pg_store *store, const struct semel_lease *lease,
			    int64_t *found_out, semel_error *error);

/* ---- whose clock (clock.c) ------------------------------------------------------------------- */

/* Compares the clocks; from time to time, since ours may be set. */
semel_status semel_pg_clock_look(struct semel_pg_store *store, semel_error *error);
/* A time of a lease as the server has it, and back; 0 stays 0. */
int64_t semel_pg_clock_theirs(semel_tx tx, int64_t time_ms);
int64_t semel_pg_clock_ours(semel_tx tx, int64_t time_ms);

/* ---- the slots ------------------------------------------------------------------------------- */

/* transaction.c */
semel_status semel_pg_begin(semel_store *store, semel_error *error);
semel_status semel_pg_commit(semel_store *store, semel_error *error);
void semel_pg_rollback(semel_store *store);
semel_status semel_pg_savepoint(semel_store *store, semel_error *error);
semel_status semel_pg_release(semel_store *store, semel_error *error);
semel_status semel_pg_rollback_to(semel_store *store, semel_error *error);

/* bell.c */
void semel_pg_watch(semel_store *store, struct semel_wake *wake);
bool semel_pg_doze(semel_store *store, bool lightly);
bool semel_pg_rouse(semel_store *store);
void semel_pg_hush(semel_store *store);
/* A large batch: the relay is at work, and need not be woken. */
void semel_pg_bell_quiet(struct semel_pg_store *store);
/* Takes in what has rung meanwhile. */
void semel_pg_bell_hear(struct semel_pg_store *store);
void semel_pg_bell_free(struct semel_pg_bell *bell);

/* outbox.c */
semel_status semel_pg_outbox_insert(semel_tx tx, const struct semel_event *events, size_t count,
				    semel_error *error);
semel_status semel_pg_outbox_look(semel_store *store, struct semel_lane_probe *looks, size_t count,
				  int64_t now_ms, semel_error *error);
semel_status semel_pg_outbox_fetch(semel_store *store, const struct semel_lease *lease,
				   int64_t after_seq, struct semel_outbox_batch *batch,
				   semel_error *error);
semel_status semel_pg_outbox_fetch_lanes(semel_store *store, const struct semel_lane_read *reads,
					 size_t count, semel_error *error);
semel_status semel_pg_outbox_fetch_due(semel_store *store, const struct semel_lease *lease,
				       int64_t now_ms, struct semel_outbox_batch *batch,
				       semel_error *error);
semel_status semel_pg_outbox_select(semel_store *store, const struct semel_outbox_filter *filter,
				    int64_t after_seq, struct semel_outbox_batch *batch,
				    semel_error *error);
/* check.c */
semel_status semel_pg_outbox_check(semel_store *store, struct semel_outbox_row *rows, size_t count,
				   semel_error *error);
semel_status semel_pg_outbox_exceptions(semel_store *store, semel_aggregate_visitor seen,
					void *user, semel_error *error);
/* outbox_counts.c */
semel_status semel_pg_outbox_counts(semel_store *store, int64_t now_ms,
				    struct semel_outbox_counts *counts_out, semel_error *error);

/* lease.c */
int32_t semel_pg_lane_count(semel_store *store);
/* Once per connection. */
semel_status semel_pg_relay_set_up(struct semel_pg_store *store, semel_error *error);
semel_status semel_pg_relay_join(semel_store *store, const char *owner, int64_t now_ms,
				 int64_t expires_at_ms, struct semel_relay_group *group_out,
				 semel_error *error);
void semel_pg_relay_leave(semel_store *store, const char *owner);
semel_status semel_pg_lease_list(semel_store *store, struct semel_lease *leases_out,
				 semel_error *error);
semel_status semel_pg_lease_take(semel_store *store, struct semel_lease *lease, const char *owner,
				 int64_t expires_at_ms, semel_error *error);
semel_status semel_pg_lease_renew(semel_store *store, struct semel_lease *lease,
				  int64_t expires_at_ms, semel_error *error);
void semel_pg_lease_release(semel_store *store, const struct semel_lease *lease);

/* mark.c */
semel_status semel_pg_outbox_mark_lanes(semel_store *store, struct semel_lane_marks *marks,
					size_t count, semel_error *error);
semel_status semel_pg_outbox_mark(semel_store *store, struct semel_lease *lease,
				  const struct semel_mark_batch *batch, semel_error *error);
/* The lane of an event, if its row is still there, until the end of the transaction. */
semel_status semel_pg_lane_lock_of(semel_tx tx, struct semel_text event_id, semel_error *error);
semel_status semel_pg_dead_relay_return(semel_tx tx, const struct semel_dead_entry *entry,
					bool discard, int64_t now_ms, semel_error *error);

/* inbox.c */
semel_status semel_pg_inbox_claim(semel_tx tx, const struct semel_inbox_claim *claims, size_t count,
				  int64_t now_ms, struct semel_claim_result *answers_out,
				  semel_error *error);
semel_status semel_pg_inbox_change(semel_tx tx, const struct semel_inbox_claim *claim,
				   const struct semel_inbox_change *change, bool *taken_out,
				   semel_error *error);
semel_status semel_pg_inbox_forget(semel_tx tx, const struct semel_inbox_claim *claim,
				   semel_error *error);
semel_status semel_pg_inbox_renew(semel_store *store, const char *owner, int64_t lease_until_ms,
				  semel_error *error);
semel_status semel_pg_inbox_settled(semel_tx tx, struct semel_text scope, struct semel_text id,
				    bool *settled_out, semel_error *error);

/* effect.c */
semel_status semel_pg_execute(semel_store *store, const char *sql, semel_error *error);
semel_status semel_pg_effect_prepare(semel_store *store, const char *const *statements,
				     size_t count, semel_error *error);
semel_status semel_pg_effect_run(semel_store *store, const struct semel_event *event,
				 uint32_t attempt, semel_error *error);
semel_status semel_pg_evaluate(semel_store *store, const char *expression,
			       const struct semel_event *event, struct semel_arena *arena,
			       struct semel_text *value_out, semel_error *error);
/* Reads the answers of effects that are on their way; the first failure is the verdict. Whatever
 * else is run on the connection does this first. */
semel_status semel_pg_effects_hear(struct semel_pg_store *store, semel_error *error);
void semel_pg_effects_free(struct semel_pg_effects *effects);

/* states.c */
semel_status semel_pg_states_any(semel_tx tx, struct semel_text scope, bool *any_out,
				 semel_error *error);
semel_status semel_pg_states_look(semel_tx tx, struct semel_text scope,
				  struct semel_state_batch *batch, semel_error *error);
/* hold.c: a row of these columns, from `first` on */
#define SEMEL_PG_HOLD_WIDTH 7
#define SEMEL_PG_HOLD_COLUMNS                                                                      \
	"aggregate_type, aggregate_id, state, head_id, attempts, " SEMEL_PG_MS("due_at") ", "      \
											 "blocks"
void semel_pg_hold_read(const PGresult *result, int row, int first, struct semel_arena *arena,
			struct semel_hold *hold);
semel_status semel_pg_hold_other(semel_tx tx, struct semel_text scope, bool total, bool *other_out,
				 semel_error *error);
semel_status semel_pg_hold_any(semel_tx tx, struct semel_text scope, bool *any_out,
			       semel_error *error);
semel_status semel_pg_hold_get(semel_tx tx, struct semel_text scope,
			       const struct semel_hold_key *key, struct semel_arena *arena,
			       struct semel_hold *hold_out, semel_error *error);
semel_status semel_pg_hold_put(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			       semel_error *error);
semel_status semel_pg_hold_add(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			       bool *added_out, semel_error *error);
semel_status semel_pg_hold_remove(semel_tx tx, struct semel_text scope,
				  const struct semel_hold *hold, semel_error *error);
semel_status semel_pg_hold_ready(semel_tx tx, struct semel_text scope, int64_t now_ms,
				 struct semel_holds *holds, semel_error *error);
semel_status semel_pg_hold_due(semel_store *store, struct semel_text scope, int64_t *due_ms_out,
			       semel_error *error);
semel_status semel_pg_hold_counts(semel_store *store, struct semel_text scope,
				  struct semel_hold_counts *counts_out, semel_error *error);

/* position.c */
semel_status semel_pg_position_get(semel_store *store, struct semel_position *position,
				   semel_error *error);
semel_status semel_pg_position_take(semel_store *store, struct semel_position *position,
				    const char *owner, int64_t expires_at_ms, semel_error *error);
semel_status semel_pg_position_put(semel_tx tx, const struct semel_position *position,
				   semel_error *error);
void semel_pg_position_release(semel_store *store, const struct semel_position *position);

/* dead.c */
semel_status semel_pg_dead_add(semel_tx tx, struct semel_dead_entry *entry,
			       struct semel_arena *arena, semel_error *error);
semel_status semel_pg_dead_get(semel_store *store, const char *entry_id, struct semel_arena *arena,
			       struct semel_dead_entry *entry_out, semel_error *error);
semel_status semel_pg_dead_list(semel_store *store, const semel_dead_filter *filter,
				struct semel_arena *arena, struct semel_dead_entry *entries_out,
				uint32_t *count_out, semel_error *error);
semel_status semel_pg_dead_count(semel_store *store, const char *scope, uint64_t *count_out,
				 semel_error *error);
semel_status semel_pg_dead_move(semel_tx tx, const struct semel_dead_entry *entry,
				enum semel_dead_status status, const char *reason, int64_t now_ms,
				semel_error *error);
semel_status semel_pg_dead_settle(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				  uint32_t replay, int64_t now_ms, semel_error *error);
semel_status semel_pg_dead_authorize(semel_tx tx, struct semel_text scope,
				     struct semel_text event_id, int64_t now_ms,
				     semel_error *error);
semel_status semel_pg_parked_add(semel_tx tx, const struct semel_dead_entry *entry,
				 semel_error *error);
semel_status semel_pg_parked_first(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, struct semel_arena *arena,
				   struct semel_dead_entry *entry_out, semel_error *error);
semel_status semel_pg_parked_next(semel_tx tx, struct semel_text scope,
				  const struct semel_hold *hold, struct semel_arena *arena,
				  struct semel_dead_entry *entry_out, semel_error *error);
semel_status semel_pg_parked_has(semel_tx tx, struct semel_text entry_id, bool *parked_out,
				 semel_error *error);
semel_status semel_pg_parked_remove(semel_tx tx, struct semel_text entry_id, semel_error *error);

/* each.c */
semel_status semel_pg_outbox_each(semel_store *store, semel_id_visitor seen, void *user,
				  semel_error *error);
semel_status semel_pg_inbox_each(semel_store *store, struct semel_text scope, semel_id_visitor seen,
				 void *user, semel_error *error);
semel_status semel_pg_dead_each(semel_store *store, struct semel_text scope, semel_id_visitor seen,
				void *user, semel_error *error);
/* trace.c */
semel_status semel_pg_trace(semel_store *store, const char *event_id, struct semel_arena *arena,
			    semel_trace_visitor seen, void *user, semel_error *error);

/* examine.c */
semel_status semel_pg_check_schema(semel_store *store, semel_error *error);
semel_status semel_pg_slot_look(semel_store *store, const char *slot,
				struct semel_slot_status *look_out, semel_error *error);
semel_status semel_pg_store_examine(const struct semel_url *url,
				    const struct semel_examination *examination);

/* retention.c */
semel_status semel_pg_prune(semel_store *store, const struct semel_retention_cutoffs *cutoffs,
			    bool dry_run, struct semel_prune_counts *counts_out, bool *more_out,
			    semel_error *error);
semel_status semel_pg_outbox_pruned_until(semel_store *store, int64_t *time_ms_out,
					  semel_error *error);
semel_status semel_pg_inbox_known_since(semel_store *store, int64_t *time_ms_out,
					semel_error *error);

/* waits.c */
semel_status semel_pg_waits_each(semel_store *store, struct semel_text scope,
				 semel_wait_visitor seen, void *user, semel_error *error);
semel_status semel_pg_outbox_topics(semel_store *store, semel_text_visitor seen, void *user,
				    semel_error *error);
semel_status semel_pg_inbox_has_topic(semel_store *store, struct semel_text topic, bool *has_out,
				      semel_error *error);
semel_status semel_pg_outbox_routing_each(semel_store *store, semel_routing_visitor seen,
					  void *user, semel_error *error);

/* running.c */
semel_status semel_pg_running_begin(semel_tx tx, const struct semel_running *running,
				    uint32_t *runs_out, semel_error *error);
semel_status semel_pg_running_end(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				  semel_error *error);
/* presence.c */
semel_status semel_pg_presence_put(semel_store *store, const struct semel_presence *presence,
				   semel_error *error);
semel_status semel_pg_presence_remove(semel_store *store, const struct semel_presence *presence,
				      int64_t forget_ms, semel_error *error);
semel_status semel_pg_presence_each(semel_store *store, struct semel_text scope,
				    semel_presence_visitor seen, void *user, semel_error *error);

/* subscription.c */
semel_status semel_pg_subscription_topics(semel_store *store, struct semel_text scope,
					  semel_topic_visitor seen, void *user, semel_error *error);
semel_status semel_pg_subscription_put(semel_store *store, const struct semel_subscription_row *row,
				       int64_t now_ms, semel_error *error);
semel_status semel_pg_subscription_list(semel_store *store, struct semel_arena *arena,
					struct semel_subscription_row *rows_out, uint32_t limit,
					uint32_t *count_out, semel_error *error);
semel_status semel_pg_subscription_pause(semel_store *store, struct semel_text scope, bool paused,
					 semel_error *error);
semel_status semel_pg_subscription_paused(semel_store *store, struct semel_text scope,
					  bool *paused_out, semel_error *error);
semel_status semel_pg_audit_add(semel_store *store, const struct semel_audit_row *row,
				int64_t *number_out, semel_error *error);
semel_status semel_pg_audit_finish(semel_store *store, int64_t number, const char *outcome,
				   semel_error *error);
semel_status semel_pg_audit_list(semel_store *store, struct semel_arena *arena,
				 struct semel_audit_row *rows_out, uint32_t limit,
				 uint32_t *count_out, semel_error *error);

/* adopt.c */
semel_status semel_pg_adopt(semel_store *store, const struct semel_adoption *adoption,
			    bool *fresh_out, semel_error *error);
semel_status semel_pg_adopted(semel_store *store, const struct semel_adoption *adoption,
			      semel_error *error);

#endif
