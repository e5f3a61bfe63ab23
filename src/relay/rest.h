/* SPDX-License-Identifier: Apache-2.0 */
/* When answered loads are marked, how answers are heard, and how long the relay may sleep. Pure.
 *
 * - Answered loads are marked together: when they are worth a statement, when they fill one, or
 *   after a delay. A refusal, exceptions and loads that the source gathers itself wait for nothing.
 * - The relay sleeps only if something wakes it: an answer, a row, or a time that is known.
 */
#ifndef SEMEL_RELAY_REST_H
#define SEMEL_RELAY_REST_H

#include <stdbool.h>
#include <stdint.h>

/* The loads whose events are all answered, and what is known of marking them. */
struct semel_mark_facts {
	uint32_t loads, rows;
	int64_t answered_at_ms; /* the first of them; steady */
	bool urgent;            /* one of them has others waiting for its mark */
	bool refused;           /* an event in flight was refused */
	uint32_t rows_min;      /* so many are worth a statement */
	uint32_t loads_max;     /* one statement takes so many */
	int64_t delay_ms;
};

/* Steady; 0: at once, INT64_MAX: there is nothing to mark. */
int64_t semel_rest_mark_at_ms(const struct semel_mark_facts *facts);

/* How the answers of the broker reach the relay. */
enum semel_answers {
	SEMEL_ANSWERS_AWAITED, /* nothing wakes: the next poll waits for them */
	SEMEL_ANSWERS_WAKE,    /* they wake a sleeper */
	SEMEL_ANSWERS_LATER,   /* they are heard with the next row, or after a few milliseconds */
};

struct semel_answer_facts {
	bool broker_wakes;               /* by its answers */
	bool broker_works_in_background; /* it sends and receives without being polled */
	bool source_knows_dry; /* else it may wake all the time, also without room for its rows */
	bool source_listens;   /* the next row wakes, and nothing else does */
	bool has_room;
	bool transactional;
	bool seldom; /* rows come one at a time */
};

enum semel_answers semel_rest_answers(const struct semel_answer_facts *facts);

struct semel_rest_facts {
	int64_t now_ms, most_ms;
	int64_t mark_at_ms;
	uint32_t unanswered;
	enum semel_answers answers;
	bool progressed; /* the last step has read or marked something */
	bool may_read;   /* there is more, and room for it */
	bool owes;       /* the source has not finished something */
};

/* 0: step again at once. */
int64_t semel_rest_ms(const struct semel_rest_facts *facts);

#endif
