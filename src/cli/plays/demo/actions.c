/* SPDX-License-Identifier: Apache-2.0 */
/* What the steps of the demo are made of: the screen, the shop's orders, the relay and the
 * subscriptions (each a process of this program), and what is in the broker's log. */
#include "cli/plays/demo/demo.h"

#include "base/arena.h"
#include "base/env.h"
#include "base/error.h"
#include "broker/broker.h"

#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KILLED        (128 + SIGKILL)
#define CONSUME_BATCH "10" /* small, so that a kill interrupts the work */
#define WINDOW        "20"
#define COUNT_SCOPE   "semel-demo-count"
#define ARENA_BLOCK   ((size_t)64 * 1024)
#define FETCH_BATCH   100
#define EVENTS_MAX    1024 /* more than the demo sends */
#define LEASE_MS      1000
#define FACT_WIDTH    35

/* ---- the screen: short lines, two columns, colour on a terminal only ------------------------- */

static const char *const codes[] = {
	[SEMEL_DEMO_PLAIN] = "",         [SEMEL_DEMO_BOLD] = "\033[1m",
	[SEMEL_DEMO_DIM] = "\033[2m",    [SEMEL_DEMO_GOOD] = "\033[32m",
	[SEMEL_DEMO_BAD] = "\033[1;31m",
};

bool semel_demo_has_colour(void)
{
	const char *term = getenv("TERM"), *none = getenv("NO_COLOR");
	return isatty(STDOUT_FILENO) && !(none && none[0]) && term && strcmp(term, "dumb") != 0;
}

/* Prints one line and flushes it: the next one may take a moment. */
SEMEL_PRINTF(4, 0)
static void print_styled(const struct semel_demo *demo, enum semel_demo_style style,
			 const char *before, const char *format, va_list list)
{
	bool styled = demo->colour && style != SEMEL_DEMO_PLAIN;
	fputs(styled ? codes[style] : "", stdout);
	fputs(before, stdout);
	vprintf(format, list);
	fputs(styled ? "\033[0m\n" : "\n", stdout);
	fflush(stdout);
}

void semel_demo_print(const struct semel_demo *demo, enum semel_demo_style style,
		      const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, style, "   ", format, list);
	va_end(list);
}

void semel_demo_command(const struct semel_demo *demo, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_DIM, "   $ ", format, list);
	va_end(list);
}

static void heading(const struct semel_demo *demo, const char *format, ...) SEMEL_PRINTF(2, 3);
static void heading(const struct semel_demo *demo, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_BOLD, "", format, list);
	va_end(list);
}

void semel_demo_print_overview(const struct semel_demo *demo)
{
	static const char *const lines[] = {
		"shop ──► outbox ──► relay ──► broker ──┬──► billing      writes invoices",
		"                                       ├──► fulfillment  reserves, ships",
		"                                       └──► audit        keeps a trail",
	};
	heading(demo, "Semel: a shop, three services, and a series of failures\n");
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
		semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%s", lines[i]);
}

void semel_demo_step(const struct semel_demo *demo, int number, const char *what)
{
	printf("\n");
	heading(demo, "%d. %s", number, what);
}

void semel_demo_fact(const char *done, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf("   %-*s ", FACT_WIDTH, done);
	vprintf(format, list);
	printf("\n");
	fflush(stdout);
	va_end(list);
}

void semel_demo_expect(struct semel_demo *demo, bool holds, const char *format, ...)
{
	if (holds)
		return;
	demo->failed = true;
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_BAD, "   FAILED: ", format, list);
	va_end(list);
}

/* ---- processes ------------------------------------------------------------------------------- */

const struct semel_demo_crash semel_demo_crashes[SEMEL_SHOP_SUBSCRIPTIONS] = {
	[SEMEL_SHOP_BILLING] = { "consume.after-commit:kill@3", "after commit, before ack" },
	[SEMEL_SHOP_FULFILLMENT] = { "consume.after-effect:kill@26",
				     "after effect, before commit" },
	[SEMEL_SHOP_AUDIT] = { "consume.after-claim:kill@4", "after claim, before effect" },
};

struct semel_text semel_demo_run(struct semel_demo *demo, const char *const *words,
				 const char *failpoint)
{
	struct semel_sandbox_exit end = { 0 };
	int expected = failpoint ? KILLED : 0;
	if (demo->status != SEMEL_OK)
		return (struct semel_text){ NULL, 0 };
	demo->status = semel_sandbox_run(&demo->sandbox, words, failpoint, &end, demo->error);
	if (demo->status != SEMEL_OK)
		return (struct semel_text){ NULL, 0 };
	demo->crashes += end.exit_code == KILLED;
	semel_demo_expect(demo, end.exit_code == expected,
			  "semel %s exited with %d, expected %d: %s", words[0], end.exit_code,
			  expected, end.error_output);
	return end.output;
}

void semel_demo_relay(struct semel_demo *demo, const char *failpoint)
{
	const char *const words[] = { "relay", "--drain", "--window", WINDOW, NULL };
	(void)semel_demo_run(demo, words, failpoint);
}

int64_t semel_demo_json_number(struct semel_text object, const char *name)
{
	json_t *root = json_loadb(semel_text_chars(object), object.length, 0, NULL);
	int64_t number = json_integer_value(json_object_get(root, name));
	json_decref(root);
	return number;
}

struct semel_demo_counts semel_demo_consume(struct semel_demo *demo,
					    const struct semel_shop_subscription *subscription,
					    const char *failpoint)
{
	const char *second = subscription->effects[1];
	const char *const words[] = { "consume",
				      "--drain",
				      "--json",
				      "--scope",
				      subscription->scope,
				      "--topic",
				      "order.events",
				      "--batch",
				      CONSUME_BATCH,
				      "--sql",
				      subscription->effects[0],
				      second ? "--sql" : NULL,
				      second,
				      NULL };
	struct semel_text output = semel_demo_run(demo, words, failpoint);
	if (demo->status != SEMEL_OK || failpoint) /* a killed child prints nothing */
		return (struct semel_demo_counts){ 0 };
	struct semel_demo_counts counts = {
		.done = semel_demo_json_number(output, "done"),
		.duplicate = semel_demo_json_number(output, "duplicate"),
		.dead = semel_demo_json_number(output, "dead"),
	};
	demo->duplicates += counts.duplicate;
	return counts;
}

/* ---- the shop: one order is for a product that fulfillment does not have --------------------- */

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
		demo->status = semel_error_set(demo->error, SEMEL_INTERNAL, "out of memory");
	else
		demo->status = semel_shop_open(&demo->shop, store, demo->error);
	subscribe(demo);
}

typedef semel_status (*write_order)(struct semel_shop *shop, const struct semel_shop_order *order,
				    semel_error *error);

static void put_order(struct semel_demo *demo, int number, write_order write)
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
		put_order(demo, i, semel_shop_place_order);
}

void semel_demo_roll_back_order(struct semel_demo *demo)
{
	put_order(demo, SEMEL_DEMO_ORDERS + 1, semel_shop_roll_back_order);
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

/* ---- what is at the broker ------------------------------------------------------------------- */

/* The log is counted by a subscription of its own that reads it from its beginning and acknowledges
 * nothing: the next count reads all of it again. */
struct count {
	struct semel_broker *broker;
	struct semel_arena *arena; /* of the ids */
	struct semel_text ids[EVENTS_MAX];
	size_t total;
};

static semel_status fetch_all(struct count *count, semel_error *error)
{
	struct semel_delivery deliveries[FETCH_BATCH];
	uint32_t fetched = 0;
	do {
		semel_status status = count->broker->driver->fetch(
			count->broker, FETCH_BATCH, count->arena, deliveries, &fetched, error);
		if (status != SEMEL_OK)
			return status;
		for (uint32_t i = 0; i < fetched && count->total < EVENTS_MAX; i++)
			count->ids[count->total++] = deliveries[i].event.id;
	} while (fetched > 0);
	return SEMEL_OK;
}

static semel_status read_log(struct count *count, const char *url, semel_error *error)
{
	static const char *const topics[] = { "order.events", NULL };
	const struct semel_subscribe_options options = {
		.scope = COUNT_SCOPE, .topics = topics, .prefetch = EVENTS_MAX, .lease_ms = LEASE_MS
	};
	semel_status status = semel_broker_open(url, semel_env_system(), 1, &count->broker, error);
	if (status != SEMEL_OK)
		return status;
	status = count->broker->driver->subscribe(count->broker, &options, error);
	if (status != SEMEL_OK)
		return status;
	return fetch_all(count, error);
}

static int compare_ids(const void *left, const void *right)
{
	const struct semel_text *a = left, *b = right;
	size_t shorter = a->length < b->length ? a->length : b->length;
	int order = memcmp(a->data, b->data, shorter);
	return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

static struct semel_demo_sent summarize(struct count *count)
{
	struct semel_demo_sent sent = { .events = (int64_t)count->total };
	int64_t times = 0;
	qsort(count->ids, count->total, sizeof *count->ids, compare_ids);
	for (size_t i = 0; i < count->total; i++) {
		bool repeated = i > 0 && semel_text_equal(count->ids[i], count->ids[i - 1]);
		times = repeated ? times + 1 : 1;
		sent.distinct += !repeated;
		sent.most = times > sent.most ? times : sent.most;
	}
	return sent;
}

struct semel_demo_sent semel_demo_count_sent(struct semel_demo *demo)
{
	struct semel_demo_sent sent = { 0 };
	if (demo->status != SEMEL_OK)
		return sent;
	struct count *count = calloc(1, sizeof *count);
	if (count)
		count->arena = semel_arena_new(ARENA_BLOCK);
	if (!count || !count->arena) {
		demo->status = semel_error_set(demo->error, SEMEL_INTERNAL, "out of memory");
		free(count);
		return sent;
	}
	demo->status = read_log(count, demo->broker_file, demo->error);
	if (demo->status != SEMEL_OK)
		goto free_count;
	sent = summarize(count);

free_count:
	semel_broker_close(count->broker);
	semel_arena_free(count->arena);
	free(count);
	return sent;
}
