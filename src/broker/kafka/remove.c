/* SPDX-License-Identifier: Apache-2.0 */
/* Removes a topic with the retry topics, dead letter topics and groups of its subscriptions. A
 * group can be deleted only when its last member has left, and a member that was killed stays until
 * its session expires; so this is repeated for a while. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define GROUP_MS       60000 /* longer than any session */
#define GROUP_PAUSE_US 100000
#define NAMES_EXTRA    2 /* the dead letter topic, and one to spare */

/* Waits for the answer to a request. The event is the caller's; NULL: no answer. */
static rd_kafka_event_t *await_answer(struct semel_kafka *kafka, rd_kafka_queue_t *queue)
{
	return kafka->library->queue_poll(queue, SEMEL_KAFKA_CALL_MS + 1000);
}

/* ---- topics ---------------------------------------------------------------------------------- */

/* *err_out: the first error. */
static semel_status read_topics(struct semel_kafka *kafka, rd_kafka_event_t *event,
				rd_kafka_resp_err_t *err_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	size_t count = 0;
	*err_out = event ? library->event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (*err_out)
		return semel_kafka_call_failed(kafka, *err_out, "delete topics", error);
	const rd_kafka_topic_result_t **topics = library->DeleteTopics_result_topics(
		library->event_DeleteTopics_result(event), &count);
	for (size_t i = 0; i < count; i++) {
		rd_kafka_resp_err_t err = library->topic_result_error(topics[i]);
		if (!err || err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
			continue;
		*err_out = err;
		if (semel_kafka_is_transient(err))
			return semel_kafka_call_failed(kafka, err, "delete topics", error);
		return semel_error_set(error, SEMEL_NACKED, "cannot delete topic %s: %s",
				       library->topic_result_name(topics[i]),
				       library->err2str(err));
	}
	return SEMEL_OK;
}

static semel_status delete_topics(struct semel_kafka *kafka, rd_kafka_DeleteTopic_t **topics,
				  size_t count, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err;
	semel_status status;
	rd_kafka_AdminOptions_t *options =
		library->AdminOptions_new(kafka->producer, RD_KAFKA_ADMIN_OP_DELETETOPICS);
	rd_kafka_queue_t *queue = library->queue_new(kafka->producer);
	library->AdminOptions_set_request_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	/* The request is answered only when all brokers know of it. */
	library->AdminOptions_set_operation_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	do {
		library->DeleteTopics(kafka->producer, topics, count, options, queue);
		rd_kafka_event_t *event = await_answer(kafka, queue);
		status = read_topics(kafka, event, &err, error);
		if (event)
			library->event_destroy(event);
	} while (semel_kafka_retry_call(kafka, err, until_ms));
	library->queue_destroy(queue);
	library->AdminOptions_destroy(options);
	return status;
}

/* NULL: out of memory. A topic whose name would be too long was never created. */
static rd_kafka_DeleteTopic_t *new_delete_topic(struct semel_kafka *kafka, const char *name)
{
	char *full = semel_kafka_full_name(kafka, name);
	rd_kafka_DeleteTopic_t *topic = full ? kafka->library->DeleteTopic_new(full) : NULL;
	free(full);
	return topic;
}

static semel_status delete_named(struct semel_kafka *kafka, const char *topic, const char *scope,
				 semel_error *error)
{
	rd_kafka_DeleteTopic_t *topics[SEMEL_KAFKA_TIERS + NAMES_EXTRA];
	char name[SEMEL_KAFKA_NAME_SIZE];
	size_t count = 0;
	if (!scope) {
		topics[count++] = new_delete_topic(kafka, topic);
	} else {
		for (uint32_t tier = 1; tier <= SEMEL_KAFKA_TIERS; tier++)
			if (semel_kafka_tier_name(scope, topic, tier, name, NULL) == SEMEL_OK)
				topics[count++] = new_delete_topic(kafka, name);
		int length = snprintf(name, sizeof(name), "%s.%s.dlt", topic, scope);
		if (length > 0 && length <= SEMEL_KAFKA_NAME_MAX)
			topics[count++] = new_delete_topic(kafka, name);
	}
	bool complete = true;
	for (size_t i = 0; i < count; i++)
		complete = complete && topics[i];
	semel_status status = complete ? delete_topics(kafka, topics, count, error)
				       : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	for (size_t i = 0; i < count; i++)
		if (topics[i])
			kafka->library->DeleteTopic_destroy(topics[i]);
	return status;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static rd_kafka_resp_err_t read_group(struct semel_kafka *kafka, rd_kafka_event_t *event)
{
	const struct semel_kafka_library *library = kafka->library;
	size_t count = 0;
	if (!event)
		return RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (library->event_error(event))
		return library->event_error(event);
	const rd_kafka_group_result_t **groups = library->DeleteGroups_result_groups(
		library->event_DeleteGroups_result(event), &count);
	const rd_kafka_error_t *fault = count == 1 ? library->group_result_error(groups[0]) : NULL;
	return fault ? library->error_code(fault) : RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t ask_delete_group(struct semel_kafka *kafka,
					    rd_kafka_DeleteGroup_t *group)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_AdminOptions_t *options =
		library->AdminOptions_new(kafka->producer, RD_KAFKA_ADMIN_OP_DELETEGROUPS);
	rd_kafka_queue_t *queue = library->queue_new(kafka->producer);
	library->AdminOptions_set_request_timeout(options, SEMEL_KAFKA_CALL_MS, NULL, 0);
	library->DeleteGroups(kafka->producer, &group, 1, options, queue);
	rd_kafka_event_t *event = await_answer(kafka, queue);
	rd_kafka_resp_err_t err = read_group(kafka, event);
	if (event)
		library->event_destroy(event);
	library->queue_destroy(queue);
	library->AdminOptions_destroy(options);
	return err;
}

static rd_kafka_resp_err_t retry_delete_group(struct semel_kafka *kafka,
					      rd_kafka_DeleteGroup_t *group)
{
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err;
	do
		err = ask_delete_group(kafka, group);
	while (semel_kafka_retry_call(kafka, err, until_ms));
	return err;
}

static semel_status delete_group(struct semel_kafka *kafka, const char *scope, semel_error *error)
{
	char *full = semel_kafka_full_name(kafka, scope);
	rd_kafka_DeleteGroup_t *group = full ? kafka->library->DeleteGroup_new(full) : NULL;
	free(full);
	if (!group)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	int64_t until_ms = semel_steady_ms(kafka->env) + GROUP_MS;
	rd_kafka_resp_err_t err = retry_delete_group(kafka, group);
	while (err == RD_KAFKA_RESP_ERR_NON_EMPTY_GROUP && semel_steady_ms(kafka->env) < until_ms) {
		semel_sleep_us(GROUP_PAUSE_US);
		err = retry_delete_group(kafka, group);
	}
	kafka->library->DeleteGroup_destroy(group);
	if (!err || err == RD_KAFKA_RESP_ERR_GROUP_ID_NOT_FOUND)
		return SEMEL_OK;
	return semel_kafka_call_failed(kafka, err, "delete a consumer group", error);
}

semel_status semel_kafka_remove(struct semel_broker *broker, const char *topic,
				const char *const *scopes, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	semel_status status = delete_named(kafka, topic, NULL, error);
	if (status != SEMEL_OK)
		return status;
	for (; *scopes; scopes++) {
		status = delete_named(kafka, topic, *scopes, error);
		if (status != SEMEL_OK)
			return status;
		status = delete_group(kafka, *scopes, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}
