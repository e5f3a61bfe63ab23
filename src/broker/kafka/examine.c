/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks of a Kafka cluster itself; compare.c checks the topics. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <string.h>

#define TEXT_SIZE    512
#define REPORTED_MAX 10

/* A partition without a leader accepts nothing, and its events wait. */
static void examine_leaders(const struct semel_kafka *kafka,
			    const struct rd_kafka_metadata *metadata,
			    const struct semel_examination *examination)
{
	const char *prefix = kafka->settings.prefix;
	char text[TEXT_SIZE];
	int reported = 0;
	for (int i = 0; i < metadata->topic_cnt; i++) {
		const struct rd_kafka_metadata_topic *topic = &metadata->topics[i];
		for (int j = 0; j < topic->partition_cnt && reported < REPORTED_MAX; j++) {
			if (topic->partitions[j].leader >= 0 ||
			    strncmp(topic->topic, prefix, strlen(prefix)) != 0)
				continue;
			snprintf(text, sizeof(text),
				 "partition %d of topic %s has no leader: it accepts nothing, "
				 "and its events wait",
				 (int)topic->partitions[j].id,
				 semel_kafka_own_name(kafka, topic->topic));
			semel_examination_report(
				examination, SEMEL_CHECK_BROKER_ALARM, SEMEL_SEVERITY_PROBLEM, text,
				"start the broker that has its replica (kafka-topics.sh "
				"--describe --unavailable-partitions shows which); the "
				"events are sent then");
			reported++;
		}
	}
	if (reported == 0)
		semel_examination_fine(examination, SEMEL_CHECK_BROKER_ALARM,
				       "every partition has a leader");
}

static void examine_cluster(struct semel_kafka *kafka, const struct semel_examination *examination)
{
	const struct rd_kafka_metadata *metadata = NULL;
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err;
	do
		err = kafka->library->metadata(kafka->producer, 1, NULL, &metadata,
					       semel_kafka_call_remaining_ms(kafka, until_ms));
	while (semel_kafka_retry_call(kafka, err, until_ms));
	semel_error error = { 0 };
	if (err) {
		(void)semel_kafka_call_failed(kafka, err, "list the brokers", &error);
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return;
	}
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s, %d brokers",
			       kafka->address, metadata->broker_cnt);
	examine_leaders(kafka, metadata, examination);
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
