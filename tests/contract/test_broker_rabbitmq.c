/* SPDX-License-Identifier: Apache-2.0 */
/* RabbitMQ keeps the contract of brokers: with one queue for a subscription, and with several. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"
#include "contract/rabbitmq_steps.h"

static void make(char url_out[BROKER_SUITE_URL_SIZE])
{
	rabbit_steps_make("max-message=100000", url_out, BROKER_SUITE_URL_SIZE);
}

static void make_partitioned(char url_out[BROKER_SUITE_URL_SIZE])
{
	rabbit_steps_make("max-message=100000&partitions=4", url_out, BROKER_SUITE_URL_SIZE);
}

/* Only where there is none to ask. */
static void rabbitmq_keeps_the_contract_of_brokers(void **state)
{
	(void)state;
	print_message("set SEMEL_TEST_RABBITMQ to amqp://user:password@host:port/\n");
	skip();
}

int main(void)
{
	struct broker_suite_factory rabbit = {
		.name = "broker contract: rabbitmq",
		.make = make,
		.drop = rabbit_steps_drop,
		.refused_payload_size = 100001,
		.forgets_unread = true,
		.stands_by = true,
	};
	const struct CMUnitTest without[] = {
		cmocka_unit_test(rabbitmq_keeps_the_contract_of_brokers),
	};
	if (!rabbit_steps_url())
		return cmocka_run_group_tests(without, NULL, NULL);
	int failed = broker_suite_run(&rabbit);
	rabbit.name = "broker contract: rabbitmq, partitioned";
	rabbit.make = make_partitioned;
	rabbit.stands_by = false;
	return failed + broker_suite_run(&rabbit);
}
