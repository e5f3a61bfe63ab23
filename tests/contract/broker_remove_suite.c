/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the function remove, for drivers that have it. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"

#define WAIT_MS 60000

static const struct broker_suite_factory *suite;
static char url[BROKER_SUITE_URL_SIZE];

static void count_difference(const char *difference, void *user)
{
	(void)difference;
	(*(int *)user)++;
}

/* What the subscription lacks at the broker, as a new connection sees it. */
static int differences(const char *scope)
{
	const struct semel_subscribe_options options = {
		.scope = scope, .topics = steps_topics(), .prefetch = 1, .lease_ms = 60000
	};
	semel_error error = { 0 };
	int count = 0;
	struct semel_broker *broker = steps_open(url);
	assert_int_equal(
		broker->driver->compare(broker, &options, count_difference, &count, &error),
		SEMEL_OK);
	semel_broker_close(broker);
	return count;
}

/* It may be known to all nodes of a cluster a moment later. */
static void await_differences(const char *scope)
{
	int64_t until_ms = semel_steady_ms(semel_env_system()) + WAIT_MS;
	while (differences(scope) == 0)
		assert_true(semel_steady_ms(semel_env_system()) < until_ms);
}

static void make_subscription(const char *scope)
{
	struct semel_broker *broker = steps_open(url);
	steps_subscribe(broker, (struct steps_subscription){ .scope = scope });
	semel_broker_close(broker);
}

static void remove_topic(const char *topic, const char *scope)
{
	const char *const scopes[] = { scope, NULL };
	semel_error error = { 0 };
	struct semel_broker *broker = steps_open(url);
	if (broker->driver->remove(broker, topic, scopes, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	semel_broker_close(broker);
}

static void what_was_removed_is_gone_and_can_be_made_again(void **state)
{
	(void)state;
	make_subscription("billing");
	struct semel_broker *broker = steps_open(url);
	steps_publish(broker, "a", 1, 3);
	semel_broker_close(broker);
	assert_int_equal(differences("billing"), 0);
	remove_topic(steps_topics()[0], "billing");
	await_differences("billing");

	make_subscription("billing");
	assert_int_equal(differences("billing"), 0);
	steps_consume(url, "billing", 0);
}

static void removing_what_is_not_there_is_no_error_and_leaves_others_alone(void **state)
{
	(void)state;
	make_subscription("billing");
	remove_topic("no-such-topic.of-the-suite", "billing");
	remove_topic("no-such-topic.of-the-suite", "audit");
	assert_int_equal(differences("billing"), 0);
}

static int make_broker(void **state)
{
	(void)state;
	suite->make(url);
	return 0;
}

static int drop_broker(void **state)
{
	(void)state;
	suite->drop();
	return 0;
}

int broker_remove_suite_run(const struct broker_suite_factory *factory)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_removed_is_gone_and_can_be_made_again,
						make_broker, drop_broker),
		cmocka_unit_test_setup_teardown(
			removing_what_is_not_there_is_no_error_and_leaves_others_alone, make_broker,
			drop_broker),
	};
	suite = factory;
	return _cmocka_run_group_tests(factory->name, tests, sizeof(tests) / sizeof(tests[0]), NULL,
				       NULL);
}
