/* SPDX-License-Identifier: Apache-2.0 */
/* The failure matrix, row by row: a process is killed at the failpoint and started again, and the
 * orders of the row are checked. Every failpoint of the program has its row here. */
#include "cli/plays/drill/drill.h"

#include <stdio.h>

#define ORDERS   6
#define FLAKY    2 /* few: each of their events is retried, which takes a while on a server */
#define POISONED 3

/* ---- how each failpoint is tried ------------------------------------------------------------- */

static void producer_dies(struct semel_drill *drill, const struct semel_drill_row *row,
			  int64_t committed)
{
	semel_drill_order_killed(drill, row->failpoint);
	semel_drill_count(drill, "orders in the shop",
			  "SELECT count(*) FROM orders WHERE id LIKE :id", committed);
	semel_drill_count(drill, "events in the outbox",
			  "SELECT count(*) FROM semel_outbox WHERE aggregate_id LIKE :id",
			  committed);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	semel_drill_count(drill, "orders with the trail \"placed\"",
			  "SELECT count(*) FROM audit WHERE order_id LIKE :id"
			  " AND trail = 'placed'",
			  committed);
}

static void producer_dies_before(struct semel_drill *drill, const struct semel_drill_row *row)
{
	producer_dies(drill, row, 0);
}

static void producer_dies_after(struct semel_drill *drill, const struct semel_drill_row *row)
{
	producer_dies(drill, row, 1);
}

static void relay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_relay(drill, row->failpoint);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS);
}

static void consumer_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, row->failpoint);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS);
}

static void consumer_dies_over_a_retry(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_place_orders(drill, FLAKY, NULL);
	semel_drill_relay(drill, NULL);
	semel_drill_consume_flaky(drill, SEMEL_SHOP_AUDIT, row->failpoint);
	semel_drill_consume_flaky(drill, SEMEL_SHOP_AUDIT, NULL);
	semel_drill_check_dead(drill, SEMEL_SHOP_AUDIT, 0);
	semel_drill_check(drill, SEMEL_SHOP_AUDIT, FLAKY);
}

/* Places orders for a product that fulfillment does not have: they become dead letters, with the
 * payments parked behind them. Then adds the product. */
static void poison(struct semel_drill *drill, const char *product)
{
	semel_drill_place_orders(drill, POISONED, product);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_FULFILLMENT, NULL);
	semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, POISONED);
	semel_drill_add_product(drill, product);
}

static void replayer_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	const char *const words[] = { "dlq",
				      "replay",
				      "--all",
				      "--scope",
				      drill->target.names.scopes[SEMEL_SHOP_FULFILLMENT],
				      NULL };
	char product[32];
	snprintf(product, sizeof product, "samovar %s", drill->prefix);
	poison(drill, product);
	semel_drill_run(drill, words, row->failpoint);
	semel_drill_run(drill, words, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_FULFILLMENT, NULL);
	semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 0);
	semel_drill_check(drill, SEMEL_SHOP_FULFILLMENT, POISONED);
}

static void outbox_replay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	const char *const words[] = { "replay",
				      "--max",
				      "20",
				      "--rate",
				      "200",
				      "--scope",
				      drill->target.names.scopes[SEMEL_SHOP_AUDIT],
				      NULL };
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	semel_drill_run(drill, words, row->failpoint);
	semel_drill_run(drill, words, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	/* The replayed events belong to the first rows, so all orders are checked. */
	semel_drill_count(drill, "orders of the drill that were processed twice",
			  "SELECT count(*) FROM audit WHERE :id <> ''"
			  " AND trail NOT IN ('placed', 'placed, paid')",
			  0);
	semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* How each failpoint is tested, and at which hit: not always the first, so that some work precedes
 * it. */
static const struct {
	void (*run)(struct semel_drill *drill, const struct semel_drill_row *row);
	int nth;
} crash_rows[SEMEL_FP_COUNT] = {
	[SEMEL_FP_PUBLISH_BEFORE_COMMIT] = { producer_dies_before, 1 },
	[SEMEL_FP_PUBLISH_AFTER_COMMIT] = { producer_dies_after, 1 },
	[SEMEL_FP_RELAY_AFTER_CLAIM] = { relay_dies, 2 },
	[SEMEL_FP_RELAY_BEFORE_PUBLISH] = { relay_dies, 3 },
	[SEMEL_FP_RELAY_AFTER_PUBLISH] = { relay_dies, 3 },
	[SEMEL_FP_RELAY_AFTER_CONFIRM] = { relay_dies, 3 },
	[SEMEL_FP_RELAY_AFTER_MARK] = { relay_dies, 2 },
	[SEMEL_FP_CONSUME_AFTER_RECEIVE] = { consumer_dies, 2 },
	[SEMEL_FP_CONSUME_AFTER_CLAIM] = { consumer_dies, 3 },
	[SEMEL_FP_CONSUME_AFTER_EFFECT] = { consumer_dies, 3 },
	[SEMEL_FP_CONSUME_AFTER_COMMIT] = { consumer_dies, 2 },
	[SEMEL_FP_CONSUME_AFTER_ACK] = { consumer_dies, 1 },
	[SEMEL_FP_CONSUME_AFTER_REQUEUE] = { consumer_dies_over_a_retry, 1 },
	[SEMEL_FP_DLQ_AFTER_PUBLISH] = { replayer_dies, 2 },
	[SEMEL_FP_DLQ_AFTER_MARK] = { replayer_dies, 2 },
	[SEMEL_FP_REPLAY_AFTER_PUBLISH] = { outbox_replay_dies, 1 },
};

const struct semel_drill_row *semel_drill_crash(size_t at)
{
	static struct semel_drill_row row; /* valid until the next call */
	static char failpoint[64];
	if (at >= SEMEL_FP_COUNT)
		return NULL;
	const struct semel_failpoint_row *point = &semel_failpoint_rows()[at];
	snprintf(failpoint, sizeof failpoint, "%s:kill@%d", point->name, crash_rows[at].nth);
	row = (struct semel_drill_row){ .kind = "crash",
					.name = point->name,
					.title = point->name,
					.outcome = point->outcome,
					.run = crash_rows[at].run,
					.failpoint = failpoint };
	return &row;
}
