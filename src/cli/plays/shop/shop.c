/* SPDX-License-Identifier: Apache-2.0 */
/* The shop's tables, its orders, and what its services do with them. */
#include "cli/plays/shop/shop.h"

#include <semel/outbox.h>
#include <stdio.h>

static const char tables[] =
	"CREATE TABLE orders (id TEXT PRIMARY KEY, product TEXT NOT NULL, total INTEGER NOT NULL);"
	"CREATE TABLE invoice (order_id TEXT NOT NULL, amount INTEGER NOT NULL);"
	"CREATE TABLE stock (product TEXT PRIMARY KEY);"
	"CREATE TABLE reservation (order_id TEXT NOT NULL,"
	" product TEXT NOT NULL REFERENCES stock (product), shipped INTEGER NOT NULL DEFAULT 0);"
	"CREATE TABLE audit (order_id TEXT PRIMARY KEY, trail TEXT NOT NULL);"
	"INSERT INTO stock VALUES ('tea'), ('cup'), ('kettle')";

const struct semel_shop_subscription semel_shop_subscriptions[SEMEL_SHOP_SUBSCRIPTIONS] = {
	[SEMEL_SHOP_BILLING] = {
		.scope = "billing",
		.effects = { "INSERT INTO invoice SELECT :aggregate_id,"
			     " CAST(json_extract(:payload, '$.total') AS INTEGER)"
			     " WHERE :type = 'order.placed.v1'" },
	},
	[SEMEL_SHOP_FULFILLMENT] = {
		.scope = "fulfillment",
		.effects = { "INSERT INTO reservation (order_id, product) SELECT :aggregate_id,"
			     " json_extract(:payload, '$.product')"
			     " WHERE :type = 'order.placed.v1'",
			     "UPDATE reservation SET shipped = shipped + 1"
			     " WHERE order_id = :aggregate_id AND :type = 'order.paid.v1'" },
	},
	[SEMEL_SHOP_AUDIT] = {
		.scope = "audit",
		.effects = { "INSERT INTO audit VALUES (:aggregate_id,"
			     " CASE :type WHEN 'order.placed.v1' THEN 'placed' ELSE 'paid' END)"
			     " ON CONFLICT (order_id) DO UPDATE"
			     " SET trail = audit.trail || ', ' || excluded.trail" },
	},
};

static semel_status execute(struct semel_shop *shop, const char *sql, semel_error *error)
{
	return shop->engine->execute(shop->connection, sql, NULL, error);
}

semel_status semel_shop_open(struct semel_shop *shop, const char *store, semel_error *error)
{
	semel_status status = semel_store_init(store, error);
	if (status == SEMEL_OK)
		status = shop->engine->open(store, &shop->connection, error);
	if (status == SEMEL_OK)
		status = execute(shop, shop->engine->preparation, error);
	return status == SEMEL_OK ? execute(shop, tables, error) : status;
}

void semel_shop_close(struct semel_shop *shop)
{
	if (shop->engine && shop->connection)
		shop->engine->close(shop->connection);
	shop->connection = NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static semel_status insert_order(struct semel_shop *shop, const struct semel_shop_order *order,
				 semel_error *error)
{
	char total[16];
	snprintf(total, sizeof total, "%d", order->total);
	const char *const values[] = { order->id, order->product, total, NULL };
	return shop->engine->execute(shop->connection, "INSERT INTO orders VALUES ($1, $2, $3)",
				     values, error);
}

static semel_status publish(struct semel_shop *shop, const struct semel_shop_order *order,
			    const char *type, const char *payload, semel_error *error)
{
	const semel_event_input event = { .type = type,
					  .aggregate_type = "order",
					  .aggregate_id = order->id,
					  .topic = shop->topic,
					  .payload = payload };
	return semel_outbox_publish(shop->engine->borrow(shop->connection), &event, NULL, error);
}

semel_status semel_shop_place_order(struct semel_shop *shop, const struct semel_shop_order *order,
				    const char *ending, semel_error *error)
{
	char payload[128];
	snprintf(payload, sizeof payload, "{\"product\":\"%s\",\"total\":%d}", order->product,
		 order->total);
	semel_status status = execute(shop, "BEGIN", error);
	if (status == SEMEL_OK)
		status = insert_order(shop, order, error);
	if (status == SEMEL_OK)
		status = publish(shop, order, "order.placed.v1", payload, error);
	if (status == SEMEL_OK)
		status = publish(shop, order, "order.paid.v1", "{}", error);
	return status == SEMEL_OK ? execute(shop, ending, error) : status;
}

semel_status semel_shop_add_product(struct semel_shop *shop, const char *product,
				    semel_error *error)
{
	const char *const values[] = { product, NULL };
	return shop->engine->execute(shop->connection, "INSERT INTO stock VALUES ($1)", values,
				     error);
}

semel_status semel_shop_query(struct semel_shop *shop, const char *sql,
			      const char *const *parameters, int64_t *number_out,
			      semel_error *error)
{
	return shop->engine->ask(shop->connection, sql, parameters, number_out, error);
}
