/* SPDX-License-Identifier: Apache-2.0 */
/* Which sequences are run, and how one that breaks the promise is shortened and shown. */
#ifndef SEMEL_TESTS_MODEL_EXPLORE_H
#define SEMEL_TESTS_MODEL_EXPLORE_H

#include "model/steps.h"

enum { SEQUENCE_MAX = 256 };

struct exploration {
	double seconds;
	uint64_t seed;
	int steps;               /* of a random sequence */
	int setting;             /* -1: all of them in turn */
	const char *plant;       /* the bug that is to be found; NULL: none is expected */
	const char *steps_given; /* a sequence as sequence_write() writes it; NULL: none */
	const char *kind; /* "chance", "short", "one" (the sequence of the seed), or "print" */
};

struct sequence {
	int setting, count;
	uint64_t seed;
	bool discards; /* at rest dead letters are discarded; otherwise they are replayed */
	struct step steps[SEQUENCE_MAX];
};

/* What the exploring child reports to its parent, in shared memory. */
struct progress {
	struct sequence now;
	uint64_t sequences, steps, turns;
	int depth; /* all sequences of this many moves were run */
	bool broken;
	char what[160], detail[256];
};

/* 0 if nothing was found, or the planted bug was; otherwise 1. */
int explore(const struct exploration *exploration);

/* ---- short.c: all sequences of `depth` moves; false: world->broken is what was found --------- */
bool walk_short(struct world *world, struct sequence *sequence, struct progress *progress,
		int depth, bool (*is_over)(void *user), void *user);

/* ---- shrink.c ---- */
/* Removes and simplifies steps while the sequence breaks the same promise. breaks() runs one. */
void sequence_shorten(struct sequence *sequence, bool (*breaks)(const struct sequence *sequence));
/* Writes the sequence as numbers, for --sequence; read returns false if the text is not valid. */
void sequence_write(const struct sequence *sequence, FILE *out);
bool sequence_read(const char *text, struct sequence *sequence_out);
void sequence_print(const struct sequence *sequence, FILE *out);

#endif
