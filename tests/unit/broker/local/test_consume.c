/* SPDX-License-Identifier: Apache-2.0 */
/* Consuming from the local broker: what only this one promises. */
#include "broker/local/local.h"
#include "contract/broker_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char url[256];

static int make_folder(void **state)
{
	(void)state;
	steps_follow_env(true);
	steps_folder_make("?busy-timeout=20", url, sizeof(url));
	return 0;
}

static int drop_folder(void **state)
{
	(void)state;
	steps_folder_drop();
	return 0;
}

static struct semel_broker *open_subscribed(int64_t lease_ms)
{
	struct semel_broker *broker = steps_open(url);
	steps_subscribe(broker,
			(struct steps_subscription){ .scope = "billing", .lease_ms = lease_ms });
	return broker;
}

static void publish_events(const char *aggregate, int first, int last)
{
	struct semel_broker *broker = steps_open(url);
	steps_publish(broker, aggregate, first, last);
	semel_broker_close(broker);
}

static sqlite3 *open_by_hand(void)
{
	sqlite3 *db = NULL;
	assert_int_equal(sqlite3_open(steps_file(), &db), SQLITE_OK);
	return db;
}

static void run_by_hand(const char *sql)
{
	sqlite3 *db = open_by_hand();
	char *message = NULL;
	if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
		fail_msg("%s", message);
	sqlite3_close(db);
}

static void an_entry_written_by_hand_is_delivered_as_it_is(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed(0);
	struct steps_batch *batch = steps_batch_new();
	run_by_hand("INSERT INTO semel_log (position, payload) "
		    "SELECT (number << 50) | (3 << 44) | next, 'raw' "
		    "FROM semel_topic, semel_offset; UPDATE semel_offset SET next = next + 1");
	assert_int_equal(steps_backlog(broker, "billing").waiting, 1);
	steps_fetch_all(broker, 1, batch);
	const struct semel_event *event = &batch->deliveries[0].event;
	assert_null(event->id.data);
	assert_null(event->aggregate_id.data);
	assert_string_equal(event->headers.data, "{}");
	assert_string_equal(event->payload.data, "raw");
	assert_string_equal(event->topic.data, STEPS_TOPIC);
	steps_ack(broker, batch);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	publish_events("a", 1, 2); /* and the counters are right again */
	assert_int_equal(steps_backlog(broker, "billing").waiting, 2);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static semel_status subscribe_in_total_order(const char *parameters)
{
	char text[512];
	snprintf(text, sizeof(text), "%s%s", url, parameters);
	static const char *const topics[] = { STEPS_TOPIC, NULL };
	const struct semel_subscribe_options options = { .scope = "ledger",
							 .topics = topics,
							 .prefetch = 10,
							 .lease_ms = 1000,
							 .total_order = true };
	semel_error error = { 0 };
	struct semel_broker *broker = steps_open(text);
	semel_status status = broker->driver->subscribe(broker, &options, &error);
	semel_broker_close(broker);
	return status;
}

static void a_total_order_needs_one_partition(void **state)
{
	(void)state;
	assert_int_equal(subscribe_in_total_order("&partitions=2"), SEMEL_CONFIG);
	assert_int_equal(subscribe_in_total_order(""), SEMEL_OK); /* a new topic gets one */
	struct steps_batch *batch = steps_batch_new();
	struct semel_broker *broker = open_subscribed(0);
	for (int i = 1; i <= 5; i++)
		for (char aggregate[] = "a"; aggregate[0] <= 'e'; aggregate[0]++)
			publish_events(aggregate, i, i);
	steps_fetch_all(broker, 25, batch);
	for (uint32_t i = 1; i < 25; i++)
		assert_true(batch->deliveries[i - 1].offset < batch->deliveries[i].offset);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void a_total_order_is_refused_on_a_topic_that_is_spread(void **state)
{
	(void)state;
	publish_events("a", 1, 1);
	assert_int_equal(subscribe_in_total_order(""), SEMEL_CONFIG);
}

static void a_busy_partition_does_not_starve_the_others(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed(0);
	struct steps_batch *batch = steps_batch_new();
	publish_events("busy", 1, 500);
	for (char aggregate[] = "a"; aggregate[0] <= 't'; aggregate[0]++)
		publish_events(aggregate, 1, 1);
	steps_fetch(broker, 100, batch);
	assert_int_equal(batch->count, 100);
	uint32_t others = 0;
	for (char aggregate[] = "a"; aggregate[0] <= 't'; aggregate[0]++)
		others += steps_count(batch, aggregate, 1);
	assert_true(others >= 12); /* all but those behind the busy one */
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void a_fetch_is_bounded_by_bytes(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed(0);
	struct steps_batch *batch = steps_batch_new();
	struct steps_event events[8];
	const size_t size = (size_t)2 * 1024 * 1024;
	char *large = malloc(size + 1);
	assert_non_null(large);
	memset(large, 'x', size);
	large[size] = '\0';
	for (int i = 0; i < 8; i++) {
		steps_event_make(&events[i], "a", i + 1);
		events[i].event.payload = semel_text_of(large);
		steps_offer(broker, &events[i]);
	}
	steps_confirm(broker, events, 8);
	assert_in_range(steps_fetch(broker, 100, batch), 1, 3);
	steps_fetch_all(broker, 8, batch);
	free(large);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void an_ack_on_a_locked_file_can_be_repeated(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed(0);
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	semel_error error = { 0 };
	publish_events("a", 1, 5);
	steps_event_make(&event, "b", 1);
	steps_requeue(broker, "billing", &event, 0);
	steps_fetch_all(broker, 6, batch);
	sqlite3 *other = open_by_hand();
	sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	assert_int_equal(broker->driver->ack(broker, batch->deliveries, 6, &error), SEMEL_BUSY);
	sqlite3_exec(other, "COMMIT", NULL, NULL, NULL);
	sqlite3_close(other);
	steps_ack(broker, batch);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	steps_batch_free(batch);
	semel_broker_close(broker);
	steps_consume(url, "billing", 0);
}

static void acks_behind_a_gap_wait_for_it(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed(0);
	struct steps_batch *batch = steps_batch_new();
	semel_error error = { 0 };
	publish_events("a", 1, 5);
	steps_fetch_all(broker, 5, batch);
	assert_int_equal(broker->driver->ack(broker, batch->deliveries + 1, 4, &error), SEMEL_OK);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 5);
	assert_int_equal(broker->driver->ack(broker, batch->deliveries, 1, &error), SEMEL_OK);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	assert_int_equal(broker->driver->ack(broker, batch->deliveries, 5, &error),
			 SEMEL_OK); /* settled already */
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void fetching_keeps_the_lease_alive(void **state)
{
	(void)state;
	struct semel_broker *holder = open_subscribed(90000), *other = open_subscribed(90000);
	struct steps_batch *batch = steps_batch_new();
	struct semel_arena *arena = semel_arena_new(1024);
	semel_error error = { 0 };
	uint32_t count = 0;
	publish_events("a", 1, 5);
	steps_fetch_all(holder, 5, batch);
	for (int i = 0; i < 10; i++) {
		steps_pass(30000);
		assert_int_equal(holder->driver->fetch(holder, 0, arena, NULL, &count, &error),
				 SEMEL_OK);
		steps_fetch_nothing(other);
	}
	steps_ack(holder, batch);
	semel_arena_free(arena);
	steps_batch_free(batch);
	semel_broker_close(holder);
	semel_broker_close(other);
}

static void a_consumer_that_was_given_up_may_come_back(void **state)
{
	(void)state;
	struct semel_broker *paused = open_subscribed(60000), *other = open_subscribed(60000);
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 3);
	steps_fetch_all(paused, 3, batch);
	steps_pass(60000);
	batch->count = 0;
	steps_fetch_all(other, 3, batch);
	steps_ack(other, batch);
	steps_fetch_nothing(paused); /* notices, and is a member again */
	semel_broker_close(other);
	publish_events("a", 4, 6);
	batch->count = 0;
	steps_pass(100);
	steps_fetch_all(paused, 3, batch);
	steps_assert_order(batch, 4);
	steps_ack(paused, batch);
	steps_batch_free(batch);
	semel_broker_close(paused);
}

static semel_status subscribe_topics(struct semel_broker *broker, const char *first,
				     const char *second)
{
	const char *const topics[] = { first, second, NULL };
	const struct semel_subscribe_options options = {
		.scope = "billing", .topics = topics, .prefetch = 100, .lease_ms = 60000
	};
	semel_error error = { 0 };
	return broker->driver->subscribe(broker, &options, &error);
}

static void publish_to(const char *topic, int number)
{
	struct semel_broker *broker = steps_open(url);
	struct steps_event event;
	steps_event_make(&event, "a", number);
	event.event.topic = semel_text_of(topic);
	steps_offer(broker, &event);
	steps_confirm(broker, &event, 1);
	semel_broker_close(broker);
}

/* A scope is a service; its instances need not all read the same topics. */
static void consumers_of_one_scope_may_read_different_topics(void **state)
{
	(void)state;
	struct semel_broker *orders = steps_open(url), *payments = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	assert_int_equal(subscribe_topics(orders, "orders", "orders"), SEMEL_OK);
	assert_int_equal(subscribe_topics(payments, "payments", NULL), SEMEL_OK);
	for (int i = 1; i <= 8; i++) {
		publish_to("orders", i);
		publish_to("payments", i);
	}
	steps_fetch_all(orders, 8, batch);
	steps_fetch_all(payments, 16, batch);
	for (uint32_t i = 0; i < 16; i++)
		assert_string_equal(batch->deliveries[i].event.topic.data,
				    i < 8 ? "orders" : "payments");
	steps_batch_free(batch);
	semel_broker_close(orders);
	semel_broker_close(payments);
}

static void a_subscription_needs_scope_topic_prefetch_and_lease(void **state)
{
	(void)state;
	static const char *const topics[] = { STEPS_TOPIC, NULL }, *const none[] = { NULL };
	const struct semel_subscribe_options wrong[] = {
		{ .scope = " ", .topics = topics, .prefetch = 1, .lease_ms = 1 },
		{ .scope = "s", .topics = none, .prefetch = 1, .lease_ms = 1 },
		{ .scope = "s", .topics = topics, .prefetch = 0, .lease_ms = 1 },
		{ .scope = "s", .topics = topics, .prefetch = 1, .lease_ms = 0 },
	};
	struct semel_broker *broker = steps_open(url);
	semel_error error = { 0 };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(broker->driver->subscribe(broker, &wrong[i], &error),
				 SEMEL_INVALID);
	semel_broker_close(broker);
}

/* ---- retention ------------------------------------------------------------------------------ */

static uint64_t prune(int64_t before_ms, bool dry_run)
{
	struct semel_broker *broker = steps_open(url);
	semel_error error = { 0 };
	uint64_t count = 0;
	assert_int_equal(broker->driver->prune(broker, before_ms, dry_run, &count, &error),
			 SEMEL_OK);
	semel_broker_close(broker);
	return count;
}

static void prune_removes_what_all_have_settled_and_is_old(void **state)
{
	(void)state;
	publish_events("a", 1, 10);
	steps_pass(1000);
	int64_t middle_ms = semel_now_ms(steps_env());
	steps_pass(1000);
	publish_events("a", 11, 20);
	steps_consume(url, "billing", 20);
	struct semel_broker *slow = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	steps_subscribe(slow, (struct steps_subscription){ .scope = "slow" });
	steps_fetch_all(slow, 4, batch);
	steps_ack(slow, batch);
	semel_broker_close(slow);

	assert_int_equal(prune(middle_ms, true), 4);
	assert_int_equal(prune(middle_ms, false), 4);
	assert_int_equal(prune(middle_ms, false), 0);
	steps_consume(url, "slow", 16);
	assert_int_equal(prune(middle_ms, false), 6); /* the rest is not old enough */

	slow = steps_open(url);
	assert_int_equal(steps_backlog(slow, "new").waiting, 10);
	assert_int_equal(steps_backlog(slow, "billing").waiting, 0);
	semel_broker_close(slow);
	steps_consume(url, "new", 10);
	steps_batch_free(batch);
}

static void prune_goes_by_age_without_a_subscription(void **state)
{
	(void)state;
	publish_events("a", 1, 10);
	assert_int_equal(prune(semel_now_ms(steps_env()) - 60000, false), 0);
	steps_pass(1000);
	assert_int_equal(prune(semel_now_ms(steps_env()), false), 10);
	publish_events("a", 11, 12);
	steps_consume(url, "billing", 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_entry_written_by_hand_is_delivered_as_it_is),
		TEST(a_total_order_needs_one_partition),
		TEST(a_total_order_is_refused_on_a_topic_that_is_spread),
		TEST(a_busy_partition_does_not_starve_the_others),
		TEST(a_fetch_is_bounded_by_bytes),
		TEST(an_ack_on_a_locked_file_can_be_repeated),
		TEST(acks_behind_a_gap_wait_for_it),
		TEST(fetching_keeps_the_lease_alive),
		TEST(a_consumer_that_was_given_up_may_come_back),
		TEST(consumers_of_one_scope_may_read_different_topics),
		TEST(a_subscription_needs_scope_topic_prefetch_and_lease),
		TEST(prune_removes_what_all_have_settled_and_is_old),
		TEST(prune_goes_by_age_without_a_subscription),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
