/* SPDX-License-Identifier: Apache-2.0 */
/* What is at the cluster, by name:
 *
 *   topic T          the topic T, created with the cluster's defaults when it is missing
 *   subscription S   the consumer group S
 *   its retries      topics T.S.retry.1 …, with as many partitions as T: the first for events that
 *                    are due at once, the others for longer and longer delays
 *
 * In a retry topic a record waits until the time in its header semel-due, and so do those after it.
 * The delays in one topic are similar, so that no record waits much longer than it has to.
 *
 * The owner of partition P of a topic reads partition P of each of its retry topics too, so that an
 * aggregate's retries arrive where its events arrive. Where a retry topic has more partitions than
 * the topic, the owner is found by the remainder (modulo). A process writes to as many retry topics
 * as its longest delay needs, and reads all that exist: other processes may have longer delays, or
 * it had them itself before it was restarted. */
#include "base/error.h"
#include "base/text.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSAL_MS 1000
#define APPEAR_MS  10000
#define MISSING_MS 2000
#define LEADERS_MS 2000
#define COUNTED_MS 2000

/* Seconds: the longest delay of each. */
static const int64_t tiers[SEMEL_KAFKA_TIERS] = { 0, 2, 10, 60, 600, 3600, 86400 };

uint32_t semel_kafka_tier_for(int64_t delay_ms)
{
	uint32_t tier = 1;
	while (tier < SEMEL_KAFKA_TIERS && semel_kafka_tier_ms(tier) < delay_ms)
		tier++;
	return tier;
}

int64_t semel_kafka_tier_ms(uint32_t tier)
{
	return tiers[tier - 1] * 1000;
}

/* ---- names ----------------------------------------------------------------------------------- */

semel_status semel_kafka_tier_name(const char *scope, const char *topic, uint32_t tier,
				   char name_out[SEMEL_KAFKA_NAME_SIZE], semel_error *error)
{
	int length =
		snprintf(name_out, SEMEL_KAFKA_NAME_SIZE, "%s.%s.retry.%u", topic, scope, tier);
	if (length < 0 || length > SEMEL_KAFKA_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the name of the retry topics for %s and %s would be longer "
				       "than %d bytes (choose a shorter scope or topic)",
				       scope, topic, SEMEL_KAFKA_NAME_MAX);
	return SEMEL_OK;
}

char *semel_kafka_full_name(const struct semel_kafka *kafka, const char *name)
{
	size_t size = strlen(kafka->settings.prefix) + strlen(name) + 1;
	char *full = malloc(size);
	if (full)
		snprintf(full, size, "%s%s", kafka->settings.prefix, name);
	return full;
}

const char *semel_kafka_own_name(const struct semel_kafka *kafka, const char *full)
{
	return full + strlen(kafka->settings.prefix);
}

static bool is_topic_name(const char *name)
{
	size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				     "0123456789._-");
	return name[0] != '\0' && name[length] == '\0' && length <= SEMEL_KAFKA_NAME_MAX &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* ---- known topics --------------------------------------------------------------------------- */

struct semel_kafka_topic *semel_kafka_topic_find(struct semel_kafka *kafka, const char *name)
{
	if (kafka->topic_last < kafka->topic_count &&
	    strcmp(kafka->topics[kafka->topic_last].name, name) == 0)
		return &kafka->topics[kafka->topic_last];
	for (size_t i = 0; i < kafka->topic_count; i++)
		if (strcmp(kafka->topics[i].name, name) == 0) {
			kafka->topic_last = i;
			return &kafka->topics[i];
		}
	return NULL;
}

static struct semel_kafka_topic *topic_of(struct semel_kafka *kafka, const char *name)
{
	struct semel_kafka_topic *topic = semel_kafka_topic_find(kafka, name);
	if (topic)
		return topic;
	struct semel_kafka_topic *topics =
		realloc(kafka->topics, (kafka->topic_count + 1) * sizeof(kafka->topics[0]));
	if (topics)
		kafka->topics = topics;
	char *copy = topics ? strdup(name) : NULL;
	char *full = copy ? semel_kafka_full_name(kafka, name) : NULL;
	if (!full) {
		free(copy);
		return NULL;
	}
	kafka->topics[kafka->topic_count] =
		(struct semel_kafka_topic){ .name = copy, .full = full };
	return &kafka->topics[kafka->topic_count++];
}

rd_kafka_topic_t *semel_kafka_topic_handle(struct semel_kafka *kafka,
					   struct semel_kafka_topic *topic)
{
	if (!topic->handle)
		topic->handle = kafka->library->topic_new(kafka->producer, topic->full, NULL);
	return topic->handle;
}

void semel_kafka_topic_refuse(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
			      semel_status status, const char *reason)
{
	topic->partitions = 0;
	topic->refusal = status;
	topic->refused_until_ms = semel_steady_ms(kafka->env) + REFUSAL_MS;
	snprintf(topic->reason, sizeof(topic->reason), "%.159s", reason);
}

void semel_kafka_topics_free(struct semel_kafka *kafka)
{
	for (size_t i = 0; i < kafka->topic_count; i++) {
		free(kafka->topics[i].name);
		free(kafka->topics[i].full);
		free(kafka->topics[i].partition_states);
	}
	free(kafka->topics);
}

/* ---- querying -------------------------------------------------------------------------------- */

/* A missing topic gets 0 partitions. */
static rd_kafka_resp_err_t read_metadata(const struct rd_kafka_metadata *metadata,
					 struct semel_kafka_topic *known)
{
	const struct rd_kafka_metadata_topic *topic =
		metadata->topic_cnt == 1 ? &metadata->topics[0] : NULL;
	known->partitions = 0;
	if (!topic || topic->err)
		return topic ? topic->err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
	known->partitions = (uint32_t)topic->partition_cnt;
	known->replicas = topic->partition_cnt > 0 ? topic->partitions[0].replica_cnt : 0;
	known->brokers = metadata->broker_cnt;
	known->has_leaders = true;
	for (int i = 0; i < topic->partition_cnt; i++)
		known->has_leaders = known->has_leaders && topic->partitions[i].leader >= 0;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* A missing topic is a final answer here. */
static bool is_transient_answer(rd_kafka_resp_err_t err)
{
	return semel_kafka_is_transient(err) && err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
}

/* *err_out: the answer about the topic. */
static semel_status query_topic(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				rd_kafka_resp_err_t *err_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_topic_t *handle = semel_kafka_topic_handle(kafka, topic);
	rd_kafka_resp_err_t err;
	if (!handle)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	do {
		const struct rd_kafka_metadata *metadata = NULL;
		*err_out = RD_KAFKA_RESP_ERR_NO_ERROR;
		err = library->metadata(kafka->producer, 0, handle, &metadata,
					semel_kafka_call_remaining_ms(kafka, until_ms));
		if (err)
			continue;
		*err_out = read_metadata(metadata, topic);
		library->metadata_destroy(metadata);
	} while ((err || is_transient_answer(*err_out)) &&
		 semel_kafka_retry_call(kafka, err ? err : *err_out, until_ms));
	return err ? semel_kafka_call_failed(kafka, err, "query a topic", error) : SEMEL_OK;
}

static semel_status set_refusal_error(struct semel_kafka *kafka,
				      const struct semel_kafka_topic *topic,
				      rd_kafka_resp_err_t err, semel_error *error)
{
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return semel_error_set(error, SEMEL_NACKED,
				       "not authorized to use topic %s (grant the user WRITE and "
				       "DESCRIBE on it)",
				       topic->name);
	if (err == RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "topic %s has no leader at %s (are all brokers running? "
				       "try: semel doctor)",
				       topic->name, kafka->address);
	if (is_transient_answer(err))
		return semel_kafka_call_failed(kafka, err, "use a topic", error);
	if (err == RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION)
		return semel_error_set(error, SEMEL_INVALID, "%.100s is not a valid topic name",
				       topic->name);
	return semel_error_set(
		error, SEMEL_UNROUTABLE, "topic %s not found (%s)%s", topic->name,
		kafka->library->err2str(err),
		kafka->settings.create_topics ? "" : ": create it, or remove create-topics=no");
}

semel_status semel_kafka_topic_resolve(struct semel_kafka *kafka, const char *name,
				       struct semel_kafka_topic **topic_out, semel_error *error)
{
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	*topic_out = topic_of(kafka, name);
	if (!*topic_out)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	if ((*topic_out)->partitions > 0 ||
	    semel_steady_ms(kafka->env) < (*topic_out)->missing_until_ms)
		return SEMEL_OK;
	semel_status status = query_topic(kafka, *topic_out, &err, error);
	if (status != SEMEL_OK)
		return status;
	if ((*topic_out)->partitions == 0 && !is_transient_answer(err))
		(*topic_out)->missing_until_ms = semel_steady_ms(kafka->env) + MISSING_MS;
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED || is_transient_answer(err))
		return set_refusal_error(kafka, *topic_out, err, error);
	return SEMEL_OK;
}

/* ---- creating -------------------------------------------------------------------------------- */

static rd_kafka_resp_err_t result_of(struct semel_kafka *kafka, rd_kafka_event_t *event, char *text,
				     size_t size)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_resp_err_t err = library->event_error(event);
	const char *words = err ? library->event_error_string(event) : "";
	const rd_kafka_CreateTopics_result_t *result = library->event_CreateTopics_result(event);
	size_t count = 0;
	const rd_kafka_topic_result_t **topics =
		result && !err ? library->CreateTopics_result_topics(result, &count) : NULL;
	if (count == 1) {
		err = library->topic_result_error(topics[0]);
		words = library->topic_result_error_string(topics[0]);
	}
	snprintf(text, size, "%s", words ? words : library->err2str(err));
	return err;
}

/* Sends one request. */
static rd_kafka_resp_err_t request_create(struct semel_kafka *kafka, const char *name,
					  uint32_t partitions, char *text, size_t size)
{
	const struct semel_kafka_library *library = kafka->library;
	const struct semel_kafka_settings *settings = &kafka->settings;
	int count = partitions > 0 ? (int)partitions : -1;
	if (partitions == 0 && settings->partitions > 0)
		count = (int)settings->partitions;
	rd_kafka_NewTopic_t *requested = library->NewTopic_new(
		name, count, settings->replication > 0 ? (int)settings->replication : -1, text,
		size);
	if (!requested)
		return RD_KAFKA_RESP_ERR__INVALID_ARG;
	rd_kafka_AdminOptions_t *options =
		library->AdminOptions_new(kafka->producer, RD_KAFKA_ADMIN_OP_CREATETOPICS);
	rd_kafka_queue_t *queue = library->queue_new(kafka->producer);
	library->AdminOptions_set_request_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	library->CreateTopics(kafka->producer, &requested, 1, options, queue);
	rd_kafka_event_t *event = library->queue_poll(queue, SEMEL_KAFKA_CALL_MS + 1000);
	rd_kafka_resp_err_t err =
		event ? result_of(kafka, event, text, size) : RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (event)
		library->event_destroy(event);
	library->queue_destroy(queue);
	library->AdminOptions_destroy(options);
	library->NewTopic_destroy(requested);
	return err;
}

static bool has_brokers(struct semel_kafka *kafka, int64_t until_ms)
{
	const struct rd_kafka_metadata *metadata = NULL;
	rd_kafka_resp_err_t err =
		kafka->library->metadata(kafka->producer, 0, NULL, &metadata,
					 semel_kafka_call_remaining_ms(kafka, until_ms));
	bool some = !err && metadata->broker_cnt > 0;
	if (metadata)
		kafka->library->metadata_destroy(metadata);
	return some;
}

/* A topic that was created by a request whose answer was lost exists already, and is found.
 *
 * A broker answers shortly before its cluster counts it, and shortly after the cluster has stopped
 * counting it: if it is the only broker, no topic can have its replicas then. So the error "too few
 * brokers" is accepted only if there were brokers before the request, and not in the first
 * moment. */
static rd_kafka_resp_err_t create(struct semel_kafka *kafka, const char *name, uint32_t partitions,
				  char *text, size_t size)
{
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	int64_t counted_ms = semel_steady_ms(kafka->env) + COUNTED_MS;
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	do {
		bool none = err && !has_brokers(kafka, until_ms);
		err = request_create(kafka, name, partitions, text, size);
		if (err == RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR &&
		    (none || semel_steady_ms(kafka->env) < counted_ms))
			err = RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE;
	} while (semel_kafka_retry_call(kafka, err, until_ms));
	return err;
}

/* It takes a moment until all brokers know a created topic. */
static semel_status await_topic(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + APPEAR_MS;
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	for (;;) {
		semel_status status = query_topic(kafka, topic, &err, error);
		if (status != SEMEL_OK || topic->partitions > 0)
			return status;
		if (semel_steady_ms(kafka->env) >= until_ms)
			return set_refusal_error(kafka, topic, err, error);
		semel_sleep_us(10000);
	}
}

static semel_status make(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
			 uint32_t partitions, semel_error *error)
{
	char text[256] = "";
	rd_kafka_resp_err_t err = create(kafka, topic->full, partitions, text, sizeof(text));
	switch (err) {
	case RD_KAFKA_RESP_ERR_NO_ERROR:
		semel_log(SEMEL_LOG_INFO, "topic created",
			  &(struct semel_log_fields){ .topic = topic->name });
		return await_topic(kafka, topic, error);
	case RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS:
	case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE: /* the cluster may create topics itself */
		return await_topic(kafka, topic, error);
	case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
	case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
		return semel_error_set(error, SEMEL_UNROUTABLE,
				       "topic %s not found, and the user has no right to create it "
				       "(create it, or grant CREATE)",
				       topic->name);
	default:
		if (semel_kafka_is_transient(err))
			return semel_kafka_call_failed(kafka, err, "create a topic", error);
		return semel_error_set(error, SEMEL_UNROUTABLE,
				       "topic %s not found, and cannot be created: %s", topic->name,
				       text);
	}
}

static bool do_leaders_answer(struct semel_kafka *kafka, const struct semel_kafka_topic *topic)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list =
		library->topic_partition_list_new((int)topic->partitions);
	for (uint32_t i = 0; i < topic->partitions; i++)
		library->topic_partition_list_add(list, topic->full, (int32_t)i)->offset =
			RD_KAFKA_OFFSET_BEGINNING;
	bool answer = library->offsets_for_times(kafka->producer, list, LEADERS_MS) ==
		      RD_KAFKA_RESP_ERR_NO_ERROR;
	for (int i = 0; i < list->cnt; i++)
		answer = answer && !list->elems[i].err;
	library->topic_partition_list_destroy(list);
	return answer;
}

/* A leader that is named in the metadata may only just be becoming the leader, and would refuse a
 * batch and accept the next one (publish.c). An existing topic that has lost a leader is not waited
 * for: see stall.c. */
static void await_leaders(struct semel_kafka *kafka, const struct semel_kafka_topic *topic)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + LEADERS_MS;
	while (!do_leaders_answer(kafka, topic) && semel_steady_ms(kafka->env) < until_ms)
		semel_sleep_us(10000);
}

static semel_status create_if_missing(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				      uint32_t partitions, semel_error *error)
{
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	semel_status status = query_topic(kafka, topic, &err, error);
	if (status != SEMEL_OK)
		return status;
	bool missing = topic->partitions == 0;
	if (missing &&
	    (err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || !kafka->settings.create_topics))
		return set_refusal_error(kafka, topic, err, error);
	if (missing) {
		status = make(kafka, topic, partitions, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (missing || topic->has_leaders)
		await_leaders(kafka, topic);
	return SEMEL_OK;
}

semel_status semel_kafka_topic_ensure(struct semel_kafka *kafka, const char *name,
				      uint32_t partitions, struct semel_kafka_topic **topic_out,
				      semel_error *error)
{
	struct semel_kafka_topic *topic = *topic_out = topic_of(kafka, name);
	if (!topic)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	if (topic->partitions > 0)
		return SEMEL_OK;
	if (semel_steady_ms(kafka->env) < topic->refused_until_ms)
		return semel_error_set(error, topic->refusal, "%s", topic->reason);
	if (!is_topic_name(topic->full))
		return semel_error_set(error, SEMEL_INVALID,
				       "%.100s is not a valid topic name of Kafka (use letters, "
				       "digits and ._-)",
				       name);
	semel_error why = { 0 };
	semel_status status = create_if_missing(kafka, topic, partitions, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status == SEMEL_UNROUTABLE || status == SEMEL_NACKED)
		semel_kafka_topic_refuse(kafka, topic, status, why.text);
	return semel_error_set(error, status, "%s", why.text);
}

/* ---- retry topics ---------------------------------------------------------------------------- */

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

/* The handle is not kept: librdkafka would continue to request a topic that is missing. */
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
		known->partitions = *partitions_out; /* partitions were added */
	/* a topic that we have no right to describe is not ours */
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
		int32_t group_partition = list->elems[i].partition;
		if (strcmp(list->elems[i].topic, tier->topic) != 0)
			continue;
		for (uint32_t at = (uint32_t)group_partition; at < tier->retries;
		     at += tier->partitions)
			kafka->library->topic_partition_list_add(list, tier->full, (int32_t)at)
				->opaque = (void *)((intptr_t)group_partition + 1);
	}
}

static semel_status add_retry_topics(struct semel_kafka *kafka,
				     rd_kafka_topic_partition_list_t *list, int count,
				     const char *topic, int64_t until_ms, semel_error *error)
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
		semel_status status = add_retry_topics(
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
