/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for a subscription, partition by partition: from the group's offset, or from our own
 * position where the partition is ours, to the end. A group that has committed nothing in a topic
 * is not subscribed to it; but what lies in its retry topics was put there for it. */
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

static semel_status add_topic(struct semel_kafka *kafka, struct semel_kafka_survey *survey,
			      const char *name, uint32_t tier, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	semel_status status = semel_kafka_topic_look(kafka, name, &topic, error);
	if (status != SEMEL_OK || topic->partitions == 0)
		return status;
	struct semel_kafka_stretch *stretches =
		realloc(survey->stretches,
			(survey->count + topic->partitions) * sizeof(survey->stretches[0]));
	if (!stretches)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory to look");
	survey->stretches = stretches;
	for (uint32_t i = 0; i < topic->partitions; i++)
		stretches[survey->count++] = (struct semel_kafka_stretch){ .topic = topic->full,
									   .tier = tier,
									   .partition = (int32_t)i,
									   .from = NOT_KNOWN };
	return SEMEL_OK;
}

/* Who has a partition of the topic reads all of its retry topics (tiers.c); others have to ask. */
static bool may_be_there(struct semel_kafka *kafka, const char *scope, const char *topic,
			 uint32_t tier)
{
	bool reads = false;
	for (uint32_t i = 0; is_own(kafka, scope) && i < kafka->share_count; i++) {
		const struct semel_kafka_share *share = &kafka->shares[i];
		if (!share->held || strcmp(share->event_topic, topic) != 0)
			continue;
		if (share->tier == tier)
			return true;
		reads = true;
	}
	return !reads || tier <= kafka->tiers;
}

static semel_status add_topics(struct semel_kafka *kafka, const char *scope, const char *name,
			       struct semel_kafka_survey *survey, semel_error *error)
{
	semel_status status = add_topic(kafka, survey, name, 0, error);
	for (uint32_t tier = 1; tier <= SEMEL_KAFKA_TIERS && status == SEMEL_OK; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		if (!may_be_there(kafka, scope, name, tier))
			continue;
		status = semel_kafka_tier_name(scope, name, tier, tier_name, error);
		if (status == SEMEL_OK)
			status = add_topic(kafka, survey, tier_name, tier, error);
	}
	return status;
}

/* ---- offsets --------------------------------------------------------------------------------- */

static rd_kafka_topic_partition_list_t *list_of(const struct semel_kafka *kafka,
						const struct semel_kafka_survey *survey,
						int64_t offset)
{
	rd_kafka_topic_partition_list_t *list =
		kafka->library->topic_partition_list_new((int)survey->count);
	for (size_t i = 0; i < survey->count; i++)
		kafka->library
			->topic_partition_list_add(list, survey->stretches[i].topic,
						   survey->stretches[i].partition)
			->offset = offset;
	return list;
}

/* NOT_KNOWN stays where there is nothing. */
static void take_committed(const rd_kafka_topic_partition_list_t *list,
			   struct semel_kafka_survey *survey)
{
	for (int i = 0; i < list->cnt; i++)
		if (list->elems[i].offset >= 0)
			survey->stretches[i].from = list->elems[i].offset;
}

/* As a member of the group would ask. librdkafka's administrator can ask for any group, but 2.0
 * ends the process when it is closed before such a request has come to its end. */
static semel_status read_committed(struct semel_kafka *kafka, const char *scope,
				   struct semel_kafka_survey *survey, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_t *member = is_own(kafka, scope) ? kafka->consumer : NULL, *guest = NULL;
	semel_status status = SEMEL_OK;
	if (!member)
		status = semel_kafka_guest_make(kafka, scope, &guest, error);
	if (status != SEMEL_OK)
		return status;
	rd_kafka_topic_partition_list_t *list = list_of(kafka, survey, RD_KAFKA_OFFSET_INVALID);
	status = semel_kafka_committed(kafka, member ? member : guest, list, error);
	if (status == SEMEL_OK)
		take_committed(list, survey);
	library->topic_partition_list_destroy(list);
	if (guest)
		library->destroy_flags(guest, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	return status;
}

static semel_status get_offsets_from_store(struct semel_kafka *kafka, const char *scope,
					   struct semel_kafka_survey *survey, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < survey->count && status == SEMEL_OK; i++) {
		struct semel_kafka_stretch *stretch = &survey->stretches[i];
		int64_t next = -1;
		if (stretch->tier > 0)
			continue;
		status = kafka->offset_store->get(kafka->offset_store->user, scope,
						  semel_kafka_own_name(kafka, stretch->topic),
						  stretch->partition, &next, error);
		if (status == SEMEL_OK && next >= 0)
			stretch->from = next;
	}
	return status;
}

static bool is_subscribed(const struct semel_kafka_survey *survey, const char *topic)
{
	for (size_t i = 0; i < survey->count; i++)
		if (survey->stretches[i].from != NOT_KNOWN &&
		    strcmp(survey->stretches[i].topic, topic) == 0)
			return true;
	return false;
}

/* The log ends before our offset: it is another one, and will be read from its beginning. */
static void doubt(struct semel_kafka *kafka, struct semel_kafka_stretch *stretch, int64_t begin)
{
	if (stretch->share)
		semel_kafka_anchor_doubt(kafka);
	stretch->from = begin;
}

static semel_status read_ends(struct semel_kafka *kafka, struct semel_kafka_survey *survey,
			      semel_error *error)
{
	rd_kafka_topic_partition_list_t *begins = list_of(kafka, survey, RD_KAFKA_OFFSET_BEGINNING);
	rd_kafka_topic_partition_list_t *ends = list_of(kafka, survey, RD_KAFKA_OFFSET_END);
	semel_status status = semel_kafka_resolve(kafka, kafka->producer, begins, error);
	if (status == SEMEL_OK)
		status = semel_kafka_resolve(kafka, kafka->producer, ends, error);
	for (size_t i = 0; status == SEMEL_OK && i < survey->count; i++) {
		struct semel_kafka_stretch *stretch = &survey->stretches[i];
		int64_t begin = begins->elems[i].offset;
		stretch->end = ends->elems[i].offset;
		if (stretch->from == NOT_KNOWN && stretch->tier == 0 &&
		    !is_subscribed(survey, stretch->topic))
			stretch->end = begin;
		if (stretch->from < begin && !stretch->share)
			stretch->from = begin;
		if (stretch->from > stretch->end)
			doubt(kafka, stretch, begin);
		if (stretch->end < stretch->from)
			stretch->end = stretch->from;
	}
	kafka->library->topic_partition_list_destroy(begins);
	kafka->library->topic_partition_list_destroy(ends);
	return status;
}

/* Where a partition is ours, we know better than the broker. */
static bool take_positions(struct semel_kafka *kafka, struct semel_kafka_survey *survey)
{
	bool all = true;
	for (size_t i = 0; i < survey->count; i++) {
		struct semel_kafka_stretch *stretch = &survey->stretches[i];
		const struct semel_kafka_share *share =
			semel_kafka_share_of(kafka, stretch->topic, stretch->partition);
		if (share && share->held) {
			stretch->share = share;
			stretch->from = share->position;
		} else {
			all = false;
		}
	}
	return all;
}

semel_status semel_kafka_survey_make(struct semel_kafka *kafka, const char *scope,
				     const char *const *topics,
				     struct semel_kafka_survey *survey_out, semel_error *error)
{
	semel_status status = SEMEL_OK;
	*survey_out = (struct semel_kafka_survey){ 0 };
	for (size_t i = 0; topics[i] && status == SEMEL_OK; i++)
		status = add_topics(kafka, scope, topics[i], survey_out, error);
	if (status != SEMEL_OK || survey_out->count == 0)
		return status;
	if (!is_own(kafka, scope) || !take_positions(kafka, survey_out)) {
		status = read_committed(kafka, scope, survey_out, error);
		if (status == SEMEL_OK && kafka->offset_store)
			status = get_offsets_from_store(kafka, scope, survey_out, error);
		if (is_own(kafka, scope))
			(void)take_positions(kafka, survey_out);
	}
	return status == SEMEL_OK ? read_ends(kafka, survey_out, error) : status;
}

void semel_kafka_survey_free(struct semel_kafka_survey *survey)
{
	free(survey->stretches);
	*survey = (struct semel_kafka_survey){ 0 };
}
