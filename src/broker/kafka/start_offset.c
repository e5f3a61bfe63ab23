/* SPDX-License-Identifier: Apache-2.0 */
/* Where a subscription begins in partitions of which its group has no offset.
 *
 * - A subscription to new events only begins at the end of the partitions that exist when it is
 *   created. These start offsets are committed at once, for all of them.
 * - So a partition without an offset, in a topic whose start offsets are committed, was added
 *   later, or its topic was created again: it is read from its beginning.
 * - When no partition of the topic has an offset, they were never committed, or they are lost: the
 *   group was deleted, or has expired. The caller says which topics it has read before: they are
 *   read from their beginning, and the inbox knows what was processed.
 * - What is in a retry topic was put there for this subscription. */
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

static semel_status resolve_ends(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
				 semel_error *error)
{
	for (int i = 0; i < list->cnt; i++)
		list->elems[i].offset = RD_KAFKA_OFFSET_END;
	return semel_kafka_resolve_offsets(kafka, kafka->consumer, list, error);
}

/* If no partition of the topic has an offset, the ends of all are committed, and added to ends_out.
 * Who may not commit them begins there all the same. */
static semel_status start_at_end(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				 rd_kafka_topic_partition_list_t *ends_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	uint32_t count = 0;
	if (!semel_kafka_count_partitions(kafka, topic->name, semel_kafka_call_deadline(kafka),
					  &count))
		return semel_error_set(error, SEMEL_OUTAGE,
				       "%s does not answer for topic %s (try again)",
				       kafka->address, topic->name);
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(8);
	for (uint32_t i = 0; i < count; i++)
		library->topic_partition_list_add(list, topic->full, (int32_t)i);
	semel_status status = semel_kafka_read_committed(kafka, kafka->consumer, list, error);
	if (status != SEMEL_OK)
		goto destroy_list;
	if (has_any(list)) {
		topic->start_committed = true;
		goto destroy_list;
	}
	status = resolve_ends(kafka, list, error);
	if (status != SEMEL_OK)
		goto destroy_list;
	if (kafka->assigned) {
		(void)semel_kafka_commit_sync(kafka, list);
		topic->start_committed = true;
	}
	for (int i = 0; i < list->cnt; i++)
		library->topic_partition_list_add(ends_out, topic->full, list->elems[i].partition)
			->offset = list->elems[i].offset;

destroy_list:
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

/* ends: what is known of them; more is added. */
static semel_status set_end(struct semel_kafka *kafka, rd_kafka_topic_partition_t *entry,
			    rd_kafka_topic_partition_list_t *ends, semel_error *error)
{
	const char *own = semel_kafka_own_name(kafka, entry->topic);
	struct semel_kafka_topic *topic = NULL;
	size_t length;
	if (entry->offset >= 0 || semel_kafka_tier_of(kafka, own, &length) > 0)
		return SEMEL_OK;
	entry->offset = offset_in(ends, entry);
	if (entry->offset >= 0)
		return SEMEL_OK;
	semel_status status = semel_kafka_topic_lookup(kafka, own, &topic, error);
	if (status != SEMEL_OK)
		return status;
	if (topic && !topic->start_committed) {
		status = start_at_end(kafka, topic, ends, error);
		if (status != SEMEL_OK)
			return status;
	}
	entry->offset = offset_in(ends, entry);
	return SEMEL_OK;
}

/* Entries that begin at the end get it; the others are left as they are. */
static semel_status set_ends(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *partitions,
			     semel_error *error)
{
	rd_kafka_topic_partition_list_t *ends = kafka->library->topic_partition_list_new(8);
	semel_status status = SEMEL_OK;
	for (int i = 0; i < partitions->cnt; i++) {
		status = set_end(kafka, &partitions->elems[i], ends, error);
		if (status != SEMEL_OK)
			break;
	}
	kafka->library->topic_partition_list_destroy(ends);
	return status;
}

/* Entries without an offset get the beginning of their partition. */
static semel_status set_beginnings(struct semel_kafka *kafka,
				   rd_kafka_topic_partition_list_t *partitions, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *unknown =
		library->topic_partition_list_new(partitions->cnt);
	for (int i = 0; i < partitions->cnt; i++)
		if (partitions->elems[i].offset < 0)
			library->topic_partition_list_add(unknown, partitions->elems[i].topic,
							  partitions->elems[i].partition)
				->offset = RD_KAFKA_OFFSET_BEGINNING;
	semel_status status = semel_kafka_resolve_offsets(kafka, kafka->consumer, unknown, error);
	if (status != SEMEL_OK)
		goto destroy_list;
	for (int i = 0, at = 0; i < partitions->cnt; i++)
		if (partitions->elems[i].offset < 0)
			partitions->elems[i].offset = unknown->elems[at++].offset;

destroy_list:
	library->topic_partition_list_destroy(unknown);
	return status;
}

semel_status semel_kafka_set_start_offsets(struct semel_kafka *kafka,
					   rd_kafka_topic_partition_list_t *partitions,
					   semel_error *error)
{
	if (kafka->from_latest) {
		semel_status status = set_ends(kafka, partitions, error);
		if (status != SEMEL_OK)
			return status;
	}
	return set_beginnings(kafka, partitions, error);
}
