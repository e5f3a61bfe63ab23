/* SPDX-License-Identifier: Apache-2.0 */
/* What can happen: steps with small numbers as arguments, so that any sequence of them can be
 * generated at random, shortened and printed. */
#ifndef SEMEL_TESTS_MODEL_STEPS_H
#define SEMEL_TESTS_MODEL_STEPS_H

#include "model/world.h"

#include <stdio.h>

enum action {
	STEP_PUBLISH,     /* a: aggregate, b: behaviour, c: 3 is large */
	STEP_RELAY,       /* a: turns */
	STEP_CONSUME,     /* a: scope, b: which consumer, c: turns */
	STEP_PASS,        /* a: how long */
	STEP_STOP,        /* a: 0 the relay, else scope and consumer */
	STEP_VERDICT,     /* a: event, b: behaviour from now on */
	STEP_DLQ_REPLAY,  /* a: the nth pending one */
	STEP_DLQ_DISCARD, /* a: the nth pending one */
	STEP_REPLAY,      /* a: to which scope, b: of which aggregate, c: maximum */
	STEP_REPROCESS,   /* a: scope, b: aggregate, c: maximum, forced */
	STEP_PRUNE,
	STEP_PAUSE,    /* a: scope; a second one resumes it */
	STEP_LOSE,     /* a: a delayed copy, or one of the log; b: which */
	STEP_REPEAT,   /* the same */
	STEP_POSTPONE, /* b: which delayed copy */
	STEP_SAVE,
	STEP_RESTORE, /* a: the store, the broker, or both */
	STEP_CHANGE,  /* b: which setting, a: of which scope, c: to what; see changes.h */
	STEP_DROP,    /* b: which object, a: of which scope */
	STEP_COUNT
};

enum fault {
	FAULT_NONE,
	FAULT_KILL,      /* killed after `at` more commits */
	FAULT_POINT,     /* killed at the failpoint `at` */
	FAULT_OUTAGE,    /* as KILL, but the party survives, and the disk works after the step */
	FAULT_MEANWHILE, /* paused at the failpoint `at` while the next step runs */
	FAULT_COUNT
};

enum { STOP_ALL = 1 + SCOPES * CONSUMERS };

struct step {
	uint8_t action, a, b, c, fault, at;
};

/* How far STEP_PASS advances the clock. */
int64_t step_span_ms(const struct step *step);
/* Runs the first of `count` steps, and judges the tables afterwards. Returns how many it ran: two,
 * if the next one ran in between. */
int step_run(struct world *world, const struct step *steps, int count);
/* The aggregate of STEP_PUBLISH; the last one has a topic of its own. */
int step_aggregate(const struct step *step);
/* Runs the step without any fault. */
void step_do(struct world *world, struct step step);
/* Draws a random step; next() generates numbers. */
struct step step_draw(uint64_t (*next)(void *user), void *user);
const char *step_name(int action);
/* Steps with this name are no longer drawn. False: there are none. */
bool step_forbid(const char *name);
/* Steps with this name are drawn often; "name:2": always with b 2. */
bool step_favour(const char *name);
/* Prints the step for a program: a line of JSON. */
void step_print_json(const struct step *step, FILE *out);
/* Prints the step as an operator would do it. */
void step_print(const struct setting *setting, const struct step *step, FILE *out);

/* ---- quiesce.c ---- */
/* Runs the relay and the consumers without faults, and lets time pass, until nothing moves. */
void quiesce(struct world *world);
/* Brings the model to rest and checks part 5 of the promise; then decides everything that waits for
 * an operator, and checks part 5 again. discards: dead letters are discarded; otherwise they are
 * replayed with corrected handlers. */
void quiesce_and_judge(struct world *world, bool discards);

#endif
