/* SPDX-License-Identifier: Apache-2.0 */
/* The failure scenarios of the sample shop: a shop, and Billing, Fulfillment and Audit, which
 * process its events. Each asks what the customer would ask: is there one invoice, one parcel, one
 * trail? */
#include "base/error.h"
#include "cli/plays/drill/drill.h"

#include <jansson.h>
#include <stdio.h>
#include <sysexits.h>

#define ORDERS 3

static void shop_dies_before_commit(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_order_killed(drill, row->failpoint);
	semel_drill_count(drill, "orders in the shop",
			  "SELECT count(*) FROM orders WHERE id LIKE :id", 0);
	semel_drill_deliver(drill);
	semel_drill_check_all(drill, 0);
}

/* The order has only been placed, so it is billed and reserved, and not shipped. */
static void shop_dies_after_commit(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_order_killed(drill, row->failpoint);
	semel_drill_deliver(drill);
	semel_drill_check(drill, SEMEL_SHOP_BILLING, 1);
	semel_drill_count(drill, "reservations",
			  "SELECT count(*) FROM reservation WHERE order_id LIKE :id", 1);
	semel_drill_count(drill, "orders with the trail \"placed\"",
			  "SELECT count(*) FROM audit WHERE order_id LIKE :id"
			  " AND trail = 'placed'",
			  1);
}

/* The URL of a broker of the same kind, at an address where nothing listens. */
static const char *unreachable_broker(const struct semel_drill *drill)
{
	const char *url = drill->target.own_broker;
	if (!url)
		return "local:nowhere/broker.db";
	return url[0] == 'k' ? "kafka://127.0.0.1:9" : "amqp://127.0.0.1:9/";
}

static void relay_without_broker(struct semel_drill *drill)
{
	const char *const words[] = {
		"--broker", unreachable_broker(drill), "relay", "--drain", "--timeout", "2s", NULL
	};
	struct semel_sandbox_exit end = { 0 };
	if (drill->status != SEMEL_OK)
		return;
	drill->status = semel_sandbox_run(&drill->sandbox, words, NULL, &end, drill->error);
	if (drill->status != SEMEL_OK)
		return;
	semel_drill_expect(drill, end.exit_code == EX_UNAVAILABLE || end.exit_code == EX_TEMPFAIL,
			   "semel relay without a broker exited with %d: %s", end.exit_code,
			   end.error_output);
}

static void broker_is_unreachable(struct semel_drill *drill, const struct semel_drill_row *row)
{
	(void)row;
	semel_drill_place_orders(drill, ORDERS, NULL);
	relay_without_broker(drill);
	semel_drill_count(drill, "waiting events without an attempt",
			  "SELECT count(*) FROM semel_outbox"
			  " WHERE aggregate_id LIKE :id AND status = 'NEW' AND attempts = 0",
			  (int64_t)2 * ORDERS);
	semel_drill_deliver(drill);
	semel_drill_check_all(drill, ORDERS);
}

static void relay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_relay(drill, row->failpoint);
	semel_drill_deliver(drill);
	semel_drill_check_all(drill, ORDERS);
}

static void billing_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_relay(drill, NULL);
	semel_drill_consume(drill, SEMEL_SHOP_BILLING, row->failpoint);
	semel_drill_deliver(drill);
	semel_drill_check_all(drill, ORDERS);
}

static void event_is_delivered_twice(struct semel_drill *drill, const struct semel_drill_row *row)
{
	char aggregate[32];
	(void)row;
	snprintf(aggregate, sizeof aggregate, "order:%s1", drill->prefix);
	const char *const words[] = { "replay", "--aggregate", aggregate, "--json", NULL };
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_deliver(drill);
	struct semel_text output = semel_drill_run_and_read(drill, words);
	if (drill->status != SEMEL_OK)
		return;
	json_t *counts = json_loadb(semel_text_chars(output), output.length, 0, NULL);
	semel_drill_expect(drill, json_integer_value(json_object_get(counts, "replayed")) == 2,
			   "semel replay should have sent two events");
	json_decref(counts);
	semel_drill_deliver(drill);
	semel_drill_check_all(drill, ORDERS);
}

/* The poisoned order waits with its later event; the other orders do not. */
static void order_is_poisoned(struct semel_drill *drill, const struct semel_drill_row *row)
{
	static const char product[] = "samovar";
	const char *scope = drill->target.names.scopes[SEMEL_SHOP_FULFILLMENT];
	const char *const words[] = { "dlq", "replay", "--all", "--scope", scope, NULL };
	char id[32];
	(void)row;
	snprintf(id, sizeof id, "%spoison", drill->prefix);
	const struct semel_shop_order order = { .id = id, .product = product, .total = 7 };
	drill->status = semel_shop_place_order(&drill->shop, &order, drill->error);
	semel_drill_place_orders(drill, ORDERS, NULL);
	semel_drill_deliver(drill);
	semel_drill_check(drill, SEMEL_SHOP_FULFILLMENT, ORDERS);
	semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 1);
	semel_drill_add_product(drill, product);
	semel_drill_run(drill, words, NULL);
	semel_drill_deliver(drill);
	semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 0);
	semel_drill_check_all(drill, ORDERS + 1);
}

/* Delivers what the rows have left; then nothing may be missing. */
static void verify_passes(struct semel_drill *drill, const struct semel_drill_row *row)
{
	static const char *const words[] = { "verify", NULL };
	(void)row;
	semel_drill_deliver(drill);
	semel_drill_run(drill, words, NULL);
}

#define WHAT_IF(slug, question, answer, function, point)                                           \
	{                                                                                          \
		.kind = "what-if", .name = (slug), .title = (question), .outcome = (answer),       \
		.run = (function), .failpoint = (point),                                           \
	}

static const struct semel_drill_row rows[] = {
	WHAT_IF("shop-dies-before-commit", "the shop dies before its commit?",
		"no order, no event, no invoice", shop_dies_before_commit,
		"publish.before-commit:kill@1"),
	WHAT_IF("shop-dies-after-commit", "the shop dies after its commit?",
		"the order is still billed, reserved and audited", shop_dies_after_commit,
		"publish.after-commit:kill@1"),
	WHAT_IF("broker-unreachable", "the broker is unreachable?",
		"events wait, no attempt is counted; then each is processed once",
		broker_is_unreachable, NULL),
	WHAT_IF("relay-dies-after-confirm", "the relay dies between confirm and mark?",
		"events are sent twice, and processed once", relay_dies,
		"relay.after-confirm:kill@2"),
	WHAT_IF("billing-dies-before-ack", "Billing dies between commit and ack?",
		"one invoice for each order", billing_dies, "consume.after-commit:kill@1"),
	WHAT_IF("event-delivered-twice", "an event is delivered twice?",
		"every subscription skips it", event_is_delivered_twice, NULL),
	WHAT_IF("order-is-poisoned", "Fulfillment rejects an order?",
		"the others do not wait; corrected and replayed, it is shipped in order",
		order_is_poisoned, NULL),
	{ .kind = "verify",
	  .name = "verify",
	  .title = "semel verify",
	  .outcome = "every committed event was published and processed",
	  .run = verify_passes },
};

const struct semel_drill_row *semel_drill_what_if(size_t at)
{
	return at < sizeof rows / sizeof *rows ? &rows[at] : NULL;
}
