/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/rabbitmq_steps.h"

#include "broker/rabbitmq/rabbitmq.h"
#include "contract/broker_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char last_url[512];

const char *rabbit_steps_url(void)
{
	const char *url = getenv("SEMEL_TEST_RABBITMQ");
	return url && url[0] ? url : NULL;
}

static void rabbitmq_keeps_the_contract_of_brokers(void **state)
{
	(void)state;
	STEPS_SKIP("SEMEL_TEST_RABBITMQ names no server (amqp://user:password@host:port/)");
}

int rabbit_steps_skip(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rabbitmq_keeps_the_contract_of_brokers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

void rabbit_steps_make(const char *parameters, char *url_out, size_t size)
{
	static int number;
	char topic[64];
	const char *url = rabbit_steps_url();
	snprintf(topic, sizeof(topic), "semel-test-%d-%d", (int)getpid(), ++number);
	steps_name_topic(topic);
	snprintf(url_out, size, "%s%s%s", url,
		 parameters[0] == '\0' ? "" : (strchr(url, '?') ? "&" : "?"), parameters);
	snprintf(last_url, sizeof(last_url), "%s", url_out);
}

static void drop_queue(struct semel_rabbit *rabbit, const char *name)
{
	semel_error error = { 0 };
	rabbit->library->queue_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
				      semel_rabbit_string(name), 0, 0);
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
}

static void drop_exchange(struct semel_rabbit *rabbit, const char *name)
{
	semel_error error = { 0 };
	rabbit->library->exchange_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
					 semel_rabbit_string(name), 0);
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
}

static void drop_scope(struct semel_rabbit *rabbit, const char *scope, const char *topic)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	snprintf(name, sizeof(name), "%s.%s", scope, topic);
	drop_queue(rabbit, name);
	drop_exchange(rabbit, name);
	for (uint32_t tier = 1; tier <= semel_rabbit_tier_for(INT64_MAX); tier++) {
		snprintf(name, sizeof(name), "%s.%s.retry.%u", scope, topic, tier);
		drop_queue(rabbit, name);
	}
	snprintf(name, sizeof(name), "%s.%s.parked", scope, topic);
	drop_queue(rabbit, name);
	for (uint32_t number = 1; number <= 4; number++) {
		snprintf(name, sizeof(name), "%s.%s.%u", scope, topic, number);
		drop_queue(rabbit, name);
		snprintf(name, sizeof(name), "%s.%s.rest-of-%u", scope, topic, number);
		drop_exchange(rabbit, name);
	}
}

void rabbit_steps_drop(void)
{
	static const char *const scopes[] = { "billing", "audit", "late" };
	semel_error error = { 0 };
	struct semel_broker *broker = steps_open(last_url);
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_rabbit_heartbeat_stop(
		rabbit); /* from here on the connection is used without the driver */
	assert_int_equal(semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_CONTROL, &error), SEMEL_OK);
	for (size_t i = 0; i < sizeof(scopes) / sizeof(scopes[0]); i++)
		drop_scope(rabbit, scopes[i], steps_topics()[0]);
	drop_exchange(rabbit, steps_topics()[0]);
	semel_broker_close(broker);
}
