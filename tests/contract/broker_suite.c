/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a broker, in sentences. */
#include "contract/broker_suite.h"

#include "contract/broker_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct broker_suite_factory *suite;
static char url[BROKER_SUITE_URL_SIZE];

static void subscribe_before(const char *scope)
{
	struct semel_broker *broker = steps_open(url);
	steps_subscribe(broker, (struct steps_subscription){ .scope = scope });
	semel_broker_close(broker);
}

static int make_broker(void **state)
{
	(void)state;
	steps_follow_env(suite->follows_env);
	suite->make(url);
	if (suite->forgets_unread)
		subscribe_before("billing");
	return 0;
}

static int make_broker_with_audit(void **state)
{
	make_broker(state);
	if (suite->forgets_unread)
		subscribe_before("audit");
	return 0;
}

static int drop_broker(void **state)
{
	(void)state;
	suite->drop();
	return 0;
}

static struct semel_broker *open_subscribed(const char *scope)
{
	struct semel_broker *broker = steps_open(url);
	steps_subscribe(broker, (struct steps_subscription){ .scope = scope });
	return broker;
}

static void publish_events(const char *aggregate, int first, int last)
{
	struct semel_broker *broker = steps_open(url);
	steps_publish(broker, aggregate, first, last);
	semel_broker_close(broker);
}

/* ---- publishing ----------------------------------------------------------------------------- */

static void what_is_confirmed_is_delivered_once(void **state)
{
	(void)state;
	struct semel_broker *consumer = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 100);
	publish_events("b", 1, 100);
	steps_fetch_all(consumer, 200, batch);
	steps_fetch_nothing(consumer);
	steps_ack(consumer, batch);
	for (int i = 1; i <= 100; i++) {
		assert_int_equal(steps_count(batch, "a", i), 1);
		assert_int_equal(steps_count(batch, "b", i), 1);
	}
	semel_broker_close(consumer);

	consumer = open_subscribed("billing");
	steps_fetch_nothing(consumer);
	semel_broker_close(consumer);
	steps_batch_free(batch);
}

static void the_window_is_full_after_as_many_events_as_it_holds(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	struct steps_event events[STEPS_WINDOW + 1];
	semel_error error;
	for (int i = 0; i <= STEPS_WINDOW; i++)
		steps_event_make(&events[i], "a", i + 1);
	for (int i = 0; i < STEPS_WINDOW; i++)
		steps_offer(broker, &events[i]);
	assert_int_equal(broker->driver->publish(broker, &events[STEPS_WINDOW].event,
						 &events[STEPS_WINDOW].metadata,
						 &events[STEPS_WINDOW], &error),
			 SEMEL_FULL);
	steps_confirm(broker, events, STEPS_WINDOW);
	steps_offer(broker, &events[STEPS_WINDOW]);
	steps_confirm(broker, events, STEPS_WINDOW + 1);
	semel_broker_close(broker);
	steps_consume(url, "billing", STEPS_WINDOW + 1);
}

static void a_refused_event_holds_later_ones_of_its_aggregate(void **state)
{
	(void)state;
	if (suite->refused_payload_size == 0)
		STEPS_SKIP("this broker takes an event of any size");
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event events[4];
	char *large = malloc(suite->refused_payload_size + 1);
	assert_non_null(large);
	memset(large, '1', suite->refused_payload_size);
	large[suite->refused_payload_size] = '\0';
	steps_event_make(&events[0], "a", 1);
	steps_event_make(&events[1], "a", 2);
	steps_event_make(&events[2], "b", 1);
	steps_event_make(&events[3], "a", 3);
	events[1].event.payload = semel_text_of(large);
	for (int i = 0; i < 4; i++)
		steps_offer(broker, &events[i]);
	steps_confirm(broker, events, 4);
	assert_int_equal(events[0].status, SEMEL_OK);
	assert_int_equal(events[1].status, SEMEL_TOO_LARGE);
	assert_string_not_equal(events[1].reason, "");
	assert_int_equal(events[2].status, SEMEL_OK);
	assert_int_equal(events[3].status, SEMEL_HELD);
	assert_string_not_equal(events[3].reason, "");

	steps_fetch_all(broker, 2, batch);
	steps_fetch_nothing(broker);
	assert_int_equal(steps_count(batch, "a", 1), 1);
	assert_int_equal(steps_count(batch, "b", 1), 1);
	free(large);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void a_reopened_broker_still_has_everything(void **state)
{
	(void)state;
	for (int i = 1; i <= 5; i++)
		publish_events("a", i, i);
	steps_consume(url, "billing", 5);
	publish_events("a", 6, 6);
	steps_consume(url, "billing", 1);
}

static void every_field_travels_unchanged(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event sent;
	const char headers[] = "{\"correlationId\":\"c\",  \"\\u00e4\":\"\xc3\xa4 \\u0001\"}";
	const char payload[] = "\x00\xff\xfe{\n\x00";
	steps_event_make(&sent, "a", 1);
	sent.event.type = SEMEL_TEXT("order.paid.v2");
	sent.event.routing_key = SEMEL_TEXT("orders.eu");
	sent.event.content_type = SEMEL_TEXT("application/octet-stream");
	sent.event.headers = semel_text_from(headers, sizeof(headers) - 1);
	sent.event.payload = semel_text_from(payload, sizeof(payload) - 1);
	sent.event.time_ms = -62135596800000; /* the year 1 */
	sent.metadata = (struct semel_publish_metadata){ .previous = SEMEL_TEXT("a-0"),
							 .attempt = 3,
							 .replay = 2 };
	steps_offer(broker, &sent);
	steps_confirm(broker, &sent, 1);
	steps_fetch_all(broker, 1, batch);
	const struct semel_event *got = &batch->deliveries[0].event;
	const struct semel_publish_metadata *metadata = &batch->deliveries[0].metadata;
	steps_assert_same(got->id, sent.event.id);
	steps_assert_same(got->type, sent.event.type);
	steps_assert_same(got->aggregate_type, sent.event.aggregate_type);
	steps_assert_same(got->aggregate_id, sent.event.aggregate_id);
	steps_assert_same(got->topic, sent.event.topic);
	steps_assert_same(got->routing_key, sent.event.routing_key);
	steps_assert_same(got->content_type, sent.event.content_type);
	steps_assert_members(got->headers, sent.event.headers);
	steps_assert_same(got->payload, sent.event.payload);
	assert_int_equal(got->time_ms, sent.event.time_ms);
	steps_assert_same(metadata->previous, sent.metadata.previous);
	assert_int_equal(metadata->attempt, 3);
	assert_int_equal(metadata->replay, 2);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void an_empty_payload_stays_empty(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event sent;
	steps_event_make(&sent, "a", 1);
	sent.event.payload = SEMEL_TEXT("");
	steps_offer(broker, &sent);
	steps_confirm(broker, &sent, 1);
	steps_fetch_all(broker, 1, batch);
	assert_non_null(batch->deliveries[0].event.payload.data);
	assert_int_equal(batch->deliveries[0].event.payload.length, 0);
	assert_null(batch->deliveries[0].metadata.previous.data);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

/* ---- subscriptions -------------------------------------------------------------------------- */

static void two_scopes_each_get_everything(void **state)
{
	(void)state;
	publish_events("a", 1, 50);
	steps_consume(url, "billing", 50);
	steps_consume(url, "audit", 50);
	steps_consume(url, "billing", 0);
}

static void a_subscription_made_later_starts_at_the_beginning(void **state)
{
	(void)state;
	if (suite->forgets_unread)
		STEPS_SKIP("this broker keeps nothing for a subscription that is not there yet");
	publish_events("a", 1, 10);
	steps_consume(url, "billing", 10);
	publish_events("a", 11, 20);
	steps_consume(url, "audit", 20);
}

static void a_subscription_from_latest_starts_at_the_end(void **state)
{
	(void)state;
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 10);
	struct semel_broker *broker = steps_open(url);
	steps_subscribe(broker,
			(struct steps_subscription){ .scope = "late", .from_latest = true });
	steps_fetch_nothing(broker);
	assert_int_equal(steps_backlog(broker, "late").waiting, 0);
	publish_events("a", 11, 12);
	steps_fetch_all(broker, 2, batch);
	steps_assert_order(batch, 11);
	semel_broker_close(broker);

	/* It counts only when the subscription is new. */
	broker = steps_open(url);
	batch->count = 0;
	steps_subscribe(broker,
			(struct steps_subscription){ .scope = "late", .from_latest = true });
	steps_fetch_all(broker, 2, batch);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void events_of_an_aggregate_keep_their_order(void **state)
{
	(void)state;
	struct semel_broker *publisher = steps_open(url), *consumer = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	for (int number = 1; number <= 30; number++)
		for (char aggregate[] = "a"; aggregate[0] <= 't'; aggregate[0]++)
			steps_publish(publisher, aggregate, number, number);
	for (uint32_t size = 1; batch->count < 600; size++)
		steps_fetch(consumer, size > 600 - batch->count ? 600 - batch->count : size, batch);
	steps_assert_order(batch, 1);
	steps_batch_free(batch);
	semel_broker_close(consumer);
	semel_broker_close(publisher);
}

static void no_more_than_prefetch_is_in_flight(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 30);
	publish_events("b", 1, 30);
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing", .prefetch = 10 });
	steps_fetch_all(broker, 10, batch);
	steps_fetch_nothing(broker);
	steps_ack(broker, batch);
	batch->count = 0;
	steps_fetch_all(broker, 10, batch);
	steps_fetch_nothing(broker);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void acks_in_any_order_settle_all(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 200);
	publish_events("b", 1, 200);
	steps_fetch_all(broker, 400, batch);
	for (uint32_t i = 0; i < 400; i++) /* 7 and 400 have no common divisor */
		steps_ack_some(broker, &batch->deliveries[i * 7 % 400], 1);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	steps_batch_free(batch);
	semel_broker_close(broker);
	steps_consume(url, "billing", 0);
}

/* ---- what is not acked comes again ---------------------------------------------------------- */

static void unacked_deliveries_come_again_after_rewind(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	semel_error error = { 0 };
	publish_events("a", 1, 10);
	steps_fetch_all(broker, 10, batch);
	assert_false(batch->deliveries[0].redelivered);
	batch->count = 4; /* so many are acked */
	steps_ack(broker, batch);
	assert_int_equal(broker->driver->rewind(broker, &error), SEMEL_OK);
	batch->count = 0;
	steps_fetch_all(broker, 6, batch);
	steps_assert_order(batch, 5);
	assert_true(batch->deliveries[0].redelivered);
	steps_fetch_nothing(broker);
	steps_ack(broker, batch);
	steps_batch_free(batch);
	semel_broker_close(broker);
	steps_consume(url, "billing", 0);
}

static void unacked_deliveries_come_to_another_consumer_after_close(void **state)
{
	(void)state;
	struct semel_broker *first = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	publish_events("a", 1, 10);
	steps_fetch_all(first, 10, batch);
	semel_broker_close(first);

	struct semel_broker *second = open_subscribed("billing");
	batch->count = 0;
	steps_fetch_all(second, 10, batch);
	steps_assert_order(batch, 1);
	assert_int_equal(batch->deliveries[0].redelivered, !suite->forgets_deliveries);
	steps_batch_free(batch);
	semel_broker_close(second);
}

/* ---- retries and replays -------------------------------------------------------------------- */

static void a_delayed_event_comes_when_it_is_due_and_not_before(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	steps_event_make(&event, "a", 1);
	event.metadata = (struct semel_publish_metadata){ .attempt = 4, .replay = 1 };
	int64_t due_ms = semel_steady_ms(steps_env()) + 3000;
	steps_requeue(broker, "billing", &event, 3000);
	while (batch->count == 0 && semel_steady_ms(steps_env()) < due_ms)
		if (steps_fetch(broker, 1, batch) == 0)
			steps_pass(100);
	assert_true(semel_steady_ms(steps_env()) >= due_ms);
	steps_fetch_all(broker, 1, batch);
	steps_fetch_nothing(broker);
	steps_assert_same(batch->deliveries[0].event.id, event.event.id);
	steps_assert_same(batch->deliveries[0].event.topic, event.event.topic);
	assert_int_equal(batch->deliveries[0].metadata.attempt, 4);
	assert_int_equal(batch->deliveries[0].metadata.replay, 1);
	steps_ack(broker, batch);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	steps_batch_free(batch);
	semel_broker_close(broker);
	steps_consume(url, "billing", 0);
}

static void a_requeued_event_goes_to_its_scope_only(void **state)
{
	(void)state;
	struct semel_broker *billing = open_subscribed("billing"),
			    *audit = open_subscribed("audit");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	steps_event_make(&event, "a", 1);
	steps_requeue(audit, "billing", &event, 0);
	steps_fetch_all(billing, 1, batch);
	steps_fetch_nothing(audit);
	steps_batch_free(batch);
	semel_broker_close(billing);
	semel_broker_close(audit);
}

static void a_requeued_event_that_is_not_acked_comes_again(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	semel_error error = { 0 };
	steps_event_make(&event, "a", 1);
	steps_requeue(broker, "billing", &event, 0);
	steps_fetch_all(broker, 1, batch);
	assert_int_equal(broker->driver->rewind(broker, &error), SEMEL_OK);
	batch->count = 0;
	steps_fetch_all(broker, 1, batch);
	assert_true(batch->deliveries[0].redelivered);
	semel_broker_close(broker);

	broker = open_subscribed("billing");
	batch->count = 0;
	steps_fetch_all(broker, 1, batch);
	steps_ack(broker, batch);
	steps_batch_free(batch);
	semel_broker_close(broker);
	steps_consume(url, "billing", 0);
}

static void requeue_needs_neither_topic_nor_subscription(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	struct steps_event event;
	steps_event_make(&event, "a", 1);
	steps_requeue(broker, "billing", &event, 0);
	steps_publish(broker, "b", 1, 3);
	semel_broker_close(broker);
	steps_consume(url, "billing", 4); /* and it starts at the beginning */
}

static void a_broken_event_can_be_requeued(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	steps_event_make(&event, "a", 1);
	event.event.id = event.event.aggregate_type = (struct semel_text){ NULL, 0 };
	event.event.aggregate_id = event.event.type = (struct semel_text){ NULL, 0 };
	event.event.payload = SEMEL_TEXT("no json");
	steps_requeue(broker, "billing", &event, 0);
	steps_fetch_all(broker, 1, batch);
	assert_null(batch->deliveries[0].event.id.data);
	steps_assert_same(batch->deliveries[0].event.payload, SEMEL_TEXT("no json"));
	steps_batch_free(batch);
	semel_broker_close(broker);
}

/* ---- inspecting ----------------------------------------------------------------------------- */

static void the_backlog_counts_what_is_not_settled(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	publish_events("a", 1, 10);
	publish_events("b", 1, 10);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 20);
	assert_int_equal(steps_backlog(broker, "billing").next_due_ms, 0);
	steps_fetch_all(broker, 20, batch);
	assert_int_equal(steps_backlog(broker, "billing").waiting, 20);
	steps_ack(broker, batch);
	steps_event_make(&event, "c", 1);
	int64_t before_ms = semel_now_ms(steps_env());
	steps_requeue(broker, "billing", &event, 60000);
	struct semel_backlog backlog = steps_backlog(broker, "billing");
	assert_int_equal(backlog.waiting, 1);
	assert_int_equal(backlog.delayed, 1);
	assert_in_range(backlog.next_due_ms, before_ms + 60000, before_ms + 70000);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void find_reports_whether_an_event_waits(void **state)
{
	(void)state;
	struct semel_broker *broker = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	semel_error error = { 0 };
	bool waiting = true;
	assert_int_equal(broker->driver->find_event(broker, "billing", steps_topics(), "a-1",
						    &waiting, &error),
			 SEMEL_OK);
	assert_false(waiting);
	publish_events("a", 1, 2);
	assert_int_equal(broker->driver->find_event(broker, "billing", steps_topics(), "a-2",
						    &waiting, &error),
			 SEMEL_OK);
	assert_true(waiting);
	steps_fetch_all(broker, 2, batch);
	steps_ack(broker, batch);
	assert_int_equal(broker->driver->find_event(broker, "billing", steps_topics(), "a-2",
						    &waiting, &error),
			 SEMEL_OK);
	assert_false(waiting);
	steps_event_make(&event, "a", 2);
	steps_requeue(broker, "billing", &event, 60000);
	assert_int_equal(broker->driver->find_event(broker, "billing", steps_topics(), "a-2",
						    &waiting, &error),
			 SEMEL_OK);
	assert_true(waiting);
	assert_int_equal(broker->driver->find_event(broker, "audit", steps_topics(), "a-2",
						    &waiting, &error),
			 SEMEL_OK);
	assert_false(waiting);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

/* ---- several consumers ---------------------------------------------------------------------- */

#define TURNS_MAX 1000 /* a minute of real time: shares may have to be made anew meanwhile */

/* One event for each of twenty aggregates. */
static void publish_round(struct semel_broker *broker, int number)
{
	for (char aggregate[] = "a"; aggregate[0] <= 't'; aggregate[0]++)
		steps_publish(broker, aggregate, number, number);
}

static void ack_last(struct semel_broker *broker, const struct steps_batch *batch, uint32_t count)
{
	steps_ack_some(broker, batch->deliveries + batch->count - count, count);
}

static uint32_t fetch_and_ack(struct semel_broker *broker, struct steps_batch *batch)
{
	uint32_t count = steps_fetch(broker, 100, batch);
	ack_last(broker, batch, count);
	return count;
}

static void two_consumers_of_a_scope_share_the_work(void **state)
{
	(void)state;
	if (suite->stands_by)
		STEPS_SKIP(
			"of one queue one consumer is active; the suite runs with partitions too");
	struct semel_broker *publisher = steps_open(url);
	struct semel_broker *first = open_subscribed("billing"),
			    *second = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	bool shared = false;
	int rounds = 0;
	while (!shared) {
		uint32_t by_first = 0, by_second = 0;
		assert_true(rounds < 100); /* or the second one gets nothing */
		publish_round(publisher, ++rounds);
		for (int turn = 0; turn < TURNS_MAX && by_first + by_second < 20; turn++) {
			by_first += fetch_and_ack(first, batch);
			by_second += fetch_and_ack(second, batch);
			steps_pass(60);
		}
		assert_int_equal(by_first + by_second, 20); /* all, and none to both */
		shared = by_first > 0 && by_second > 0;
	}
	steps_assert_order(batch, 1);
	steps_batch_free(batch);
	semel_broker_close(first);
	semel_broker_close(second);
	semel_broker_close(publisher);
}

/* A consumer with one batch in hand: it acks the last one after it has fetched the next. */
struct worker {
	struct semel_broker *broker;
	struct semel_delivery in_flight[100];
	uint32_t count, total;
};

static void work(struct worker *worker, struct steps_batch *batch)
{
	struct semel_delivery done[100];
	uint32_t done_count = worker->count;
	memcpy(done, worker->in_flight, sizeof(done));
	worker->count = steps_fetch(worker->broker, 100, batch);
	worker->total += worker->count;
	memcpy(worker->in_flight, batch->deliveries + batch->count - worker->count,
	       worker->count * sizeof(worker->in_flight[0]));
	steps_ack_some(worker->broker, done, done_count);
}

/* What one of them has in hand may not be read by the other, and nothing that comes after it. */
static void a_consumer_that_joins_gets_a_share_and_order_holds(void **state)
{
	(void)state;
	if (suite->stands_by)
		STEPS_SKIP(
			"of one queue one consumer is active; the suite runs with partitions too");
	struct semel_broker *publisher = steps_open(url);
	struct worker first = { .broker = open_subscribed("billing") }, second = { 0 };
	struct steps_batch *batch = steps_batch_new();
	int round = 0;
	while (second.total < 100) {
		assert_true(round < 150); /* or the second one gets nothing */
		publish_round(publisher, ++round);
		if (round == 5)
			second.broker = open_subscribed("billing");
		work(&first, batch);
		if (second.broker != NULL)
			work(&second, batch);
		steps_pass(60);
	}
	/* A few turns more than it takes: nothing may come twice. */
	for (int turn = 0, more = 10; turn < TURNS_MAX && more > 0; turn++) {
		work(&first, batch);
		work(&second, batch);
		steps_pass(60);
		more -= batch->count >= (uint32_t)(20 * round);
	}
	assert_int_equal(batch->count, 20 * round);
	steps_assert_order(batch, 1);
	assert_int_equal(steps_backlog(publisher, "billing").waiting, 0);
	steps_batch_free(batch);
	semel_broker_close(first.broker);
	semel_broker_close(second.broker);
	semel_broker_close(publisher);
}

static void a_silent_consumer_loses_its_share_and_its_late_ack_is_refused(void **state)
{
	(void)state;
	if (!suite->has_leases)
		STEPS_SKIP("a consumer of this broker has its assignment as long as its connection "
			   "lives");
	struct steps_subscription how = { .scope = "billing", .lease_ms = 60000 };
	struct semel_broker *silent = steps_open(url), *other = steps_open(url);
	struct steps_batch *late = steps_batch_new(), *batch = steps_batch_new();
	semel_error error = { 0 };
	publish_events("a", 1, 10);
	steps_subscribe(silent, how);
	steps_fetch_all(silent, 10, late);
	steps_subscribe(other, how);
	steps_fetch_nothing(other);
	steps_pass(60000);
	steps_fetch_all(other, 10, batch);
	steps_assert_order(batch, 1);
	assert_true(batch->deliveries[0].redelivered);
	assert_int_equal(silent->driver->ack(silent, late->deliveries, 10, &error),
			 SEMEL_LEASE_LOST);
	steps_ack(other, batch);
	assert_int_equal(steps_backlog(other, "billing").waiting, 0);
	steps_fetch_nothing(silent);
	steps_batch_free(late);
	steps_batch_free(batch);
	semel_broker_close(silent);
	semel_broker_close(other);
}

/* ---- several processes ---------------------------------------------------------------------- */

static void report_ready(int fd)
{
	assert_int_equal(write(fd, "r", 1), 1);
}

static void publish_in_child(const char *broker_url, int argument, int ready_fd)
{
	char aggregate[2] = { (char)argument, '\0' };
	struct semel_broker *broker = steps_open(broker_url);
	report_ready(ready_fd);
	for (int i = 1; i <= 100; i++)
		steps_publish(broker, aggregate, i, i);
	semel_broker_close(broker);
}

static void two_publishers_at_once_lose_nothing(void **state)
{
	(void)state;
	struct steps_batch *batch = steps_batch_new();
	int fds[2];
	int children[] = { steps_fork(publish_in_child, url, 'a', &fds[0]),
			   steps_fork(publish_in_child, url, 'b', &fds[1]) };
	struct semel_broker *consumer = open_subscribed("billing");
	steps_fetch_all(consumer, 200, batch);
	for (int i = 0; i < 2; i++) {
		steps_await(fds[i]);
		steps_reap(children[i], false);
	}
	steps_fetch_nothing(consumer);
	steps_assert_order(batch, 1);
	steps_batch_free(batch);
	semel_broker_close(consumer);
}

static void offer_and_wait_in_child(const char *broker_url, int argument, int ready_fd)
{
	struct steps_event events[10];
	struct semel_broker *broker = steps_open(broker_url);
	for (int i = 0; i < argument; i++) {
		steps_event_make(&events[i], "a", i + 1);
		steps_offer(broker, &events[i]);
	}
	report_ready(ready_fd);
	for (;;)
		pause();
}

static void a_publisher_killed_before_its_outcome_can_be_repeated(void **state)
{
	(void)state;
	struct semel_broker *consumer = open_subscribed("billing");
	struct steps_batch *batch = steps_batch_new();
	int fd;
	int child = steps_fork(offer_and_wait_in_child, url, 10, &fd);
	steps_await(fd);
	steps_reap(child, true);
	publish_events("a", 1, 10);
	publish_events("b", 1, 1); /* whatever arrived of the killed one, all is there after it */
	while (steps_count(batch, "b", 1) == 0 || steps_count(batch, "a", 10) == 0)
		steps_fetch_all(consumer, batch->count + 1, batch);
	for (int i = 1; i <= 10; i++)
		assert_in_range(steps_count(batch, "a", i), 1, 2);
	steps_batch_free(batch);
	semel_broker_close(consumer);
}

static void fetch_and_wait_in_child(const char *broker_url, int argument, int ready_fd)
{
	struct semel_broker *broker = steps_open(broker_url);
	struct steps_batch *batch = steps_batch_new();
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	steps_fetch_all(broker, (uint32_t)argument, batch);
	steps_fetch_nothing(broker); /* so that the broker knows what is in flight here */
	report_ready(ready_fd);
	for (;;)
		pause();
}

/* The lease is a minute: who waited for it would come too late. */
static void deliveries_of_a_killed_consumer_come_to_another_at_once(void **state)
{
	(void)state;
	struct steps_batch *batch = steps_batch_new();
	int fd;
	publish_events("a", 1, 10);
	publish_events("b", 1, 10);
	int child = steps_fork(fetch_and_wait_in_child, url, 20, &fd);
	steps_await(fd);
	struct semel_broker *consumer = open_subscribed("billing");
	steps_fetch_nothing(consumer);
	steps_reap(child, true);
	steps_fetch_all(consumer, 20, batch);
	steps_assert_order(batch, 1);
	assert_int_equal(batch->deliveries[0].redelivered, !suite->forgets_deliveries);
	steps_ack(consumer, batch);
	steps_batch_free(batch);
	semel_broker_close(consumer);
}

/* ---- all of them ---------------------------------------------------------------------------- */

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_broker, drop_broker)

int broker_suite_run(const struct broker_suite_factory *factory)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_confirmed_is_delivered_once),
		TEST(the_window_is_full_after_as_many_events_as_it_holds),
		TEST(a_refused_event_holds_later_ones_of_its_aggregate),
		TEST(a_reopened_broker_still_has_everything),
		TEST(every_field_travels_unchanged),
		TEST(an_empty_payload_stays_empty),
		cmocka_unit_test_setup_teardown(two_scopes_each_get_everything,
						make_broker_with_audit, drop_broker),
		TEST(a_subscription_made_later_starts_at_the_beginning),
		TEST(a_subscription_from_latest_starts_at_the_end),
		TEST(events_of_an_aggregate_keep_their_order),
		TEST(no_more_than_prefetch_is_in_flight),
		TEST(acks_in_any_order_settle_all),
		TEST(unacked_deliveries_come_again_after_rewind),
		TEST(unacked_deliveries_come_to_another_consumer_after_close),
		TEST(a_delayed_event_comes_when_it_is_due_and_not_before),
		TEST(a_requeued_event_goes_to_its_scope_only),
		TEST(a_requeued_event_that_is_not_acked_comes_again),
		TEST(requeue_needs_neither_topic_nor_subscription),
		TEST(a_broken_event_can_be_requeued),
		TEST(the_backlog_counts_what_is_not_settled),
		TEST(find_reports_whether_an_event_waits),
		TEST(two_consumers_of_a_scope_share_the_work),
		TEST(a_consumer_that_joins_gets_a_share_and_order_holds),
		TEST(a_silent_consumer_loses_its_share_and_its_late_ack_is_refused),
		TEST(two_publishers_at_once_lose_nothing),
		TEST(a_publisher_killed_before_its_outcome_can_be_repeated),
		TEST(deliveries_of_a_killed_consumer_come_to_another_at_once),
	};
	suite = factory;
	cmocka_set_test_filter(getenv("SEMEL_TEST_FILTER"));
	return _cmocka_run_group_tests(factory->name, tests, sizeof(tests) / sizeof(tests[0]), NULL,
				       NULL);
}
