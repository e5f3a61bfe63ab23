/* SPDX-License-Identifier: Apache-2.0 */
/* A subscription is a consumer group. Its topics and retry topics are created when they are
 * missing, and its start offsets are committed at once: so it exists from now on, even without a
 * consumer. Where it begins in partitions for which its group has no offset:
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
#include "base/text.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- start offsets --------------------------------------------------------------------------- */

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
 * If they cannot be committed, reading begins at the ends nevertheless. */
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

/* -1: the list does not have the entry. */
static int64_t offset_in(const rd_kafka_topic_partition_list_t *list,
			 const rd_kafka_topic_partition_t *entry)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].partition == entry->partition &&
		    strcmp(list->elems[i].topic, entry->topic) == 0)
			return list->elems[i].offset;
	return -1;
}

/* ends: the ends that are known; more are added. */
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
	semel_status status = semel_kafka_topic_resolve(kafka, own, &topic, error);
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

/* Entries that begin at the end of their partition get it; the others stay as they are. */
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

/* ---- subscribing ----------------------------------------------------------------------------- */

semel_status semel_kafka_check_bind(const struct semel_subscribe_options *options,
				    semel_error *error)
{
	if (!options->bind)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "Kafka cannot filter by routing key (remove --bind %s, or publish "
			       "those events to a topic of their own: --topic)",
			       options->bind);
}

static semel_status check_options(const struct semel_kafka *kafka,
				  const struct semel_subscribe_options *options, semel_error *error)
{
	if (kafka->consumer)
		return semel_error_set(error, SEMEL_INVALID,
				       "this broker connection has a subscription already (open "
				       "another one)");
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a scope");
	if (!options->topics || !options->topics[0])
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a topic");
	if (kafka->settings.offsets_in_store && !kafka->offset_store && !options->declare_only)
		return semel_error_set(error, SEMEL_CONFIG,
				       "offsets=store needs a store to keep offsets in");
	return semel_kafka_check_bind(options, error);
}

static semel_status check_partitions(const struct semel_kafka_topic *topic,
				     const struct semel_subscribe_options *options,
				     semel_error *error)
{
	if (options->total_order && topic->partitions > 1)
		return semel_error_set(error, SEMEL_CONFIG,
				       "total order requires a topic with one partition; %s has %u "
				       "(use another topic, or order by aggregate)",
				       topic->name, topic->partitions);
	if (options->partitions > 0 && topic->partitions != options->partitions)
		return semel_error_set(error, SEMEL_CONFIG,
				       "topic %s has %u partitions, not %u (nothing was changed: "
				       "change the topic or the setting)",
				       topic->name, topic->partitions, options->partitions);
	return SEMEL_OK;
}

/* A topic that cannot be used is a wrong configuration here. */
static semel_status ensure_topic(struct semel_kafka *kafka, const char *name, uint32_t partitions,
				 struct semel_kafka_topic **topic_out, semel_error *error)
{
	semel_status status = semel_kafka_topic_ensure(kafka, name, partitions, topic_out, error);
	if (status == SEMEL_UNROUTABLE || status == SEMEL_NACKED || status == SEMEL_INVALID)
		status = SEMEL_CONFIG;
	if (status == SEMEL_CONFIG && error)
		error->status = status;
	return status;
}

static void add_all(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
		    const struct semel_kafka_topic *topic)
{
	for (uint32_t i = 0; i < topic->partitions; i++)
		kafka->library->topic_partition_list_add(list, topic->full, (int32_t)i);
}

static bool is_listed(const char *const *list, const char *name)
{
	for (size_t i = 0; list && list[i]; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

/* The topic and its retry topics. The group assigns the topic's partitions only: see group.c. */
static semel_status declare(struct semel_kafka *kafka, const char *name,
			    const struct semel_subscribe_options *options,
			    rd_kafka_topic_partition_list_t *names,
			    rd_kafka_topic_partition_list_t *partitions, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	uint32_t expected = options->total_order ? 1 : options->partitions;
	semel_status status = ensure_topic(kafka, name, expected, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = check_partitions(topic, options, error);
	if (status != SEMEL_OK)
		return status;
	uint32_t count = topic->partitions;
	topic->start_committed = is_listed(options->previously_read, name);
	add_all(kafka, partitions, topic);
	kafka->library->topic_partition_list_add(names, topic->full, RD_KAFKA_PARTITION_UA);
	for (uint32_t tier = 1; tier <= kafka->tiers; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		status = semel_kafka_tier_name(options->scope, name, tier, tier_name, error);
		if (status != SEMEL_OK)
			return status;
		status = ensure_topic(kafka, tier_name, count, &topic, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* A group that is rebalancing has answered: it has members, and only these may commit. */
static bool is_unanswered(rd_kafka_resp_err_t err)
{
	return semel_kafka_is_transient(err) && err != RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
}

static void set_start_committed(struct semel_kafka *kafka,
				const rd_kafka_topic_partition_list_t *partitions)
{
	for (int i = 0; i < partitions->cnt; i++) {
		struct semel_kafka_topic *topic = semel_kafka_topic_find(
			kafka, semel_kafka_own_name(kafka, partitions->elems[i].topic));
		if (topic)
			topic->start_committed = true;
	}
}

/* refused_out: the group has members, and only these may commit. */
static semel_status commit_start_offsets(struct semel_kafka *kafka,
					 rd_kafka_topic_partition_list_t *partitions,
					 bool *refused_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	semel_status status = semel_kafka_read_committed(kafka, kafka->consumer, partitions, error);
	if (status != SEMEL_OK)
		return status;
	rd_kafka_topic_partition_list_t *uncommitted =
		library->topic_partition_list_new(partitions->cnt);
	for (int i = 0; i < partitions->cnt; i++)
		if (partitions->elems[i].offset < 0)
			library->topic_partition_list_add(uncommitted, partitions->elems[i].topic,
							  partitions->elems[i].partition);
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	if (uncommitted->cnt > 0) {
		status = semel_kafka_set_start_offsets(kafka, uncommitted, error);
		if (status != SEMEL_OK)
			goto destroy_list;
		err = semel_kafka_commit_sync(kafka, uncommitted);
	}
	*refused_out = err != RD_KAFKA_RESP_ERR_NO_ERROR;
	if (!err)
		set_start_committed(kafka, partitions);
	else if (is_unanswered(err))
		status = semel_kafka_call_failed(kafka, err, "commit start offsets", error);
	else
		semel_log(SEMEL_LOG_DEBUG,
			  "cannot commit start offsets, retrying as a group member",
			  &(struct semel_log_fields){ .consumer = kafka->scope,
						      .error = library->err2str(err) });

destroy_list:
	library->topic_partition_list_destroy(uncommitted);
	return status;
}

static semel_status join(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *names,
			 semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	kafka->consumer_queue = library->queue_get_consumer(kafka->consumer);
	if (kafka->wake)
		semel_kafka_notify_on(kafka, kafka->consumer_queue);
	rd_kafka_resp_err_t err = library->subscribe(kafka->consumer, names);
	return err ? semel_kafka_call_failed(kafka, err, "subscribe", error) : SEMEL_OK;
}

/* A member may commit the start offsets. */
static semel_status commit_as_member(struct semel_kafka *kafka, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + SEMEL_KAFKA_CALL_MS;
	for (;;) {
		semel_status status = semel_kafka_group_serve(kafka, error);
		if (status != SEMEL_OK)
			return status;
		if (kafka->assigned || semel_steady_ms(kafka->env) >= until_ms)
			return semel_kafka_group_commit_now(kafka, error);
		semel_sleep_us(10000);
	}
}

static semel_status declare_all(struct semel_kafka *kafka,
				const struct semel_subscribe_options *options,
				rd_kafka_topic_partition_list_t *names,
				rd_kafka_topic_partition_list_t *partitions, semel_error *error)
{
	for (size_t i = 0; options->topics[i]; i++) {
		if (semel_string_is_repeated(options->topics, i))
			continue;
		semel_status status =
			declare(kafka, options->topics[i], options, names, partitions, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_kafka_subscribe(struct semel_broker *broker,
				   const struct semel_subscribe_options *options,
				   semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	const struct semel_kafka_library *library = kafka->library;
	semel_status status = check_options(kafka, options, error);
	if (status != SEMEL_OK)
		return status;
	kafka->scope = strdup(options->scope);
	kafka->prefetch = options->prefetch;
	kafka->prefetch_bytes = (uint64_t)(options->prefetch_bytes > 0 ? options->prefetch_bytes
								       : SEMEL_PREFETCH_BYTES);
	kafka->from_latest = options->from_latest;
	kafka->check.next_ms = semel_steady_ms(kafka->env) + SEMEL_KAFKA_CHECK_MS;
	kafka->tiers =
		semel_kafka_tier_for(options->delay_max_ms > 0 ? options->delay_max_ms : 60000);
	status = kafka->scope
			 ? semel_kafka_consumer_new(kafka, kafka->scope, &kafka->consumer, error)
			 : semel_error_set(error, SEMEL_INTERNAL,
					   "out of memory for a subscription");
	if (status != SEMEL_OK)
		return status;
	rd_kafka_topic_partition_list_t *names = library->topic_partition_list_new(8);
	rd_kafka_topic_partition_list_t *partitions = library->topic_partition_list_new(32);
	bool refused = false;
	status = declare_all(kafka, options, names, partitions, error);
	if (status != SEMEL_OK)
		goto destroy_lists;
	status = commit_start_offsets(kafka, partitions, &refused, error);
	if (status != SEMEL_OK || options->declare_only)
		goto destroy_lists;
	status = join(kafka, names, error);
	if (status != SEMEL_OK || !refused)
		goto destroy_lists;
	status = commit_as_member(kafka, error);

destroy_lists:
	library->topic_partition_list_destroy(names);
	library->topic_partition_list_destroy(partitions);
	return status;
}
