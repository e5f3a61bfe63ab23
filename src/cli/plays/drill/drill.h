/* SPDX-License-Identifier: Apache-2.0 */
/* `semel drill`: the failure matrix and the failure scenarios of the sample shop, run with this
 * program on the user's own store and broker (target.h has the names).
 *
 * A row places orders of its own, provokes a failure, recovers, and checks the databases. A check
 * that does not hold fails the row, not the drill: the next row still runs.
 *
 * The actions of a row record their status in the drill: after the first failure each of them does
 * nothing, so a row is written as a plain sequence. */
#ifndef SEMEL_CLI_PLAYS_DRILL_DRILL_H
#define SEMEL_CLI_PLAYS_DRILL_DRILL_H

#include "cli/plays/drill/target.h"
#include "fault/failpoint.h"

struct semel_drill {
	struct semel_sandbox sandbox;
	struct semel_drill_target target;
	struct semel_drill_watcher watcher;
	struct semel_shop shop;
	bool json, colour, created, begun;
	const char *kind; /* of the last row that was reported */
	int rows, failed;
	char prefix[16];     /* of the row's orders */
	char failure[512];   /* the row's first check that did not hold; empty: none */
	semel_status status; /* of the actions so far; not OK: the drill cannot continue */
	semel_error *error;
};

struct semel_drill_row {
	const char *kind;    /* "crash", "what-if", "verify" */
	const char *name;    /* the value of --row */
	const char *title;   /* in the report */
	const char *outcome; /* what must hold in the end */
	void (*run)(struct semel_drill *drill, const struct semel_drill_row *row);
	const char *failpoint; /* where a process is killed; NULL: nowhere */
};

/* ---- report.c ---- */
void semel_drill_begin(struct semel_drill *drill);
void semel_drill_leftover(const char *name, bool removed, void *user);
/* Prints the row's result and counts it. */
void semel_drill_report(struct semel_drill *drill, const struct semel_drill_row *row,
			int64_t took_ms);
/* complete: all selected rows were run. */
void semel_drill_end(struct semel_drill *drill, bool complete);

/* ---- actions.c: what rows are made of ---- */
/* Fails the row, unless the condition holds. */
void semel_drill_expect(struct semel_drill *drill, bool holds, const char *format, ...)
	SEMEL_PRINTF(3, 4);
/* Runs semel with these words. With a failpoint the child must be killed by it; without one it must
 * exit with 0. */
void semel_drill_run(struct semel_drill *drill, const char *const *words, const char *failpoint);
/* The same without a failpoint. Returns the child's output, which lives as long as the sandbox. */
struct semel_text semel_drill_run_and_read(struct semel_drill *drill, const char *const *words);
/* Writes orders of this row, numbered from 1, as placed and paid. product NULL: tea. */
void semel_drill_place_orders(struct semel_drill *drill, int count, const char *product);
/* Runs `semel publish` for one order's first event and its row in orders; it is killed at the
 * failpoint. */
void semel_drill_order_killed(struct semel_drill *drill, const char *failpoint);
void semel_drill_relay(struct semel_drill *drill, const char *failpoint);
void semel_drill_consume(struct semel_drill *drill, int subscription, const char *failpoint);
/* The same with a handler that fails at the first attempt of each event. */
void semel_drill_consume_flaky(struct semel_drill *drill, int subscription, const char *failpoint);
/* Runs the relay, then all subscriptions. */
void semel_drill_deliver(struct semel_drill *drill);
/* Checks that the query yields this number; :id in the SQL is a pattern for the ids of the row's
 * orders. */
void semel_drill_count(struct semel_drill *drill, const char *what, const char *sql,
		       int64_t expected);
/* Checks that the subscription has processed this many of the row's orders, each once and in
 * order. */
void semel_drill_check(struct semel_drill *drill, int subscription, int orders);
void semel_drill_check_all(struct semel_drill *drill, int orders);
/* Checks that this many dead letters of the subscription are pending. */
void semel_drill_check_dead(struct semel_drill *drill, int subscription, int64_t expected);
/* Adds the product to the stock. */
void semel_drill_add_product(struct semel_drill *drill, const char *product);

/* ---- matrix.c, what_ifs.c ---- */
/* NULL: past the last row. */
const struct semel_drill_row *semel_drill_crash(size_t at);
const struct semel_drill_row *semel_drill_what_if(size_t at);

#endif
