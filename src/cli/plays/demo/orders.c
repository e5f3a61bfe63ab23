/* SPDX-License-Identifier: Apache-2.0 */
/* The shop as the story has it: forty orders, one of them for what nobody has heard of. */
#include "cli/plays/demo/demo.h"

#include "base/error.h"
#include "base/sqlite_file.h"

#include <sqlite3.h>
#include <stdio.h>

static const char *const products[] = { "tea", "cup", "kettle" };

static semel_status subscribe(struct semel_demo *demo)
{
	semel_status status = SEMEL_OK;
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++) {
		const char *const words[] = { "topology", "apply",
					      "--scope",  semel_shop_subscriptions[i].scope,
					      "--topic",  "order.events",
					      NULL };
		status = semel_demo_run(demo, words, NULL, NULL);
	}
	return status;
}

semel_status semel_demo_open_shop(struct semel_demo *demo)
{
	const char *store = demo->store;
	demo->shop.engine = store ? &semel_shop_postgres : &semel_shop_sqlite;
	if (!store)
		store = semel_sandbox_path(&demo->sandbox, "sqlite:", "semel.db");
	if (!demo->broker)
		demo->broker_file = semel_sandbox_path(&demo->sandbox, "", "semel-broker.db");
	if (!store || (!demo->broker && !demo->broker_file))
		return semel_error_set(demo->error, SEMEL_INTERNAL, "no memory");
	semel_status status = semel_shop_open(&demo->shop, store, demo->error);
	return status == SEMEL_OK ? subscribe(demo) : status;
}

static semel_status place_order(struct semel_demo *demo, int number, const char *ending)
{
	char id[16];
	snprintf(id, sizeof id, "ord-%d", number);
	const struct semel_shop_order order = {
		.id = id,
		.product = number == SEMEL_DEMO_POISONED ? "samovar" : products[number % 3],
		.total = 10 + number * 7 % 90,
	};
	return semel_shop_place_order(&demo->shop, &order, ending, demo->error);
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

semel_status semel_demo_restock(struct semel_demo *demo)
{
	return semel_shop_add_product(&demo->shop, "samovar", demo->error);
}

/* ---- questions ------------------------------------------------------------------------------- */

semel_status semel_demo_query(struct semel_demo *demo, const char *sql, int64_t *number_out)
{
	return semel_shop_query(&demo->shop, sql, NULL, number_out, demo->error);
}

semel_status semel_demo_query_broker(struct semel_demo *demo, const char *sql, int64_t *number_out)
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
