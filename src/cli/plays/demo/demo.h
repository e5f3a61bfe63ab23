/* SPDX-License-Identifier: Apache-2.0 */
/* `semel demo`: a shop, three services and a bad day, told in numbered steps.
 *
 * Every number on the screen is read from the databases or from the answers of the children, which
 * are this very program. Whatever does not add up is said, and ends the demo with 1. */
#ifndef SEMEL_CLI_PLAYS_DEMO_DEMO_H
#define SEMEL_CLI_PLAYS_DEMO_DEMO_H

#include "cli/plays/sandbox.h"
#include "cli/plays/shop/shop.h"

#define SEMEL_DEMO_ORDERS   40
#define SEMEL_DEMO_POISONED 31 /* the number of the order that Fulfillment cannot serve */

struct semel_demo {
	struct semel_sandbox sandbox;
	const char *store, *broker; /* URLs of servers; NULL: files in the folder */
	struct semel_shop shop;
	const char *broker_file; /* NULL: the broker is a server, and is not looked into */
	bool colour;
	bool failed;        /* something did not add up */
	int64_t crashes;    /* children that were killed */
	int64_t duplicates; /* deliveries that services skipped */
	semel_error *error;
};

/* ---- screen.c ---- */
enum semel_demo_style {
	SEMEL_DEMO_PLAIN,
	SEMEL_DEMO_BOLD,
	SEMEL_DEMO_DIM,
	SEMEL_DEMO_GOOD,
	SEMEL_DEMO_BAD
};
bool semel_demo_has_colour(void);
void semel_demo_print_overview(const struct semel_demo *demo);
/* A numbered step. */
void semel_demo_step(const struct semel_demo *demo, int number, const char *what);
/* What one would type. */
void semel_demo_command(const struct semel_demo *demo, const char *format, ...) SEMEL_PRINTF(2, 3);
/* Indented, in a style. */
void semel_demo_print(const struct semel_demo *demo, enum semel_demo_style style,
		      const char *format, ...) SEMEL_PRINTF(3, 4);
/* Two columns: what was done, and what is there now. */
void semel_demo_fact(const char *done, const char *format, ...) SEMEL_PRINTF(2, 3);
/* Says what does not add up, unless it holds. */
void semel_demo_expect(struct semel_demo *demo, bool holds, const char *format, ...)
	SEMEL_PRINTF(3, 4);

/* ---- shop.c: the application ---- */
/* Makes the tables of the shop and of Semel, and what the services need at the broker. */
semel_status semel_demo_open_shop(struct semel_demo *demo);
/* Orders with their events, each in one transaction; the poisoned one among them. */
semel_status semel_demo_place_orders(struct semel_demo *demo);
/* One more, rolled back. */
semel_status semel_demo_roll_back_order(struct semel_demo *demo);
/* What Fulfillment lacked for the poisoned one. */
semel_status semel_demo_restock(struct semel_demo *demo);
/* One integer of the shop's database, or of the broker's file. */
semel_status semel_demo_query(struct semel_demo *demo, const char *sql, int64_t *number_out);
semel_status semel_demo_query_broker(struct semel_demo *demo, const char *sql, int64_t *number_out);

/* ---- cast.c: the children ---- */
struct semel_demo_crash {
	const char *failpoint; /* where it is killed */
	const char *killed;    /* the same for a person */
};
/* By SEMEL_SHOP_BILLING and so on. */
extern const struct semel_demo_crash semel_demo_crashes[SEMEL_SHOP_SUBSCRIPTIONS];

/* Runs semel with these words. With a failpoint it must die of it; without one it must end with 0.
 * answer_out (may be NULL) has its output. A crash is counted. */
semel_status semel_demo_run(struct semel_demo *demo, const char *const *words,
			    const char *failpoint, struct semel_text *answer_out);
semel_status semel_demo_relay(struct semel_demo *demo, const char *failpoint);
struct semel_demo_counts {
	int64_t done, duplicate, dead;
};
semel_status semel_demo_consume(struct semel_demo *demo,
				const struct semel_shop_subscription *subscription,
				const char *failpoint, struct semel_demo_counts *answer_out);
/* A number in a JSON object; 0 when it is not there. */
int64_t semel_demo_json_number(struct semel_text object, const char *name);

/* ---- story.c ---- */
semel_status semel_demo_run_steps(struct semel_demo *demo);

#endif
