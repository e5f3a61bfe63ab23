/* SPDX-License-Identifier: Apache-2.0 */
/* The what-ifs of the Order story: a shop, and Billing, Fulfillment and Audit that live on its
 * events. Each asks what the customer would ask: is there one invoice, one parcel, one trail? */
#include "base/error.h"
#include "cli/plays/drill/drill.h"

#include <jansson.h>
#include <stdio.h>

#define ORDERS 3

static semel_status shop_dies_before_commit(struct semel_drill *drill,
					    const struct semel_drill_row *row)
{
	semel_status status = semel_drill_order_killed(drill, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_count(drill, "orders in the shop",
					   "SELECT count(*) FROM orders WHERE id LIKE $1", 0);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_check_all(drill, 0) : status;
}

/* The order has only been placed, so it is billed and reserved, and not shipped. */
static semel_status shop_dies_after_commit(struct semel_drill *drill,
					   const struct semel_drill_row *row)
{
	semel_status status = semel_drill_order_killed(drill, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	if (status == SEMEL_OK)
		status = semel_drill_check(drill, SEMEL_SHOP_BILLING, 1);
	if (status == SEMEL_OK)
		status = semel_drill_count(
			drill, "reservations",
			"SELECT count(*) FROM reservation WHERE order_id LIKE $1", 1);
	if (status != SEMEL_OK)
		return status;
	return semel_drill_count(
		drill, "orders with the trail \"placed\"",
		"SELECT count(*) FROM audit WHERE order_id LIKE $1 AND trail = 'placed'", 1);
}

/* Nobody listens there: the broker itself is left alone. */
static semel_status relay_without_broker(struct semel_drill *drill)
{
	const char *url = drill->target.own_broker;
	const char *nowhere = "local:nowhere/broker.db";
	if (url)
		nowhere = url[0] == 'k' ? "kafka://127.0.0.1:9" : "amqp://127.0.0.1:9/";
	const char *const words[] = { "--broker",  nowhere, "relay", "--drain",
				      "--timeout", "2s",    NULL };
	struct semel_sandbox_exit end;
	semel_status status = semel_sandbox_run(&drill->sandbox, words, NULL, &end, drill->error);
	if (status == SEMEL_OK)
		semel_drill_expect(drill, end.exit_code == 69 || end.exit_code == 75,
				   "a relay without a broker ended with %d: %s", end.exit_code,
				   end.error_output);
	return status;
}

static semel_status broker_is_away(struct semel_drill *drill, const struct semel_drill_row *row)
{
	(void)row;
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = relay_without_broker(drill);
	if (status == SEMEL_OK)
		status = semel_drill_count(drill, "events that wait, with no attempt spent",
					   "SELECT count(*) FROM semel_outbox"
					   " WHERE aggregate_id LIKE $1 AND status = 'NEW'"
					   " AND attempts = 0",
					   (int64_t)2 * ORDERS);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_check_all(drill, ORDERS) : status;
}

static semel_status relay_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_check_all(drill, ORDERS) : status;
}

static semel_status billing_dies(struct semel_drill *drill, const struct semel_drill_row *row)
{
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_relay(drill, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_consume(drill, SEMEL_SHOP_BILLING, row->failpoint);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_check_all(drill, ORDERS) : status;
}

static semel_status comes_twice(struct semel_drill *drill, const struct semel_drill_row *row)
{
	char aggregate[32];
	(void)row;
	snprintf(aggregate, sizeof aggregate, "order:%s1", drill->prefix);
	const char *const words[] = { "replay", "--aggregate", aggregate, "--json", NULL };
	struct semel_text answer = { NULL, 0 };
	semel_status status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	if (status == SEMEL_OK)
		status = semel_drill_run_and_read(drill, words, &answer);
	if (status != SEMEL_OK)
		return status;
	json_t *said = json_loadb(semel_text_chars(answer), answer.length, 0, NULL);
	semel_drill_expect(drill, json_integer_value(json_object_get(said, "replayed")) == 2,
			   "two events should have been sent again");
	json_decref(said);
	status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_check_all(drill, ORDERS) : status;
}

/* The poisoned order waits with its successor; the others do not. */
static semel_status order_is_poisoned(struct semel_drill *drill, const struct semel_drill_row *row)
{
	static const char product[] = "samovar";
	const char *scope = drill->target.names.scopes[SEMEL_SHOP_FULFILLMENT];
	const char *const words[] = { "dlq", "replay", "--all", "--scope", scope, NULL };
	char id[32];
	(void)row;
	snprintf(id, sizeof id, "%spoison", drill->prefix);
	const struct semel_shop_order order = { .id = id, .product = product, .total = 7 };
	semel_status status = semel_shop_place_order(&drill->shop, &order, "COMMIT", drill->error);
	if (status == SEMEL_OK)
		status = semel_drill_place_orders(drill, ORDERS, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	if (status == SEMEL_OK)
		status = semel_drill_check(drill, SEMEL_SHOP_FULFILLMENT, ORDERS);
	if (status == SEMEL_OK)
		status = semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 1);
	if (status == SEMEL_OK)
		status = semel_shop_add_product(&drill->shop, product, drill->error);
	if (status == SEMEL_OK)
		status = semel_drill_run(drill, words, NULL);
	if (status == SEMEL_OK)
		status = semel_drill_deliver(drill);
	if (status == SEMEL_OK)
		status = semel_drill_check_dead(drill, SEMEL_SHOP_FULFILLMENT, 0);
	return status == SEMEL_OK ? semel_drill_check_all(drill, ORDERS + 1) : status;
}

/* Whatever rows have left undone is done; then nothing may be missing. */
static semel_status books_are_right(struct semel_drill *drill, const struct semel_drill_row *row)
{
	static const char *const words[] = { "verify", NULL };
	(void)row;
	semel_status status = semel_drill_deliver(drill);
	return status == SEMEL_OK ? semel_drill_run(drill, words, NULL) : status;
}

#define WHAT_IF(slug, question, answer, scene, point)                                              \
	{                                                                                          \
		.kind = "what-if", .name = (slug), .title = (question), .outcome = (answer),       \
		.run = (scene), .failpoint = (point),                                              \
	}

static const struct semel_drill_row rows[] = {
	WHAT_IF("shop-dies-before-commit", "the shop dies before its commit?",
		"no order, no event, no invoice", shop_dies_before_commit,
		"publish.before-commit:kill@1"),
	WHAT_IF("shop-dies-after-commit", "the shop dies after its commit?",
		"the order is billed, reserved and audited all the same", shop_dies_after_commit,
		"publish.after-commit:kill@1"),
	WHAT_IF("broker-is-away", "the broker is away?",
		"events wait, no attempt is spent; then everything is done once", broker_is_away,
		NULL),
	WHAT_IF("relay-dies-after-confirm", "the relay dies between confirm and mark?",
		"events are sent twice, and done once", relay_dies, "relay.after-confirm:kill@2"),
	WHAT_IF("billing-dies-before-ack", "Billing dies between commit and ack?",
		"one invoice for each order", billing_dies, "consume.after-commit:kill@1"),
	WHAT_IF("event-comes-twice", "an event comes twice?", "every service skips it", comes_twice,
		NULL),
	WHAT_IF("order-is-poisoned", "Fulfillment cannot take an order?",
		"the others do not wait; mended and replayed, it is shipped in order",
		order_is_poisoned, NULL),
	{ .kind = "books",
	  .name = "books",
	  .title = "the books (semel verify)",
	  .outcome = "every committed event was published and processed",
	  .run = books_are_right },
};

const struct semel_drill_row *semel_drill_what_if(size_t at)
{
	return at < sizeof rows / sizeof *rows ? &rows[at] : NULL;
}
