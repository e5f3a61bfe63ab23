/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of Kafka keeps the contract of brokers on librdkafka's mock cluster, which is on every
 * machine. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"
#include "contract/kafka_steps.h"

static void make(char url_out[BROKER_SUITE_URL_SIZE])
{
	kafka_steps_make("message.max.bytes=100000&session.timeout.ms=4000&"
			 "heartbeat.interval.ms=300",
			 url_out, BROKER_SUITE_URL_SIZE);
}

int main(void)
{
	struct broker_suite_factory kafka = {
		.name = "broker contract: kafka, mock cluster",
		.make = make,
		.drop = kafka_steps_drop,
		.refused_payload_size = 100001,
	};
	kafka_steps_use_mock();
	return broker_suite_run(&kafka);
}
