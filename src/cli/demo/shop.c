/* SPDX-License-Identifier: Apache-2.0 */
/* The shop: an application with a connection of its own, that publishes through the library.
 * Nothing in the services' tables forbids a double; only the inbox does. */
#include "cli/demo/demo.h"

#include "base/error.h"
#include "base/sqlite_file.h"

#include <semel/outbox.h>
#include <semel/store.h>
#include <sqlite3.h>
#include <stdio.h>

static const char tables[] =
	"CREATE TABLE orders (id TEXT PRIMARY KEY, product TEXT NOT NULL, total INTEGER NOT NULL);"
	"CREATE TABLE invoice (order_id TEXT NOT NULL, amount INTEGER NOT NULL);"
	"CREATE TABLE stock (product TEXT PRIMARY KEY);"
	"CREATE TABLE reservation (order_id TEXT NOT NULL,"
	" product TEXT NOT NULL REFERENCES stock (product), shipped INTEGER NOT NULL DEFAULT 0);"
	"CREATE TABLE audit (order_id TEXT PRIMARY KEY, trail TEXT NOT NULL);"
	"INSERT INTO stock VALUES ('tea'), ('cup'), ('kettle')";

static const char *const products[] = { "tea", "cup", "kettle" };

static semel_status execute(struct semel_demo *demo, const char *sql)
{
	return demo->engine->execute(demo->shop, sql, NULL, demo->error);
}

static semel_status subscribe(struct semel_demo *demo)
{
	semel_status status = SEMEL_OK;
	for (int i = 0; i < SEMEL_DEMO_SERVICES && status == SEMEL_OK; i++) {
		const char *const words[] = { "topology", "apply",
					      "--scope",  semel_demo_services[i].scope,
					      "--topic",  "order.events",
					      NULL };
		status = semel_demo_play(demo, words, NULL, NULL);
	}
	return status;
}

semel_status semel_demo_open_shop(struct semel_demo *demo)
{
	const char *store = demo->store;
	demo->engine = store ? &semel_demo_postgres : &semel_demo_sqlite;
	if (!store)
		store = semel_stage_path(&demo->stage, "sqlite:", "semel.db");
	if (!demo->broker)
		demo->broker_file = semel_stage_path(&demo->stage, "", "semel-broker.db");
	if (!store || (!demo->broker && !demo->broker_file))
		return semel_error_set(demo->error, SEMEL_INTERNAL, "no memory");
	semel_status status = semel_store_init(store, demo->error);
	if (status == SEMEL_OK)
		status = demo->engine->open(store, &demo->shop, demo->error);
	if (status == SEMEL_OK)
		status = execute(demo, demo->engine->preparation);
	if (status == SEMEL_OK)
		status = execute(demo, tables);
	return status == SEMEL_OK ? subscribe(demo) : status;
}

void semel_demo_close_shop(struct semel_demo *demo)
{
	if (demo->engine && demo->shop)
		demo->engine->close(demo->shop);
	demo->shop = NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

struct order {
	char id[16], payload[128];
	const char *product;
	int total;
};

static struct order make_order(int number)
{
	struct order order = { .total = 10 + number * 7 % 90 };
	order.product = number == SEMEL_DEMO_POISONED ? "samovar" : products[number % 3];
	snprintf(order.id, sizeof order.id, "ord-%d", number);
	snprintf(order.payload, sizeof order.payload, "{\"product\":\"%s\",\"total\":%d}",
		 order.product, order.total);
	return order;
}

static semel_status insert_order(struct semel_demo *demo, const struct order *order)
{
	char total[16];
	snprintf(total, sizeof total, "%d", order->total);
	const char *const values[] = { order->id, order->product, total, NULL };
	return demo->engine->execute(demo->shop, "INSERT INTO orders VALUES ($1, $2, $3)", values,
				     demo->error);
}

static semel_status publish(struct semel_demo *demo, const struct order *order, const char *type,
			    const char *payload)
{
	const semel_event_input event = { .type = type,
					  .aggregate_type = "order",
					  .aggregate_id = order->id,
					  .payload = payload };
	return semel_outbox_publish(demo->engine->borrow(demo->shop), &event, NULL, demo->error);
}

/* The order, and what happened to it, in the open transaction. */
static semel_status write_order(struct semel_demo *demo, int number)
{
	const struct order order = make_order(number);
	semel_status status = insert_order(demo, &order);
	if (status == SEMEL_OK)
		status = publish(demo, &order, "order.placed.v1", order.payload);
	return status == SEMEL_OK ? publish(demo, &order, "order.paid.v1", "{}") : status;
}

static semel_status place_order(struct semel_demo *demo, int number, const char *ending)
{
	semel_status status = execute(demo, "BEGIN");
	if (status == SEMEL_OK)
		status = write_order(demo, number);
	return status == SEMEL_OK ? execute(demo, ending) : status;
}

semel_status semel_demo_place_orders(struct semel_demo *demo)
{
	semel_status status = SEMEL_OK;
	for (int i = 1; i <= SEMEL_DEMO_ORDERS && status == SEMEL_OK; i++)
		status = place_order(demo, i, "COMMIT");
	return status;
}

semel_status semel_demo_roll_back_order(struct semel_demo *demo)
{
	return place_order(demo, SEMEL_DEMO_ORDERS + 1, "ROLLBACK");
}

semel_status semel_demo_mend_stock(struct semel_demo *demo)
{
	return execute(demo, "INSERT INTO stock VALUES ('samovar')");
}

/* ---- questions ------------------------------------------------------------------------------- */

semel_status semel_demo_ask(struct semel_demo *demo, const char *sql, int64_t *number_out)
{
	return demo->engine->ask(demo->shop, sql, number_out, demo->error);
}

semel_status semel_demo_ask_broker(struct semel_demo *demo, const char *sql, int64_t *number_out)
{
	sqlite3 *broker = NULL;
	int code = sqlite3_open_v2(demo->broker_file, &broker, SQLITE_OPEN_READWRITE, NULL);
	semel_status status = SEMEL_OK;
	if (code == SQLITE_OK) {
		sqlite3_db_config(broker, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
		status = semel_sqlite_int(broker, sql, 0, number_out, demo->error);
	} else {
		status = semel_sqlite_error(broker, code, "look into the broker", demo->error);
	}
	sqlite3_close(broker);
	return status;
}
