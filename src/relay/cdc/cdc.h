/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the change stream's source share: cdc.c (the source), flush.c (marks,
 * positions, keepalives), slot_monitor.c (the slot). */
#ifndef SEMEL_RELAY_CDC_CDC_H
#define SEMEL_RELAY_CDC_CDC_H

#include "relay/cdc/exception_set.h"
#include "relay/cdc/mark_buffer.h"
#include "relay/cdc/slot_rule.h"
#include "relay/poll.h"

/* After a start this many windows of rows are looked up: a crash leaves at most a window that was
 * marked and not confirmed. */
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
	uint32_t check_left;  /* this many more rows are looked up: they may be marked already */
	uint64_t check_to;    /* but none behind this position: what was committed later is new */
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
	bool due_again; /* exceptions were marked: those behind them may be due */

	struct {
		int64_t seq;  /* no row up to this number waits once the stream is … */
		uint64_t lsn; /* … complete up to this position; 0: no checkpoint */
	} checkpoint;
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
void semel_cdc_set_checkpoint(struct semel_cdc *cdc, int64_t seq, uint64_t position);

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
bool semel_cdc_in_transaction(const struct semel_cdc *cdc);
/* The server's system identifier and the slot's name, which together are unique. */
semel_status semel_cdc_label(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			     semel_error *error);

#endif
