/* SPDX-License-Identifier: Apache-2.0 */
/* After a refusal the event at fault is found by halves, and a partition that takes nothing is set
 * apart. librdkafka is fake: it notes what it is given to send, and reports what the test sets.
 */
#include "broker/kafka/kafka.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVENTS     10
#define PARTITIONS 4
#define REPORTS    (EVENTS * 4)

static int handle; /* whatever has to be something */
static int64_t clock_ms;

static struct {
	char sent[REPORTS + 1]; /* digits: numbers of events; '|': a new producer */
	size_t length;
	void *opaques[EVENTS];
	rd_kafka_message_t reports[REPORTS];
	size_t reported, polled;
	bool silent; /* the cluster answers no question */
	struct rd_kafka_metadata_partition partitions[PARTITIONS];
} fake;

/* ---- librdkafka ------------------------------------------------------------------------------ */

static int fake_version(void)
{
	return 0;
}

static rd_kafka_headers_t *fake_headers_new(size_t count)
{
	(void)count;
	return (rd_kafka_headers_t *)&handle;
}

static rd_kafka_resp_err_t fake_header_add(rd_kafka_headers_t *headers, const char *name,
					   ssize_t name_size, const void *value, ssize_t value_size)
{
	(void)headers, (void)name, (void)name_size, (void)value, (void)value_size;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_error_t *fake_produceva(rd_kafka_t *client, const rd_kafka_vu_t *fields,
					size_t count)
{
	(void)client;
	int number = -1;
	for (size_t i = 0; i < count; i++)
		if (fields[i].vtype == RD_KAFKA_VTYPE_VALUE)
			number = *(const char *)fields[i].u.mem.ptr - '0';
	for (size_t i = 0; i < count; i++)
		if (fields[i].vtype == RD_KAFKA_VTYPE_OPAQUE)
			fake.opaques[number] = fields[i].u.ptr;
	fake.sent[fake.length++] = (char)('0' + number);
	return NULL;
}

static rd_kafka_event_t *fake_queue_poll(rd_kafka_queue_t *queue, int wait_ms)
{
	(void)queue, (void)wait_ms;
	return fake.polled < fake.reported ? (rd_kafka_event_t *)&handle : NULL;
}

static rd_kafka_event_type_t fake_event_type(const rd_kafka_event_t *event)
{
	(void)event;
	return RD_KAFKA_EVENT_DR;
}

static const rd_kafka_message_t *fake_message_next(rd_kafka_event_t *event)
{
	(void)event;
	return fake.polled < fake.reported ? &fake.reports[fake.polled++] : NULL;
}

static rd_kafka_resp_err_t fake_detach(rd_kafka_message_t *message,
				       rd_kafka_headers_t **headers_out)
{
	(void)message;
	*headers_out = NULL;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void fake_event_destroy(rd_kafka_event_t *event)
{
	(void)event;
}

/* The last character of the key is the partition. */
static int32_t fake_partitioner(const rd_kafka_topic_t *topic, const void *key, size_t length,
				int32_t count, void *topic_opaque, void *opaque)
{
	(void)topic, (void)topic_opaque, (void)opaque;
	return (((const char *)key)[length - 1] - '0') % count;
}

static int64_t fake_latency(const rd_kafka_message_t *message)
{
	(void)message;
	return 1000;
}

static const char *fake_err2str(rd_kafka_resp_err_t err)
{
	(void)err;
	return "an error";
}

static int fake_outq_len(rd_kafka_t *client)
{
	(void)client;
	return 0;
}

static rd_kafka_resp_err_t fake_purge(rd_kafka_t *client, int flags)
{
	(void)client, (void)flags;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_conf_t *fake_conf_new(void)
{
	return (rd_kafka_conf_t *)&handle;
}

static rd_kafka_conf_res_t fake_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value,
					 char *text, size_t size)
{
	(void)conf, (void)name, (void)value, (void)text, (void)size;
	return RD_KAFKA_CONF_OK;
}

static void fake_conf_set_events(rd_kafka_conf_t *conf, int events)
{
	(void)conf, (void)events;
}

static void fake_conf_set_log_cb(rd_kafka_conf_t *conf, void (*log_cb)(const rd_kafka_t *, int,
								       const char *, const char *))
{
	(void)conf, (void)log_cb;
}

static rd_kafka_t *fake_new(rd_kafka_type_t type, rd_kafka_conf_t *conf, char *text, size_t size)
{
	(void)type, (void)conf, (void)text, (void)size;
	fake.sent[fake.length++] = '|';
	return (rd_kafka_t *)&handle;
}

static void fake_destroy(rd_kafka_t *client)
{
	(void)client;
}

static rd_kafka_queue_t *fake_queue_get_main(rd_kafka_t *client)
{
	(void)client;
	return (rd_kafka_queue_t *)&handle;
}

static void fake_queue_destroy(rd_kafka_queue_t *queue)
{
	(void)queue;
}

static rd_kafka_topic_t *fake_topic_new(rd_kafka_t *client, const char *name,
					rd_kafka_topic_conf_t *conf)
{
	(void)client, (void)name, (void)conf;
	return (rd_kafka_topic_t *)&handle;
}

static void fake_topic_destroy(rd_kafka_topic_t *topic)
{
	(void)topic;
}

static rd_kafka_resp_err_t fake_metadata(rd_kafka_t *client, int all, rd_kafka_topic_t *only,
					 const struct rd_kafka_metadata **metadata_out, int wait_ms)
{
	(void)client, (void)all, (void)only, (void)wait_ms;
	static char name[] = "orders";
	static struct rd_kafka_metadata_topic topic;
	static struct rd_kafka_metadata metadata;
	topic = (struct rd_kafka_metadata_topic){ .topic = name,
						  .partition_cnt = PARTITIONS,
						  .partitions = fake.partitions };
	metadata = (struct rd_kafka_metadata){ .broker_cnt = 1, .topic_cnt = 1, .topics = &topic };
	if (fake.silent)
		return RD_KAFKA_RESP_ERR__TRANSPORT;
	*metadata_out = &metadata;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void fake_metadata_destroy(const struct rd_kafka_metadata *metadata)
{
	(void)metadata;
}

static const struct semel_kafka_library library = {
	.version = fake_version,
	.headers_new = fake_headers_new,
	.header_add = fake_header_add,
	.produceva = fake_produceva,
	.queue_poll = fake_queue_poll,
	.event_type = fake_event_type,
	.event_message_next = fake_message_next,
	.message_detach_headers = fake_detach,
	.message_latency = fake_latency,
	.event_destroy = fake_event_destroy,
	.msg_partitioner_murmur2 = fake_partitioner,
	.err2str = fake_err2str,
	.outq_len = fake_outq_len,
	.purge = fake_purge,
	.conf_new = fake_conf_new,
	.conf_set = fake_conf_set,
	.conf_set_events = fake_conf_set_events,
	.conf_set_log_cb = fake_conf_set_log_cb,
	.new = fake_new,
	.destroy = fake_destroy,
	.queue_get_main = fake_queue_get_main,
	.queue_destroy = fake_queue_destroy,
	.topic_new = fake_topic_new,
	.topic_destroy = fake_topic_destroy,
	.metadata = fake_metadata,
	.metadata_destroy = fake_metadata_destroy,
};

/* ---- the broker ------------------------------------------------------------------------------ */

static int64_t read_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static const struct semel_env env = { .now_ms = read_clock, .steady_ms = read_clock };
static struct semel_kafka kafka;
static struct semel_event events[EVENTS];
static char payloads[EVENTS][2], keys[EVENTS][8];
static semel_status outcomes[EVENTS];

static int make(void **state)
{
	(void)state;
	memset(&fake, 0, sizeof(fake));
	for (int32_t i = 0; i < PARTITIONS; i++)
		fake.partitions[i] = (struct rd_kafka_metadata_partition){ .id = i, .leader = 1 };
	clock_ms = 1000;
	kafka = (struct semel_kafka){ .library = &library, .env = &env };
	kafka.producer = (rd_kafka_t *)&handle;
	kafka.producer_queue = (rd_kafka_queue_t *)&handle;
	kafka.scratch = semel_arena_new(4096);
	kafka.topics = calloc(1, sizeof(kafka.topics[0]));
	kafka.topics[0] = (struct semel_kafka_topic){ .name = strdup("orders"),
						      .full = strdup("orders"),
						      .partitions = PARTITIONS };
	kafka.topic_count = 1;
	assert_true(semel_kafka_window_new(&kafka.window, EVENTS));
	for (int i = 0; i < EVENTS; i++)
		outcomes[i] = SEMEL_NOT_FINISHED;
	return 0;
}

static int drop(void **state)
{
	(void)state;
	semel_kafka_window_free(&kafka);
	semel_kafka_topics_free(&kafka);
	semel_arena_free(kafka.scratch);
	return 0;
}

/* key: "a1" belongs to partition 1. */
static void offer(int number, const char *key)
{
	static const struct semel_publish_metadata metadata = { 0 };
	semel_error error = { 0 };
	snprintf(payloads[number], sizeof(payloads[number]), "%d", number);
	snprintf(keys[number], sizeof(keys[number]), "%s", key);
	events[number] = (struct semel_event){
		.id = SEMEL_TEXT("0190"),
		.type = SEMEL_TEXT("made"),
		.aggregate_type = SEMEL_TEXT("order"),
		.aggregate_id = semel_text_of(keys[number]),
		.topic = SEMEL_TEXT("orders"),
		.headers = SEMEL_TEXT("{}"),
		.content_type = SEMEL_TEXT("text/plain"),
		.payload = semel_text_from(payloads[number], 1),
	};
	assert_int_equal(semel_kafka_publish(&kafka.broker, &events[number], &metadata,
					     &outcomes[number], &error),
			 SEMEL_OK);
}

static void note(const struct semel_publish_outcome *outcome, void *user)
{
	(void)user;
	*(semel_status *)outcome->token = outcome->status;
}

static void poll(void)
{
	semel_error error = { 0 };
	assert_int_equal(semel_kafka_poll(&kafka.broker, 0, note, NULL, &error), SEMEL_OK);
}

static void report(int number, rd_kafka_resp_err_t err)
{
	fake.reports[fake.reported++] =
		(rd_kafka_message_t){ ._private = fake.opaques[number],
				      .partition = keys[number][1] - '0',
				      .offset = err ? RD_KAFKA_OFFSET_INVALID : number,
				      .err = err };
}

/* Of each of these the broker says so, in one batch. */
static void answer(const char *numbers, rd_kafka_resp_err_t err)
{
	for (; *numbers; numbers++)
		report(*numbers - '0', err);
	poll();
}

#define TAKEN   RD_KAFKA_RESP_ERR_NO_ERROR
#define REFUSED RD_KAFKA_RESP_ERR_INVALID_RECORD

static void forward(int seconds)
{
	for (int i = 0; i < seconds; i++) {
		clock_ms += 1000;
		poll();
	}
}

static void assert_sent(const char *numbers)
{
	assert_string_equal(fake.sent, numbers);
	memset(fake.sent, 0, sizeof(fake.sent));
	fake.length = 0;
}

static void assert_outcomes(const char *numbers, semel_status status)
{
	for (; *numbers; numbers++)
		assert_int_equal(outcomes[*numbers - '0'], status);
}

/* Five events of as many aggregates; the partition knows the producer. */
static void offer_five(void)
{
	static const char *const names[] = { "a1", "b1", "c1", "d1", "e1" };
	offer(9, "z1");
	answer("9", TAKEN);
	for (int i = 0; i < 5; i++)
		offer(i, names[i]);
	assert_sent("901234");
}

/* ---- after a refusal ------------------------------------------------------------------------- */

static void the_event_at_fault_is_found_by_halves_and_the_others_are_taken(void **state)
{
	(void)state;
	offer_five();
	answer("01234", REFUSED);
	assert_sent("|0"); /* the first record goes alone */
	answer("0", TAKEN);
	assert_sent("1");
	answer("1", TAKEN);
	poll();
	assert_sent("2"); /* half of three: it is alone */
	answer("2", REFUSED);
	assert_outcomes("01", SEMEL_OK);
	assert_outcomes("2", SEMEL_NACKED);
	assert_sent("|");
	kafka.topics[0].refused_until_ms = 0; /* it was about the event */
	kafka.topics[0].partitions = PARTITIONS;
	poll();
	answer("3", TAKEN);
	answer("4", TAKEN);
	poll();
	assert_outcomes("34", SEMEL_OK);
	assert_int_equal(kafka.resend.state, SEMEL_KAFKA_RESEND_IDLE);
}

static void what_is_offered_meanwhile_waits_or_is_held_behind_the_refused_event(void **state)
{
	(void)state;
	offer(0, "a1");
	answer("0", REFUSED);
	offer(1, "a1");
	offer(2, "b2");
	assert_sent("0|0");
	answer("0", REFUSED); /* by itself */
	assert_outcomes("0", SEMEL_NACKED);
	assert_outcomes("1", SEMEL_HELD);
	kafka.topics[0].refused_until_ms = 0;
	kafka.topics[0].partitions = PARTITIONS;
	poll();
	answer("2", TAKEN);
	assert_outcomes("2", SEMEL_OK);
	assert_sent("|2");
}

/* ---- partitions that take nothing ------------------------------------------------------------ */

static void a_partition_without_a_leader_is_set_apart_and_tried_when_it_has_one(void **state)
{
	(void)state;
	offer(0, "a1");
	offer(1, "a1");
	offer(2, "b2");
	answer("2", TAKEN);
	fake.partitions[1].leader = -1;
	forward(4);
	assert_outcomes("01", SEMEL_NOT_FINISHED);
	forward(3);
	assert_outcomes("0", SEMEL_STALLED);
	assert_outcomes("1", SEMEL_HELD);
	assert_sent("02|");
	offer(3, "c1"); /* at once */
	offer(4, "b2");
	poll();
	assert_outcomes("3", SEMEL_STALLED);
	answer("4", TAKEN);
	assert_outcomes("4", SEMEL_OK);
	assert_sent("4");
	forward(10);
	offer(5, "c1");
	poll();
	assert_outcomes("5", SEMEL_STALLED);
	fake.partitions[1].leader = 1;
	forward(1);
	offer(6, "c1"); /* the probe; only its aggregate's events wait for it */
	offer(7, "d1");
	offer(8, "c1");
	poll();
	assert_outcomes("7", SEMEL_STALLED);
	assert_outcomes("68", SEMEL_NOT_FINISHED);
	assert_sent("6");
	answer("6", TAKEN);
	assert_sent("8");
	answer("8", TAKEN);
	assert_outcomes("68", SEMEL_OK);
}

static void one_that_gives_no_answer_is_set_apart_once_others_have_answered(void **state)
{
	(void)state;
	offer(0, "a1");
	forward(5);
	offer(2, "b2");
	answer("2", TAKEN);
	forward(5);
	assert_outcomes("0", SEMEL_NOT_FINISHED);
	forward(3);
	assert_outcomes("0", SEMEL_STALLED);
}

static void an_unanswered_partition_goes_on_when_another_one_stalls(void **state)
{
	(void)state;
	fake.partitions[1].leader = -1;
	offer(0, "a1");
	offer(1, "a3"); /* silent, and not known to be */
	offer(2, "b2");
	answer("2", TAKEN);
	while (outcomes[0] != SEMEL_STALLED)
		forward(1);
	assert_outcomes("1", SEMEL_NOT_FINISHED);
	offer(3, "b2");
	answer("3", TAKEN);
	assert_outcomes("3", SEMEL_OK);
	assert_sent("012|13");
}

static void without_an_answer_of_the_cluster_no_partition_stalls(void **state)
{
	(void)state;
	fake.silent = true;
	fake.partitions[1].leader = -1;
	offer(0, "a1");
	forward(29);
	assert_outcomes("0", SEMEL_NOT_FINISHED);
	assert_sent("0");
}

static void failed_probes_become_less_frequent(void **state)
{
	(void)state;
	offer(0, "a1");
	forward(5);
	offer(2, "b2");
	answer("2", TAKEN);
	while (outcomes[0] != SEMEL_STALLED)
		forward(1);
	const struct semel_kafka_partition *partition = &kafka.topics[0].partition_states[1];
	for (int64_t pause_ms = 2000; pause_ms <= 64000; pause_ms *= 2) {
		assert_int_equal(partition->probe_ms - clock_ms,
				 pause_ms < 60000 ? pause_ms : 60000);
		clock_ms = partition->probe_ms - 1;
		offer(1, "a1");
		poll();
		assert_outcomes("1", SEMEL_STALLED); /* not yet */
		clock_ms++;
		outcomes[0] = SEMEL_NOT_FINISHED;
		offer(0, "a1");
		forward(4);
		assert_outcomes("0", SEMEL_NOT_FINISHED);
		while (outcomes[0] != SEMEL_STALLED)
			forward(1);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_event_at_fault_is_found_by_halves_and_the_others_are_taken),
		TEST(what_is_offered_meanwhile_waits_or_is_held_behind_the_refused_event),
		TEST(a_partition_without_a_leader_is_set_apart_and_tried_when_it_has_one),
		TEST(one_that_gives_no_answer_is_set_apart_once_others_have_answered),
		TEST(an_unanswered_partition_goes_on_when_another_one_stalls),
		TEST(without_an_answer_of_the_cluster_no_partition_stalls),
		TEST(failed_probes_become_less_frequent),
	};
	return cmocka_run_group_tests_name("a repair", tests, NULL, NULL);
}
