/* SPDX-License-Identifier: Apache-2.0 */
/* Events of one transaction are seen together or not at all, on a real Kafka: SEMEL_TEST_KAFKA
 * names one. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"
#include "contract/kafka_steps.h"

#include <stdio.h>
#include <unistd.h>

static char url[BROKER_SUITE_URL_SIZE];
static char name[64];

static int make(void **state)
{
	static int number;
	(void)state;
	snprintf(name, sizeof(name), "test-%d-%d", (int)getpid(), ++number);
	kafka_steps_make("message.max.bytes=100000", url, sizeof(url));
	return 0;
}

static struct semel_broker *open_transacting(void)
{
	struct semel_broker *broker = steps_open(url);
	semel_error error = { 0 };
	semel_status status;
	while ((status = broker->driver->init_transactions(broker, name, &error)) == SEMEL_FULL)
		;
	assert_int_equal(status, SEMEL_OK);
	return broker;
}

static void offer(struct semel_broker *broker, struct steps_event *event, const char *aggregate,
		  int number, uint64_t transaction)
{
	steps_event_make(event, aggregate, number);
	event->metadata.transaction = transaction;
	steps_offer(broker, event);
}

static void never(const struct semel_publish_outcome *outcome, void *user)
{
	(void)user;
	fail_msg("%s was answered for", ((struct steps_event *)outcome->token)->id);
}

static void poll_a_while(struct semel_broker *broker)
{
	semel_error error = { 0 };
	for (int i = 0; i < 20; i++)
		assert_int_equal(broker->driver->poll(broker, 20, never, NULL, &error), SEMEL_OK);
}

/* These and no others can be read by who reads committed records. */
static void assert_shown(const char *const *aggregates, uint32_t count)
{
	struct semel_broker *broker = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	steps_fetch_all(broker, count, batch);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(steps_count(batch, aggregates[i], 1), 1);
	steps_ack(broker, batch);
	steps_fetch_nothing(broker);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void nothing_is_shown_or_answered_for_before_it_is_complete(void **state)
{
	(void)state;
	struct semel_broker *broker = open_transacting();
	struct semel_broker *reader = steps_open(url);
	struct steps_event events[3];
	steps_subscribe(reader, (struct steps_subscription){ .scope = "early" });
	offer(broker, &events[0], "a", 1, 1);
	offer(broker, &events[1], "b", 1, 2);
	poll_a_while(broker);
	offer(broker, &events[2], "c", 1, 2);
	poll_a_while(broker);
	steps_fetch_nothing(reader);
	assert_true(broker->driver->complete_transaction(broker, true));
	steps_confirm(broker, events, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(events[i].status, SEMEL_OK);
	semel_broker_close(reader);
	semel_broker_close(broker);
	assert_shown((const char *const[]){ "a", "b", "c" }, 3);
}

static void a_new_producer_fences_the_one_before_it(void **state)
{
	(void)state;
	struct semel_broker *first = open_transacting();
	struct steps_event before, after[2];
	semel_error error = { 0 };
	semel_status status = SEMEL_OK;
	offer(first, &before, "zombie", 1, 1);
	poll_a_while(first);
	struct semel_broker *second = open_transacting();
	offer(second, &after[0], "a", 1, 1);
	offer(second, &after[1], "b", 1, 1);
	assert_true(second->driver->complete_transaction(second, true));
	steps_confirm(second, after, 2);
	assert_true(first->driver->complete_transaction(first, true));
	for (int i = 0; i < 600 && status == SEMEL_OK; i++)
		status = first->driver->poll(first, 100, never, NULL, &error);
	assert_int_equal(status, SEMEL_OUTAGE);
	semel_broker_close(first);
	semel_broker_close(second);
	assert_shown((const char *const[]){ "a", "b" }, 2);
}

static void a_refusal_is_one_for_its_transaction_and_for_no_other(void **state)
{
	(void)state;
	static char large[100001];
	struct semel_broker *broker = open_transacting();
	struct steps_event events[6];
	offer(broker, &events[0], "a", 1, 1);
	offer(broker, &events[1], "b", 1, 2);
	steps_event_make(&events[2], "c", 1);
	events[2].event.payload = semel_text_from(large, sizeof(large));
	events[2].metadata.transaction = 2;
	steps_offer(broker, &events[2]);
	offer(broker, &events[3], "d", 1, 2);
	steps_confirm(broker, events, 4);
	offer(broker, &events[4], "e", 1, 2); /* comes after the refusal was reported */
	offer(broker, &events[5], "f", 1, 3);
	assert_true(broker->driver->complete_transaction(broker, true));
	steps_confirm(broker, events, 6);
	for (int i = 0; i < 6; i++)
		assert_int_equal(events[i].status, i == 0 || i == 5 ? SEMEL_OK : SEMEL_TOO_LARGE);
	semel_broker_close(broker);
	assert_shown((const char *const[]){ "a", "f" }, 2);
}

static void a_broker_that_is_closed_leaves_nothing_half_done(void **state)
{
	(void)state;
	struct semel_broker *broker = open_transacting();
	struct steps_event events[2];
	offer(broker, &events[0], "a", 1, 1);
	poll_a_while(broker);
	semel_broker_close(broker);
	broker = steps_open(url); /* without transactions: no event waits for the one given up */
	steps_publish(broker, "b", 1, 1);
	semel_broker_close(broker);
	assert_shown((const char *const[]){ "b" }, 1);
}

/* Only where there is none to ask. */
static void a_real_kafka_shows_transactions_as_a_whole(void **state)
{
	(void)state;
	print_message("set SEMEL_TEST_KAFKA to host:port\n");
	skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nothing_is_shown_or_answered_for_before_it_is_complete,
				       make),
		cmocka_unit_test_setup(a_new_producer_fences_the_one_before_it, make),
		cmocka_unit_test_setup(a_refusal_is_one_for_its_transaction_and_for_no_other, make),
		cmocka_unit_test_setup(a_broker_that_is_closed_leaves_nothing_half_done, make),
	};
	const struct CMUnitTest without[] = {
		cmocka_unit_test(a_real_kafka_shows_transactions_as_a_whole),
	};
	return kafka_steps_use_real() ? cmocka_run_group_tests(tests, NULL, NULL)
				      : cmocka_run_group_tests(without, NULL, NULL);
}
