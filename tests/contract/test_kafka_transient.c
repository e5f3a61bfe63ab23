/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a Kafka that is being restarted: they pass by themselves and are not reported. The
 * mock cluster gives them more often than librdkafka asks by itself. */
#include "contract/broker_steps.h"
#include "contract/kafka_steps.h"

#include <librdkafka/rdkafka.h>
#include <string.h>

/* Kafka's numbers of the requests */
enum { LIST_OFFSETS = 2, OFFSET_COMMIT = 8, OFFSET_FETCH = 9, FIND_COORDINATOR = 10 };

#define OFTEN 4 /* librdkafka asks three times */

static char url[512];

static int make(void **state)
{
	(void)state;
	steps_follow_env(false);
	kafka_steps_use_mock();
	kafka_steps_make("", url, sizeof(url));
	return 0;
}

static int drop(void **state)
{
	(void)state;
	kafka_steps_drop();
	return 0;
}

static void answer(int request, int error, int times)
{
	for (int i = 0; i < times; i++)
		kafka_steps_mock_fail(request, error);
}

/* As a coordinator goes and another one comes. */
static void move_coordinator(int request)
{
	answer(request, RD_KAFKA_RESP_ERR_NOT_COORDINATOR, 2);
	answer(request, RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE, 1);
	answer(request, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, OFTEN);
}

static void move_leader(int request)
{
	answer(request, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, 1);
	answer(request, RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE, 1);
	answer(request, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, OFTEN);
}

/* There is a topic with an event, and a subscription of it without a consumer. */
static struct semel_broker *declare(void)
{
	struct semel_broker *broker = steps_open(url);
	struct semel_subscribe_options options = {
		.scope = "billing", .topics = steps_topics(), .prefetch = 1, .declare_only = true
	};
	semel_error error = { 0 };
	semel_status status = broker->driver->subscribe(broker, &options, &error);
	assert_string_equal(error.text, "");
	assert_int_equal(status, SEMEL_OK);
	steps_publish(broker, "a", 1, 1);
	return broker;
}

static void assert_waiting(uint64_t count)
{
	struct semel_broker *broker = steps_open(url);
	assert_int_equal(steps_backlog(broker, "billing").waiting, count);
	semel_broker_close(broker);
}

/* It is there from then on: what is published later waits for it. */
static void a_subscription_is_made_while_the_coordinator_moves(void **state)
{
	(void)state;
	move_coordinator(OFFSET_FETCH);
	answer(OFFSET_COMMIT, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, OFTEN);
	semel_broker_close(declare());
	assert_waiting(1);
}

static void a_share_is_taken_and_left_while_the_coordinator_moves(void **state)
{
	(void)state;
	semel_broker_close(declare());
	struct semel_broker *broker = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	move_coordinator(OFFSET_FETCH);
	steps_fetch_all(broker, 1, batch);
	/* also those that are sent meanwhile are not taken, and not those of librdkafka's own */
	answer(OFFSET_COMMIT, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, 3 * OFTEN);
	steps_ack(broker, batch);
	steps_batch_free(batch);
	semel_broker_close(broker);
	assert_waiting(0);
}

static void what_waits_is_counted_while_coordinator_and_leaders_move(void **state)
{
	(void)state;
	semel_broker_close(declare());
	move_coordinator(OFFSET_FETCH);
	move_leader(LIST_OFFSETS);
	assert_waiting(1);
}

/* An error that is not about a partition does not end the search. */
static void a_waiting_event_is_found_by_one_whose_group_is_refused(void **state)
{
	(void)state;
	bool waiting = false;
	semel_error error = { 0 };
	struct steps_event event;
	struct semel_broker *broker = declare();
	steps_event_make(&event, "a", 1);
	answer(FIND_COORDINATOR, RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED, 1);
	assert_int_equal(broker->driver->find_event(broker, "billing", steps_topics(), event.id,
						    &waiting, &error),
			 SEMEL_OK);
	assert_true(waiting);
	semel_broker_close(broker);
}

/* A refused authorization is reported at once, and so is all that does not pass by itself. */
static void what_is_not_transient_is_reported_at_once(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	struct semel_subscribe_options options = { .scope = "billing",
						   .topics = steps_topics(),
						   .prefetch = 1 };
	semel_error error = { 0 };
	answer(OFFSET_FETCH, RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED, 1);
	assert_int_equal(broker->driver->subscribe(broker, &options, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "Group authorization failed"));
	semel_broker_close(broker);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_subscription_is_made_while_the_coordinator_moves),
		TEST(a_share_is_taken_and_left_while_the_coordinator_moves),
		TEST(what_waits_is_counted_while_coordinator_and_leaders_move),
		TEST(a_waiting_event_is_found_by_one_whose_group_is_refused),
		TEST(what_is_not_transient_is_reported_at_once),
	};
	return cmocka_run_group_tests_name("what of Kafka passes by itself", tests, NULL, NULL);
}
