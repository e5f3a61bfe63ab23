/* SPDX-License-Identifier: Apache-2.0 */
/* Which errors are transient, and how long a call is repeated.
 *
 * - A broker that stops, starts or hands over answers with these errors, and librdkafka reports
 *   them for a lost connection: a moment later the same request succeeds. librdkafka repeats a
 *   request at most twice, and never after NOT_COORDINATOR: it only queries the coordinator, and
 *   returns the error.
 * - A call has SEMEL_KAFKA_CALL_MS for all of its requests, and one request half of it: a request
 *   to an unreachable broker waits for that broker, and the repeated request goes to its successor.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#define PAUSE_MIN_MS 20
#define PAUSE_MAX_MS 200

bool semel_kafka_is_transient(rd_kafka_resp_err_t err)
{
	switch (err) {
	/* librdkafka's own: no broker is reachable, or it does not know yet which one to ask */
	case RD_KAFKA_RESP_ERR__TRANSPORT:
	case RD_KAFKA_RESP_ERR__RESOLVE:
	case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
	case RD_KAFKA_RESP_ERR__NODE_UPDATE:
	case RD_KAFKA_RESP_ERR__TIMED_OUT:
	case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
	case RD_KAFKA_RESP_ERR__WAIT_COORD:
	case RD_KAFKA_RESP_ERR__WAIT_CACHE:
	case RD_KAFKA_RESP_ERR__RETRY:
	/* all brokers know a created topic a little later, and its leaders later still */
	case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
	case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
	case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
	case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE:
	case RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION:
	case RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH:
	case RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH:
	case RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE:
	case RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE:
	case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS:
	case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND:
	case RD_KAFKA_RESP_ERR_LISTENER_NOT_FOUND:
	/* another broker does it now, or soon */
	case RD_KAFKA_RESP_ERR_NOT_COORDINATOR:
	case RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE:
	case RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS:
	case RD_KAFKA_RESP_ERR_NOT_CONTROLLER:
	/* the broker is busy */
	case RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS:
	case RD_KAFKA_RESP_ERR_REASSIGNMENT_IN_PROGRESS:
	case RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS:
	case RD_KAFKA_RESP_ERR_UNSTABLE_OFFSET_COMMIT:
	case RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED:
	/* the broker is stopping */
	case RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT:
	case RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE:
	case RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION:
	case RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR:
		return true;
	default:
		return false;
	}
}

int64_t semel_kafka_call_deadline(const struct semel_kafka *kafka)
{
	return semel_steady_ms(kafka->env) + SEMEL_KAFKA_CALL_MS;
}

int semel_kafka_call_remaining_ms(const struct semel_kafka *kafka, int64_t until_ms)
{
	int64_t left_ms = until_ms - semel_steady_ms(kafka->env);
	if (left_ms > SEMEL_KAFKA_CALL_MS / 2)
		return SEMEL_KAFKA_CALL_MS / 2;
	return left_ms > 1 ? (int)left_ms : 1;
}

bool semel_kafka_retry_call(const struct semel_kafka *kafka, rd_kafka_resp_err_t err,
			    int64_t until_ms)
{
	int64_t left_ms = until_ms - semel_steady_ms(kafka->env);
	if (!semel_kafka_is_transient(err) || left_ms <= 0)
		return false;
	/* longer and longer: many clients may ask a broker that has just started */
	int64_t pause_ms = (SEMEL_KAFKA_CALL_MS - left_ms) / 10;
	if (pause_ms < PAUSE_MIN_MS)
		pause_ms = PAUSE_MIN_MS;
	semel_sleep_us((pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS) * 1000);
	return true;
}

/* A partition with a transient error is unknown, which is not the same as without an offset. */
static rd_kafka_resp_err_t transient_of(const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++)
		if (semel_kafka_is_transient(list->elems[i].err))
			return list->elems[i].err;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

semel_status semel_kafka_read_committed(struct semel_kafka *kafka, rd_kafka_t *client,
					rd_kafka_topic_partition_list_t *list, semel_error *error)
{
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	if (list->cnt == 0)
		return SEMEL_OK;
	do {
		err = kafka->library->committed(client, list,
						semel_kafka_call_remaining_ms(kafka, until_ms));
		if (!err)
			err = transient_of(list);
	} while (semel_kafka_retry_call(kafka, err, until_ms));
	return err ? semel_kafka_call_failed(kafka, err, "read the group's offsets", error)
		   : SEMEL_OK;
}

semel_status semel_kafka_resolve_offsets(struct semel_kafka *kafka, rd_kafka_t *client,
					 rd_kafka_topic_partition_list_t *list, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_topic_partition_list_t *queried = NULL;
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
	if (list->cnt == 0)
		return SEMEL_OK;
	do {
		if (queried)
			library->topic_partition_list_destroy(queried);
		queried = library->topic_partition_list_copy(list);
		err = library->offsets_for_times(client, queried,
						 semel_kafka_call_remaining_ms(kafka, until_ms));
		for (int i = 0; i < queried->cnt && !err; i++)
			err = queried->elems[i].err;
	} while (semel_kafka_retry_call(kafka, err, until_ms));
	for (int i = 0; i < list->cnt && !err; i++)
		list->elems[i].offset = queried->elems[i].offset;
	library->topic_partition_list_destroy(queried);
	return err ? semel_kafka_call_failed(kafka, err, "read the offsets", error) : SEMEL_OK;
}

/* librdkafka itself waits for an unreachable coordinator, and too long for a shutdown; the commit
 * is repeated only after a broker has answered. */
rd_kafka_resp_err_t semel_kafka_commit_sync(struct semel_kafka *kafka,
					    const rd_kafka_topic_partition_list_t *list)
{
	int64_t until_ms = semel_kafka_call_deadline(kafka);
	rd_kafka_resp_err_t err;
	do
		err = kafka->library->commit(kafka->consumer, list, 0);
	while (err > 0 && err != RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS &&
	       semel_kafka_retry_call(kafka, err, until_ms));
	return err;
}
