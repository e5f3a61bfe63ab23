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
	if (!rabbit_steps_url())
		return rabbit_steps_skip();
	int failed = broker_suite_run(&rabbit) + broker_remove_suite_run(&rabbit);
	rabbit.name = "broker contract: rabbitmq, partitioned";
	rabbit.make = make_partitioned;
	rabbit.stands_by = false;
	return failed + broker_suite_run(&rabbit) + broker_remove_suite_run(&rabbit);
}
