/* SPDX-License-Identifier: Apache-2.0 */
/* `semel drill`: the failure matrix and the what-ifs of the Order story, played with this very
 * program on the user's own store and broker (target.h says under which names).
 *
 * A row places orders of its own, lets something go wrong, recovers, and looks into the databases.
 * What does not hold fails the row and not the drill: the next one is played all the same. */
#ifndef SEMEL_CLI_PLAYS_DRILL_DRILL_H
#define SEMEL_CLI_PLAYS_DRILL_DRILL_H

#include "cli/plays/drill/target.h"
#include "fault/failpoint.h"

struct semel_drill {
	struct semel_sandbox sandbox;
	struct semel_drill_target target;
	struct semel_drill_watcher watcher;
	struct semel_shop shop;
	bool json, colour, made, begun;
	const char *kind; /* of the last row that was told */
	int rows, failed;
	char prefix[16];   /* of the row's orders */
	char failure[512]; /* what did not hold in the row; empty: all did */
	semel_error *error;
};

struct semel_drill_row {
	const char *kind;    /* "crash", "what-if", "books" */
	const char *name;    /* what --row takes */
	const char *title;   /* for a person */
	const char *outcome; /* what is to be true in the end */
	/* Fails only when the drill cannot go on. */
	semel_status (*run)(struct semel_drill *drill, const struct semel_drill_row *row);
	const char *failpoint; /* where somebody is killed; NULL: nowhere, or the row knows */
};

/* ---- report.c ---- */
void semel_drill_begin(struct semel_drill *drill);
void semel_drill_leftover(const char *name, bool freed, void *user);
/* Also counts it. */
void semel_drill_report(struct semel_drill *drill, const struct semel_drill_row *row,
			int64_t took_ms);
/* whole: it was played to its end. */
void semel_drill_end(struct semel_drill *drill, bool whole);

/* ---- scene.c: what rows are made of ---- */
/* Fails the row, unless it holds. */
void semel_drill_expect(struct semel_drill *drill, bool holds, const char *format, ...)
	SEMEL_PRINTF(3, 4);
/* Runs semel with these words. With a failpoint it must die of it; without one it must end well. */
semel_status semel_drill_run(struct semel_drill *drill, const char *const *words,
			     const char *failpoint);
/* Its output too. */
semel_status semel_drill_run_and_read(struct semel_drill *drill, const char *const *words,
				      struct semel_text *answer_out);
/* Orders of this row, numbered from 1, placed and paid. NULL: tea. */
semel_status semel_drill_place_orders(struct semel_drill *drill, int count, const char *product);
/* `semel publish` of one order's first event, with its row in orders; and it is killed there. */
semel_status semel_drill_order_killed(struct semel_drill *drill, const char *failpoint);
semel_status semel_drill_relay(struct semel_drill *drill, const char *failpoint);
semel_status semel_drill_consume(struct semel_drill *drill, int subscription,
				 const char *failpoint);
/* The same with a handler whose first run of each event fails. */
semel_status semel_drill_consume_flaky(struct semel_drill *drill, int subscription,
				       const char *failpoint);
/* Relay, then all services. */
semel_status semel_drill_deliver(struct semel_drill *drill);
/* A number of the shop's database is as it should be; $1 in the SQL is this row's orders. */
semel_status semel_drill_count(struct semel_drill *drill, const char *what, const char *sql,
			       int64_t wanted);
/* So many orders of this row were done by the subscription: once, and in order. */
semel_status semel_drill_check(struct semel_drill *drill, int subscription, int orders);
semel_status semel_drill_check_all(struct semel_drill *drill, int orders);
/* No dead letter of the subscription is pending, but so many. */
semel_status semel_drill_check_dead(struct semel_drill *drill, int subscription, int64_t wanted);

/* ---- matrix.c, story.c ---- */
/* NULL: behind the last one. */
const struct semel_drill_row *semel_drill_crash(size_t at);
const struct semel_drill_row *semel_drill_what_if(size_t at);

#endif
