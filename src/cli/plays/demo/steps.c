/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the demo, one function each: something happens, the databases are asked, and what
 * they say is shown. */
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
#define SENT      "SELECT count(*) FROM semel_log"
#define SENT_IDS  "SELECT count(DISTINCT id) FROM semel_log"

/* ---- 1: orders ------------------------------------------------------------------------------- */

static semel_status show_orders(struct semel_demo *demo, const char *done, const char *remark)
{
	int64_t orders = 0, events = 0;
	semel_status status = semel_demo_query(demo, ORDERS, &orders);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo, EVENTS, &events);
	if (status != SEMEL_OK)
		return status;
	semel_demo_fact(done, "%" PRId64 " orders, %" PRId64 " events%s", orders, events, remark);
	semel_demo_expect(demo, orders == SEMEL_DEMO_ORDERS && events == 2 * orders,
			  "there should be %d orders with 2 events each", SEMEL_DEMO_ORDERS);
	return SEMEL_OK;
}

/* The same by the program, killed when all is written and nothing is committed. */
static semel_status kill_shop(struct semel_demo *demo)
{
	const char *const words[] = { "publish",
				      "--type",
				      "order.placed.v1",
				      "--aggregate",
				      "order:ord-ghost",
				      "--sql",
				      "INSERT INTO orders VALUES ('ord-ghost', 'tea', 1)",
				      NULL };
	return semel_demo_run(demo, words, "publish.before-commit:kill", NULL);
}

static semel_status orders_are_placed(struct semel_demo *demo)
{
	semel_demo_step(demo, 1, "The shop takes orders: each with its events, in one transaction");
	semel_status status = semel_demo_place_orders(demo);
	if (status == SEMEL_OK)
		status = show_orders(demo, "orders placed and paid", "");
	if (status == SEMEL_OK)
		status = semel_demo_roll_back_order(demo);
	if (status == SEMEL_OK)
		status = show_orders(demo, "one more, rolled back", ": no trace of it");
	if (status == SEMEL_OK)
		status = kill_shop(demo);
	if (status == SEMEL_OK)
		status =
			show_orders(demo, "one more, killed before its commit", ": no trace of it");
	return status;
}

/* ---- 2: relay -------------------------------------------------------------------------------- */

/* A server is not looked into: what the shop's database says has to do. */
static semel_status show_marks(struct semel_demo *demo, const char *done, bool finished)
{
	int64_t events = 0, published = 0;
	semel_status status = semel_demo_query(demo, EVENTS, &events);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo, PUBLISHED, &published);
	if (status != SEMEL_OK)
		return status;
	semel_demo_fact(done, "%" PRId64 " of %" PRId64 " events marked as sent", published,
			events);
	semel_demo_expect(demo, (published == events) == finished,
			  finished ? "all should be marked" : "some should not be marked yet");
	return SEMEL_OK;
}

static semel_status show_relay(struct semel_demo *demo, const char *done, bool finished)
{
	int64_t events = 0, published = 0, sent = 0, ids = 0;
	if (!demo->broker_file)
		return show_marks(demo, done, finished);
	semel_status status = semel_demo_query(demo, EVENTS, &events);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo, PUBLISHED, &published);
	if (status == SEMEL_OK)
		status = semel_demo_query_broker(demo, SENT, &sent);
	if (status == SEMEL_OK)
		status = semel_demo_query_broker(demo, SENT_IDS, &ids);
	if (status != SEMEL_OK)
		return status;
	if (!finished) {
		semel_demo_fact(done, "broker has %" PRId64 ", marked as sent: %" PRId64, sent,
				published);
		semel_demo_expect(demo, published < sent, "some should be confirmed, not marked");
		return SEMEL_OK;
	}
	semel_demo_fact(done, "broker has %" PRId64 ": all %" PRId64 " events, %" PRId64 " twice",
			sent, ids, sent - ids);
	semel_demo_expect(demo, published == events && ids == events,
			  "all %" PRId64 " events should be sent and marked", events);
	return SEMEL_OK;
}

static semel_status relay_is_killed(struct semel_demo *demo)
{
	semel_demo_step(demo, 2, "The relay carries them to the broker, and is killed on the way");
	semel_demo_command(demo, "semel relay");
	semel_status status = semel_demo_relay(demo, "relay.after-confirm:kill@50");
	if (status == SEMEL_OK)
		status = show_relay(demo, "killed between confirm and mark", false);
	if (status == SEMEL_OK)
		status = semel_demo_relay(demo, NULL);
	return status == SEMEL_OK ? show_relay(demo, "started again", true) : status;
}

/* ---- 3: services ----------------------------------------------------------------------------- */

#define SERVICE_ROW "%-12s %-27s"

static semel_status count_claims(struct semel_demo *demo, const char *scope, int64_t *count_out)
{
	char sql[128];
	snprintf(sql, sizeof sql, "SELECT count(*) FROM semel_inbox WHERE scope = '%s'", scope);
	return semel_demo_query(demo, sql, count_out);
}

static semel_status kill_subscriber(struct semel_demo *demo, int number)
{
	const struct semel_shop_subscription *subscription = &semel_shop_subscriptions[number];
	const struct semel_demo_crash *crash = &semel_demo_crashes[number];
	struct semel_demo_counts answer = { 0 };
	int64_t before = 0;
	semel_status status = semel_demo_consume(demo, subscription, crash->failpoint, NULL);
	if (status == SEMEL_OK)
		status = count_claims(demo, subscription->scope, &before);
	if (status == SEMEL_OK)
		status = semel_demo_consume(demo, subscription, NULL, &answer);
	if (status != SEMEL_OK)
		return status;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 SERVICE_ROW "  %11" PRId64 "  %5" PRId64 "  %7" PRId64 "%s",
			 subscription->scope, crash->killed, before, answer.done, answer.duplicate,
			 answer.dead > 0 ? "  see 5" : "");
	semel_demo_expect(demo, before > 0 && answer.done > 0, "%s should be killed in the middle",
			  subscription->scope);
	return SEMEL_OK;
}

static semel_status services_are_killed(struct semel_demo *demo)
{
	semel_demo_step(demo, 3, "The services take them; each is killed, and started again");
	semel_demo_command(demo, "semel consume --scope billing --topic order.events"
				 " --sql 'INSERT …'");
	semel_demo_print(demo, SEMEL_DEMO_DIM, SERVICE_ROW "  %11s  %5s  %7s", "", "killed",
			 "done before", "after", "skipped");
	semel_status status = SEMEL_OK;
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++)
		status = kill_subscriber(demo, i);
	return status;
}

/* ---- 4: deliveries twice --------------------------------------------------------------------- */

static semel_status show_duplicates(struct semel_demo *demo,
				    const struct semel_shop_subscription *subscription,
				    int64_t replayed)
{
	struct semel_demo_counts answer = { 0 };
	semel_status status = semel_demo_consume(demo, subscription, NULL, &answer);
	if (status != SEMEL_OK)
		return status;
	semel_demo_fact(subscription->scope, "%" PRId64 " new, %" PRId64 " skipped as known",
			answer.done, answer.duplicate);
	semel_demo_expect(demo, answer.done == 0 && answer.duplicate == replayed,
			  "%s should know all %" PRId64, subscription->scope, replayed);
	return SEMEL_OK;
}

static semel_status deliveries_are_doubled(struct semel_demo *demo)
{
	static const char *const words[] = { "replay", "--max", REPLAYED, "--json", NULL };
	struct semel_text answer = { NULL, 0 };
	semel_demo_step(demo, 4, "Deliveries come twice: " REPLAYED " events are sent again");
	semel_demo_command(demo, "semel replay --max " REPLAYED);
	semel_status status = semel_demo_run(demo, words, NULL, &answer);
	if (status != SEMEL_OK)
		return status;
	int64_t replayed = semel_demo_json_number(answer, "replayed");
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++)
		status = show_duplicates(demo, &semel_shop_subscriptions[i], replayed);
	return status;
}

/* ---- 5: poison ------------------------------------------------------------------------------- */

static const char *text_of(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text ? text : "?";
}

static semel_status show_dead_letter(struct semel_demo *demo, json_t *entry)
{
	json_t *event = json_object_get(entry, "eventRecord");
	json_t *payload = json_object_get(event, "payload");
	int64_t reserved = 0;
	semel_demo_fact("which", "%s of %s, for a %s", text_of(entry, "eventType"),
			text_of(event, "aggregateId"), text_of(payload, "product"));
	semel_demo_fact("why", "%s", text_of(entry, "failureReason"));
	semel_demo_fact("waiting behind it", "%" JSON_INTEGER_FORMAT " later event of that order",
			json_integer_value(json_object_get(entry, "parked")));
	semel_status status = semel_demo_query(
		demo, "SELECT count(*) FROM reservation WHERE shipped = 1", &reserved);
	if (status != SEMEL_OK)
		return status;
	semel_demo_fact("the other orders", "%" PRId64 " reserved and shipped: none waited",
			reserved);
	semel_demo_expect(demo, reserved == SEMEL_DEMO_ORDERS - 1,
			  "all orders but one should be shipped");
	return SEMEL_OK;
}

static semel_status replay_dead_letter(struct semel_demo *demo, const char *entry_id)
{
	const char *const words[] = { "dlq", "replay", entry_id, NULL };
	struct semel_demo_counts answer = { 0 };
	int64_t shipped = 0;
	semel_status status = semel_demo_restock(demo);
	if (status == SEMEL_OK)
		status = semel_demo_run(demo, words, NULL, NULL);
	if (status == SEMEL_OK)
		status = semel_demo_consume(demo, &semel_shop_subscriptions[SEMEL_SHOP_FULFILLMENT],
					    NULL, &answer);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo,
					  "SELECT count(*) FROM reservation"
					  " WHERE product = 'samovar' AND shipped = 1",
					  &shipped);
	if (status != SEMEL_OK)
		return status;
	semel_demo_command(demo, "semel dlq replay %s", entry_id);
	semel_demo_fact("samovars in stock, letter replayed",
			"%" PRId64 " done: reserved, then shipped, in order", answer.done);
	semel_demo_expect(demo, answer.done == 2 && shipped == 1,
			  "the poisoned order should be reserved and shipped now");
	return SEMEL_OK;
}

static semel_status an_order_is_poisoned(struct semel_demo *demo)
{
	static const char *const words[] = { "dlq", "list", "--json", NULL };
	struct semel_text answer = { NULL, 0 };
	semel_demo_step(demo, 5, "One order is poisoned: fulfillment has never heard of samovars");
	semel_status status = semel_demo_run(demo, words, NULL, &answer);
	if (status != SEMEL_OK)
		return status;
	json_t *entries = json_loadb(semel_text_chars(answer), answer.length, 0, NULL);
	json_t *entry = json_array_get(entries, 0);
	semel_demo_expect(demo, json_array_size(entries) == 1, "there should be one dead letter");
	semel_demo_command(demo, "semel dlq show %s", text_of(entry, "dlqEntryId"));
	status = show_dead_letter(demo, entry);
	if (status == SEMEL_OK)
		status = replay_dead_letter(demo, text_of(entry, "dlqEntryId"));
	json_decref(entries);
	return status;
}

/* ---- 6: the sum ------------------------------------------------------------------------------ */

/* A table of the shop: how many rows, and how many of them are as they should be. */
struct ledger {
	const char *name, *count, *right, *meaning;
};

static const struct ledger ledgers[] = {
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

static semel_status show_ledger(struct semel_demo *demo, const struct ledger *ledger,
				int64_t orders)
{
	int64_t rows = 0, right = 0;
	semel_status status = semel_demo_query(demo, ledger->count, &rows);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo, ledger->right, &right);
	if (status != SEMEL_OK)
		return status;
	char meaning[96] = "";
	if (ledger->meaning)
		snprintf(meaning, sizeof meaning, "   %" PRId64 " %s", right, ledger->meaning);
	semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%s %-12s %3" PRId64 "%s",
			 ledger->meaning ? "=" : " ", ledger->name, rows, meaning);
	semel_demo_expect(demo, rows == orders && right == orders, "%s should be %" PRId64,
			  ledger->name, orders);
	return SEMEL_OK;
}

static semel_status show_sendings(struct semel_demo *demo)
{
	int64_t events = 0, sent = 0, often = 0;
	semel_status status = semel_demo_query(demo, EVENTS, &events);
	if (status == SEMEL_OK)
		status = semel_demo_query_broker(demo, SENT, &sent);
	if (status == SEMEL_OK)
		status = semel_demo_query_broker(
			demo,
			"SELECT max(n) FROM"
			" (SELECT count(*) AS n FROM semel_log GROUP BY id)",
			&often);
	if (status != SEMEL_OK)
		return status;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%" PRId64 " events were sent %" PRId64 " times, up to %" PRId64
			 " times each",
			 events, sent, often);
	return SEMEL_OK;
}

static semel_status show_deliveries(struct semel_demo *demo)
{
	semel_status status = demo->broker_file ? show_sendings(demo) : SEMEL_OK;
	if (status != SEMEL_OK)
		return status;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%" PRId64 " processes were killed",
			 demo->crashes);
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%" PRId64
			 " deliveries were skipped: the subscription had done them before\n",
			 demo->duplicates);
	return SEMEL_OK;
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

static semel_status verify(struct semel_demo *demo)
{
	static const char *const words[] = { "verify", "--json", NULL };
	struct semel_text answer = { NULL, 0 };
	printf("\n");
	semel_demo_command(demo, "semel verify");
	semel_status status = semel_demo_run(demo, words, NULL, &answer);
	if (status != SEMEL_OK)
		return status;
	json_t *report = json_loadb(semel_text_chars(answer), answer.length, 0, NULL);
	json_t *scope;
	size_t at;
	semel_demo_print(demo, SEMEL_DEMO_PLAIN,
			 "%-12s %" JSON_INTEGER_FORMAT " committed, %" JSON_INTEGER_FORMAT
			 " published",
			 "outbox", json_integer_value(json_object_get(report, "committed")),
			 json_integer_value(json_object_get(report, "published")));
	json_array_foreach(json_object_get(report, "scopes"), at, scope) show_scope(demo, scope);
	semel_demo_expect(demo, json_is_true(json_object_get(report, "ok")),
			  "not every committed event is accounted for");
	json_decref(report);
	return SEMEL_OK;
}

static semel_status all_adds_up(struct semel_demo *demo)
{
	int64_t orders = 0;
	semel_demo_step(demo, 6, "The sum of it");
	semel_status status = show_deliveries(demo);
	if (status == SEMEL_OK)
		status = semel_demo_query(demo, ORDERS, &orders);
	for (size_t i = 0; i < sizeof ledgers / sizeof *ledgers && status == SEMEL_OK; i++)
		status = show_ledger(demo, &ledgers[i], orders);
	return status == SEMEL_OK ? verify(demo) : status;
}

semel_status semel_demo_run_steps(struct semel_demo *demo)
{
	static semel_status (*const steps[])(struct semel_demo * demo) = {
		orders_are_placed,      relay_is_killed,      services_are_killed,
		deliveries_are_doubled, an_order_is_poisoned, all_adds_up,
	};
	semel_demo_print_overview(demo);
	semel_status status = semel_demo_open_shop(demo);
	for (size_t i = 0; i < sizeof steps / sizeof *steps && status == SEMEL_OK; i++) {
		status = semel_sandbox_check(&demo->sandbox, demo->error);
		if (status == SEMEL_OK)
			status = steps[i](demo);
	}
	if (status != SEMEL_OK)
		return status;
	printf("\n");
	if (demo->failed) {
		semel_demo_print(demo, SEMEL_DEMO_BAD, "Something does not add up: see above.");
		return SEMEL_PROBLEM_FOUND;
	}
	semel_demo_print(demo, SEMEL_DEMO_GOOD,
			 "Every committed event is accounted for: none lost, none done twice.");
	return SEMEL_OK;
}
