/* SPDX-License-Identifier: Apache-2.0 */
/* When offsets are committed, and what a commit carries. The lists are librdkafka's; the commit is
 * fake. */
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

#define HOUR_MS 3600000

static int64_t clock_ms;
static struct semel_kafka_library library;
static struct semel_kafka kafka;
static struct semel_kafka_assignment assignments[2];
static uint32_t commits; /* partitions that were committed */
static char note[SEMEL_KAFKA_COMMIT_METADATA_SIZE];

static rd_kafka_resp_err_t fake_commit_queue(
	rd_kafka_t *client, const rd_kafka_topic_partition_list_t *list, rd_kafka_queue_t *queue,
	void (*done)(rd_kafka_t *, rd_kafka_resp_err_t, rd_kafka_topic_partition_list_t *, void *),
	void *user)
{
	(void)client;
	(void)queue;
	(void)done;
	(void)user;
	commits += (uint32_t)list->cnt;
	snprintf(note, sizeof(note), "%.*s", (int)list->elems[0].metadata_size,
		 (const char *)list->elems[0].metadata);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static int64_t fake_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static const struct semel_env env = { .now_ms = fake_clock, .steady_ms = fake_clock };

static int set_up(void **state)
{
	const struct semel_kafka_library *real = NULL;
	semel_error error = { 0 };
	(void)state;
	assert_int_equal(semel_kafka_library_get(&real, &error), SEMEL_OK);
	library = *real;
	library.commit_queue = fake_commit_queue;
	commits = 0;
	clock_ms = HOUR_MS;
	static char names[2][24] = { "orders", "orders.billing.retry.2" };
	for (uint32_t i = 0; i < 2; i++)
		assignments[i] = (struct semel_kafka_assignment){ .topic = names[i],
								  .tier = i * 2,
								  .owned = true,
								  .position = 3,
								  .committed = 3,
								  .fetched_to = 3,
								  .next_offset = 3,
								  .committed_ms = clock_ms,
								  .last_acked = SEMEL_ANCHOR_NONE,
								  .verified = SEMEL_ANCHOR_NONE };
	kafka = (struct semel_kafka){
		.library = &library, .env = &env, .assignments = assignments, .assignment_count = 2
	};
	return 0;
}

static uint32_t commit_idle(void)
{
	uint32_t before = commits;
	kafka.committing = false;
	semel_kafka_group_commit(&kafka, true);
	return commits - before;
}

static void what_has_not_moved_is_committed_anew_every_hour(void **state)
{
	(void)state;
	assert_int_equal(commit_idle(), 0);
	clock_ms += HOUR_MS - 1;
	assert_int_equal(commit_idle(), 0);
	clock_ms += 1;
	assert_int_equal(commit_idle(), 2);
	assert_int_equal(commit_idle(), 0);
}

static void offsets_of_retry_topics_are_committed_anew_a_moment_after_a_rebalance(void **state)
{
	(void)state;
	kafka.recommit_ms = clock_ms + 3000;
	assert_int_equal(commit_idle(), 0);
	clock_ms += 3000;
	assert_int_equal(commit_idle(), 1);
	assert_int_equal(commit_idle(), 0);
}

static rd_kafka_topic_partition_t entry_of(char *text)
{
	return (rd_kafka_topic_partition_t){ .metadata = text,
					     .metadata_size = text ? strlen(text) : 0 };
}

static void a_commit_carries_by_what_the_log_is_known_again(void **state)
{
	struct semel_anchor anchors[2];
	uint32_t count = 9;
	(void)state;
	assignments[0].position = 1000;
	assignments[0].verified = (struct semel_anchor){ .offset = 900, .hash = UINT64_MAX };
	assignments[0].last_acked = (struct semel_anchor){ .offset = INT64_MAX, .hash = 1 };
	assert_int_equal(commit_idle(), 1);
	assert_string_equal(note, "semel:3:900:ffffffffffffffff:9223372036854775807:"
				  "0000000000000001");
	rd_kafka_topic_partition_t entry = entry_of(note);
	assert_int_equal(semel_kafka_commit_metadata_read(&entry, anchors, &count), 3);
	assert_int_equal(count, 2);
	assert_true(anchors[0].offset == 900 && anchors[0].hash == UINT64_MAX);
	assert_true(anchors[1].offset == INT64_MAX && anchors[1].hash == 1);
}

/* Of an earlier version, of an administrator, or damaged. */
static void other_notes_are_understood_as_far_as_they_go(void **state)
{
	static const struct {
		const char *text;
		int64_t fetched_to;
		uint32_t count;
	} cases[] = {
		{ NULL, -1, 0 },
		{ "", 0, 0 },
		{ "another client's", 0, 0 },
		{ "semel:", 0, 0 },
		{ "semel:12", 12, 0 },
		{ "semel:-1", 0, 0 },
		{ "semel:99999999999999999999999", 0, 0 },
		{ "semel:12:", 12, 0 },
		{ "semel:12:5", 12, 0 },
		{ "semel:12:5:", 12, 0 },
		{ "semel:12:5:xyz", 12, 0 },
		{ "semel:12:5:ab", 12, 1 },
		{ "semel:12:5:ab:6", 12, 1 },
		{ "semel:12:5:ab:6:cd:7:ef", 12, 2 },
	};
	struct semel_anchor anchors[2];
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint32_t count = 9;
		char text[64];
		snprintf(text, sizeof(text), "%s", cases[i].text ? cases[i].text : "");
		rd_kafka_topic_partition_t entry = entry_of(cases[i].text ? text : NULL);
		assert_int_equal(semel_kafka_commit_metadata_read(&entry, anchors, &count),
				 cases[i].fetched_to);
		assert_int_equal(count, cases[i].count);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_has_not_moved_is_committed_anew_every_hour, set_up),
		cmocka_unit_test_setup(
			offsets_of_retry_topics_are_committed_anew_a_moment_after_a_rebalance,
			set_up),
		cmocka_unit_test_setup(a_commit_carries_by_what_the_log_is_known_again, set_up),
		cmocka_unit_test_setup(other_notes_are_understood_as_far_as_they_go, set_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
