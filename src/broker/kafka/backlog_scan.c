/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for a subscription, partition by partition: from the group's offset, or from our own
 * position where the partition is ours, to the end. A group that has committed nothing in a topic
 * is not subscribed to it; but what is in its retry topics was put there for it. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdlib.h>
#include <string.h>

#define NOT_KNOWN (-1)

/* ---- which partitions ------------------------------------------------------------------------ */

static bool is_own(const struct semel_kafka *kafka, const char *scope)
{
	return kafka->scope && strcmp(kafka->scope, scope) == 0;
}

static semel_status add_topic(struct semel_kafka *kafka, struct semel_kafka_backlog_scan *scan,
			      const char *name, uint32_t tier, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	semel_status status = semel_kafka_topic_lookup(kafka, name, &topic, error);
	if (status != SEMEL_OK || topic->partitions == 0)
		return status;
	struct semel_kafka_offset_range *ranges =
		realloc(scan->ranges, (scan->count + topic->partitions) * sizeof(scan->ranges[0]));
	if (!ranges)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a backlog");
	scan->ranges = ranges;
	for (uint32_t i = 0; i < topic->partitions; i++)
		ranges[scan->count++] = (struct semel_kafka_offset_range){ .topic = topic->full,
									   .tier = tier,
									   .partition = (int32_t)i,
									   .from = NOT_KNOWN };
	return SEMEL_OK;
}

/* The owner of a partition reads all retry topics that exist (tiers.c); others have to query them.
 */
static bool may_exist(struct semel_kafka *kafka, const char *scope, const char *topic,
		      uint32_t tier)
{
	bool reads = false;
	for (uint32_t i = 0; is_own(kafka, scope) && i < kafka->assignment_count; i++) {
		const struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		if (!assignment->owned || strcmp(assignment->event_topic, topic) != 0)
			continue;
		if (assignment->tier == tier)
			return true;
		reads = true;
	}
	return !reads || tier <= kafka->tiers;
}

static semel_status add_topics(struct semel_kafka *kafka, const char *scope, const char *name,
			       struct semel_kafka_backlog_scan *scan, semel_error *error)
{
	semel_status status = add_topic(kafka, scan, name, 0, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t tier = 1; tier <= SEMEL_KAFKA_TIERS; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		if (!may_exist(kafka, scope, name, tier))
			continue;
		status = semel_kafka_tier_name(scope, name, tier, tier_name, error);
		if (status != SEMEL_OK)
			return status;
		status = add_topic(kafka, scan, tier_name, tier, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- offsets --------------------------------------------------------------------------------- */

static rd_kafka_topic_partition_list_t *list_of(const struct semel_kafka *kafka,
						const struct semel_kafka_backlog_scan *scan,
						int64_t offset)
{
	rd_kafka_topic_partition_list_t *list =
		kafka->library->topic_partition_list_new((int)scan->count);
	for (size_t i = 0; i < scan->count; i++)
		kafka->library
			->topic_partition_list_add(list, scan->ranges[i].topic,
						   scan->ranges[i].partition)
			->offset = offset;
	return list;
}

/* NOT_KNOWN stays where there is nothing. */
static void copy_committed(const rd_kafka_topic_partition_list_t *list,
			   struct semel_kafka_backlog_scan *scan)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].offset >= 0)
			scan->ranges[i].from = list->elems[i].offset;
}

/* As a member of the group would ask. librdkafka's admin client can ask for any group, but 2.0 ends
 * the process when it is closed while such a request is unanswered. */
static semel_status read_committed(struct semel_kafka *kafka, const char *scope,
				   struct semel_kafka_backlog_scan *scan, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_t *member = is_own(kafka, scope) ? kafka->consumer : NULL, *observer = NULL;
	if (!member) {
		semel_status status = semel_kafka_observer_make(kafka, scope, &observer, error);
		if (status != SEMEL_OK)
			return status;
	}
	rd_kafka_topic_partition_list_t *list = list_of(kafka, scan, RD_KAFKA_OFFSET_INVALID);
	semel_status status =
		semel_kafka_read_committed(kafka, member ? member : observer, list, error);
	if (status == SEMEL_OK)
		copy_committed(list, scan);
	library->topic_partition_list_destroy(list);
	if (observer)
		library->destroy_flags(observer, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	return status;
}

static semel_status get_offsets_from_store(struct semel_kafka *kafka, const char *scope,
					   struct semel_kafka_backlog_scan *scan,
					   semel_error *error)
{
	for (size_t i = 0; i < scan->count; i++) {
		struct semel_kafka_offset_range *range = &scan->ranges[i];
		int64_t next = -1;
		if (range->tier > 0)
			continue;
		semel_status status = kafka->offset_store->get(
			kafka->offset_store->user, scope, semel_kafka_own_name(kafka, range->topic),
			range->partition, &next, error);
		if (status != SEMEL_OK)
			return status;
		if (next >= 0)
			range->from = next;
	}
	return SEMEL_OK;
}

static bool is_subscribed(const struct semel_kafka_backlog_scan *scan, const char *topic)
{
	for (size_t i = 0; i < scan->count; i++)
		if (scan->ranges[i].from != NOT_KNOWN && strcmp(scan->ranges[i].topic, topic) == 0)
			return true;
	return false;
}

/* The log ends before our offset: it was replaced, and will be read from its beginning. */
static void handle_shortened_log(struct semel_kafka *kafka, struct semel_kafka_offset_range *range,
				 int64_t begin)
{
	if (range->assignment)
		semel_kafka_anchor_recheck(kafka);
	range->from = begin;
}

static void set_end(struct semel_kafka *kafka, const struct semel_kafka_backlog_scan *scan,
		    struct semel_kafka_offset_range *range, int64_t begin, int64_t end)
{
	range->end = end;
	if (range->from == NOT_KNOWN && range->tier == 0 && !is_subscribed(scan, range->topic))
		range->end = begin;
	if (range->from < begin && !range->assignment)
		range->from = begin;
	if (range->from > range->end)
		handle_shortened_log(kafka, range, begin);
	if (range->end < range->from)
		range->end = range->from;
}

static semel_status read_ends(struct semel_kafka *kafka, struct semel_kafka_backlog_scan *scan,
			      semel_error *error)
{
	rd_kafka_topic_partition_list_t *begins = list_of(kafka, scan, RD_KAFKA_OFFSET_BEGINNING);
	rd_kafka_topic_partition_list_t *ends = list_of(kafka, scan, RD_KAFKA_OFFSET_END);
	semel_status status = semel_kafka_resolve_offsets(kafka, kafka->producer, begins, error);
	if (status != SEMEL_OK)
		goto destroy_lists;
	status = semel_kafka_resolve_offsets(kafka, kafka->producer, ends, error);
	if (status != SEMEL_OK)
		goto destroy_lists;
	for (size_t i = 0; i < scan->count; i++)
		set_end(kafka, scan, &scan->ranges[i], begins->elems[i].offset,
			ends->elems[i].offset);

destroy_lists:
	kafka->library->topic_partition_list_destroy(begins);
	kafka->library->topic_partition_list_destroy(ends);
	return status;
}

/* Where a partition is ours, our position is newer than the committed one. */
static bool copy_positions(struct semel_kafka *kafka, struct semel_kafka_backlog_scan *scan)
{
	bool all = true;
	for (size_t i = 0; i < scan->count; i++) {
		struct semel_kafka_offset_range *range = &scan->ranges[i];
		const struct semel_kafka_assignment *assignment =
			semel_kafka_assignment_find(kafka, range->topic, range->partition);
		if (assignment && assignment->owned) {
			range->assignment = assignment;
			range->from = assignment->position;
		} else {
			all = false;
		}
	}
	return all;
}

static semel_status read_starts(struct semel_kafka *kafka, const char *scope,
				struct semel_kafka_backlog_scan *scan, semel_error *error)
{
	if (is_own(kafka, scope) && copy_positions(kafka, scan))
		return SEMEL_OK;
	semel_status status = read_committed(kafka, scope, scan, error);
	if (status != SEMEL_OK)
		return status;
	if (kafka->offset_store) {
		status = get_offsets_from_store(kafka, scope, scan, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (is_own(kafka, scope))
		(void)copy_positions(kafka, scan);
	return SEMEL_OK;
}

semel_status semel_kafka_backlog_scan_run(struct semel_kafka *kafka, const char *scope,
					  const char *const *topics,
					  struct semel_kafka_backlog_scan *scan_out,
					  semel_error *error)
{
	*scan_out = (struct semel_kafka_backlog_scan){ 0 };
	for (size_t i = 0; topics[i]; i++) {
		semel_status status = add_topics(kafka, scope, topics[i], scan_out, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (scan_out->count == 0)
		return SEMEL_OK;
	semel_status status = read_starts(kafka, scope, scan_out, error);
	if (status != SEMEL_OK)
		return status;
	return read_ends(kafka, scan_out, error);
}

void semel_kafka_backlog_scan_free(struct semel_kafka_backlog_scan *scan)
{
	free(scan->ranges);
	*scan = (struct semel_kafka_backlog_scan){ 0 };
}
