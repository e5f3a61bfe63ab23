/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the demo, one function each: something happens, the databases and the broker are
 * queried, and the numbers are shown and checked. */
#include "cli/plays/demo/demo.h"

#include "base/error.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define REPLAYED "50"

#define ORDERS    "SELECT count(*) FROM orders"
#define EVENTS    "SELECT count(*) FROM semel_outbox"
#define PUBLISHED "SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'"

/* ---- 1: orders ------------------------------------------------------------------------------- */

static void show_orders(struct semel_demo *demo, const char *done, const char *remark)
{
	int64_t orders = semel_demo_query(demo, ORDERS);
	int64_t events = semel_demo_query(demo, EVENTS);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_fact(done, "%" PRId64 " orders, %" PRId64 " events%s", orders, events, remark);
	semel_demo_expect(demo, orders == SEMEL_DEMO_ORDERS && events == 2 * orders,
			  "expected %d orders with 2 events each", SEMEL_DEMO_ORDERS);
}

/* Runs `semel publish`, which is killed when everything is written and nothing is committed. */
static void kill_shop(struct semel_demo *demo)
{
	const char *const words[] = { "publish",
				      "--type",
				      "order.placed.v1",
				      "--aggregate",
				      "order:ord-ghost",
				      "--sql",
				      "INSERT INTO orders VALUES ('ord-ghost', 'tea', 1)",
				      NULL };
	(void)semel_demo_run(demo, words, "publish.before-commit:kill");
}

static void orders_are_placed(struct semel_demo *demo)
{
	semel_demo_step(demo, 1, "The shop takes orders: each with its events, in one transaction");
	semel_demo_place_orders(demo);
	show_orders(demo, "orders placed and paid", "");
	semel_demo_roll_back_order(demo);
	show_orders(demo, "one more, rolled back", ": no trace of it");
	kill_shop(demo);
	show_orders(demo, "one more, killed before its commit", ": no trace of it");
}

/* ---- 2: relay -------------------------------------------------------------------------------- */

/* A server is not inspected: the marks in the shop's database are shown instead. */
static void show_marks(struct semel_demo *demo, const char *done, bool finished)
{
	int64_t events = semel_demo_query(demo, EVENTS);
	int64_t published = semel_demo_query(demo, PUBLISHED);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_fact(done, "%" PRId64 " of %" PRId64 " events marked as published", published,
			events);
	semel_demo_expect(demo, (published == events) == finished,
			  finished ? "expected all events to be marked"
				   : "expected some events not to be marked yet");
}

static void show_log(struct semel_demo *demo, const char *done, bool finished)
{
	int64_t events = semel_demo_query(demo, EVENTS);
	int64_t published = semel_demo_query(demo, PUBLISHED);
	struct semel_demo_sent sent = semel_demo_count_sent(demo);
	if (demo->status != SEMEL_OK)
		return;
	if (!finished) {
		semel_demo_fact(done, "%" PRId64 " messages at the broker, %" PRId64 " marked",
				sent.events, published);
		semel_demo_expect(demo, published < sent.events,
				  "expected some events to be confirmed and not marked");
		return;
	}
	semel_demo_fact(done, "%" PRId64 " messages: all %" PRId64 " events, %" PRId64 " twice",
			sent.events, sent.distinct, sent.events - sent.distinct);
	semel_demo_expect(demo, published == events && sent.distinct == events,
			  "expected all %" PRId64 " events to be published and marked", events);
}

static void show_relay(struct semel_demo *demo, const char *done, bool finished)
{
	if (demo->broker_file)
		show_log(demo, done, finished);
	else
		show_marks(demo, done, finished);
}

static void relay_is_killed(struct semel_demo *demo)
{
	semel_demo_step(demo, 2, "The relay sends them to the broker, and is killed midway");
	semel_demo_command(demo, "semel relay");
	semel_demo_relay(demo, "relay.after-confirm:kill@50");
	show_relay(demo, "killed between confirm and mark", false);
	semel_demo_relay(demo, NULL);
	show_relay(demo, "started again", true);
}

/* ---- 3: subscriptions ------------------------------------------------------------------------ */

#define SUBSCRIPTION_ROW "%-12s %-27s"

static int64_t count_claims(struct semel_demo *demo, const char *scope)
{
	char sql[128];
	snprintf(sql, sizeof sql, "SELECT count(*) FROM semel_inbox WHERE scope = '%s'", scope);
	return semel_demo_query(demo, sql);
}

static void kill_subscription(struct semel_demo *demo, int number)
{
	const struct semel_shop_subscription *subscription = &semel_shop_subscriptions[number];
	const struct semel_demo_crash *crash = &semel_demo_crashes[number];
	(void)semel_demo_consume(demo, subscription, crash->failpoint);
	int64_t before = count_claims(demo, subscription->scope);
	struct semel_demo_counts after = semel_demo_consume(demo, subscription, NULL);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 SUBSCRIPTION_ROW "  %11" PRId64 "  %5" PRId64 "  %7" PRId64 "%s",
			 subscription->scope, crash->killed, before, after.done, after.duplicate,
			 after.dead > 0 ? "  see 5" : "");
	semel_demo_expect(demo, before > 0 && after.done > 0, "expected %s to be killed midway",
			  subscription->scope);
}

static void subscriptions_are_killed(struct semel_demo *demo)
{
	semel_demo_step(demo, 3, "Each service processes them, is killed, and started again");
	semel_demo_command(demo, "semel consume --scope billing --topic order.events"
				 " --sql 'INSERT …'");
	semel_demo_print(demo, SEMEL_DEMO_DIM, SUBSCRIPTION_ROW "  %11s  %5s  %7s", "", "killed",
			 "done before", "after", "skipped");
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		kill_subscription(demo, i);
}

/* ---- 4: duplicates --------------------------------------------------------------------------- */

static void show_duplicates(struct semel_demo *demo,
			    const struct semel_shop_subscription *subscription, int64_t replayed)
{
	struct semel_demo_counts counts = semel_demo_consume(demo, subscription, NULL);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_fact(subscription->scope, "%" PRId64 " new, %" PRId64 " skipped as duplicates",
			counts.done, counts.duplicate);
	semel_demo_expect(demo, counts.done == 0 && counts.duplicate == replayed,
			  "expected %s to skip all %" PRId64, subscription->scope, replayed);
}

static void events_are_replayed(struct semel_demo *demo)
{
	static const char *const words[] = { "replay", "--max", REPLAYED, "--json", NULL };
	semel_demo_step(demo, 4, "Duplicates arrive: " REPLAYED " events are sent again");
	semel_demo_command(demo, "semel replay --max " REPLAYED);
	int64_t replayed = semel_demo_json_number(semel_demo_run(demo, words, NULL), "replayed");
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		show_duplicates(demo, &semel_shop_subscriptions[i], replayed);
}

/* ---- 5: poison ------------------------------------------------------------------------------- */

static const char *text_of(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text ? text : "?";
}

static void show_dead_letter(struct semel_demo *demo, json_t *entry)
{
	json_t *event = json_object_get(entry, "eventRecord");
	json_t *payload = json_object_get(event, "payload");
	semel_demo_command(demo, "semel dlq show %s", text_of(entry, "dlqEntryId"));
	semel_demo_fact("event", "%s of %s, for a %s", text_of(entry, "eventType"),
			text_of(event, "aggregateId"), text_of(payload, "product"));
	semel_demo_fact("reason", "%s", text_of(entry, "failureReason"));
	semel_demo_fact("parked behind it", "%" JSON_INTEGER_FORMAT " later event of that order",
			json_integer_value(json_object_get(entry, "parked")));
	int64_t shipped =
		semel_demo_query(demo, "SELECT count(*) FROM reservation WHERE shipped = 1");
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_fact("the other orders", "%" PRId64 " reserved and shipped: none waited",
			shipped);
	semel_demo_expect(demo, shipped == SEMEL_DEMO_ORDERS - 1,
			  "expected all orders but one to be shipped");
}

static void replay_dead_letter(struct semel_demo *demo, const char *entry_id)
{
	const char *const words[] = { "dlq", "replay", entry_id, NULL };
	semel_demo_restock(demo);
	(void)semel_demo_run(demo, words, NULL);
	struct semel_demo_counts counts =
		semel_demo_consume(demo, &semel_shop_subscriptions[SEMEL_SHOP_FULFILLMENT], NULL);
	int64_t shipped = semel_demo_query(demo, "SELECT count(*) FROM reservation"
						 " WHERE product = 'samovar' AND shipped = 1");
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_command(demo, "semel dlq replay %s", entry_id);
	semel_demo_fact("samovars in stock, letter replayed",
			"%" PRId64 " done: reserved, then shipped, in order", counts.done);
	semel_demo_expect(demo, counts.done == 2 && shipped == 1,
			  "expected the poisoned order to be reserved and shipped");
}

static void order_is_poisoned(struct semel_demo *demo)
{
	static const char *const words[] = { "dlq", "list", "--json", NULL };
	semel_demo_step(demo, 5, "One order is poisoned: fulfillment does not stock samovars");
	struct semel_text output = semel_demo_run(demo, words, NULL);
	if (demo->status != SEMEL_OK)
		return;
	json_t *entries = json_loadb(semel_text_chars(output), output.length, 0, NULL);
	json_t *entry = json_array_get(entries, 0);
	semel_demo_expect(demo, json_array_size(entries) == 1, "expected one dead letter");
	show_dead_letter(demo, entry);
	replay_dead_letter(demo, text_of(entry, "dlqEntryId"));
	json_decref(entries);
}

/* ---- 6: summary ------------------------------------------------------------------------------ */

/* A table of the shop: how many rows it has, and how many of them are right. */
struct table_check {
	const char *name, *count, *right, *meaning;
};

static const struct table_check table_checks[] = {
	{ "orders", ORDERS, ORDERS, NULL },
	{ "invoices", "SELECT count(*) FROM invoice",
	  "SELECT count(*) FROM (SELECT order_id FROM invoice GROUP BY order_id"
	  " HAVING count(*) = 1 AND sum(amount) ="
	  " (SELECT total FROM orders WHERE id = order_id)) AS paid",
	  "orders with one invoice of the right amount" },
	{ "reservations", "SELECT count(*) FROM reservation",
	  "SELECT count(*) FROM (SELECT order_id FROM reservation GROUP BY order_id"
	  " HAVING count(*) = 1 AND sum(shipped) = 1) AS shipped",
	  "orders reserved once and shipped once" },
	{ "audit rows", "SELECT count(*) FROM audit",
	  "SELECT count(*) FROM audit WHERE trail = 'placed, paid'",
	  "orders with the trail \"placed, paid\"" },
};

static void show_table(struct semel_demo *demo, const struct table_check *table, int64_t orders)
{
	int64_t rows = semel_demo_query(demo, table->count);
	int64_t right = semel_demo_query(demo, table->right);
	char meaning[96] = "";
	if (demo->status != SEMEL_OK)
		return;
	if (table->meaning)
		snprintf(meaning, sizeof meaning, "   %" PRId64 " %s", right, table->meaning);
	semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%s %-12s %3" PRId64 "%s",
			 table->meaning ? "=" : " ", table->name, rows, meaning);
	semel_demo_expect(demo, rows == orders && right == orders, "expected %" PRId64 " %s",
			  orders, table->name);
}

static void show_sent(struct semel_demo *demo)
{
	int64_t events = semel_demo_query(demo, EVENTS);
	struct semel_demo_sent sent = semel_demo_count_sent(demo);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%" PRId64 " events were sent %" PRId64 " times, up to %" PRId64
			 " times each",
			 events, sent.events, sent.most);
}

static void show_deliveries(struct semel_demo *demo)
{
	if (demo->broker_file)
		show_sent(demo);
	if (demo->status != SEMEL_OK)
		return;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%" PRId64 " processes were killed",
			 demo->crashes);
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%" PRId64 " deliveries were skipped as duplicates\n", demo->duplicates);
}

static void show_scope(const struct semel_demo *demo, json_t *scope)
{
	static const char *const names[] = { "expected", "processed", "missing", "doubled",
					     "orphaned" };
	char line[128] = "";
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		size_t length = strlen(line);
		snprintf(line + length, sizeof line - length, "%s%" JSON_INTEGER_FORMAT " %s",
			 i ? ", " : "", json_integer_value(json_object_get(scope, names[i])),
			 names[i]);
	}
	semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%-12s %s", text_of(scope, "scope"), line);
}

static void verify(struct semel_demo *demo)
{
	static const char *const words[] = { "verify", "--json", NULL };
	struct semel_text output = semel_demo_run(demo, words, NULL);
	if (demo->status != SEMEL_OK)
		return;
	json_t *report = json_loadb(semel_text_chars(output), output.length, 0, NULL);
	json_t *scope;
	size_t at;
	printf("\n");
	semel_demo_command(demo, "semel verify");
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%-12s %" JSON_INTEGER_FORMAT " committed, %" JSON_INTEGER_FORMAT
			 " published",
			 "outbox", json_integer_value(json_object_get(report, "committed")),
			 json_integer_value(json_object_get(report, "published")));
	json_array_foreach(json_object_get(report, "scopes"), at, scope) show_scope(demo, scope);
	semel_demo_expect(demo, json_is_true(json_object_get(report, "ok")),
			  "not every committed event is accounted for");
	json_decref(report);
}

static void check_totals(struct semel_demo *demo)
{
	semel_demo_step(demo, 6, "Summary");
	show_deliveries(demo);
	int64_t orders = semel_demo_query(demo, ORDERS);
	for (size_t i = 0; i < sizeof table_checks / sizeof *table_checks; i++)
		show_table(demo, &table_checks[i], orders);
	verify(demo);
}

semel_status semel_demo_run_steps(struct semel_demo *demo)
{
	static void (*const steps[])(struct semel_demo * demo) = {
		orders_are_placed,   relay_is_killed,   subscriptions_are_killed,
		events_are_replayed, order_is_poisoned, check_totals,
	};
	semel_demo_print_overview(demo);
	semel_demo_open_shop(demo);
	for (size_t i = 0; i < sizeof steps / sizeof *steps && demo->status == SEMEL_OK; i++) {
		demo->status = semel_sandbox_check(&demo->sandbox, demo->error);
		if (demo->status == SEMEL_OK)
			steps[i](demo);
	}
	if (demo->status != SEMEL_OK)
		return demo->status;
	printf("\n");
	if (demo->failed) {
		semel_demo_print(demo, SEMEL_DEMO_BAD,
				 "At least one check failed (marked FAILED above).");
		return SEMEL_PROBLEM_FOUND;
	}
	semel_demo_print(
		demo, SEMEL_DEMO_GOOD,
		"Every committed event is accounted for: none lost, none processed twice.");
	return SEMEL_OK;
}
