/* SPDX-License-Identifier: Apache-2.0 */
/* A sample shop: an application that writes its orders and their events in one transaction, and
 * three subscriptions that process these events. `demo` and `drill` use it.
 *
 * It reaches its database through the store's seam only; what differs between SQL dialects is a row
 * in the table of shop.c. Nothing in the subscriptions' tables forbids a duplicate; only the inbox
 * does.
 * Threads: a shop belongs to one thread. */
#ifndef SEMEL_CLI_PLAYS_SHOP_SHOP_H
#define SEMEL_CLI_PLAYS_SHOP_SHOP_H

#include "base/text.h"

#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_shop {
	semel_store *store;
	const char *topic; /* of its events; NULL: order.events */
};

/* Creates Semel's tables and the shop's, and opens a connection. CONFIG: there is no shop for such
 * a store. Close it also after a failure. */
semel_status semel_shop_open(struct semel_shop *shop, const char *store, semel_error *error);
void semel_shop_close(struct semel_shop *shop);

/* id and product hold nothing that SQL or JSON would quote. */
struct semel_shop_order {
	const char *id, *product;
	int total;
};
/* Writes the order and its two events (placed, paid), in one transaction. */
semel_status semel_shop_place_order(struct semel_shop *shop, const struct semel_shop_order *order,
				    semel_error *error);
/* The same, but rolls it back. */
semel_status semel_shop_roll_back_order(struct semel_shop *shop,
					const struct semel_shop_order *order, semel_error *error);
/* Adds the product to the stock, from which fulfillment reserves. */
semel_status semel_shop_add_product(struct semel_shop *shop, const char *product,
				    semel_error *error);
/* The number that the query yields, or 0. In the query :id is value, which may be NULL. */
semel_status semel_shop_query(struct semel_shop *shop, const char *sql, const char *value,
			      int64_t *number_out, semel_error *error);
/* A handler's statement that fails at the first attempt of each event. */
const char *semel_shop_failing_statement(const struct semel_shop *shop);

struct semel_shop_subscription {
	const char *scope;
	const char *effects[2]; /* SQL handlers; the second may be NULL */
};
enum { SEMEL_SHOP_BILLING, SEMEL_SHOP_FULFILLMENT, SEMEL_SHOP_AUDIT, SEMEL_SHOP_SUBSCRIPTIONS };
extern const struct semel_shop_subscription semel_shop_subscriptions[SEMEL_SHOP_SUBSCRIPTIONS];

#endif
