/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits for a subscription, and whether a given event does.
 *
 * The backlog is scanned partition by partition: from the group's offset, or from our own position
 * where the partition is ours, to the end. A group that has committed nothing in a topic is not
 * subscribed to it; but what is in its retry topics was put there for it. A scan reads offsets and
 * changes nothing, neither at the cluster nor in an assignment. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdlib.h>
#include <string.h>

#define NOT_KNOWN (-1)

struct offset_range {
	const char *topic; /* full name; lives as long as the broker */
	uint32_t tier;
	int32_t partition;
	int64_t from, end;
	const struct semel_kafka_assignment *assignment; /* NULL: it is not ours */
};

struct backlog_scan {
	struct offset_range *ranges;
	size_t count;
};

/* ---- which partitions ------------------------------------------------------------------------ */

static bool is_own(const struct semel_kafka *kafka, const char *scope)
{
	return kafka->scope && strcmp(kafka->scope, scope) == 0;
}

static semel_status add_topic(struct semel_kafka *kafka, struct backlog_scan *scan,
			      const char *name, uint32_t tier, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	semel_status status = semel_kafka_topic_resolve(kafka, name, &topic, error);
	if (status != SEMEL_OK || topic->partitions == 0)
		return status;
	struct offset_range *ranges =
		realloc(scan->ranges, (scan->count + topic->partitions) * sizeof(scan->ranges[0]));
	if (!ranges)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a backlog");
	scan->ranges = ranges;
	for (uint32_t i = 0; i < topic->partitions; i++)
		ranges[scan->count++] = (struct offset_range){ .topic = topic->full,
							       .tier = tier,
							       .partition = (int32_t)i,
							       .from = NOT_KNOWN };
	return SEMEL_OK;
}

/* The owner of a partition reads all retry topics that exist (topics.c); others have to query them.
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
			       struct backlog_scan *scan, semel_error *error)
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
						const struct backlog_scan *scan, int64_t offset)
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

/* Partitions without a committed offset stay NOT_KNOWN. */
static void copy_committed(const rd_kafka_topic_partition_list_t *list, struct backlog_scan *scan)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].offset >= 0)
			scan->ranges[i].from = list->elems[i].offset;
}

/* Reads the offsets with a consumer of the group. librdkafka's admin client can do so for any
 * group, but 2.0 ends the process when it is closed while such a request is unanswered. */
static semel_status read_committed(struct semel_kafka *kafka, const char *scope,
				   struct backlog_scan *scan, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_t *member = is_own(kafka, scope) ? kafka->consumer : NULL, *observer = NULL;
	if (!member) {
		semel_status status = semel_kafka_observer_new(kafka, scope, &observer, error);
		if (status != SEMEL_OK)
			return status;
	}
	rd_kafka_topic_partition_list_t *list = list_of(kafka, scan, RD_KAFKA_OFFSET_INVALID);
	semel_status status =
		semel_kafka_read_committed(kafka, member ? member : observer, list, error);
	if (status != SEMEL_OK)
		goto destroy;
	copy_committed(list, scan);

destroy:
	library->topic_partition_list_destroy(list);
	if (observer)
		library->destroy_flags(observer, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	return status;
}

static semel_status get_offsets_from_store(struct semel_kafka *kafka, const char *scope,
					   struct backlog_scan *scan, semel_error *error)
{
	for (size_t i = 0; i < scan->count; i++) {
		struct offset_range *range = &scan->ranges[i];
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

static bool is_subscribed(const struct backlog_scan *scan, const char *topic)
{
	for (size_t i = 0; i < scan->count; i++)
		if (scan->ranges[i].from != NOT_KNOWN && strcmp(scan->ranges[i].topic, topic) == 0)
			return true;
	return false;
}

/* The log ends before our offset: it was replaced, and will be read from its beginning. */
static void handle_shortened_log(struct semel_kafka *kafka, struct offset_range *range,
				 int64_t begin)
{
	if (range->assignment)
		semel_kafka_anchor_recheck(kafka);
	range->from = begin;
}

static void set_end(struct semel_kafka *kafka, const struct backlog_scan *scan,
		    struct offset_range *range, int64_t begin, int64_t end)
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

static semel_status read_ends(struct semel_kafka *kafka, struct backlog_scan *scan,
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
static bool copy_positions(struct semel_kafka *kafka, struct backlog_scan *scan)
{
	bool all = true;
	for (size_t i = 0; i < scan->count; i++) {
		struct offset_range *range = &scan->ranges[i];
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
				struct backlog_scan *scan, semel_error *error)
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

/* Scans all partitions of the scope's topics; free the scan even after a failure. */
static semel_status run_scan(struct semel_kafka *kafka, const char *scope,
			     const char *const *topics, struct backlog_scan *scan_out,
			     semel_error *error)
{
	*scan_out = (struct backlog_scan){ 0 };
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

static void free_scan(struct backlog_scan *scan)
{
	free(scan->ranges);
	*scan = (struct backlog_scan){ 0 };
}

/* ---- how much -------------------------------------------------------------------------------- */

/* When the first record of the retry topic is due, as far as is known. */
static int64_t due_of(const struct semel_kafka *kafka, const struct offset_range *range)
{
	int64_t now_ms = semel_now_ms(kafka->env);
	if (range->assignment && range->assignment->due_ms > 0)
		return range->assignment->due_ms;
	if (kafka->tier_due_ms[range->tier] > now_ms)
		return kafka->tier_due_ms[range->tier];
	return now_ms + semel_kafka_tier_ms(range->tier);
}

static void count(const struct semel_kafka *kafka, const struct offset_range *range,
		  struct semel_backlog *backlog)
{
	uint64_t waiting = (uint64_t)(range->end - range->from);
	if (range->assignment) {
		uint64_t acked = semel_kafka_assignment_acked_ahead(range->assignment);
		waiting -= acked < waiting ? acked : waiting;
		if (waiting == 0 && range->assignment->unverified)
			waiting = 1; /* not known before the check */
	}
	backlog->waiting += waiting;
	if (waiting == 0 || range->tier < 2)
		return;
	int64_t due_ms = due_of(kafka, range);
	backlog->delayed += waiting;
	if (backlog->next_due_ms == 0 || due_ms < backlog->next_due_ms)
		backlog->next_due_ms = due_ms;
}

semel_status semel_kafka_backlog(struct semel_broker *broker, const char *scope,
				 const char *const *topics, struct semel_backlog *backlog_out,
				 semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct backlog_scan scan;
	*backlog_out = (struct semel_backlog){ 0 };
	semel_status status = run_scan(kafka, scope, topics, &scan, error);
	for (size_t i = 0; i < scan.count && status == SEMEL_OK; i++)
		count(kafka, &scan.ranges[i], backlog_out);
	free_scan(&scan);
	return status;
}

/* ---- one event ------------------------------------------------------------------------------- */

/* A consumer outside the group that reads what waits, once. */
struct search {
	rd_kafka_t *consumer;
	struct backlog_scan scan;
	size_t unread; /* ranges that are not read to their end */
	struct semel_text id;
	bool found;
};

static struct offset_range *range_of(struct search *search, const char *topic, int32_t partition)
{
	for (size_t i = 0; i < search->scan.count; i++)
		if (search->scan.ranges[i].partition == partition &&
		    strcmp(search->scan.ranges[i].topic, topic) == 0)
			return &search->scan.ranges[i];
	return NULL;
}

static bool is_acked(const struct offset_range *range, int64_t offset)
{
	const struct semel_kafka_assignment *assignment = range->assignment;
	for (size_t i = 0; assignment && i < assignment->length; i++)
		if (assignment->unacked[assignment->start + i].offset == offset)
			return !assignment->unacked[assignment->start + i].message;
	return false;
}

static void check_record(struct semel_kafka *kafka, struct search *search,
			 rd_kafka_message_t *message)
{
	const char *topic = message->rkt ? kafka->library->topic_name(message->rkt) : NULL;
	struct offset_range *range = topic ? range_of(search, topic, message->partition) : NULL;
	bool over = message->err != RD_KAFKA_RESP_ERR_NO_ERROR;
	if (!range || range->from >= range->end ||
	    (over && message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF))
		return;
	struct semel_text id =
		over ? (struct semel_text){ NULL, 0 } : semel_kafka_header(kafka, message, "ce_id");
	if (!id.data && !over)
		id = semel_kafka_header(kafka, message, "id"); /* of an adopted outbox */
	if (id.data && message->offset < range->end && semel_text_equal(id, search->id) &&
	    !is_acked(range, message->offset))
		search->found = true;
	range->from = over ? range->end : message->offset + 1;
	if (range->from >= range->end)
		search->unread--;
}

static semel_status read_ranges(struct semel_kafka *kafka, struct search *search,
				semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	int64_t progress_ms = semel_steady_ms(kafka->env);
	while (search->unread > 0 && !search->found) {
		rd_kafka_message_t *message = library->consumer_poll(search->consumer, 100);
		if (!message && semel_steady_ms(kafka->env) - progress_ms > SEMEL_KAFKA_CALL_MS)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "%s does not return the waiting records (does "
					       "every partition have a leader? try again, or check "
					       "the brokers' logs)",
					       kafka->address);
		if (!message)
			continue;
		if (!message->err)
			progress_ms = semel_steady_ms(kafka->env);
		check_record(kafka, search, message);
		library->message_destroy(message);
	}
	return SEMEL_OK;
}

static semel_status run_search(struct semel_kafka *kafka, struct search *search, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(8);
	for (size_t i = 0; i < search->scan.count; i++) {
		const struct offset_range *range = &search->scan.ranges[i];
		if (range->from >= range->end)
			continue;
		library->topic_partition_list_add(list, range->topic, range->partition)->offset =
			range->from;
		search->unread++;
	}
	semel_status status = SEMEL_OK;
	if (search->unread == 0)
		goto destroy_list;
	status = semel_kafka_observer_new(kafka, "semel-inspect", &search->consumer, error);
	if (status != SEMEL_OK)
		goto destroy_list;
	rd_kafka_resp_err_t err = library->assign(search->consumer, list);
	status = err ? semel_kafka_call_failed(kafka, err, "read the backlog", error)
		     : read_ranges(kafka, search, error);
	library->destroy_flags(search->consumer, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);

destroy_list:
	library->topic_partition_list_destroy(list);
	return status;
}

semel_status semel_kafka_find_event(struct semel_broker *broker, const char *scope,
				    const char *const *topics, const char *event_id,
				    bool *waiting_out, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct search search = { .id = semel_text_of(event_id) };
	semel_status status = run_scan(kafka, scope, topics, &search.scan, error);
	if (status != SEMEL_OK)
		goto free;
	status = run_search(kafka, &search, error);

free:
	*waiting_out = search.found;
	free_scan(&search.scan);
	return status;
}
