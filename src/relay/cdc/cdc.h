/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the change stream's source share. */
#ifndef SEMEL_RELAY_CDC_CDC_H
#define SEMEL_RELAY_CDC_CDC_H

#include "relay/cdc/exception_set.h"
#include "relay/cdc/mark_buffer.h"
#include "relay/cdc/slot_rule.h"
#include "relay/cdc/unmarked.h"
#include "relay/poll.h"

/* After a start so much is looked up: a crash leaves no more than a window behind that was marked
 * and not confirmed. */
#define SEMEL_CDC_CHECK_WINDOWS 2

enum semel_cdc_state {
	SEMEL_CDC_STANDBY,   /* another relay has the lanes */
	SEMEL_CDC_POLLING,   /* there is no stream to read, for now */
	SEMEL_CDC_STREAMING, /* rows come through the stream */
	SEMEL_CDC_LEAVING    /* what came through the stream is settled before polling begins */
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
	bool creating;           /* polling: the slot is being made */
	bool paused;             /* polling: read no more, the stream is about to begin */
	int64_t drained_ms;      /* steady: when polling had last read all there was */
	int64_t try_at_ms;       /* steady: when a stream is tried for again */
	int64_t busy_since;      /* steady: the slot has another reader, or cannot be looked at; 0:
				    neither */
	int64_t monitor_at_ms;   /* steady: when a relay that stands by looks at the slot again */
	char logged_reason[320]; /* what the log has heard last about the slot */

	struct semel_feedback *feedback;
	struct semel_exception_set exceptions;
	uint64_t catch_up_to; /* up to here rows may have been polled; 0: none */
	int64_t catch_up_seq; /* with numbers up to this one */
	uint32_t check_left; /* so many more rows are looked up: they may have been marked before */
	uint64_t check_to;   /* but not behind here: what was committed later is new */
	int64_t polled_seq;  /* the highest that was, since the stream was read last; 0: none */

	struct semel_mark_buffer gathered, sent;
	struct semel_unmarked unmarked; /* without marks: what is marked when the stream ends */
	bool sending;
	int64_t resend_ms; /* steady: marks that were not written are sent again; 0: none were */
	int64_t resend_wait_ms; /* before it was sent again; 0: it was not */
	uint64_t sent_position, recorded, confirmed;
	int64_t flushed_ms, confirmed_ms, check_at_ms; /* steady */
	bool starved;   /* nothing is read before marks are written */
	bool exhausted; /* in this step the stream has given all it had */
	bool due_again; /* exceptions were settled: those behind them may be due */

	struct {
		int64_t seq;  /* when the stream is settled up to … */
		uint64_t lsn; /* … here, nothing up to this number waits; 0: no such point */
	} checkpoint;
	int64_t low_seqs[SEMEL_LANES_MAX];
};

/* settle.c: marks, feedback, signs of life. */
semel_status semel_cdc_flush(struct semel_cdc *cdc, bool now, semel_error *error);
/* The stream ends: everything that it has brought is marked. */
semel_status semel_cdc_flush_all(struct semel_cdc *cdc, semel_error *error);
/* What is confirmed by the broker is marked, if the lanes are still ours; then all is forgotten. */
void semel_cdc_reset(struct semel_cdc *cdc);
bool semel_cdc_has_unmarked(const struct semel_cdc *cdc);
void semel_cdc_keepalive(struct semel_cdc *cdc);
/* Nothing at or below the number waits once the stream is settled up to the position. */
void semel_cdc_set_checkpoint(struct semel_cdc *cdc, int64_t seq, uint64_t position);

/* guard.c: the slot. */
/* Polling: is there a stream to be had? */
semel_status semel_cdc_try_stream(struct semel_cdc *cdc, semel_error *error);
/* Streaming: may we go on? And are there exceptions that are due? */
semel_status semel_cdc_check_stream(struct semel_cdc *cdc, semel_error *error);
/* Neither store nor broker may be there: keeps the slot within its budget. */
void semel_cdc_monitor_slot(struct semel_cdc *cdc);
/* The same for a relay that stands by, now and then: its slot may be one that nobody else reads. */
void semel_cdc_monitor_slot_on_standby(struct semel_cdc *cdc);
/* The stream is at an end; what came through it is settled first. OUTAGE when it ends in the middle
 * of a transaction that is shown as a whole or not at all: then nobody may see what is there of it.
 */
SEMEL_MUST_CHECK semel_status semel_cdc_leave_stream(struct semel_cdc *cdc, const char *reason,
						     semel_error *error);
/* What the stream has handed out has more behind it that was committed with it. */
bool semel_cdc_in_transaction(const struct semel_cdc *cdc);
/* The server's own number and the slot, which are unlike any other's. */
semel_status semel_cdc_label(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			     semel_error *error);

#endif
