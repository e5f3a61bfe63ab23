/* SPDX-License-Identifier: Apache-2.0 */
/* Which consumer reads which retry topics: the owner of partition P of a topic reads partition P of
 * each of its retry topics too, so that an aggregate's retries come to where its events come. Where
 * a retry topic has more partitions than the topic, the owners follow modulo.
 *
 * A process writes to as many retry topics as its longest delay needs, and reads all that exist:
 * other processes may have longer delays, or it had them itself before it was restarted. */
#include "base/error.h"
#include "base/text.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t semel_kafka_tier_of(const struct semel_kafka *kafka, const char *topic, size_t *length_out)
{
	char middle[SEMEL_KAFKA_NAME_SIZE];
	*length_out = strlen(topic);
	snprintf(middle, sizeof(middle), ".%s.retry.", kafka->scope);
	const char *at = NULL;
	for (const char *found = strstr(topic, middle); found; found = strstr(found + 1, middle))
		at = found;
	long long tier = 0;
	if (!at || !semel_text_to_int64(at + strlen(middle), 1, SEMEL_KAFKA_TIERS, &tier))
		return 0;
	*length_out = (size_t)(at - topic);
	return (uint32_t)tier;
}

/* The handle is not kept: librdkafka would go on requesting a topic that is missing. */
static rd_kafka_resp_err_t ask_count(struct semel_kafka *kafka, const char *full, int wait_ms,
				     uint32_t *partitions_out)
{
	const struct semel_kafka_library *library = kafka->library;
	const struct rd_kafka_metadata *metadata = NULL;
	rd_kafka_topic_t *handle = library->topic_new(kafka->producer, full, NULL);
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__FAIL;
	if (handle)
		err = library->metadata(kafka->producer, 0, handle, &metadata, wait_ms);
	if (!err && metadata->topic_cnt == 1)
		err = metadata->topics[0].err;
	if (!err && metadata->topic_cnt == 1)
		*partitions_out = (uint32_t)metadata->topics[0].partition_cnt;
	if (metadata)
		library->metadata_destroy(metadata);
	if (handle)
		library->topic_destroy(handle);
	return err;
}

bool semel_kafka_count_partitions(struct semel_kafka *kafka, const char *name, int64_t until_ms,
				  uint32_t *partitions_out)
{
	char *full = semel_kafka_full_name(kafka, name);
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__FAIL;
	*partitions_out = 0;
	if (!full)
		return false;
	do
		err = ask_count(kafka, full, semel_kafka_call_remaining_ms(kafka, until_ms),
				partitions_out);
	while (err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART &&
	       semel_kafka_retry_call(kafka, err, until_ms));
	free(full);
	struct semel_kafka_topic *known = semel_kafka_topic_find(kafka, name);
	if (known && known->partitions > 0 && *partitions_out > known->partitions)
		known->partitions = *partitions_out; /* some were added */
	/* a topic without the right to describe it is none of ours */
	return !semel_kafka_is_transient(err) || err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
}

struct tier {
	const char *topic; /* as the list has it */
	char *full;
	uint32_t partitions, retries;
};

/* count: entries of the list, without those that are added. */
static void add_partitions(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			   int count, const struct tier *tier)
{
	for (int i = 0; i < count; i++) {
		int32_t owner = list->elems[i].partition;
		if (strcmp(list->elems[i].topic, tier->topic) != 0)
			continue;
		for (uint32_t at = (uint32_t)owner; at < tier->retries; at += tier->partitions)
			kafka->library->topic_partition_list_add(list, tier->full, (int32_t)at)
				->opaque = (void *)((intptr_t)owner + 1);
	}
}

static semel_status add_topic(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			      int count, const char *topic, int64_t until_ms, semel_error *error)
{
	const char *own = semel_kafka_own_name(kafka, topic);
	struct tier tier = { .topic = topic };
	if (!semel_kafka_count_partitions(kafka, own, until_ms, &tier.partitions))
		goto unanswered;
	if (tier.partitions == 0)
		tier.partitions = 1;
	for (uint32_t i = 1; i <= SEMEL_KAFKA_TIERS; i++) {
		char name[SEMEL_KAFKA_NAME_SIZE];
		semel_status status = semel_kafka_tier_name(kafka->scope, own, i, name, error);
		if (status != SEMEL_OK)
			return status;
		bool answered = semel_kafka_count_partitions(kafka, name, until_ms, &tier.retries);
		tier.full = semel_kafka_full_name(kafka, name);
		if (tier.full)
			add_partitions(kafka, list, count, &tier);
		free(tier.full);
		if (!answered)
			goto unanswered;
	}
	return SEMEL_OK;

unanswered:
	return semel_error_set(error, SEMEL_OUTAGE,
			       "%s does not answer for the retry topics of %s (try again)",
			       kafka->address, own);
}

static bool is_repeated(const rd_kafka_topic_partition_list_t *list, int at)
{
	for (int i = 0; i < at; i++)
		if (strcmp(list->elems[i].topic, list->elems[at].topic) == 0)
			return true;
	return false;
}

semel_status semel_kafka_tiers_add(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
				   int64_t until_ms, semel_error *error)
{
	int count = list->cnt;
	for (int i = 0; i < count; i++) {
		char *topic = is_repeated(list, i) ? NULL : strdup(list->elems[i].topic);
		if (!topic) /* a copy, because the list may move when it grows */
			continue;
		semel_status status = add_topic(
			kafka, list, count, topic,
			until_ms > 0 ? until_ms : semel_kafka_call_deadline(kafka), error);
		free(topic);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

int32_t semel_kafka_topic_partition_of(const rd_kafka_topic_partition_t *entry)
{
	return entry->opaque ? (int32_t)((intptr_t)entry->opaque - 1) : entry->partition;
}
