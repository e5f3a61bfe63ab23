/* SPDX-License-Identifier: Apache-2.0 */
/* Kafka keeps the contract of brokers;
 * SEMEL_TEST_KAFKA names one. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"
#include "contract/kafka_steps.h"

static void make(char url_out[BROKER_SUITE_URL_SIZE])
{
	kafka_steps_make("message.max.bytes=100000", url_out, BROKER_SUITE_URL_SIZE);
}

/* Only where there is none to ask. */
static void a_real_kafka_keeps_the_contract_of_brokers(void **state)
{
	(void)state;
	print_message("set SEMEL_TEST_KAFKA to host:port\n");
	skip();
}

int main(void)
{
	struct broker_suite_factory kafka = {
		.name = "broker contract: kafka",
		.make = make,
		.drop = kafka_steps_drop,
		.refused_payload_size = 100001,
	};
	const struct CMUnitTest without[] = {
		cmocka_unit_test(a_real_kafka_keeps_the_contract_of_brokers),
	};
	return kafka_steps_use_real() ? broker_suite_run(&kafka) + broker_remove_suite_run(&kafka)
				      : cmocka_run_group_tests(without, NULL, NULL);
}
