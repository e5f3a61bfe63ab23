/* SPDX-License-Identifier: Apache-2.0 */
/* The shop of the demo: forty orders, one of them for a product that fulfillment does not have. */
#include "cli/plays/demo/demo.h"

#include "base/error.h"

#include <stdio.h>

static const char *const products[] = { "tea", "cup", "kettle" };

static void subscribe(struct semel_demo *demo)
{
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++) {
		const char *const words[] = { "topology", "apply",
					      "--scope",  semel_shop_subscriptions[i].scope,
					      "--topic",  "order.events",
					      NULL };
		(void)semel_demo_run(demo, words, NULL);
	}
}

void semel_demo_open_shop(struct semel_demo *demo)
{
	const char *store = demo->store;
	if (!store)
		store = semel_sandbox_path(&demo->sandbox, "sqlite:", "semel.db");
	if (!demo->broker)
		demo->broker_file = semel_sandbox_path(&demo->sandbox, "local:", "semel-broker.db");
	if (!store || (!demo->broker && !demo->broker_file))
		demo->status = semel_error_set(demo->error, SEMEL_INTERNAL, "no memory");
	else
		demo->status = semel_shop_open(&demo->shop, store, demo->error);
	subscribe(demo);
}

typedef semel_status (*write_order)(struct semel_shop *shop, const struct semel_shop_order *order,
				    semel_error *error);

static void order(struct semel_demo *demo, int number, write_order write)
{
	char id[16];
	snprintf(id, sizeof id, "ord-%d", number);
	const struct semel_shop_order order = {
		.id = id,
		.product = number == SEMEL_DEMO_POISONED ? "samovar" : products[number % 3],
		.total = 10 + number * 7 % 90,
	};
	if (demo->status != SEMEL_OK)
		return;
	demo->status = write(&demo->shop, &order, demo->error);
}

void semel_demo_place_orders(struct semel_demo *demo)
{
	for (int i = 1; i <= SEMEL_DEMO_ORDERS; i++)
		order(demo, i, semel_shop_place_order);
}

void semel_demo_roll_back_order(struct semel_demo *demo)
{
	order(demo, SEMEL_DEMO_ORDERS + 1, semel_shop_roll_back_order);
}

void semel_demo_restock(struct semel_demo *demo)
{
	if (demo->status != SEMEL_OK)
		return;
	demo->status = semel_shop_add_product(&demo->shop, "samovar", demo->error);
}

int64_t semel_demo_query(struct semel_demo *demo, const char *sql)
{
	int64_t number = 0;
	if (demo->status != SEMEL_OK)
		return 0;
	demo->status = semel_shop_query(&demo->shop, sql, NULL, &number, demo->error);
	return number;
}
