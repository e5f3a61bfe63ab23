/* SPDX-License-Identifier: Apache-2.0 */
/* Where a subscription begins in partitions of which its group has no offset.
 *
 * - A subscription that is to see new events only begins at the end of the partitions that are
 *   there when it is made. Where it begins is committed at once, for all of them.
 * - So a partition without an offset, in a topic where the subscription has begun, was added later,
 *   or its topic was made anew: it is read from its beginning.
 * - When no partition of the topic has an offset, they were never committed, or they are gone: the
 *   group was deleted, or has expired. The caller tells which topics it has read before: they are
 *   read from their beginning, and the inbox knows what was done.
 * - What lies in a retry topic was put there for this subscription. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <string.h>

static bool has_any(const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].offset >= 0)
			return true;
	return false;
}

/* The end of all partitions of the topic is committed, if none has an offset. Whoever is not
 * allowed to commit them begins there all the same. */
static semel_status start_at_end(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				 rd_kafka_topic_partition_list_t *ends_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(8);
	uint32_t count = 0;
	semel_status status = SEMEL_OK;
	if (!semel_kafka_count_partitions(kafka, topic->name, semel_kafka_call_deadline(kafka),
					  &count))
		status = semel_error_set(error, SEMEL_OUTAGE, "%s does not tell of the topic %s",
					 kafka->address, topic->name);
	for (uint32_t i = 0; i < count; i++)
		library->topic_partition_list_add(list, topic->full, (int32_t)i);
	if (status == SEMEL_OK)
		status = semel_kafka_read_committed(kafka, kafka->consumer, list, error);
	bool begun = status == SEMEL_OK && has_any(list);
	for (int i = 0; i < list->cnt && status == SEMEL_OK && !begun; i++)
		list->elems[i].offset = RD_KAFKA_OFFSET_END;
	if (status == SEMEL_OK && !begun)
		status = semel_kafka_resolve_offsets(kafka, kafka->consumer, list, error);
	if (status == SEMEL_OK && !begun && kafka->assigned)
		(void)semel_kafka_commit_sync(kafka, list);
	for (int i = 0; i < list->cnt && status == SEMEL_OK && !begun; i++)
		library->topic_partition_list_add(ends_out, topic->full, list->elems[i].partition)
			->offset = list->elems[i].offset;
	topic->start_committed =
		topic->start_committed || begun || (status == SEMEL_OK && kafka->assigned);
	library->topic_partition_list_destroy(list);
	return status;
}

/* -1: none. */
static int64_t offset_in(const rd_kafka_topic_partition_list_t *list,
			 const rd_kafka_topic_partition_t *entry)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].partition == entry->partition &&
		    strcmp(list->elems[i].topic, entry->topic) == 0)
			return list->elems[i].offset;
	return -1;
}

/* Those that begin at the end get it; the others are left as they are. */
static semel_status set_ends(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *partitions,
			     semel_error *error)
{
	semel_status status = SEMEL_OK;
	size_t length;
	rd_kafka_topic_partition_list_t *ends = kafka->library->topic_partition_list_new(8);
	for (int i = 0; i < partitions->cnt && status == SEMEL_OK; i++) {
		rd_kafka_topic_partition_t *entry = &partitions->elems[i];
		struct semel_kafka_topic *topic = NULL;
		const char *own = semel_kafka_own_name(kafka, entry->topic);
		if (entry->offset >= 0 || semel_kafka_tier_of(kafka, own, &length) > 0)
			continue;
		entry->offset = offset_in(ends, entry);
		if (entry->offset < 0)
			status = semel_kafka_topic_lookup(kafka, own, &topic, error);
		if (status == SEMEL_OK && topic && !topic->start_committed)
			status = start_at_end(kafka, topic, ends, error);
		if (status == SEMEL_OK && entry->offset < 0)
			entry->offset = offset_in(ends, entry);
	}
	kafka->library->topic_partition_list_destroy(ends);
	return status;
}

semel_status semel_kafka_set_start_offsets(struct semel_kafka *kafka,
					   rd_kafka_topic_partition_list_t *partitions,
					   semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	semel_status status = kafka->from_latest ? set_ends(kafka, partitions, error) : SEMEL_OK;
	rd_kafka_topic_partition_list_t *unknown =
		library->topic_partition_list_new(partitions->cnt);
	for (int i = 0; i < partitions->cnt; i++)
		if (partitions->elems[i].offset < 0)
			library->topic_partition_list_add(unknown, partitions->elems[i].topic,
							  partitions->elems[i].partition)
				->offset = RD_KAFKA_OFFSET_BEGINNING;
	if (status == SEMEL_OK)
		status = semel_kafka_resolve_offsets(kafka, kafka->consumer, unknown, error);
	for (int i = 0, at = 0; i < partitions->cnt && status == SEMEL_OK; i++)
		if (partitions->elems[i].offset < 0)
			partitions->elems[i].offset = unknown->elems[at++].offset;
	library->topic_partition_list_destroy(unknown);
	return status;
}
