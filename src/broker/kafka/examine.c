/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` sees of a Kafka cluster itself; its topics are compare.c's. */
#include "base/error.h"
#include "broker/kafka/driver.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>

#define TEXT_SIZE 512

static void examine_cluster(struct semel_kafka *kafka, const struct semel_examination *examination)
{
	const struct rd_kafka_metadata *metadata = NULL;
	int64_t until_ms = semel_kafka_call_until(kafka);
	rd_kafka_resp_err_t err;
	do
		err = kafka->library->metadata(kafka->producer, 0, NULL, &metadata,
					       semel_kafka_call_left(kafka, until_ms));
	while (semel_kafka_call_again(kafka, err, until_ms));
	semel_error error = { 0 };
	if (err) {
		(void)semel_kafka_failed(kafka, err, "ask for the brokers", &error);
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return;
	}
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s, %d brokers",
			       kafka->place, metadata->broker_cnt);
	kafka->library->metadata_destroy(metadata);
}

semel_status semel_kafka_examine(const struct semel_url *url,
				 const struct semel_examination *examination)
{
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	semel_status status = semel_kafka_driver.open(url, examination->env, 1, &broker, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return status;
	}
	struct semel_kafka *kafka = semel_kafka_of(broker);
	examine_cluster(kafka, examination);
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_VERSION, "librdkafka %s",
			       kafka->library->version_str());
	broker->driver->close(broker);
	return SEMEL_OK;
}
