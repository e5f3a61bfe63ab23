/* SPDX-License-Identifier: Apache-2.0 */
/* Is a rebalance of the group in progress?
 *
 * A commit that is sent while a request to join is unanswered waits behind it, and then belongs to
 * an old generation; librdkafka takes that for the loss of all partitions. It does not report when
 * it joins, but its requests can be observed. Commits wait until the join is answered.
 *
 * What is recorded belongs to the consumer, which may outlive the broker connection (group.c). */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdlib.h>

enum { JOIN_GROUP = 11, SYNC_GROUP = 14 }; /* Kafka's numbers of these requests */

static void note(struct semel_kafka_group_join *group_join, int16_t request, bool in_progress)
{
	if (request == JOIN_GROUP || request == SYNC_GROUP)
		atomic_store(&group_join->in_progress, in_progress);
	if (request == JOIN_GROUP && !in_progress)
		atomic_store(&group_join->answered, true);
}

/* On librdkafka's threads. */
static rd_kafka_resp_err_t sent(rd_kafka_t *client, int fd, const char *broker, int32_t broker_id,
				int16_t request, int16_t version, int32_t number, size_t size,
				void *user)
{
	(void)client;
	(void)fd;
	(void)broker;
	(void)broker_id;
	(void)version;
	(void)number;
	(void)size;
	note(user, request, true);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t answered(rd_kafka_t *client, int fd, const char *broker,
				    int32_t broker_id, int16_t request, int16_t version,
				    int32_t number, size_t size, int64_t took_us,
				    rd_kafka_resp_err_t err, void *user)
{
	(void)client;
	(void)fd;
	(void)broker;
	(void)broker_id;
	(void)version;
	(void)number;
	(void)size;
	(void)took_us;
	(void)err;
	note(user, request, false);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t watch(rd_kafka_t *client, const rd_kafka_conf_t *conf, void *user,
				 char *text, size_t size)
{
	const struct semel_kafka_group_join *group_join = user;
	const struct semel_kafka_library *library = group_join->library;
	(void)conf;
	(void)text;
	(void)size;
	rd_kafka_resp_err_t err =
		library->interceptor_add_on_request_sent(client, "semel", sent, user);
	return err ? err
		   : library->interceptor_add_on_response_received(client, "semel", answered, user);
}

semel_status semel_kafka_group_join_watch(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
					  semel_error *error)
{
	kafka->group_join = calloc(1, sizeof(*kafka->group_join));
	if (!kafka->group_join)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a subscription");
	kafka->group_join->library = kafka->library;
	(void)kafka->library->conf_interceptor_add_on_new(conf, "semel", watch, kafka->group_join);
	return SEMEL_OK;
}

bool semel_kafka_group_join_in_progress(const struct semel_kafka *kafka)
{
	return kafka->group_join && atomic_load(&kafka->group_join->in_progress);
}

bool semel_kafka_group_join_was_answered(const struct semel_kafka *kafka)
{
	return kafka->group_join && atomic_load(&kafka->group_join->answered);
}
