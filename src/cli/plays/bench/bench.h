/* SPDX-License-Identifier: Apache-2.0 */
/* `semel bench`: the library against the baseline of its engine, a program that does the same
 * durable work by hand (store/baseline.h), as ratios. Absolute rates are unreliable on a busy
 * machine, so the two sides take turns in short rounds, and the median of the rounds' ratios is
 * reported. */
#ifndef SEMEL_CLI_PLAYS_BENCH_BENCH_H
#define SEMEL_CLI_PLAYS_BENCH_BENCH_H

#include "cli/plays/sandbox.h"
#include "store/baseline.h"

#define SEMEL_BENCH_SMALL 1000 /* the small backlog, and the sample timed in both */

enum semel_bench_goal {
	SEMEL_BENCH_NO_GOAL,
	SEMEL_BENCH_AT_LEAST, /* the ratio is at least the goal */
	SEMEL_BENCH_AT_MOST,  /* neither the ratio nor its inverse is above the goal */
	SEMEL_BENCH_BELOW     /* both values are below the goal */
};

/* left and right: semel and the baseline in events per second, or the small and the big backlog. */
struct semel_bench_row {
	const char *name, *unit;
	double left, right, ratio;
	enum semel_bench_goal kind;
	double goal;
};

struct semel_bench {
	struct semel_sandbox *sandbox;
	const struct semel_baseline_functions *baseline;
	uint32_t rounds;
	uint32_t turns;        /* in a round */
	uint64_t transactions; /* of one event, per round and side */
	uint64_t events;       /* per turn and side, where they come in batches */
	uint64_t backlog;      /* size of the big one */
	struct semel_bench_row rates[8], growth[8];
	size_t rate_count, growth_count;
	semel_error *error;
};

bool semel_bench_is_met(const struct semel_bench_row *row);

/* ---- measure.c: what the measurements are made of ---- */
struct semel_bench_comparison {
	void *user;
	uint64_t events;                     /* per turn and side */
	uint32_t turns;                      /* in a round; 0: as many as the bench says */
	semel_status (*prepare)(void *user); /* before each turn, not timed; may be NULL */
	semel_status (*left)(void *user);    /* semel */
	semel_status (*right)(void *user);   /* the baseline */
};
/* Fills in left and right (events per second) and ratio (left over right: the median of the
 * rounds). */
semel_status semel_bench_compare(struct semel_bench *bench,
				 const struct semel_bench_comparison *comparison,
				 struct semel_bench_row *row);

semel_status semel_bench_find_baseline(struct semel_bench *bench);
struct semel_bench_database {
	struct semel_baseline *connection;
	uint64_t next; /* number of the next event */
};
/* Opens a file of this name in the sandbox. Close it also after a failure. */
semel_status semel_bench_open_database(struct semel_bench *bench, const char *name,
				       struct semel_bench_database *database_out);
void semel_bench_close_database(struct semel_bench *bench, struct semel_bench_database *database);
/* Adds count events to the outbox, in one transaction. */
semel_status semel_bench_fill(struct semel_bench *bench, struct semel_bench_database *database,
			      uint64_t count);
/* Write the texts of the event with this number. */
void semel_bench_aggregate_id(uint64_t number, char *text_out, size_t size);
void semel_bench_payload(uint64_t number, char *text_out, size_t size);

/* ---- the measurements ---- */
semel_status semel_bench_publish(struct semel_bench *bench);
/* Measures the relay and the consumer. */
semel_status semel_bench_deliver(struct semel_bench *bench);
semel_status semel_bench_backlog(struct semel_bench *bench);

/* ---- report.c ---- */
struct semel_buffer;
void semel_bench_text(const struct semel_bench *bench, struct semel_buffer *buffer);
void semel_bench_json(const struct semel_bench *bench, struct semel_buffer *buffer);

#endif
