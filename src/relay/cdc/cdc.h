/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the change stream's source share: cdc.c (the source), flush.c (marks,
 * positions, keepalives), slot_monitor.c (the slot).
 *
 * To change here: the slot is confirmed only up to what is marked on disk, and a row that the
 * stream may have left out is above a low mark, so that polling finds it. Which rows are published
 * is decided by the pipeline, as for every source. */
#ifndef SEMEL_RELAY_CDC_CDC_H
#define SEMEL_RELAY_CDC_CDC_H

#include "relay/cdc/exception_set.h"
#include "relay/poll.h"
#include "store/changes.h"

/* ---- flush.c: how far the change stream may be confirmed; pure --------------------------------
 *
 * - Batches complete in any order; the stream is confirmed in its own order.
 * - A position is reached only when every batch up to it is complete. A batch that ends within a
 *   transaction has no position of its own: the next batch that has one covers it.
 * - A position that comes without rows (the stream was idle) is reached at once when no batch is
 *   open, and otherwise with the last open batch.
 */
#define SEMEL_FEEDBACK_MAX 4096 /* batches that are open; a power of two */

struct semel_feedback {
	uint64_t first, next; /* tickets: first is the oldest that is open */
	uint64_t position;    /* reached */
	struct {
		uint64_t position; /* 0: none */
		bool complete;
	} batches[SEMEL_FEEDBACK_MAX];
};

/* No batch is open, and no position is reached. */
void semel_feedback_reset(struct semel_feedback *feedback);
bool semel_feedback_is_full(const struct semel_feedback *feedback);
bool semel_feedback_is_idle(const struct semel_feedback *feedback);
/* A batch that ends at this position; 0: within a transaction. Not when it is full. */
uint64_t semel_feedback_open(struct semel_feedback *feedback, uint64_t position);
/* The stream has reached this position without further rows. */
void semel_feedback_pass(struct semel_feedback *feedback, uint64_t position);
void semel_feedback_complete(struct semel_feedback *feedback, uint64_t ticket);

/* ---- flush.c: rows that the broker has confirmed and that are not marked yet -------------------
 *
 * With marks: they collect, with the tickets of their batches, until they are worth a statement.
 * Without marks (--marks off): those above the low marks are held until the stream ends; marked
 * then, they are not published again by polling.
 */
struct semel_mark_buffer {
	uint32_t rows;  /* confirmed; repeated after a crash */
	uint32_t count; /* of them: to be marked */
	uint32_t capacity;
	int32_t *lanes;
	int64_t *seqs;
	uint32_t *xids;
	uint32_t tickets;
	uint64_t *ticket;
	int64_t since_ms; /* steady: when the first one was added */
};

/* False: out of memory. */
bool semel_mark_buffer_open(struct semel_mark_buffer *buffer, uint32_t capacity);
/* marks false: the rows are counted, and not marked. */
void semel_mark_buffer_add(struct semel_mark_buffer *buffer, const struct semel_relay_batch *batch,
			   bool marks, int64_t now_ms);
bool semel_mark_buffer_is_empty(const struct semel_mark_buffer *buffer);
void semel_mark_buffer_clear(struct semel_mark_buffer *buffer);
void semel_mark_buffer_free(struct semel_mark_buffer *buffer);

/* Bounded: rows beyond the capacity are published again. */
struct semel_unmarked {
	struct semel_unmarked_row {
		int64_t seq;
		uint32_t xid;
		int32_t lane;
	} * rows;
	uint32_t count, capacity; /* 0: no row is recorded */
};

/* False: out of memory. */
bool semel_unmarked_open(struct semel_unmarked *unmarked, uint32_t capacity);
void semel_unmarked_add(struct semel_unmarked *unmarked, const struct semel_relay_batch *batch);
/* Drops the rows that the low marks cover by now. */
void semel_unmarked_drop_below(struct semel_unmarked *unmarked, int64_t low_seq);
/* Moves as many rows as fit to an empty buffer. */
void semel_unmarked_move_to(struct semel_unmarked *unmarked, struct semel_mark_buffer *buffer);
void semel_unmarked_free(struct semel_unmarked *unmarked);

/* ---- slot_monitor.c: may the relay read the change stream, what happens to its slot; pure ------
 *
 * - The database's disk never fills because of us: a slot that retains more WAL than the budget is
 *   dropped, whatever waits. The rows are in the table.
 * - The stream is read only when it cannot have skipped a row. A slot ahead of the recorded
 *   position, a database with another history, or a publication that is not the recorded one means
 *   polling first. A slot whose publication was changed is dropped: the server decodes the WAL with
 *   the publication as it was at that time, and may find none.
 * - A slot is created again only when polling has nearly caught up, so that it does not retain WAL
 *   during an outage that has not ended.
 */
enum semel_slot_action {
	SEMEL_SLOT_STREAM,     /* read it */
	SEMEL_SLOT_POLL,       /* no stream is possible: poll */
	SEMEL_SLOT_POLL_FIRST, /* poll up to poll_to_seq, then read it */
	SEMEL_SLOT_RESYNC,     /* it is not as we left it: record that everything is polled first */
	SEMEL_SLOT_CREATE,     /* poll, and create it */
	SEMEL_SLOT_WAIT,       /* poll, and create it later */
	SEMEL_SLOT_DROP        /* drop it, and poll */
};

struct semel_slot_decision {
	enum semel_slot_action action;
	char reason[320]; /* for the log */
};

struct semel_slot_view {
	const struct semel_slot_state *state;
	uint64_t budget; /* bytes */
	bool caught_up;  /* polling has almost nothing left to read */
};

void semel_slot_decide(const struct semel_slot_view *view,
		       struct semel_slot_decision *decision_out);

/* ---- the source ------------------------------------------------------------------------------ */

/* After a start this many windows of rows are checked against the table: a crash leaves at most a
 * window that was marked and not confirmed. */
#define SEMEL_CDC_CHECK_WINDOWS 2

enum semel_cdc_state {
	SEMEL_CDC_STANDBY,   /* another relay owns the lanes */
	SEMEL_CDC_POLLING,   /* there is no stream to read at the moment */
	SEMEL_CDC_STREAMING, /* rows come through the stream */
	SEMEL_CDC_LEAVING    /* the rows of the ended stream are marked before polling begins */
};

struct semel_cdc {
	struct semel_source base;
	struct semel_cdc_options options;
	char *store_url, *slot;
	const struct semel_env *env;
	struct semel_lanes *lanes;
	struct semel_source *poll;
	struct semel_changes *changes;
	semel_store *store;
	struct semel_relay_batches *batches;

	enum semel_cdc_state state;
	int64_t generation;      /* of the lanes, when the stream began */
	bool creating;           /* polling: the slot is being created */
	bool paused;             /* polling: nothing is read, the stream is about to begin */
	int64_t drained_ms;      /* steady: when polling last had nothing left to read */
	int64_t try_at_ms;       /* steady: the next attempt to start the stream */
	int64_t busy_since;      /* steady: the slot has another reader, or cannot be inspected; 0:
				    neither */
	int64_t monitor_at_ms;   /* steady: a standby relay inspects the slot again */
	char logged_reason[320]; /* why it polls, as last logged */

	struct semel_feedback *feedback;
	struct semel_exception_set exceptions;
	uint64_t catch_up_to; /* up to this position rows may have been polled; 0: none */
	int64_t catch_up_seq; /* with numbers up to this one */
	uint32_t check_left;  /* this many more rows are checked: they may be marked already */
	uint64_t check_to;    /* but none after this position: what was committed later is new */
	int64_t polled_seq;   /* the highest number polled since the last stream; 0: none */

	struct semel_mark_buffer gathered, sent;
	struct semel_unmarked unmarked; /* without marks: marked when the stream ends */
	bool sending;
	int64_t resend_ms;      /* steady: when marks that failed are sent again; 0: none failed */
	int64_t resend_wait_ms; /* the last delay before that; 0: none failed */
	uint64_t sent_position, recorded, confirmed;
	int64_t flushed_ms, confirmed_ms, check_at_ms; /* steady */
	bool starved;                                  /* nothing is read until marks are written */
	bool exhausted; /* the stream has nothing more in this step */
	bool due_again; /* exceptions were marked: those held behind them may be due */

	struct {
		int64_t seq;       /* no row up to this number waits once the stream is … */
		uint64_t position; /* … complete up to this position; 0: none is pending */
	} next_low_mark;
	int64_t low_seqs[SEMEL_LANES_MAX];
};

/* flush.c: marks, feedback, keepalives. now: waits for the statement. */
semel_status semel_cdc_flush(struct semel_cdc *cdc, bool now, semel_error *error);
/* The stream has ended: marks every row that it brought. */
semel_status semel_cdc_flush_all(struct semel_cdc *cdc, semel_error *error);
/* Marks what the broker has confirmed, if the lanes are still ours; then discards everything. */
void semel_cdc_reset(struct semel_cdc *cdc);
bool semel_cdc_has_unmarked(const struct semel_cdc *cdc);
void semel_cdc_keepalive(struct semel_cdc *cdc);
/* No row at or below the number waits once the stream is complete up to the position. */
void semel_cdc_set_next_low_mark(struct semel_cdc *cdc, int64_t seq, uint64_t position);

/* slot_monitor.c. Polling: starts the stream if that is possible. */
semel_status semel_cdc_try_stream(struct semel_cdc *cdc, semel_error *error);
/* Streaming: leaves the stream if it is not safe any more; probes for due exceptions. */
semel_status semel_cdc_check_stream(struct semel_cdc *cdc, semel_error *error);
/* Store or broker may be disconnected: keeps the slot within its budget. */
void semel_cdc_monitor_slot(struct semel_cdc *cdc);
/* The same for a standby relay, from time to time: its slot may have no other reader. */
void semel_cdc_monitor_slot_on_standby(struct semel_cdc *cdc);
/* The stream has ended; what came through it is marked first. OUTAGE when it ends within a
 * transaction that is published as a whole or not at all: then no part of it may be committed. */
SEMEL_MUST_CHECK semel_status semel_cdc_leave_stream(struct semel_cdc *cdc, const char *reason,
						     semel_error *error);
/* The last row of the stream is followed by others of its transaction. */
bool semel_cdc_is_in_transaction(const struct semel_cdc *cdc);
/* The server's system identifier and the slot's name, which together are unique. */
semel_status semel_cdc_label(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			     semel_error *error);

#endif
