/* SPDX-License-Identifier: Apache-2.0 */
/* When answered batches are marked, how outcomes are heard, and how long the relay may sleep. Pure.
 *
 * - Answered batches are marked together: when they are worth a statement, when they fill one, or
 *   after a delay. A refusal, exceptions and batches that the source gathers itself wait for
 * nothing.
 * - The relay sleeps only if something wakes it: an outcome, a row, or a time that is known.
 */
#ifndef SEMEL_RELAY_PACING_H
#define SEMEL_RELAY_PACING_H

#include <stdbool.h>
#include <stdint.h>

/* The batches whose events are all answered, and what is known of marking them. */
struct semel_mark_facts {
	uint32_t batches, rows;
	int64_t answered_at_ms; /* the first of them; steady */
	bool urgent;            /* one of them has others waiting for its mark */
	bool refused;           /* an event in flight was refused */
	uint32_t rows_min;      /* so many are worth a statement */
	uint32_t batches_max;   /* one statement takes so many */
	int64_t delay_ms;
};

/* Steady; 0: at once, INT64_MAX: there is nothing to mark. */
int64_t semel_pacing_mark_at_ms(const struct semel_mark_facts *facts);

/* How the outcomes of the broker reach the relay. */
enum semel_outcome_mode {
	SEMEL_OUTCOMES_POLLED,   /* nothing wakes: the next poll waits for them */
	SEMEL_OUTCOMES_WAKE,     /* they wake a sleeper */
	SEMEL_OUTCOMES_DEFERRED, /* they are heard with the next row, or after a few milliseconds */
};

struct semel_outcome_facts {
	bool broker_wakes;               /* by its outcomes */
	bool broker_works_in_background; /* it sends and receives without being polled */
	bool source_reports_exhausted;   /* else it may wake all the time, also without room for its
					    rows */
	bool source_listens;             /* the next row wakes, and nothing else does */
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
