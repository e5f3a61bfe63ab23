/* SPDX-License-Identifier: Apache-2.0 */
/* The shop's tables, its orders, and what its subscriptions do with them. */
#include "cli/plays/shop/shop.h"

#include "base/arena.h"
#include "base/error.h"
#include "store/store.h"

#include <semel/outbox.h>
#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)4 * 1024)

/* What differs between SQL dialects; everything else is the same text for each store. */
struct dialect {
	const char *scheme;            /* of the store's driver */
	const char *functions;         /* created for the statements below; may be blank */
	const char *failing_statement; /* of a handler: fails at the first attempt of an event */
};

static const struct dialect dialects[] = {
	{ "sqlite", "", "SELECT json(iif(:attempt = 1, '{', '{}'))" },
	{ "postgres",
	  "CREATE FUNCTION json_extract(document text, path text) RETURNS text"
	  " IMMUTABLE LANGUAGE sql AS"
	  " $$ SELECT document::jsonb #>> ARRAY[substr(path, 3)] $$;"
	  "CREATE FUNCTION fail_when(failing boolean) RETURNS void LANGUAGE plpgsql AS"
	  " $$ BEGIN IF failing THEN RAISE EXCEPTION 'not yet'; END IF; END $$;",
	  "SELECT fail_when(:attempt = 1)" },
};

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

static const struct dialect *dialect_of(const semel_store *store)
{
	for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
		if (strcmp(dialects[i].scheme, store->driver->scheme) == 0)
			return &dialects[i];
	return NULL;
}

/* ---- transactions ---------------------------------------------------------------------------- */

/* Ends the open transaction: commits it if everything in it succeeded. */
static semel_status end_transaction(semel_store *store, semel_status status, semel_error *error)
{
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	return store->driver->commit(store, error);
}

static semel_status execute(semel_store *store, const char *sql, semel_error *error)
{
	semel_status status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;
	return end_transaction(store, store->driver->execute(store, sql, error), error);
}

semel_status semel_shop_open(struct semel_shop *shop, const char *store, semel_error *error)
{
	semel_status status = semel_store_init(store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_store_open(store, &shop->store, error);
	if (status != SEMEL_OK)
		return status;
	const struct dialect *dialect = dialect_of(shop->store);
	if (!dialect)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"demo and drill do not support store %s: (use sqlite:PATH or "
			"postgres://…)",
			shop->store->driver->scheme);
	if (dialect->functions[0])
		status = execute(shop->store, dialect->functions, error);
	if (status != SEMEL_OK)
		return status;
	return execute(shop->store, tables, error);
}

void semel_shop_close(struct semel_shop *shop)
{
	semel_store_close(shop->store);
	shop->store = NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static semel_status insert_order(struct semel_shop *shop, const struct semel_shop_order *order,
				 semel_error *error)
{
	char sql[256];
	snprintf(sql, sizeof sql, "INSERT INTO orders VALUES ('%s', '%s', %d)", order->id,
		 order->product, order->total);
	return shop->store->driver->execute(shop->store, sql, error);
}

static semel_status publish(struct semel_shop *shop, const struct semel_shop_order *order,
			    const char *type, const char *payload, semel_error *error)
{
	const semel_event_input event = { .type = type,
					  .aggregate_type = "order",
					  .aggregate_id = order->id,
					  .topic = shop->topic,
					  .payload = payload };
	return semel_outbox_publish(shop->store->driver->tx(shop->store), &event, NULL, error);
}

static semel_status write_order(struct semel_shop *shop, const struct semel_shop_order *order,
				semel_error *error)
{
	char payload[128];
	snprintf(payload, sizeof payload, "{\"product\":\"%s\",\"total\":%d}", order->product,
		 order->total);
	semel_status status = insert_order(shop, order, error);
	if (status != SEMEL_OK)
		return status;
	status = publish(shop, order, "order.placed.v1", payload, error);
	if (status != SEMEL_OK)
		return status;
	return publish(shop, order, "order.paid.v1", "{}", error);
}

semel_status semel_shop_place_order(struct semel_shop *shop, const struct semel_shop_order *order,
				    semel_error *error)
{
	semel_status status = shop->store->driver->begin(shop->store, error);
	if (status != SEMEL_OK)
		return status;
	return end_transaction(shop->store, write_order(shop, order, error), error);
}

semel_status semel_shop_roll_back_order(struct semel_shop *shop,
					const struct semel_shop_order *order, semel_error *error)
{
	semel_status status = shop->store->driver->begin(shop->store, error);
	if (status != SEMEL_OK)
		return status;
	status = write_order(shop, order, error);
	shop->store->driver->rollback(shop->store);
	return status;
}

semel_status semel_shop_add_product(struct semel_shop *shop, const char *product,
				    semel_error *error)
{
	char sql[128];
	snprintf(sql, sizeof sql, "INSERT INTO stock VALUES ('%s')", product);
	return execute(shop->store, sql, error);
}

/* ---- queries --------------------------------------------------------------------------------- */

semel_status semel_shop_query(struct semel_shop *shop, const char *sql, const char *value,
			      int64_t *number_out, semel_error *error)
{
	const struct semel_event parameters = { .id = semel_text_of(value) };
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	struct semel_text number = { NULL, 0 };
	*number_out = 0;
	if (!arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	semel_status status = shop->store->driver->inbox->evaluate(shop->store, sql, &parameters,
								   arena, &number, error);
	long long value_read = 0;
	if (status == SEMEL_OK && number.data &&
	    semel_text_to_int64(semel_text_string(number), INT64_MIN, INT64_MAX, &value_read))
		*number_out = value_read;
	semel_arena_free(arena);
	return status;
}

const char *semel_shop_failing_statement(const struct semel_shop *shop)
{
	return dialect_of(shop->store)->failing_statement;
}
