/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of a drill are made of: orders, children that work or die, and questions to the
 * databases. */
#include "base/error.h"
#include "cli/plays/drill/drill.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define KILLED (128 + SIGKILL)
#define BATCH  "4" /* small, so that a kill comes in the middle */
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

static semel_status play(struct semel_drill *drill, const char *const *words, const char *failpoint,
			 struct semel_text *answer_out)
{
	struct semel_sandbox_exit end;
	char kill[64];
	if (failpoint)
		snprintf(kill, sizeof kill, "%s%s", failpoint,
			 strchr(failpoint, ':') ? "" : ":kill@1");
	semel_status status = semel_sandbox_run(&drill->sandbox, words, failpoint ? kill : NULL,
						&end, drill->error);
	if (status != SEMEL_OK)
		return status;
	semel_drill_expect(drill, !failpoint || end.exit_code == KILLED,
			   "semel %s was to be killed at %s, and ended with %d: %s", words[0],
			   failpoint ? failpoint : "", end.exit_code, end.error_output);
	semel_drill_expect(drill, failpoint || end.exit_code == 0, "semel %s ended with %d: %s",
			   words[0], end.exit_code, end.error_output);
	if (answer_out)
		*answer_out = end.output;
	return SEMEL_OK;
}

semel_status semel_drill_run(struct semel_drill *drill, const char *const *words,
			     const char *failpoint)
{
	return play(drill, words, failpoint, NULL);
}

semel_status semel_drill_run_and_read(struct semel_drill *drill, const char *const *words,
				      struct semel_text *answer_out)
{
	return play(drill, words, NULL, answer_out);
}

semel_status semel_drill_relay(struct semel_drill *drill, const char *failpoint)
{
	/* A short lease, so that whoever comes after the killed one need not wait long. */
	static const char *const words[] = { "relay",   "--drain", "--window", WINDOW,
					     "--lease", "1s",      NULL };
	return semel_drill_run(drill, words, failpoint);
}

static semel_status consume(struct semel_drill *drill, int number, const char *before,
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
	return semel_drill_run(drill, words, failpoint);
}

semel_status semel_drill_consume(struct semel_drill *drill, int subscription, const char *failpoint)
{
	return consume(drill, subscription, NULL, failpoint);
}

semel_status semel_drill_consume_flaky(struct semel_drill *drill, int subscription,
				       const char *failpoint)
{
	return consume(drill, subscription, drill->shop.engine->fail_first, failpoint);
}

semel_status semel_drill_deliver(struct semel_drill *drill)
{
	semel_status status = semel_drill_relay(drill, NULL);
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++)
		status = semel_drill_consume(drill, i, NULL);
	return status;
}

/* ---- orders ---------------------------------------------------------------------------------- */

semel_status semel_drill_place_orders(struct semel_drill *drill, int count, const char *product)
{
	semel_status status = SEMEL_OK;
	for (int i = 1; i <= count && status == SEMEL_OK; i++) {
		char id[32];
		snprintf(id, sizeof id, "%s%d", drill->prefix, i);
		const struct semel_shop_order order = { .id = id,
							.product = product ? product : "tea",
							.total = 10 + i };
		status = semel_shop_place_order(&drill->shop, &order, "COMMIT", drill->error);
	}
	return status;
}

semel_status semel_drill_order_killed(struct semel_drill *drill, const char *failpoint)
{
	char aggregate[32], insert[128];
	snprintf(aggregate, sizeof aggregate, "order:%s1", drill->prefix);
	/* An id of ours: nothing in it to quote. */
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
	return semel_drill_run(drill, words, failpoint);
}

/* ---- questions ------------------------------------------------------------------------------- */

semel_status semel_drill_count(struct semel_drill *drill, const char *what, const char *sql,
			       int64_t wanted)
{
	char pattern[32];
	int64_t number = 0;
	snprintf(pattern, sizeof pattern, "%s%%", drill->prefix);
	const char *const values[] = { pattern, NULL };
	semel_status status = semel_shop_query(&drill->shop, sql, values, &number, drill->error);
	if (status == SEMEL_OK)
		semel_drill_expect(drill, number == wanted, "%s: %" PRId64 ", not %" PRId64, what,
				   number, wanted);
	return status;
}

/* Of each subscription: what it has written, and how much of that is as it should be. */
static const struct {
	const char *what, *count, *right;
} ledgers[SEMEL_SHOP_SUBSCRIPTIONS] = {
	[SEMEL_SHOP_BILLING] = { "orders with one invoice",
				 "SELECT count(*) FROM invoice WHERE order_id LIKE $1",
				 "SELECT count(*) FROM (SELECT order_id FROM invoice WHERE "
				 "order_id LIKE $1"
				 " GROUP BY order_id HAVING count(*) = 1 AND sum(amount) ="
				 " (SELECT total FROM orders WHERE id = order_id)) AS billed" },
	[SEMEL_SHOP_FULFILLMENT] = { "orders reserved once and shipped once",
				     "SELECT count(*) FROM reservation WHERE order_id LIKE $1",
				     "SELECT count(*) FROM (SELECT order_id FROM reservation WHERE "
				     "order_id LIKE $1"
				     " GROUP BY order_id HAVING count(*) = 1 AND sum(shipped) = 1) "
				     "AS shipped" },
	[SEMEL_SHOP_AUDIT] = { "orders with the trail \"placed, paid\"",
			       "SELECT count(*) FROM audit WHERE order_id LIKE $1",
			       "SELECT count(*) FROM audit JOIN orders ON id = order_id"
			       " WHERE order_id LIKE $1 AND trail = 'placed, paid'" },
};

semel_status semel_drill_check(struct semel_drill *drill, int subscription, int orders)
{
	semel_status status = semel_drill_count(drill, ledgers[subscription].what,
						ledgers[subscription].right, orders);
	if (status == SEMEL_OK)
		status = semel_drill_count(drill, "rows of orders that were done",
					   ledgers[subscription].count, orders);
	return status;
}

semel_status semel_drill_check_all(struct semel_drill *drill, int orders)
{
	semel_status status = SEMEL_OK;
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++)
		status = semel_drill_check(drill, i, orders);
	return status;
}

semel_status semel_drill_check_dead(struct semel_drill *drill, int subscription, int64_t wanted)
{
	static const char sql[] = "SELECT count(*) FROM semel_dead_letter WHERE scope = $1"
				  " AND status = 'PENDING' AND parked_behind IS NULL";
	const char *const values[] = { drill->target.names.scopes[subscription], NULL };
	int64_t number = 0;
	semel_status status = semel_shop_query(&drill->shop, sql, values, &number, drill->error);
	if (status == SEMEL_OK)
		semel_drill_expect(drill, number == wanted,
				   "dead letters that wait: %" PRId64 ", not %" PRId64, number,
				   wanted);
	return status;
}
