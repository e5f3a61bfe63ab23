/* SPDX-License-Identifier: Apache-2.0 */
/* latency.c's far end at Kafka: every partition of the topic from its end on, polled without pause.
 * EXCHANGE is a topic there, and KEY is the key of the records. */
#include "far.h"

#include <librdkafka/rdkafka.h>

#include <stdio.h>
#include <string.h>

#define WAIT_MS 10000

struct writer {
	rd_kafka_t *producer;
	rd_kafka_topic_t *topic;
};

static void set(rd_kafka_conf_t *conf, const char *name, const char *value)
{
	if (rd_kafka_conf_set(conf, name, value, NULL, 0) != RD_KAFKA_CONF_OK)
		die(name);
}

static rd_kafka_t *make(rd_kafka_type_t type, rd_kafka_conf_t *conf, const struct run *run)
{
	char servers[128];
	snprintf(servers, sizeof servers, "%s:%d", run->host, run->port);
	set(conf, "bootstrap.servers", servers);
	rd_kafka_t *client = rd_kafka_new(type, conf, NULL, 0);
	if (!client)
		die("making a client of Kafka");
	return client;
}

static int partitions_of(rd_kafka_t *client, const char *name)
{
	const struct rd_kafka_metadata *metadata = NULL;
	rd_kafka_topic_t *topic = rd_kafka_topic_new(client, name, NULL);
	if (rd_kafka_metadata(client, 0, topic, &metadata, WAIT_MS) != RD_KAFKA_RESP_ERR_NO_ERROR)
		die("asking for the topic");
	int count = metadata->topics[0].partition_cnt;
	rd_kafka_metadata_destroy(metadata);
	rd_kafka_topic_destroy(topic);
	return count;
}

static void take_all_partitions(rd_kafka_t *client, const char *topic)
{
	int count = partitions_of(client, topic);
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(count);
	for (int i = 0; i < count; i++) {
		int64_t low = 0, high = 0;
		if (rd_kafka_query_watermark_offsets(client, topic, i, &low, &high, WAIT_MS) !=
		    RD_KAFKA_RESP_ERR_NO_ERROR)
			die("asking for the end of a partition");
		rd_kafka_topic_partition_list_add(list, topic, i)->offset = high;
	}
	rd_kafka_assign(client, list);
	rd_kafka_topic_partition_list_destroy(list);
}

void *far_receive(void *user)
{
	struct run *run = user;
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	set(conf, "group.id", "bench");
	set(conf, "enable.auto.commit", "false");
	set(conf, "fetch.error.backoff.ms", "1");
	rd_kafka_t *client = make(RD_KAFKA_CONSUMER, conf, run);
	rd_kafka_poll_set_consumer(client);
	take_all_partitions(client, run->queue);
	atomic_store(&run->listening, true);
	while (atomic_load(&run->arrived) < run->events) {
		rd_kafka_message_t *message = rd_kafka_consumer_poll(client, TIMEOUT_S * 1000);
		if (!message || message->err)
			die("waiting for records");
		note_arrival(run, message->payload, message->len);
		rd_kafka_message_destroy(message);
	}
	rd_kafka_destroy(client);
	return NULL;
}

void *far_open(const struct run *run)
{
	static struct writer writer;
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	set(conf, "acks", "all");
	set(conf, "enable.idempotence", "true");
	set(conf, "linger.ms", "0");
	writer.producer = make(RD_KAFKA_PRODUCER, conf, run);
	writer.topic = rd_kafka_topic_new(writer.producer, run->exchange, NULL);
	return &writer;
}

void far_publish(void *far, const struct run *run, const char *payload)
{
	struct writer *writer = far;
	if (rd_kafka_produce(writer->topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY,
			     (void *)(uintptr_t)payload, strlen(payload), run->key,
			     strlen(run->key), NULL) != 0)
		die("publishing");
	rd_kafka_poll(writer->producer, 0);
}
