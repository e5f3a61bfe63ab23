/* SPDX-License-Identifier: Apache-2.0 */
/* A topic is made while the cluster is being restarted: what is answered then is no last word. The
 * mock cluster makes no topics, so librdkafka is fake here. */
#include "broker/kafka/kafka.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define ALWAYS 1000000

/* What is answered. */
static struct {
	rd_kafka_resp_err_t answer;
	int answers; /* so often, then it is made */
	int brokers, brokers_later;
	int requested;
	bool made;
	int64_t now_ms, step_ms; /* time passes whenever the clock is read */
} cluster;

static char thing; /* whatever librdkafka gives us to hold */

static int64_t steady(void *user)
{
	(void)user;
	return cluster.now_ms += cluster.step_ms;
}

static const struct semel_env env = { .now_ms = steady, .steady_ms = steady };

static rd_kafka_topic_t *topic_new(rd_kafka_t *client, const char *name,
				   rd_kafka_topic_conf_t *conf)
{
	(void)client;
	(void)name;
	(void)conf;
	return (rd_kafka_topic_t *)&thing;
}

static rd_kafka_resp_err_t show(rd_kafka_t *client, int all, rd_kafka_topic_t *only,
				const struct rd_kafka_metadata **metadata_out, int wait_ms)
{
	static struct rd_kafka_metadata_partition partition = { .replica_cnt = 1 };
	static struct rd_kafka_metadata_topic topic = { .partitions = &partition };
	static struct rd_kafka_metadata metadata = { .topics = &topic };
	(void)client;
	(void)all;
	(void)wait_ms;
	topic.err =
		cluster.made ? RD_KAFKA_RESP_ERR_NO_ERROR : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
	topic.partition_cnt = cluster.made ? 1 : 0;
	metadata.topic_cnt = only ? 1 : 0;
	metadata.broker_cnt = cluster.requested < 3 ? cluster.brokers : cluster.brokers_later;
	*metadata_out = &metadata;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void forget_metadata(const struct rd_kafka_metadata *metadata)
{
	(void)metadata;
}

static rd_kafka_NewTopic_t *new_topic(const char *name, int partitions, int replicas, char *text,
				      size_t size)
{
	(void)name;
	(void)partitions;
	(void)replicas;
	(void)text;
	(void)size;
	return (rd_kafka_NewTopic_t *)&thing;
}

static void destroy_new_topic(rd_kafka_NewTopic_t *expected)
{
	(void)expected;
}

static rd_kafka_AdminOptions_t *options_new(rd_kafka_t *client, rd_kafka_admin_op_t operation)
{
	(void)client;
	(void)operation;
	return (rd_kafka_AdminOptions_t *)&thing;
}

static rd_kafka_resp_err_t options_set(rd_kafka_AdminOptions_t *options, int wait_ms, char *text,
				       size_t size)
{
	(void)options;
	(void)wait_ms;
	(void)text;
	(void)size;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void options_drop(rd_kafka_AdminOptions_t *options)
{
	(void)options;
}

static rd_kafka_queue_t *queue_new(rd_kafka_t *client)
{
	(void)client;
	return (rd_kafka_queue_t *)&thing;
}

static void queue_drop(rd_kafka_queue_t *queue)
{
	(void)queue;
}

static void ask_create(rd_kafka_t *client, rd_kafka_NewTopic_t **topics, size_t count,
		       const rd_kafka_AdminOptions_t *options, rd_kafka_queue_t *queue)
{
	(void)client;
	(void)topics;
	(void)count;
	(void)options;
	(void)queue;
	cluster.requested++;
	cluster.made = cluster.requested > cluster.answers;
}

static rd_kafka_event_t *answer(rd_kafka_queue_t *queue, int wait_ms)
{
	(void)queue;
	(void)wait_ms;
	return (rd_kafka_event_t *)&thing;
}

static rd_kafka_resp_err_t error_of(rd_kafka_event_t *event)
{
	(void)event;
	return cluster.made ? RD_KAFKA_RESP_ERR_NO_ERROR : cluster.answer;
}

static const char *words_of(rd_kafka_event_t *event)
{
	(void)event;
	return "words of the cluster";
}

static const rd_kafka_CreateTopics_result_t *result_of(rd_kafka_event_t *event)
{
	(void)event;
	return NULL;
}

static void event_drop(rd_kafka_event_t *event)
{
	(void)event;
}

static const char *words(rd_kafka_resp_err_t err)
{
	(void)err;
	return "an answer";
}

static rd_kafka_topic_partition_list_t *list_new(int size)
{
	static rd_kafka_topic_partition_list_t list;
	(void)size;
	return &list;
}

static rd_kafka_topic_partition_t *list_add(rd_kafka_topic_partition_list_t *list, const char *name,
					    int32_t partition)
{
	static rd_kafka_topic_partition_t entry;
	(void)list;
	(void)name;
	(void)partition;
	return &entry;
}

static void list_drop(rd_kafka_topic_partition_list_t *list)
{
	(void)list;
}

static rd_kafka_resp_err_t offsets(rd_kafka_t *client, rd_kafka_topic_partition_list_t *list,
				   int wait_ms)
{
	(void)client;
	(void)list;
	(void)wait_ms;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static const struct semel_kafka_library library = {
	.topic_new = topic_new,
	.metadata = show,
	.metadata_destroy = forget_metadata,
	.NewTopic_new = new_topic,
	.NewTopic_destroy = destroy_new_topic,
	.AdminOptions_new = options_new,
	.AdminOptions_set_request_timeout = options_set,
	.AdminOptions_destroy = options_drop,
	.queue_new = queue_new,
	.queue_destroy = queue_drop,
	.CreateTopics = ask_create,
	.queue_poll = answer,
	.event_error = error_of,
	.event_error_string = words_of,
	.event_CreateTopics_result = result_of,
	.event_destroy = event_drop,
	.err2str = words,
	.topic_partition_list_new = list_new,
	.topic_partition_list_add = list_add,
	.topic_partition_list_destroy = list_drop,
	.offsets_for_times = offsets,
};

static semel_status need(semel_error *error)
{
	char prefix[] = "";
	struct semel_kafka kafka = { .library = &library,
				     .env = &env,
				     .address = "kafka://here",
				     .settings = { .prefix = prefix, .create_topics = true } };
	struct semel_kafka_topic *topic = NULL;
	*error = (semel_error){ 0 };
	semel_status status = semel_kafka_topic_ensure(&kafka, "orders", 0, &topic, error);
	semel_kafka_topics_free(&kafka);
	return status;
}

static void set_up(rd_kafka_resp_err_t answer_, int answers, int brokers, int brokers_later)
{
	memset(&cluster, 0, sizeof(cluster));
	cluster.answer = answer_;
	cluster.answers = answers;
	cluster.step_ms = answers == ALWAYS ? 500 : 10;
	cluster.brokers = brokers;
	cluster.brokers_later = brokers_later;
}

static void a_topic_is_made_once_there_is_a_controller_again(void **state)
{
	semel_error error;
	(void)state;
	set_up(RD_KAFKA_RESP_ERR_NOT_CONTROLLER, 3, 1, 1);
	assert_int_equal(need(&error), SEMEL_OK);
	assert_int_equal(cluster.requested, 4);
}

static void a_topic_is_made_once_the_cluster_counts_its_only_broker(void **state)
{
	semel_error error;
	(void)state;
	set_up(RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR, 5, 0, 0);
	assert_int_equal(need(&error), SEMEL_OK);
	set_up(RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR, 5, 0, 1);
	assert_int_equal(need(&error), SEMEL_OK);
}

static void a_cluster_that_counts_no_broker_for_long_is_an_outage(void **state)
{
	semel_error error;
	(void)state;
	set_up(RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR, ALWAYS, 0, 0);
	assert_int_equal(need(&error), SEMEL_OUTAGE);
	assert_non_null(strstr(error.text, "try again"));
	assert_true(cluster.now_ms >= SEMEL_KAFKA_CALL_MS);
}

static void more_replicas_than_brokers_are_reported_in_the_words_of_the_cluster(void **state)
{
	semel_error error;
	(void)state;
	set_up(RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR, ALWAYS, 1, 1);
	assert_int_equal(need(&error), SEMEL_UNROUTABLE);
	assert_non_null(strstr(error.text, "words of the cluster"));
	assert_true(cluster.now_ms < SEMEL_KAFKA_CALL_MS);
}

static void what_does_not_pass_is_asked_once(void **state)
{
	semel_error error;
	(void)state;
	set_up(RD_KAFKA_RESP_ERR_POLICY_VIOLATION, ALWAYS, 1, 1);
	assert_int_equal(need(&error), SEMEL_UNROUTABLE);
	assert_int_equal(cluster.requested, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_topic_is_made_once_there_is_a_controller_again),
		cmocka_unit_test(a_topic_is_made_once_the_cluster_counts_its_only_broker),
		cmocka_unit_test(a_cluster_that_counts_no_broker_for_long_is_an_outage),
		cmocka_unit_test(
			more_replicas_than_brokers_are_reported_in_the_words_of_the_cluster),
		cmocka_unit_test(what_does_not_pass_is_asked_once),
	};
	return cmocka_run_group_tests_name("making a topic", tests, NULL, NULL);
}
