/* SPDX-License-Identifier: Apache-2.0 */
/* `semel bench`: the library against a bare sqlite3 program that does the same durable work by
 * hand, as ratios. A noisy machine makes rates doubtful; the two sides take turns in short rounds,
 * and the median of the rounds' ratios is told. */
#ifndef SEMEL_CLI_PLAYS_BENCH_BENCH_H
#define SEMEL_CLI_PLAYS_BENCH_BENCH_H

#include "cli/plays/sandbox.h"

#include <sqlite3.h>

#define SEMEL_BENCH_TOPIC "order.events"
#define SEMEL_BENCH_SMALL 1000 /* the small backlog, and the stretch that is timed at both */
#define SEMEL_BENCH_BATCH 500  /* the bare side's; the library's default */
#define SEMEL_BENCH_INVOICE                                                                        \
	"CREATE TABLE bench_invoice (event_id TEXT NOT NULL, order_id TEXT NOT NULL, total)"
/* The effect, on both sides. */
#define SEMEL_BENCH_EFFECT                                                                         \
	"INSERT INTO bench_invoice (event_id, order_id, total) VALUES (:id, :aggregate_id,"        \
	" json_extract(:payload, '$.total'))"

enum semel_bench_goal {
	SEMEL_BENCH_NO_GOAL,
	SEMEL_BENCH_AT_LEAST, /* the ratio */
	SEMEL_BENCH_AT_MOST,  /* the ratio, and its inverse: neither is more than this */
	SEMEL_BENCH_BELOW     /* both values */
};

/* left and right: semel and bare in events per second; or at the small and the big backlog. */
struct semel_bench_row {
	const char *name, *unit;
	double left, right, ratio;
	enum semel_bench_goal kind;
	double goal;
};

struct semel_bench {
	struct semel_sandbox *sandbox;
	uint32_t rounds;
	uint32_t turns;        /* in a round */
	uint64_t transactions; /* of one event, per round and side */
	uint64_t events;       /* per turn and side, where they come in batches */
	uint64_t backlog;      /* the big one */
	struct semel_bench_row rates[8], growth[8];
	size_t rate_count, growth_count;
	semel_error *error;
};

bool semel_bench_is_met(const struct semel_bench_row *row);

/* ---- comparison.c ---- */
struct semel_bench_comparison {
	void *user;
	uint64_t events;                     /* per turn and side */
	uint32_t turns;                      /* in a round; 0: as many as the bench says */
	semel_status (*prepare)(void *user); /* before each turn, not timed; may be NULL */
	semel_status (*left)(void *user);    /* semel */
	semel_status (*right)(void *user);   /* bare */
};
/* Fills in left and right (events per second) and ratio (left over right: the median of the
 * rounds). */
semel_status semel_bench_compare(struct semel_bench *bench,
				 const struct semel_bench_comparison *comparison,
				 struct semel_bench_row *row);

/* ---- application.c: what an application does by hand ---- */

/* WAL, synchronous=FULL, and the tables of Semel beside two of its own. */
semel_status semel_bench_open_application(struct semel_bench *bench, const char *name,
					  sqlite3 **db_out);
semel_status semel_bench_prepare(struct semel_bench *bench, sqlite3 *db, const char *sql,
				 sqlite3_stmt **statement_out);
/* To its end, and reset. */
semel_status semel_bench_run(struct semel_bench *bench, sqlite3_stmt *statement);
semel_status semel_bench_exec(struct semel_bench *bench, sqlite3 *db, const char *sql);
/* Adds count events to the outbox, numbered from *next on, in one transaction. */
semel_status semel_bench_fill(struct semel_bench *bench, sqlite3 *db, uint64_t *next,
			      uint64_t count);
/* The text of the n-th event, as the outbox gets it by either way. */
#define SEMEL_BENCH_TYPE    "order.placed.v1"
#define SEMEL_BENCH_HEADERS "{\"correlationId\":\"checkout-7f3a\",\"producer\":\"shop\"}"
void semel_bench_aggregate_id(uint64_t number, char *text_out, size_t size);
void semel_bench_payload(uint64_t number, char *text_out, size_t size);

/* ---- the measurements ---- */
semel_status semel_bench_publish(struct semel_bench *bench);
/* Relay and consumer. */
semel_status semel_bench_deliver(struct semel_bench *bench);
semel_status semel_bench_backlog(struct semel_bench *bench);

/* ---- report.c ---- */
struct semel_buffer;
void semel_bench_text(const struct semel_bench *bench, struct semel_buffer *buffer);
void semel_bench_json(const struct semel_bench *bench, struct semel_buffer *buffer);

#endif
