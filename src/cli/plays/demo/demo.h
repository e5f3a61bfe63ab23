/* SPDX-License-Identifier: Apache-2.0 */
/* `semel demo`: a shop, three services and a series of failures, in numbered steps.
 *
 * Every number on the screen is read from the databases, from the broker or from the output of the
 * children, which are processes of this program. Every inconsistency is reported, and the demo then
 * exits with 1.
 *
 * Its actions record their status in the demo: after the first failure each of them does nothing,
 * so a step is written as a plain sequence. */
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
	const char *broker_file; /* its URL; NULL: the broker is a server, and is not inspected */
	bool colour;
	bool failed;         /* an inconsistency was found */
	int64_t crashes;     /* children that were killed */
	int64_t duplicates;  /* deliveries that subscriptions skipped */
	semel_status status; /* of the actions so far; not OK: the demo cannot continue */
	semel_error *error;
};

/* ---- actions.c: what steps are made of ---- */
enum semel_demo_style {
	SEMEL_DEMO_PLAIN,
	SEMEL_DEMO_BOLD,
	SEMEL_DEMO_DIM,
	SEMEL_DEMO_GOOD,
	SEMEL_DEMO_BAD
};
bool semel_demo_has_colour(void);
void semel_demo_print_overview(const struct semel_demo *demo);
/* Prints the heading of a numbered step. */
void semel_demo_step(const struct semel_demo *demo, int number, const char *what);
/* Prints a command for the user to type. */
void semel_demo_command(const struct semel_demo *demo, const char *format, ...) SEMEL_PRINTF(2, 3);
/* Prints an indented line in a style. */
void semel_demo_print(const struct semel_demo *demo, enum semel_demo_style style,
		      const char *format, ...) SEMEL_PRINTF(3, 4);
/* Prints two columns: what was done, and what there is now. */
void semel_demo_fact(const char *done, const char *format, ...) SEMEL_PRINTF(2, 3);
/* Reports an inconsistency unless the condition holds. */
void semel_demo_expect(struct semel_demo *demo, bool holds, const char *format, ...)
	SEMEL_PRINTF(3, 4);

/* Creates the tables of the shop and of Semel, and what the subscriptions need at the broker. */
void semel_demo_open_shop(struct semel_demo *demo);
/* Places orders with their events, each in one transaction; the poisoned one is among them. */
void semel_demo_place_orders(struct semel_demo *demo);
/* Writes one more order and rolls it back. */
void semel_demo_roll_back_order(struct semel_demo *demo);
/* Adds the product of the poisoned order to fulfillment's stock. */
void semel_demo_restock(struct semel_demo *demo);
/* Reads one number from the shop's database. */
int64_t semel_demo_query(struct semel_demo *demo, const char *sql);

struct semel_demo_sent {
	int64_t events;   /* messages in the broker's log */
	int64_t distinct; /* events among them */
	int64_t most;     /* how often the most frequent one was sent */
};
struct semel_demo_sent semel_demo_count_sent(struct semel_demo *demo);

struct semel_demo_crash {
	const char *failpoint; /* where the subscription's process is killed */
	const char *killed;    /* the same, for the screen */
};
/* Indexed by SEMEL_SHOP_BILLING and so on. */
extern const struct semel_demo_crash semel_demo_crashes[SEMEL_SHOP_SUBSCRIPTIONS];

/* Runs semel with these words, and returns its output. With a failpoint it must be killed there;
 * without one it must exit with 0. A kill is counted. */
struct semel_text semel_demo_run(struct semel_demo *demo, const char *const *words,
				 const char *failpoint);
void semel_demo_relay(struct semel_demo *demo, const char *failpoint);
struct semel_demo_counts {
	int64_t done, duplicate, dead;
};
struct semel_demo_counts semel_demo_consume(struct semel_demo *demo,
					    const struct semel_shop_subscription *subscription,
					    const char *failpoint);
/* A number in a JSON object; 0 when it is not there. */
int64_t semel_demo_json_number(struct semel_text object, const char *name);

/* ---- steps.c ---- */
semel_status semel_demo_run_steps(struct semel_demo *demo);

#endif
