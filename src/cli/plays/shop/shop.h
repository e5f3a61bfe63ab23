/* SPDX-License-Identifier: Apache-2.0 */
/* A shop to try things on: an application with a connection of its own, that publishes through the
 * library, and three services that live on its events. `demo` and `drill` play on it.
 *
 * Nothing in the services' tables forbids a double; only the inbox does.
 * Threads: a shop belongs to one thread. */
#ifndef SEMEL_CLI_PLAYS_SHOP_SHOP_H
#define SEMEL_CLI_PLAYS_SHOP_SHOP_H

#include <semel/store.h>

#include <stdint.h>

/* What the application knows of its database. Parameters are texts: $1, $2, … in their order,
 * NULL-ended; NULL: none. */
struct semel_shop_engine {
	const char *preparation; /* run before the shop's tables are made */
	const char *fail_first;  /* a handler's statement: the first run of an event fails */
	semel_status (*open)(const char *store, void **connection_out, semel_error *error);
	void (*close)(void *connection);
	semel_status (*execute)(void *connection, const char *sql, const char *const *parameters,
				semel_error *error);
	/* One number; 0 when there is no row. */
	semel_status (*ask)(void *connection, const char *sql, const char *const *parameters,
			    int64_t *number_out, semel_error *error);
	semel_tx (*borrow)(void *connection);
};
extern const struct semel_shop_engine semel_shop_sqlite, semel_shop_postgres;

struct semel_shop {
	const struct semel_shop_engine *engine;
	void *connection;
	const char *topic; /* of its events; NULL: order.events */
};

/* Makes Semel's tables and the shop's, and opens a connection. Close it also after a failure. */
semel_status semel_shop_open(struct semel_shop *shop, const char *store, semel_error *error);
void semel_shop_close(struct semel_shop *shop);

struct semel_shop_order {
	const char *id, *product;
	int total;
};
/* The order with what happened to it (placed, paid), in one transaction that ends so: COMMIT or
 * ROLLBACK. */
semel_status semel_shop_place_order(struct semel_shop *shop, const struct semel_shop_order *order,
				    const char *ending, semel_error *error);
/* From now on fulfillment knows the product. */
semel_status semel_shop_add_product(struct semel_shop *shop, const char *product,
				    semel_error *error);
semel_status semel_shop_query(struct semel_shop *shop, const char *sql,
			      const char *const *parameters, int64_t *number_out,
			      semel_error *error);

struct semel_shop_subscription {
	const char *scope;
	const char *effects[2]; /* SQL handlers; the second may be NULL */
};
enum { SEMEL_SHOP_BILLING, SEMEL_SHOP_FULFILLMENT, SEMEL_SHOP_AUDIT, SEMEL_SHOP_SUBSCRIPTIONS };
extern const struct semel_shop_subscription semel_shop_subscriptions[SEMEL_SHOP_SUBSCRIPTIONS];

#endif
