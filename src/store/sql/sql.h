/* SPDX-License-Identifier: Apache-2.0 */
/* The statement layer: what all SQL stores have in common is written once, over statements that
 * each engine prepares, binds and steps through in its own way.
 *
 * A function of the seam that is the same for all engines is named semel_sql_NOUN_VERB; a driver
 * puts it into its table and names its engine (struct semel_store_driver, member sql). What an
 * engine does best in its own way (insert and fetch of the outbox, marks, claims, effects) stays in
 * the driver.
 *
 * A statement has a text per dialect. Parameters are ?1, ?2, …; semel_sql_translate is for engines
 * with another syntax. SEMEL_SQL_EACH (dialect.h) makes the texts from one, where the dialects
 * differ only in spelling; where they differ in more, each is written.
 *
 * A query is sticky: after the first failure nothing more is done, and finish returns it. So a
 * caller binds, steps and reads without checking each result:
 *
 * 	semel_sql_prepare(&query, tx, &get_hold, error);
 * 	semel_sql_bind_text(&query, scope);
 * 	while (semel_sql_next(&query))
 * 		read_hold(&query, ...);
 * 	return semel_sql_finish(&query);
 *
 * Thread: that of the store. Ownership: a query lives on the caller's stack from prepare to finish;
 * texts that are bound must live until then, texts that are peeked at live until the next row.
 *
 * To change here: statements and how their rows are read. No decision about delivery, no engine's
 * own call.
 */
#ifndef SEMEL_STORE_SQL_SQL_H
#define SEMEL_STORE_SQL_SQL_H

#include "base/buffer.h"
#include "base/time.h"
#include "store/sql/dialect.h"
#include "store/store.h"

#define SEMEL_SQL_VALUES_MAX 24

/* ---- statements ------------------------------------------------------------------------------ */

struct semel_sql_statement {
	const char *what;    /* for messages: "move a dead letter" */
	bool often;          /* kept prepared, even where that has a cost */
	bool in_transaction; /* NO_TRANSACTION unless one is open */
	const char *text[SEMEL_SQL_DIALECTS];
};

/* ---- values and rows ------------------------------------------------------------------------- */

enum semel_sql_type {
	SEMEL_SQL_TEXT,
	SEMEL_SQL_ANY_TEXT, /* need not be UTF-8: stored as bytes or repaired, by column type */
	SEMEL_SQL_BYTES, /* stored unchanged. Must be the last parameters: PostgreSQL takes two for
			  * each, the text, and the bytes if it is not text */
	SEMEL_SQL_INT,
	SEMEL_SQL_BOOL,
	SEMEL_SQL_TIME /* 0 is NULL */
};

struct semel_sql_value {
	enum semel_sql_type type;
	struct semel_text text; /* data NULL: NULL */
	int64_t number;
};

/* A running statement. */
struct semel_sql_rows {
	semel_tx tx;
	const struct semel_sql_statement *statement;
	void *native;     /* the engine's */
	void *blob;       /* likewise: an open blob, reused from row to row; NULL: none */
	int row;          /* likewise */
	uint64_t changes; /* after finish: rows that the statement has changed */
};

/* What a SQL driver provides. All functions are required unless they say otherwise. */
struct semel_sql_engine {
	enum semel_sql_dialect dialect;
	uint32_t page_rows; /* large tables are read in pages of this many rows; 0: row by row */

	/* NO_TRANSACTION, naming the operation, unless one is open. */
	semel_status (*require_transaction)(semel_tx tx, const char *what, semel_error *error);
	/* Prepares the statement, binds the values and starts it. */
	semel_status (*run)(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			    size_t count, semel_error *error);
	semel_status (*next)(struct semel_sql_rows *rows, bool *row_out, semel_error *error);
	/* Ends it, also after a failure of run or next; a statement that changes rows is run to its
	 * end. */
	semel_status (*finish)(struct semel_sql_rows *rows, semel_error *error);

	/* Columns of the row, from 0. peek: lives until the next row, NUL-terminated. Both with
	 * data NULL for NULL. */
	bool (*is_null)(const struct semel_sql_rows *rows, int column);
	struct semel_text (*peek)(const struct semel_sql_rows *rows, int column);
	struct semel_text (*text)(const struct semel_sql_rows *rows, int column,
				  struct semel_arena *arena);
	int64_t (*integer)(const struct semel_sql_rows *rows, int column);
	bool (*boolean)(const struct semel_sql_rows *rows, int column);
	int64_t (*time)(const struct semel_sql_rows *rows, int column);
	/* Optional: for an engine that keeps the bytes of a value of type BYTES in a separate
	 * column, raw. */
	struct semel_text (*bytes)(const struct semel_sql_rows *rows, int column, int raw,
				   struct semel_arena *arena);

	/* Optional: for an engine that measures a payload without reading it. column: has the
	 * position of the dead letter. */
	uint64_t (*payload_size)(struct semel_sql_rows *rows, int column);

	/* Both optional: convert the time of a lease to the clock of the database, and back. */
	int64_t (*to_server_ms)(semel_tx tx, int64_t time_ms);
	int64_t (*to_local_ms)(semel_tx tx, int64_t time_ms);
};

/* For engines: appends the statement with its parameters as `mark` and the number ('$': $1, $2, …).
 * String literals and quoted names are copied as they are; comments, E'' and $$ are not known. */
void semel_sql_translate(struct semel_buffer *buffer, const char *sql, char mark);

/* ---- queries --------------------------------------------------------------------------------- */

struct semel_sql_query {
	const struct semel_sql_engine *engine;
	struct semel_sql_rows rows;
	struct semel_sql_value values[SEMEL_SQL_VALUES_MAX];
	size_t count;
	bool running;
	semel_status status;
	semel_error *error;
};

/* The statement must have a text for the dialect of the transaction's engine. */
void semel_sql_prepare(struct semel_sql_query *query, semel_tx tx,
		       const struct semel_sql_statement *statement, semel_error *error);

/* In the order of the parameters. */
void semel_sql_bind_text(struct semel_sql_query *query, struct semel_text text);
void semel_sql_bind_any_text(struct semel_sql_query *query, struct semel_text text);
void semel_sql_bind_bytes(struct semel_sql_query *query, struct semel_text bytes);
void semel_sql_bind_string(struct semel_sql_query *query, const char *string /* NULL: NULL */);
void semel_sql_bind_int(struct semel_sql_query *query, int64_t number);
void semel_sql_bind_bool(struct semel_sql_query *query, bool value);
void semel_sql_bind_time(struct semel_sql_query *query, int64_t time_ms);
/* Binds a time that is compared with the clock of the database. */
void semel_sql_bind_lease(struct semel_sql_query *query, int64_t time_ms);

/* Is there another row? The first call runs the statement. */
bool semel_sql_next(struct semel_sql_query *query);
/* If the status is not OK, no more rows are read, and finish returns it. */
void semel_sql_stop(struct semel_sql_query *query, semel_status status);
/* Runs the statement to its end, if it was not run yet. Call it once per prepare. */
semel_status semel_sql_finish(struct semel_sql_query *query);
/* After finish: how many rows were changed. */
uint64_t semel_sql_changes(const struct semel_sql_query *query);

/* A column of the row that next has found. */
bool semel_sql_is_null(const struct semel_sql_query *query, int column);
/* Lives until the next row, NUL-terminated; data NULL: NULL. */
struct semel_text semel_sql_peek(const struct semel_sql_query *query, int column);
struct semel_text semel_sql_text(const struct semel_sql_query *query, int column,
				 struct semel_arena *arena);
struct semel_text semel_sql_bytes(const struct semel_sql_query *query, int column, int raw,
				  struct semel_arena *arena);
int64_t semel_sql_int(const struct semel_sql_query *query, int column);
bool semel_sql_bool(const struct semel_sql_query *query, int column);
/* Milliseconds; 0 for NULL. */
int64_t semel_sql_time(const struct semel_sql_query *query, int column);
int64_t semel_sql_lease(const struct semel_sql_query *query, int column);
/* Cut to size; empty for NULL. */
void semel_sql_copy(const struct semel_sql_query *query, int column, char *out, size_t size);

/* The size of a payload in bytes; the column has it, or in SQLite the row to measure. */
uint64_t semel_sql_payload_size(struct semel_sql_query *query, int column);

/* Begins a transaction unless one is open already; leave commits it or rolls it back, depending on
 * the status. */
semel_status semel_sql_enter(semel_store *store, bool *entered_out, semel_error *error);
semel_status semel_sql_leave(semel_store *store, bool entered, semel_status status,
			     semel_error *error);

/* Is there a row at all? The query has its values; this finishes it. */
semel_status semel_sql_exists(struct semel_sql_query *query, bool *exists_out);

/* ---- pages ----------------------------------------------------------------------------------- */

/* Where the next page of a large table begins. An engine that streams has one page. */
struct semel_sql_page {
	struct semel_buffer key, second_key; /* of the last row; empty: at the start */
	uint32_t rows;
};

void semel_sql_page_start(struct semel_sql_page *page);
/* Binds the keys and the number of rows, as the last parameters; nothing where rows are streamed.
 */
void semel_sql_page_bind(struct semel_sql_query *query, struct semel_sql_page *page);
/* The keys are in key_column and the next one. */
bool semel_sql_page_next(struct semel_sql_query *query, struct semel_sql_page *page,
			 int key_column);
/* After finish: is there another page? */
bool semel_sql_page_is_full(const struct semel_sql_query *query, const struct semel_sql_page *page);
void semel_sql_page_end(struct semel_sql_page *page);
/* All rows of a statement that selects id, status, topic and time, and, in pages, the keys after
 * them. Its parameters: the scope (data NULL: the table has none; bound in pages only), then those
 * of the page. */
semel_status semel_sql_ids_each(semel_store *store, const struct semel_sql_statement *statement,
				struct semel_text scope, semel_id_visitor visit, void *user,
				semel_error *error);

/* ---- what is alike in all SQL stores --------------------------------------------------------- */

/* holds.c */
/* The columns of a hold, and how many they are. */
#define SEMEL_SQL_HOLD_WIDTH 7
#define SEMEL_SQL_HOLD_COLUMNS(D)                                                                  \
	"aggregate_type, aggregate_id, state, head_id, attempts, " D##_MS("due_at") ", blocks"
semel_hold_has_any_fn semel_sql_hold_has_any;
semel_hold_has_other_kind_fn semel_sql_hold_has_other_kind;
semel_hold_get_fn semel_sql_hold_get;
semel_hold_put_fn semel_sql_hold_put;
semel_hold_add_fn semel_sql_hold_add;
semel_hold_remove_fn semel_sql_hold_remove;
semel_hold_list_ready_fn semel_sql_hold_list_ready;
semel_hold_next_due_fn semel_sql_hold_next_due;
semel_hold_count_fn semel_sql_hold_count;
semel_states_exist_fn semel_sql_states_exist;
/* Reads event by event, for engines without a round trip. An engine with one statement for the
 * batch uses the other two: clear, then read for each row, which has the columns of a hold, letter,
 * replay_count, settled. */
semel_states_read_fn semel_sql_states_read;
void semel_sql_states_clear(struct semel_state_batch *batch);
void semel_sql_state_read(const struct semel_sql_query *query, int first, struct semel_arena *arena,
			  struct semel_state_result *result);
semel_waits_each_fn semel_sql_waits_each;

/* dead_letters.c */
semel_dead_add_fn semel_sql_dead_add;
semel_dead_get_fn semel_sql_dead_get;
semel_dead_list_fn semel_sql_dead_list;
semel_dead_count_fn semel_sql_dead_count;
semel_dead_move_fn semel_sql_dead_move;
semel_dead_settle_fn semel_sql_dead_settle;
semel_dead_authorize_fn semel_sql_dead_authorize;
semel_parked_add_fn semel_sql_parked_add;
semel_parked_first_fn semel_sql_parked_first;
semel_parked_next_fn semel_sql_parked_next;
semel_parked_exists_fn semel_sql_parked_exists;
semel_parked_remove_fn semel_sql_parked_remove;
semel_dead_each_fn semel_sql_dead_each;

/* inbox.c */
semel_inbox_each_fn semel_sql_inbox_each;
semel_inbox_has_topic_fn semel_sql_inbox_has_topic;
semel_position_get_fn semel_sql_position_get;
semel_position_acquire_fn semel_sql_position_acquire;
semel_position_put_fn semel_sql_position_put;
semel_position_release_fn semel_sql_position_release;

/* outbox.c */
semel_outbox_count_fn semel_sql_outbox_count;
semel_outbox_each_fn semel_sql_outbox_each;
semel_outbox_topics_each_fn semel_sql_outbox_topics_each;
semel_outbox_routing_each_fn semel_sql_outbox_routing_each;

/* upkeep.c */
semel_presence_put_fn semel_sql_presence_put;
semel_presence_remove_fn semel_sql_presence_remove;
semel_presence_each_fn semel_sql_presence_each;
semel_running_begin_fn semel_sql_running_begin;
semel_running_end_fn semel_sql_running_end;
semel_subscription_put_fn semel_sql_subscription_put;
semel_subscription_list_fn semel_sql_subscription_list;
semel_subscription_topics_fn semel_sql_subscription_topics;
semel_subscription_pause_fn semel_sql_subscription_pause;
semel_subscription_is_paused_fn semel_sql_subscription_is_paused;
semel_audit_add_fn semel_sql_audit_add;
semel_audit_finish_fn semel_sql_audit_finish;
semel_audit_list_fn semel_sql_audit_list;
semel_store_trace_fn semel_sql_trace;

/* retention.c */
#define SEMEL_SQL_PRUNE_ROWS 5000 /* how many one step reads or deletes */
/* True for an outbox row o that was published, or given up and its dead letter removed. */
#define SEMEL_SQL_DONE_ROW                                                                         \
	"(o.status = 'PUBLISHED' OR (o.status = 'FAILED' AND NOT EXISTS (SELECT 1"                 \
	" FROM semel_dead_letter l WHERE l.scope = 'relay' AND l.event_id = o.id"                  \
	" AND l.parked_behind IS NULL)))"
/* True for a dead letter that failed before ?1, and not before ?2 (NULL: no limit). */
#define SEMEL_SQL_OLD_BY_TIME(row)                                                                 \
	" " row ".parked_behind IS NULL AND " row ".failed_at < ?1"                                \
	" AND (" row ".failed_at >= ?2 OR ?2 IS NULL)"
/* Dead letters that failed not before from_ms (0: no limit) and before until_ms (0: none). */
struct semel_sql_span {
	int64_t from_ms, until_ms;
};
/* In the open transaction. An engine with concurrent writers must have locked their holds, lanes
 * and entries before. */
semel_status semel_sql_prune_dead(semel_tx tx, struct semel_sql_span span, uint64_t *count_out,
				  semel_error *error);
/* The dry run. */
semel_status semel_sql_count_old(semel_store *store, const struct semel_retention_cutoffs *cutoffs,
				 struct semel_prune_counts *counts, semel_error *error);
/* Binds the Monday of the week of this time; 0 is NULL. The buffer must outlive the run. */
void semel_sql_bind_week(struct semel_sql_query *query, int64_t time_ms,
			 char buffer[SEMEL_DATE_SIZE]);
/* The first column of the first row, 0 without one; finishes the query. */
semel_status semel_sql_first_int(struct semel_sql_query *query, int64_t *number_out);
semel_outbox_pruned_until_fn semel_sql_outbox_pruned_until;
semel_inbox_known_since_fn semel_sql_inbox_known_since;

#endif
