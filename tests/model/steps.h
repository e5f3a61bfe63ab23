/* SPDX-License-Identifier: Apache-2.0 */
/* What can happen: one step each, with small numbers as its arguments, so that any sequence of them
 * can be made by chance, shortened, and printed. */
#ifndef SEMEL_TESTS_MODEL_STEPS_H
#define SEMEL_TESTS_MODEL_STEPS_H

#include "model/world.h"

#include <stdio.h>

enum action {
	STEP_PUBLISH,     /* a: aggregate, b: behaviour, c: 3: it is large */
	STEP_RELAY,       /* a: turns */
	STEP_CONSUME,     /* a: scope, b: which consumer, c: turns */
	STEP_PASS,        /* a: how long */
	STEP_STOP,        /* a: 0 the relay, else scope and consumer */
	STEP_VERDICT,     /* a: event, b: behaviour from now on */
	STEP_DLQ_REPLAY,  /* a: the nth pending one */
	STEP_DLQ_DISCARD, /* a: the nth pending one */
	STEP_REPLAY,      /* a: to whom, b: of which aggregate, c: at most */
	STEP_REPROCESS,   /* a: scope, b: aggregate, c: at most, forced */
	STEP_PRUNE,
	STEP_PAUSE,    /* a: scope; and again */
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
	FAULT_KILL,      /* before its commit but `at` */
	FAULT_POINT,     /* killed at the failpoint `at` */
	FAULT_OUTAGE,    /* as KILL, but it lives on, and the disk works again after the step */
	FAULT_MEANWHILE, /* at the failpoint `at` it is paused, and the next step comes in
			    between */
	FAULT_COUNT
};

enum { STOP_ALL = 1 + SCOPES * CONSUMERS };

struct step {
	uint8_t action, a, b, c, fault, at;
};

/* How much time STEP_PASS lets pass. */
int64_t step_span_ms(const struct step *step);
/* Does the first of so many, and judges what is seen afterwards. Returns how many it did: two, when
 * the next one came in between. */
int step_run(struct world *world, const struct step *steps, int count);
/* The aggregate of STEP_PUBLISH; the last one has a topic of its own. */
int step_aggregate(const struct step *step);
/* Without any fault. */
void step_do(struct world *world, struct step step);
/* By chance; next() makes numbers. */
struct step step_draw(uint64_t (*next)(void *user), void *user);
const char *step_name(int action);
/* Steps of this name are drawn no more. False: there are none. */
bool step_forbid(const char *name);
/* They are drawn often; "name:2": always with this b. */
bool step_favour(const char *name);
/* For a program: a line of JSON. */
void step_print_json(const struct step *step, FILE *out);
/* As an operator would do it. */
void step_print(const struct setting *setting, const struct step *step, FILE *out);

/* ---- quiesce.c ---- */
/* No more faults: relay and consumers run and time passes until nothing moves. */
void quiesce(struct world *world);
/* At rest: part 5 of the promise; then everything that waits for an operator is decided, and 5
 * again. discards: what is dead is discarded, else replayed with mended handlers. */
void quiesce_and_judge(struct world *world, bool discards);

#endif
