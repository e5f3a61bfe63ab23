/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of a drill are made of: orders, children that finish or are killed, and checks of
 * the databases. */
#include "base/error.h"
#include "cli/plays/drill/drill.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define KILLED (128 + SIGKILL)
#define BATCH  "4" /* small, so that a kill interrupts the work */
#define WINDOW "5"

void semel_drill_expect(struct semel_drill *drill, bool holds, const char *format, ...)
{
	if (holds || drill->failure[0])
		return;
	va_list list;
	va_start(list, format);
	vsnprintf(drill->failure, sizeof drill->failure, format, list);
	va_end(list);
}

/* ---- children -------------------------------------------------------------------------------- */

/* A failpoint without an action kills at its first hit. */
static void check_exit(struct semel_drill *drill, const char *command, const char *failpoint,
		       const struct semel_sandbox_exit *end)
{
	if (failpoint)
		semel_drill_expect(drill, end->exit_code == KILLED,
				   "semel %s should have been killed at %s, but exited with %d: %s",
				   command, failpoint, end->exit_code, end->error_output);
	else
		semel_drill_expect(drill, end->exit_code == 0, "semel %s exited with %d: %s",
				   command, end->exit_code, end->error_output);
}

static struct semel_text run_child(struct semel_drill *drill, const char *const *words,
				   const char *failpoint)
{
	struct semel_sandbox_exit end = { 0 };
	char kill[64];
	if (drill->status != SEMEL_OK)
		return (struct semel_text){ NULL, 0 };
	if (failpoint)
		snprintf(kill, sizeof kill, "%s%s", failpoint,
			 strchr(failpoint, ':') ? "" : ":kill@1");
	drill->status = semel_sandbox_run(&drill->sandbox, words, failpoint ? kill : NULL, &end,
					  drill->error);
	if (drill->status != SEMEL_OK)
		return end.output;
	check_exit(drill, words[0], failpoint, &end);
	return end.output;
}

void semel_drill_run(struct semel_drill *drill, const char *const *words, const char *failpoint)
{
	(void)run_child(drill, words, failpoint);
}

struct semel_text semel_drill_run_and_read(struct semel_drill *drill, const char *const *words)
{
	return run_child(drill, words, NULL);
}

void semel_drill_relay(struct semel_drill *drill, const char *failpoint)
{
	/* The lease is short, so that the next relay does not wait long after a kill. */
	static const char *const words[] = { "relay",   "--drain", "--window", WINDOW,
					     "--lease", "1s",      NULL };
	semel_drill_run(drill, words, failpoint);
}

/* before: a statement that the handler runs before the subscription's own; NULL: none. */
static void consume(struct semel_drill *drill, int number, const char *before,
		    const char *failpoint)
{
	const struct semel_shop_subscription *subscription = &semel_shop_subscriptions[number];
	const char *words[32] = { "consume",       "--drain",
				  "--scope",       drill->target.names.scopes[number],
				  "--topic",       drill->target.names.topic,
				  "--batch",       BATCH,
				  "--first-delay", "20ms",
				  "--immediate",   "1" };
	size_t count = 12;
	const char *const statements[] = { before, subscription->effects[0],
					   subscription->effects[1] };
	for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
		if (statements[i]) {
			words[count++] = "--sql";
			words[count++] = statements[i];
		}
	semel_drill_run(drill, words, failpoint);
}

void semel_drill_consume(struct semel_drill *drill, int subscription, const char *failpoint)
{
	consume(drill, subscription, NULL, failpoint);
}

void semel_drill_consume_flaky(struct semel_drill *drill, int subscription, const char *failpoint)
{
	consume(drill, subscription, semel_shop_failing_statement(&drill->shop), failpoint);
}

void semel_drill_deliver(struct semel_drill *drill)
{
	semel_drill_relay(drill, NULL);
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		semel_drill_consume(drill, i, NULL);
}

/* ---- orders ---------------------------------------------------------------------------------- */

void semel_drill_place_orders(struct semel_drill *drill, int count, const char *product)
{
	for (int i = 1; i <= count && drill->status == SEMEL_OK; i++) {
		char id[32];
		snprintf(id, sizeof id, "%s%d", drill->prefix, i);
		const struct semel_shop_order order = { .id = id,
							.product = product ? product : "tea",
							.total = 10 + i };
		drill->status = semel_shop_place_order(&drill->shop, &order, drill->error);
	}
}

void semel_drill_order_killed(struct semel_drill *drill, const char *failpoint)
{
	char aggregate[32], insert[128];
	snprintf(aggregate, sizeof aggregate, "order:%s1", drill->prefix);
	/* The id is our own, so nothing in it has to be quoted. */
	snprintf(insert, sizeof insert, "INSERT INTO orders VALUES ('%s1', 'tea', 11)",
		 drill->prefix);
	const char *const words[] = { "publish",
				      "--type",
				      "order.placed.v1",
				      "--aggregate",
				      aggregate,
				      "--topic",
				      drill->target.names.topic,
				      "--payload",
				      "{\"product\":\"tea\",\"total\":11}",
				      "--sql",
				      insert,
				      NULL };
	semel_drill_run(drill, words, failpoint);
}

void semel_drill_add_product(struct semel_drill *drill, const char *product)
{
	if (drill->status != SEMEL_OK)
		return;
	drill->status = semel_shop_add_product(&drill->shop, product, drill->error);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* value: what :id in the SQL stands for. */
static void check_number(struct semel_drill *drill, const char *what, const char *sql,
			 const char *value, int64_t expected)
{
	int64_t number = 0;
	if (drill->status != SEMEL_OK)
		return;
	drill->status = semel_shop_query(&drill->shop, sql, value, &number, drill->error);
	if (drill->status != SEMEL_OK)
		return;
	semel_drill_expect(drill, number == expected, "%s: %" PRId64 ", expected %" PRId64, what,
			   number, expected);
}

void semel_drill_count(struct semel_drill *drill, const char *what, const char *sql,
		       int64_t expected)
{
	char pattern[32];
	snprintf(pattern, sizeof pattern, "%s%%", drill->prefix);
	check_number(drill, what, sql, pattern, expected);
}

/* For each subscription: queries how many rows it has written, and how many of them are right. */
static const struct {
	const char *what, *count, *right;
} table_checks[SEMEL_SHOP_SUBSCRIPTIONS] = {
	[SEMEL_SHOP_BILLING] = { "orders with one invoice",
				 "SELECT count(*) FROM invoice WHERE order_id LIKE :id",
				 "SELECT count(*) FROM (SELECT order_id FROM invoice WHERE "
				 "order_id LIKE :id"
				 " GROUP BY order_id HAVING count(*) = 1 AND sum(amount) ="
				 " (SELECT total FROM orders WHERE id = order_id)) AS billed" },
	[SEMEL_SHOP_FULFILLMENT] = { "orders reserved once and shipped once",
				     "SELECT count(*) FROM reservation WHERE order_id LIKE :id",
				     "SELECT count(*) FROM (SELECT order_id FROM reservation WHERE "
				     "order_id LIKE :id"
				     " GROUP BY order_id HAVING count(*) = 1 AND sum(shipped) = 1) "
				     "AS shipped" },
	[SEMEL_SHOP_AUDIT] = { "orders with the trail \"placed, paid\"",
			       "SELECT count(*) FROM audit WHERE order_id LIKE :id",
			       "SELECT count(*) FROM audit JOIN orders ON id = order_id"
			       " WHERE order_id LIKE :id AND trail = 'placed, paid'" },
};

void semel_drill_check(struct semel_drill *drill, int subscription, int orders)
{
	semel_drill_count(drill, table_checks[subscription].what, table_checks[subscription].right,
			  orders);
	semel_drill_count(drill, "rows of processed orders", table_checks[subscription].count,
			  orders);
}

void semel_drill_check_all(struct semel_drill *drill, int orders)
{
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		semel_drill_check(drill, i, orders);
}

void semel_drill_check_dead(struct semel_drill *drill, int subscription, int64_t expected)
{
	static const char sql[] = "SELECT count(*) FROM semel_dead_letter WHERE scope = :id"
				  " AND status = 'PENDING' AND parked_behind IS NULL";
	check_number(drill, "pending dead letters", sql, drill->target.names.scopes[subscription],
		     expected);
}
