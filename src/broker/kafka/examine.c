/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks, without changing anything: the cluster, and what a subscription needs
 * there that is missing or different. Besides the topics, these are the settings that the delivery
 * guarantee depends on: replicas, and how many of them must have an event before it counts as
 * written; and that no event stays in a topic longer than the inbox remembers it, because a group
 * whose offsets are set back would process it twice. */
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <string.h>

#define REPLICAS_EXPECTED 3
#define IN_SYNC_EXPECTED  2
#define BATCH_BYTES       1000000 /* librdkafka's message.max.bytes */
#define BATCH_HEAD        100     /* of a batch without records */
#define TEXT_SIZE         512
#define REPORTED_MAX      10

struct comparison {
	struct semel_kafka *kafka;
	const struct semel_subscribe_options *options;
	semel_difference_callback callback;
	void *user;
};

/* -1: unknown; as retention_ms it also means forever. */
struct config {
	long long in_sync, retention_ms, largest;
	bool unclean, compacted, known;
};

static void report(const struct comparison *comparison, const char *text)
{
	comparison->callback(text, comparison->user);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void take_setting(struct config *config, const char *name, const char *value)
{
	if (!value)
		return;
	if (strcmp(name, "min.insync.replicas") == 0)
		(void)semel_text_to_int64(value, 1, INT32_MAX, &config->in_sync);
	else if (strcmp(name, "retention.ms") == 0)
		(void)semel_text_to_int64(value, -1, INT64_MAX, &config->retention_ms);
	else if (strcmp(name, "max.message.bytes") == 0)
		(void)semel_text_to_int64(value, 0, INT32_MAX, &config->largest);
	else if (strcmp(name, "unclean.leader.election.enable") == 0)
		config->unclean = strcmp(value, "true") == 0;
	else if (strcmp(name, "cleanup.policy") == 0)
		config->compacted = strstr(value, "compact") != NULL;
}

static rd_kafka_resp_err_t take_settings(const struct semel_kafka_library *library,
					 rd_kafka_event_t *event, struct config *config)
{
	size_t count = 0, entries = 0;
	const rd_kafka_ConfigResource_t **resources = library->DescribeConfigs_result_resources(
		library->event_DescribeConfigs_result(event), &count);
	rd_kafka_resp_err_t err =
		count == 1 ? library->ConfigResource_error(resources[0]) : RD_KAFKA_RESP_ERR__FAIL;
	if (err)
		return err;
	const rd_kafka_ConfigEntry_t **settings =
		library->ConfigResource_configs(resources[0], &entries);
	for (size_t i = 0; i < entries; i++)
		take_setting(config, library->ConfigEntry_name(settings[i]),
			     library->ConfigEntry_value(settings[i]));
	config->known = true;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Sends one request. */
static rd_kafka_resp_err_t ask_settings(struct semel_kafka *kafka, const char *topic,
					struct config *config)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_ConfigResource_t *expected =
		library->ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
	rd_kafka_AdminOptions_t *options =
		library->AdminOptions_new(kafka->producer, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
	rd_kafka_queue_t *queue = library->queue_new(kafka->producer);
	library->AdminOptions_set_request_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	library->DescribeConfigs(kafka->producer, &expected, 1, options, queue);
	rd_kafka_event_t *event = library->queue_poll(queue, SEMEL_KAFKA_CALL_MS + 1000);
	rd_kafka_resp_err_t err =
		event ? library->event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (!err)
		err = take_settings(library, event, config);
	if (event)
		library->event_destroy(event);
	library->queue_destroy(queue);
	library->AdminOptions_destroy(options);
	library->ConfigResource_destroy(expected);
	return err;
}

/* Without the right to read the settings, nothing is reported about them. */
static semel_status read_settings(struct semel_kafka *kafka, const char *topic,
				  struct config *config_out, semel_error *error)
{
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err;
	*config_out = (struct config){ .in_sync = -1, .retention_ms = -1, .largest = -1 };
	do
		err = ask_settings(kafka, topic, config_out);
	while (semel_kafka_retry_call(kafka, err, until_ms));
	return semel_kafka_is_transient(err)
		       ? semel_kafka_call_failed(kafka, err, "read the settings of a topic", error)
		       : SEMEL_OK;
}

bool semel_kafka_has_all_records(struct semel_kafka *kafka, const char *topic)
{
	struct config config;
	return read_settings(kafka, topic, &config, NULL) == SEMEL_OK && config.known &&
	       !config.compacted;
}

static long long batch_bytes(const struct semel_kafka_settings *settings)
{
	long long bytes = BATCH_BYTES;
	for (size_t i = 0; i < settings->forwarded_count; i++)
		if (strcmp(settings->forwarded[i].name, "message.max.bytes") == 0)
			(void)semel_text_to_int64(settings->forwarded[i].value, 0, INT32_MAX,
						  &bytes);
	return bytes;
}

/* A batch that is refused for its size is sent again in parts, and later batches are smaller
 * (resend.c). */
static void compare_size(const struct comparison *comparison, const struct semel_kafka_topic *topic,
			 const struct config *config)
{
	char text[512];
	long long ours = batch_bytes(&comparison->kafka->settings);
	if (!config->known || config->largest < 0 || config->largest >= ours + BATCH_HEAD)
		return;
	snprintf(text, sizeof(text),
		 "topic %s has max.message.bytes=%lld, and batches of up to %lld are sent: refused "
		 "ones are sent again in parts, which is slow (add message.max.bytes=%lld to the "
		 "broker's URL, or raise the topic's limit)",
		 topic->name, config->largest, ours, config->largest - BATCH_HEAD);
	report(comparison, text);
}

static void compare_settings(const struct comparison *comparison,
			     const struct semel_kafka_topic *topic, const struct config *config)
{
	char text[512];
	long long replicas = topic->replicas;
	long long expected =
		topic->brokers < REPLICAS_EXPECTED ? topic->brokers : REPLICAS_EXPECTED;
	if (replicas < expected) {
		snprintf(text, sizeof(text),
			 "topic %s has a replication factor of %lld: below %lld the loss of a "
			 "broker can stop it, or lose events",
			 topic->name, replicas, expected);
		report(comparison, text);
	}
	if (config->known && replicas >= REPLICAS_EXPECTED && config->in_sync < IN_SYNC_EXPECTED) {
		snprintf(text, sizeof(text),
			 "topic %s has min.insync.replicas=%lld: an event may be confirmed while "
			 "it is on one broker only (set it to %d)",
			 topic->name, config->in_sync, IN_SYNC_EXPECTED);
		report(comparison, text);
	}
	if (config->known && replicas > 1 && config->in_sync >= replicas) {
		snprintf(text, sizeof(text),
			 "topic %s has min.insync.replicas=%lld of %lld: it accepts nothing while "
			 "one broker is down (set it to %lld)",
			 topic->name, config->in_sync, replicas, replicas - 1);
		report(comparison, text);
	}
	if (config->unclean) {
		snprintf(text, sizeof(text),
			 "topic %s has unclean.leader.election.enable=true: confirmed events can "
			 "be lost (set it to false)",
			 topic->name);
		report(comparison, text);
	}
	compare_size(comparison, topic, config);
}

static void compare_retention(const struct comparison *comparison,
			      const struct semel_kafka_topic *topic, const struct config *config)
{
	char text[512], events[SEMEL_TIME_SIZE], claims[SEMEL_TIME_SIZE];
	int64_t inbox_ms = comparison->options->inbox_ms;
	if (inbox_ms == 0 || !config->known ||
	    (config->retention_ms >= 0 && config->retention_ms <= inbox_ms && !config->compacted))
		return;
	bool forever = config->retention_ms < 0 || config->compacted;
	if (!forever)
		semel_duration_format(config->retention_ms, events);
	semel_duration_format(inbox_ms, claims);
	snprintf(text, sizeof(text),
		 "topic %s retains events %s%s, the inbox retains claims for %s: a group whose "
		 "offsets are reset further back would process events twice (reduce "
		 "retention.ms, or increase retention.inbox)",
		 topic->name, forever ? "forever" : "for ", forever ? "" : events, claims);
	report(comparison, text);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static semel_status compare_topic(const struct comparison *comparison, const char *name,
				  uint32_t expected, bool of_events, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	struct config config;
	char text[512];
	semel_status status = semel_kafka_topic_resolve(comparison->kafka, name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	if (topic->partitions == 0) {
		snprintf(text, sizeof(text), "topic %s is missing", name);
		report(comparison, text);
		return SEMEL_OK;
	}
	if (expected > 0 && topic->partitions != expected) {
		snprintf(text, sizeof(text), "topic %s has %u partitions, not %u", name,
			 topic->partitions, expected);
		report(comparison, text);
	}
	status = read_settings(comparison->kafka, topic->full, &config, error);
	if (status != SEMEL_OK)
		return status;
	compare_settings(comparison, topic, &config);
	if (of_events)
		compare_retention(comparison, topic, &config);
	return SEMEL_OK;
}

static semel_status compare_all(const struct comparison *comparison, const char *name,
				semel_error *error)
{
	const struct semel_subscribe_options *options = comparison->options;
	uint32_t tiers =
		semel_kafka_tier_for(options->delay_max_ms > 0 ? options->delay_max_ms : 60000);
	semel_status status = compare_topic(
		comparison, name, options->total_order ? 1 : options->partitions, true, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t tier = 1; tier <= tiers; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		status = semel_kafka_tier_name(options->scope, name, tier, tier_name, error);
		if (status != SEMEL_OK)
			return status;
		status = compare_topic(comparison, tier_name, 0, false, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_kafka_compare(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 semel_difference_callback callback, void *user, semel_error *error)
{
	const struct comparison comparison = { semel_kafka_of(broker), options, callback, user };
	semel_status status = semel_kafka_check_bind(options, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; options->topics[i]; i++) {
		status = compare_all(&comparison, options->topics[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- the cluster ----------------------------------------------------------------------------- */

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
