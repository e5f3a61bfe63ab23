/* SPDX-License-Identifier: Apache-2.0 */
/* When answered batches are marked, how outcomes are received, and how long the relay sleeps. Pure.
 *
 * - Answered batches are marked together: when they are worth a statement, when they fill one, or
 *   after a delay. A refusal, exceptions and batches that the source collects itself are marked at
 *   once.
 * - The relay sleeps only if something wakes it: an outcome, a row, or a known time.
 */
#ifndef SEMEL_RELAY_PACING_H
#define SEMEL_RELAY_PACING_H

#include <stdbool.h>
#include <stdint.h>

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

/* Steady; 0: at once, INT64_MAX: there is nothing to mark. */
int64_t semel_pacing_mark_at_ms(const struct semel_mark_facts *facts);

/* How the outcomes of the broker reach the relay. */
enum semel_outcome_mode {
	SEMEL_OUTCOMES_POLLED,   /* they wake nothing: the next poll waits for them */
	SEMEL_OUTCOMES_WAKE,     /* they wake the sleeping relay */
	SEMEL_OUTCOMES_DEFERRED, /* polled with the next row, or after a few milliseconds */
};

struct semel_outcome_facts {
	bool broker_wakes;               /* by its outcomes */
	bool broker_works_in_background; /* it sends and receives without being polled */
	bool source_reports_exhausted;   /* else rows wake even without room for
					    them */
	bool source_listens;             /* only the next row wakes */
	bool has_room;
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
	bool may_read;   /* there is more, and room for it */
	bool unfinished; /* the source has not finished something */
};

/* 0: step again at once. */
int64_t semel_pacing_sleep_ms(const struct semel_pacing_facts *facts);

#endif
