/* SPDX-License-Identifier: Apache-2.0 */
/* The failure matrix, row by row: somebody is killed at the failpoint, started again, and the
 * orders of the row are looked at. Every failpoint of the program has its scene here. */
#include "cli/plays/drill/drill.h"

#include <stdio.h>

#define ORDERS   6
#define FLAKY    2 /* each of their events is retried, which takes its time at a server */
#define POISONED 3

/* ---- crash_rows
 * ---------------------------------------------------------------------------------- */

static semel_status producer_dies(struct semel_drill *drill, const struct semel_drill_row *row,
				  int64_t left)
{
	semel_status status = semel_drill_order_killed(drill, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_count(drill, "orders in the shop",
					   "SELECT count(*) FROM orders WHERE id LIKE $1", left);
	if (status == SEMEL_OK)
		status = semel_drill_count(
			drill, "events in the outbox",
			"SELECT count(*) FROM semel_outbox WHERE aggregate_id LIKE $1", left);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	if (status != SEMEL_OK)
		return status;
	return semel_drill_count(drill, "orders with the trail \"placed\"",
				 "SELECT count(*) FROM audit WHERE order_id LIKE $1"
				 " AND trail = 'placed'",
				 left);
}

static semel_status producer_dies_before(struct semel_drill *drill,
					 const struct semel_drill_row *row)
{
	return producer_dies(drill, row, 0);
}

static semel_status producer_dies_after(struct semel_drill *drill,
					const struct semel_drill_row *row)
{
	return producer_dies(drill, row, 1);
}

static semel_status relay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	return status == SEMEL_OK ? semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS) : status;
}

static semel_status consumer_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	return status == SEMEL_OK ? semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS) : status;
}

static semel_status consumer_dies_over_a_retry(struct semel_drill *drill,
					       const struct semel_drill_row *row)
{
	semel_status status = semel_drill_place_orders(drill, FLAKY, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume_flaky(drill, SEMEL_SHOP_AUDIT, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_consume_flaky(drill, SEMEL_SHOP_AUDIT, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_check_dead(drill, SEMEL_SHOP_AUDIT, 0);
	return status == SEMEL_OK ? semel_drill_check(drill, SEMEL_SHOP_AUDIT, FLAKY) : status;
}

/* Fulfillment has no such product; the orders are dead letters, and what was paid waits behind. */
static semel_status poison(struct semel_drill *drill, const char *product)
{
	semel_status status = semel_drill_place_orders(drill, POISONED, product);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_FULFILLMENT, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, POISONED);
	return status == SEMEL_OK ? semel_shop_add_product(&drill->shop, product, drill->error)
				  : status;
}

static semel_status replayer_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	const char *const words[] = { "dlq",
				      "replay",
				      "--all",
				      "--scope",
				      drill->target.names.scopes[SEMEL_SHOP_FULFILLMENT],
				      NULL };
	char product[32];
	snprintf(product, sizeof product, "samovar %s", drill->prefix);
	semel_status status = poison(drill, product);
	if (status == SEMEL_OK)
		status = semel_drill_run(drill, words, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_run(drill, words, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_FULFILLMENT, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 0);
	return status == SEMEL_OK ? semel_drill_check(drill, SEMEL_SHOP_FULFILLMENT, POISONED)
				  : status;
}

static semel_status outbox_replay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	const char *const words[] = { "replay",
				      "--max",
				      "20",
				      "--rate",
				      "200",
				      "--scope",
				      drill->target.names.scopes[SEMEL_SHOP_AUDIT],
				      NULL };
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_run(drill, words, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_run(drill, words, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_AUDIT, NULL);
	if (status != SEMEL_OK)
		return status;
	/* What was sent again is of the first rows, so all of them are looked at. */
	status = semel_drill_count(drill, "orders of the drill that were done twice",
				   "SELECT count(*) FROM audit WHERE $1 <> ''"
				   " AND trail NOT IN ('placed', 'placed, paid')",
				   0);
	return status == SEMEL_OK ? semel_drill_check(drill, SEMEL_SHOP_AUDIT, ORDERS) : status;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Which scene, and at which hit: not always the first one, so that something was done before. */
static const struct {
	semel_status (*run)(struct semel_drill *drill, const struct semel_drill_row *row);
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
