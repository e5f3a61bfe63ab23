/* SPDX-License-Identifier: Apache-2.0 */
/* What a subscription needs at the cluster and is not there, or is otherwise; nothing is changed.
 * Beyond what topics there are, it is what the promise rests on: copies, and how many of them must
 * have an event before it counts as written; and that nothing lies longer in a topic than the inbox
 * remembers, or a group that is set back would do it twice. */
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <string.h>

#define COPIES_WANTED  3
#define IN_SYNC_WANTED 2
#define BATCH_BYTES    1000000 /* librdkafka's message.max.bytes */
#define BATCH_HEAD     100     /* what a batch has beside its records */

struct look {
	struct semel_kafka *kafka;
	const struct semel_subscribe_options *options;
	semel_difference_callback seen;
	void *user;
};

/* -1: not known; retention_ms -1 too: for ever. */
struct manner {
	long long in_sync, retention_ms, largest;
	bool unclean, compacted, known;
};

static void tell(const struct look *look, const char *text)
{
	look->seen(text, look->user);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void take_setting(struct manner *manner, const char *name, const char *value)
{
	if (!value)
		return;
	if (strcmp(name, "min.insync.replicas") == 0)
		(void)semel_text_to_int64(value, 1, INT32_MAX, &manner->in_sync);
	else if (strcmp(name, "retention.ms") == 0)
		(void)semel_text_to_int64(value, -1, INT64_MAX, &manner->retention_ms);
	else if (strcmp(name, "max.message.bytes") == 0)
		(void)semel_text_to_int64(value, 0, INT32_MAX, &manner->largest);
	else if (strcmp(name, "unclean.leader.election.enable") == 0)
		manner->unclean = strcmp(value, "true") == 0;
	else if (strcmp(name, "cleanup.policy") == 0)
		manner->compacted = strstr(value, "compact") != NULL;
}

static rd_kafka_resp_err_t take_settings(const struct semel_kafka_library *library,
					 rd_kafka_event_t *event, struct manner *manner)
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
		take_setting(manner, library->ConfigEntry_name(settings[i]),
			     library->ConfigEntry_value(settings[i]));
	manner->known = true;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Asks once. */
static rd_kafka_resp_err_t ask_settings(struct semel_kafka *kafka, const char *topic,
					struct manner *manner)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_ConfigResource_t *wanted =
		library->ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
	rd_kafka_AdminOptions_t *options =
		library->AdminOptions_new(kafka->producer, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
	rd_kafka_queue_t *queue = library->queue_new(kafka->producer);
	library->AdminOptions_set_request_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	library->DescribeConfigs(kafka->producer, &wanted, 1, options, queue);
	rd_kafka_event_t *event = library->queue_poll(queue, SEMEL_KAFKA_CALL_MS + 1000);
	rd_kafka_resp_err_t err =
		event ? library->event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (!err)
		err = take_settings(library, event, manner);
	if (event)
		library->event_destroy(event);
	library->queue_destroy(queue);
	library->AdminOptions_destroy(options);
	library->ConfigResource_destroy(wanted);
	return err;
}

/* Where we may not see them, nothing is said of them. */
static semel_status read_settings(struct semel_kafka *kafka, const char *topic,
				  struct manner *manner_out, semel_error *error)
{
	int64_t until_ms = semel_kafka_call_until(kafka);
	rd_kafka_resp_err_t err;
	*manner_out = (struct manner){ .in_sync = -1, .retention_ms = -1, .largest = -1 };
	do
		err = ask_settings(kafka, topic, manner_out);
	while (semel_kafka_call_again(kafka, err, until_ms));
	return semel_kafka_is_passing(err)
		       ? semel_kafka_failed(kafka, err, "read the settings of a topic", error)
		       : SEMEL_OK;
}

bool semel_kafka_keeps_all(struct semel_kafka *kafka, const char *topic)
{
	struct manner manner;
	return read_settings(kafka, topic, &manner, NULL) == SEMEL_OK && manner.known &&
	       !manner.compacted;
}

static long long batch_bytes(const struct semel_kafka_settings *settings)
{
	long long bytes = BATCH_BYTES;
	for (size_t i = 0; i < settings->passed_count; i++)
		if (strcmp(settings->passed[i].name, "message.max.bytes") == 0)
			(void)semel_text_to_int64(settings->passed[i].value, 0, INT32_MAX, &bytes);
	return bytes;
}

/* A batch that is refused for its size is sent again in parts, and others are made smaller
 * (repair.c). */
static void compare_size(const struct look *look, const struct semel_kafka_topic *topic,
			 const struct manner *manner)
{
	char text[512];
	long long ours = batch_bytes(&look->kafka->settings);
	if (!manner->known || manner->largest < 0 || manner->largest >= ours + BATCH_HEAD)
		return;
	snprintf(text, sizeof(text),
		 "the topic %s has max.message.bytes=%lld, and batches of up to %lld are sent: the "
		 "first ones that it refuses are sent again in parts, which is slow (add "
		 "message.max.bytes=%lld to the broker's URL, or raise the topic's limit)",
		 topic->name, manner->largest, ours, manner->largest - BATCH_HEAD);
	tell(look, text);
}

static void compare_settings(const struct look *look, const struct semel_kafka_topic *topic,
			     const struct manner *manner)
{
	char text[512];
	long long copies = topic->copies;
	long long wanted = topic->brokers < COPIES_WANTED ? topic->brokers : COPIES_WANTED;
	if (copies < wanted) {
		snprintf(text, sizeof(text),
			 "the topic %s has a replication factor of %lld: with less than %lld the "
			 "loss of a broker can stop it, or lose events",
			 topic->name, copies, wanted);
		tell(look, text);
	}
	if (manner->known && copies >= COPIES_WANTED && manner->in_sync < IN_SYNC_WANTED) {
		snprintf(text, sizeof(text),
			 "the topic %s has min.insync.replicas=%lld: an event may be confirmed "
			 "that is on one broker only; set it to %d",
			 topic->name, manner->in_sync, IN_SYNC_WANTED);
		tell(look, text);
	}
	if (manner->known && copies > 1 && manner->in_sync >= copies) {
		snprintf(text, sizeof(text),
			 "the topic %s has min.insync.replicas=%lld of %lld: it takes nothing when "
			 "one broker is away; set it to %lld",
			 topic->name, manner->in_sync, copies, copies - 1);
		tell(look, text);
	}
	if (manner->unclean) {
		snprintf(text, sizeof(text),
			 "the topic %s has unclean.leader.election.enable=true: confirmed events "
			 "can be lost",
			 topic->name);
		tell(look, text);
	}
	compare_size(look, topic, manner);
}

static void compare_retention(const struct look *look, const struct semel_kafka_topic *topic,
			      const struct manner *manner)
{
	char text[512], kept[SEMEL_TIME_SIZE] = "for ever", remembered[SEMEL_TIME_SIZE];
	int64_t inbox_ms = look->options->inbox_ms;
	if (inbox_ms == 0 || !manner->known ||
	    (manner->retention_ms >= 0 && manner->retention_ms <= inbox_ms && !manner->compacted))
		return;
	if (manner->retention_ms >= 0 && !manner->compacted)
		semel_duration_format(manner->retention_ms, kept);
	semel_duration_format(inbox_ms, remembered);
	snprintf(text, sizeof(text),
		 "the topic %s keeps events %s, the inbox remembers them %s: a group that is set "
		 "back further does them twice (make retention.ms shorter, or retention.inbox "
		 "longer)",
		 topic->name, kept, remembered);
	tell(look, text);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static semel_status compare_topic(const struct look *look, const char *name, uint32_t wanted,
				  bool of_events, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	struct manner manner;
	char text[512];
	semel_status status = semel_kafka_topic_look(look->kafka, name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	if (topic->partitions == 0) {
		snprintf(text, sizeof(text), "the topic %s is missing", name);
		tell(look, text);
		return SEMEL_OK;
	}
	if (wanted > 0 && topic->partitions != wanted) {
		snprintf(text, sizeof(text), "the topic %s has %u partitions, not %u", name,
			 topic->partitions, wanted);
		tell(look, text);
	}
	status = read_settings(look->kafka, topic->full, &manner, error);
	if (status != SEMEL_OK)
		return status;
	compare_settings(look, topic, &manner);
	if (of_events)
		compare_retention(look, topic, &manner);
	return SEMEL_OK;
}

static semel_status compare_all(const struct look *look, const char *name, semel_error *error)
{
	const struct semel_subscribe_options *options = look->options;
	uint32_t tiers =
		semel_kafka_tier_for(options->delay_max_ms > 0 ? options->delay_max_ms : 60000);
	semel_status status = compare_topic(
		look, name, options->total_order ? 1 : options->partitions, true, error);
	for (uint32_t tier = 1; tier <= tiers && status == SEMEL_OK; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		status = semel_kafka_tier_name(options->scope, name, tier, tier_name, error);
		if (status == SEMEL_OK)
			status = compare_topic(look, tier_name, 0, false, error);
	}
	return status;
}

semel_status semel_kafka_compare(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 semel_difference_callback seen, void *user, semel_error *error)
{
	const struct look look = { semel_kafka_of(broker), options, seen, user };
	semel_status status = semel_kafka_check_bind(options, error);
	for (size_t i = 0; options->topics[i] && status == SEMEL_OK; i++)
		status = compare_all(&look, options->topics[i], error);
	return status;
}
