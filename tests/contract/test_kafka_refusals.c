/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of events when Kafka will not take one: answers of the mock cluster, made to order.
 * All events of a test are of one aggregate and fit into one batch, so the answers are too. */
#include "base/wake.h"
#include "contract/broker_steps.h"
#include "contract/kafka_steps.h"

#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <string.h>

/* Kafka's numbers of the requests */
#define PRODUCE      0
#define OFFSET_FETCH 9

static char url[512];

static int make(void **state)
{
	(void)state;
	steps_follow_env(false);
	kafka_steps_use_mock();
	/* long enough for three events to be offered on a busy machine */
	kafka_steps_make("linger.ms=500", url, sizeof(url));
	return 0;
}

static int drop(void **state)
{
	(void)state;
	kafka_steps_drop();
	return 0;
}

static void offer_three(struct semel_broker *broker, struct steps_event events[3])
{
	for (int i = 0; i < 3; i++) {
		steps_event_make(&events[i], "a", i + 1);
		steps_offer(broker, &events[i]);
	}
}

/* The topic is there and the producer at work before an answer is made to order. */
static struct semel_broker *open_warm(void)
{
	struct semel_broker *broker = steps_open(url);
	steps_publish(broker, "warm", 0, 0);
	return broker;
}

static void a_refused_batch_is_sent_again_one_by_one(void **state)
{
	(void)state;
	struct semel_broker *broker = open_warm();
	struct steps_event events[3];
	struct steps_batch *batch = steps_batch_new();
	kafka_steps_mock_fail(PRODUCE, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
	offer_three(broker, events);
	steps_confirm(broker, events, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(events[i].status, SEMEL_OK);
	semel_broker_close(broker);
	broker = steps_open(url);
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	steps_fetch_all(broker, 4, batch);
	steps_fetch_nothing(broker);
	for (int i = 1; i <= 3; i++)
		assert_int_equal(steps_count(batch, "a", i), 1);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static void refuse(rd_kafka_resp_err_t error, semel_status expected)
{
	struct semel_broker *broker = open_warm();
	struct steps_event events[3], later;
	kafka_steps_mock_fail(PRODUCE, error); /* of the batch */
	kafka_steps_mock_fail(PRODUCE, error); /* of the first one by itself */
	offer_three(broker, events);
	steps_confirm(broker, events, 3);
	assert_int_equal(events[0].status, expected);
	assert_string_not_equal(events[0].reason, "");
	assert_int_equal(events[1].status, SEMEL_HELD);
	assert_int_equal(events[2].status, SEMEL_HELD);
	steps_pass(1100); /* what was wrong with the topic is forgotten */
	steps_event_make(&later, "a", 4);
	steps_offer(broker, &later);
	steps_confirm(broker, &later, 1);
	assert_int_equal(later.status, SEMEL_OK);
	semel_broker_close(broker);
}

static void an_event_that_the_broker_finds_too_large_holds_later_ones_of_its_aggregate(void **state)
{
	(void)state;
	refuse(RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, SEMEL_TOO_LARGE);
}

static void a_topic_that_we_may_not_write_to_is_an_answer_about_the_event(void **state)
{
	(void)state;
	refuse(RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, SEMEL_NACKED);
}

static void ignore(const struct semel_publish_outcome *outcome, void *user)
{
	(void)outcome;
	(void)user;
}

static void a_producer_that_has_lost_count_is_an_outage(void **state)
{
	(void)state;
	struct semel_broker *broker = open_warm();
	struct steps_event events[3];
	semel_error error = { 0 };
	semel_status status = SEMEL_OK;
	kafka_steps_mock_fail(PRODUCE, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER);
	offer_three(broker, events);
	for (int i = 0; i < 300 && status == SEMEL_OK; i++)
		status = broker->driver->poll(broker, 100, ignore, NULL, &error);
	assert_int_equal(status, SEMEL_OUTAGE);
	assert_int_equal(broker->driver->poll(broker, 0, ignore, NULL, &error), SEMEL_OUTAGE);
	semel_broker_close(broker);

	broker = steps_open(url); /* and the same events go through another one */
	offer_three(broker, events);
	steps_confirm(broker, events, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(events[i].status, SEMEL_OK);
	semel_broker_close(broker);
}

static void a_broker_that_is_not_there_is_an_outage(void **state)
{
	(void)state;
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	assert_int_equal(semel_broker_open("kafka://127.0.0.1:1", steps_env(), 1, &broker, &error),
			 SEMEL_OUTAGE);
	assert_non_null(strstr(error.text, "127.0.0.1:1 failed: Connection refused"));
	assert_non_null(strstr(error.text, "is Kafka running there?"));
}

/* The group has given us partitions, and we cannot learn where to begin in them. Whoever opens anew
 * finds a group that the first one has left in order, and nothing of the first one remains. */
static void a_share_that_cannot_be_taken_is_an_outage_and_left_in_order(void **state)
{
	(void)state;
	struct semel_broker *broker = open_warm();
	struct steps_batch *batch = steps_batch_new();
	struct semel_delivery delivery;
	semel_error error = { 0 };
	semel_status status = SEMEL_OK;
	uint32_t count = 0;
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	kafka_steps_mock_fail(OFFSET_FETCH, RD_KAFKA_RESP_ERR_UNKNOWN);
	for (int i = 0; i < 3000 && status == SEMEL_OK; i++) {
		status = broker->driver->fetch(broker, 1, batch->arena, &delivery, &count, &error);
		semel_sleep_us(10000);
	}
	assert_int_equal(status, SEMEL_OUTAGE);
	semel_broker_close(broker);
	steps_batch_free(batch);
	steps_consume(url, "billing", 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_refused_batch_is_sent_again_one_by_one),
		TEST(an_event_that_the_broker_finds_too_large_holds_later_ones_of_its_aggregate),
		TEST(a_topic_that_we_may_not_write_to_is_an_answer_about_the_event),
		TEST(a_producer_that_has_lost_count_is_an_outage),
		TEST(a_share_that_cannot_be_taken_is_an_outage_and_left_in_order),
		cmocka_unit_test(a_broker_that_is_not_there_is_an_outage),
	};
	return cmocka_run_group_tests_name("what Kafka refuses", tests, NULL, NULL);
}
