/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes first at a partition, and who waits for it. librdkafka is fake: it notes what it is
 * given to send, and reports what the test sets. */
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

#define EVENTS     8
#define PARTITIONS 4
#define MINUTE_MS  60000

static int handle; /* whatever has to be something */
static int64_t clock_ms;
static struct semel_kafka_setting random_setting = { "partitioner", "random" };

static struct {
	int sent[EVENTS * 2], count; /* numbers of events */
	void *opaques[EVENTS];       /* by number */
	rd_kafka_message_t report;
	bool reported;
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
	fake.sent[fake.count++] = number;
	return NULL;
}

static rd_kafka_event_t *fake_queue_poll(rd_kafka_queue_t *queue, int wait_ms)
{
	(void)queue, (void)wait_ms;
	return fake.reported ? (rd_kafka_event_t *)&handle : NULL;
}

static rd_kafka_event_type_t fake_event_type(const rd_kafka_event_t *event)
{
	(void)event;
	return RD_KAFKA_EVENT_DR;
}

static const rd_kafka_message_t *fake_message_next(rd_kafka_event_t *event)
{
	(void)event;
	const rd_kafka_message_t *report = fake.reported ? &fake.report : NULL;
	fake.reported = false;
	return report;
}

static rd_kafka_resp_err_t fake_detach(rd_kafka_message_t *message,
				       rd_kafka_headers_t **headers_out)
{
	(void)message;
	*headers_out = NULL;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void fake_destroy(rd_kafka_event_t *event)
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
	.event_destroy = fake_destroy,
	.msg_partitioner_murmur2 = fake_partitioner,
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
	clock_ms = 1000;
	kafka = (struct semel_kafka){ .library = &library, .env = &env };
	kafka.producer_queue = (rd_kafka_queue_t *)&handle;
	kafka.scratch = semel_arena_new(4096);
	kafka.topics = calloc(1, sizeof(kafka.topics[0]));
	kafka.topics[0] = (struct semel_kafka_topic){ .name = strdup("orders"),
						      .handle = (rd_kafka_topic_t *)&handle,
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

/* The broker has taken it. */
static void take(int number, int32_t partition)
{
	fake.report = (rd_kafka_message_t){ ._private = fake.opaques[number],
					    .partition = partition,
					    .offset = number };
	fake.reported = true;
	poll();
	assert_int_equal(outcomes[number], SEMEL_OK);
}

static void assert_sent(const char *numbers)
{
	char text[EVENTS * 2 + 1] = "";
	for (int i = 0; i < fake.count; i++)
		text[i] = (char)('0' + fake.sent[i]);
	assert_string_equal(text, numbers);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void the_first_one_at_a_partition_goes_alone(void **state)
{
	(void)state;
	offer(0, "a1");
	offer(1, "b1");
	offer(2, "a2");
	offer(3, "a1");
	poll();
	assert_sent("02");
	take(2, 2);
	assert_sent("02");
	take(0, 1);
	assert_sent("0213");
	offer(4, "a1");
	offer(5, "c2");
	assert_sent("021345");
}

static void who_comes_while_others_wait_waits_behind_them(void **state)
{
	(void)state;
	offer(0, "a1");
	offer(1, "a1");
	kafka.topics[0].partition_states[1].first =
		NULL; /* as though its report had been polled just now */
	kafka.topics[0].partition_states[1].accepted = true;
	kafka.topics[0].partition_states[1].accepted_ms = clock_ms;
	offer(2, "a1");
	assert_sent("0");
	poll();
	assert_sent("012");
}

static void a_partition_that_was_idle_for_long_counts_as_new(void **state)
{
	(void)state;
	offer(0, "a1");
	take(0, 1);
	clock_ms += MINUTE_MS - 1;
	offer(1, "a1");
	offer(2, "a1");
	assert_sent("012");
	take(1, 1);
	take(2, 1);
	clock_ms += MINUTE_MS;
	offer(3, "a1");
	offer(4, "a1");
	assert_sent("0123");
	take(3, 1);
	assert_sent("01234");
}

static void a_new_producer_is_known_at_no_partition(void **state)
{
	(void)state;
	offer(0, "a1");
	take(0, 1);
	semel_kafka_first_reset(&kafka);
	offer(1, "a1");
	offer(2, "a1");
	assert_sent("01");
}

static void a_record_at_an_unknown_partition_shows_that_there_are_more(void **state)
{
	(void)state;
	offer(0, "a1");
	semel_kafka_partition_accepted(&kafka, fake.opaques[0], 5);
	assert_int_equal(kafka.topics[0].partitions, 0); /* asked again before the next one */
	kafka.topics[0].partitions = PARTITIONS * 2;
	offer(1, "a7");
	offer(2, "b7");
	assert_sent("01");
}

static void where_partitions_are_random_no_event_waits(void **state)
{
	(void)state;
	kafka.settings.forwarded[0] = random_setting;
	kafka.settings.forwarded_count = 1;
	offer(0, "a1");
	offer(1, "a1");
	assert_sent("01");
}

static void who_waited_stays_behind_one_that_was_refused(void **state)
{
	(void)state;
	offer(0, "a1");
	offer(1, "b1");
	offer(2, "b1");
	semel_kafka_finish(&kafka.window, kafka.window.waiting, SEMEL_TOO_LARGE, "too large");
	kafka.window.waiting = kafka.window.last_waiting; /* it was the first of the two */
	kafka.topics[0].partition_states[1].waiting = 1;
	take(0, 1);
	assert_sent("0");
	assert_int_equal(outcomes[1], SEMEL_TOO_LARGE);
	assert_int_equal(outcomes[2], SEMEL_HELD);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_first_one_at_a_partition_goes_alone),
		TEST(who_comes_while_others_wait_waits_behind_them),
		TEST(a_partition_that_was_idle_for_long_counts_as_new),
		TEST(a_new_producer_is_known_at_no_partition),
		TEST(a_record_at_an_unknown_partition_shows_that_there_are_more),
		TEST(where_partitions_are_random_no_event_waits),
		TEST(who_waited_stays_behind_one_that_was_refused),
	};
	return cmocka_run_group_tests_name("the first event at a partition", tests, NULL, NULL);
}
