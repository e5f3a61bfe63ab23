/* SPDX-License-Identifier: Apache-2.0 */
/* What is in flight (offered to the broker, and not marked), and when something is done about it.
 *
 * Invariants:
 * - It is bounded by rows and bytes, and a row counts until it is marked: a crash repeats no more.
 * - A window that is nearly full is not refilled row by row: a statement for a few rows costs
 *   nearly as much as one for many.
 * - After a refusal nothing is read until its batch is marked, so that later events of its
 *   aggregate are read as held.
 * - An event has one outcome. One that is not reported within the confirm timeout is an outage; the
 *   timeout does not run while the broker blocks publishers.
 * - Answered batches are marked together: when they are worth a statement, when they fill one, or
 *   after a delay. A refusal, exceptions and batches that the source collects itself are marked at
 *   once.
 * - The relay sleeps only if something wakes it: an outcome, a row, or a known time.
 */
#ifndef SEMEL_RELAY_WINDOW_H
#define SEMEL_RELAY_WINDOW_H

#include "relay/source.h"

/* The batches whose events are all answered, and the limits for marking them. */
struct semel_mark_facts {
	uint32_t batches, rows;
	int64_t answered_at_ms; /* the first of them; steady */
	bool urgent;            /* other events wait for the mark of one of them */
	bool refused;           /* an event in flight was refused */
	uint32_t rows_min;      /* this many are worth a statement */
	uint32_t batches_max;   /* that one statement marks */
	int64_t delay_ms;
};

struct semel_window {
	const struct semel_env *env;
	struct semel_relay_batches batches;
	struct {
		uint32_t rows_max;
		uint64_t bytes_max;
		uint32_t free_min; /* this much must be free before more is read */
		int64_t confirm_timeout_ms;
	} limits;
	uint32_t rows;
	uint32_t unanswered;
	uint64_t bytes;
	uint32_t unmarked_refusals; /* refused, and not marked; HELD ones not counted */
	bool refused;               /* an event was refused; its batch is not marked as a whole */
	int64_t offered_at_ms;      /* steady: when the last batch was offered, */
	bool sparse;                /* and whether that was a while after the one before */
};

/* Discards everything in flight. */
void semel_window_reset(struct semel_window *window);
/* The batch is in flight, and unanswered. */
void semel_window_add(struct semel_window *window, struct semel_relay_batch *batch);
/* The outcome of one event; reason need not outlive the call. */
void semel_window_record_outcome(struct semel_window *window, struct semel_relay_inflight *inflight,
				 semel_status outcome, const char *reason);
/* Its refusals are marked. */
void semel_window_refusals_marked(struct semel_window *window, struct semel_relay_batch *batch);
/* The batch is marked, or belongs to another relay by now; it goes back to the pool. */
void semel_window_remove(struct semel_window *window, struct semel_relay_batch *batch);
/* How much may be read. transaction_open: in the middle of a transaction, at whose end a refusal is
 * marked. */
struct semel_read_limits semel_window_read_limits(const struct semel_window *window,
						  bool transaction_open);
/* An earlier event of the aggregate of this row was refused, and is not marked. */
bool semel_window_is_behind_refused(const struct semel_window *window,
				    const struct semel_relay_batch *mine, uint32_t at);
bool semel_window_has_answered_batch(const struct semel_window *window);
/* Fills in batches, rows, answered_at_ms, urgent and refused. */
void semel_window_mark_facts(const struct semel_window *window, struct semel_mark_facts *facts);
/* OUTAGE: the confirm timeout has passed. blocked: it starts again from now. */
semel_status semel_window_check_timeout(struct semel_window *window, bool blocked,
					semel_error *error);

/* ---- pacing; pure ---------------------------------------------------------------------------- */

/* Steady; 0: at once, INT64_MAX: there is nothing to mark. */
int64_t semel_pacing_mark_at_ms(const struct semel_mark_facts *facts);

/* How the outcomes of the broker reach the relay. */
enum semel_outcome_mode {
	SEMEL_OUTCOMES_POLLED,   /* they wake nothing: the next poll waits for them */
	SEMEL_OUTCOMES_WAKE,     /* they wake the sleeping relay */
	SEMEL_OUTCOMES_DEFERRED, /* polled with the next row, or after a few milliseconds */
};

struct semel_outcome_facts {
	bool broker_wakes;               /* outcomes wake the relay */
	bool broker_works_in_background; /* it sends and receives without being polled */
	bool source_reports_exhausted;   /* else rows wake even if the window is full */
	bool source_listens;             /* only the next row wakes */
	bool can_read;
	bool transactional;
	bool sparse; /* rows come one at a time */
};

enum semel_outcome_mode semel_pacing_outcome_mode(const struct semel_outcome_facts *facts);

struct semel_pacing_facts {
	int64_t now_ms, most_ms;
	int64_t mark_at_ms;
	uint32_t unanswered;
	enum semel_outcome_mode outcomes;
	bool progressed; /* the last step has read or marked something */
	bool may_read;   /* there is more, and the window can take it */
	bool unfinished; /* the source has not finished something */
};

/* 0: step again at once. */
int64_t semel_pacing_sleep_ms(const struct semel_pacing_facts *facts);

#endif
