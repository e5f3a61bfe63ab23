/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing to the local broker: what only this one promises. */
#include "broker/local/local.h"
#include "contract/broker_steps.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char url[256];

static int make_folder(void **state)
{
	(void)state;
	steps_follow_env(true);
	steps_folder_make("?busy-timeout=20", url, sizeof(url));
	return 0;
}

static int drop_folder(void **state)
{
	(void)state;
	steps_folder_drop();
	return 0;
}

static struct semel_broker *open_with(const char *parameters)
{
	char text[512];
	snprintf(text, sizeof(text), "%s&%s", url, parameters);
	return steps_open(text);
}

static void expect_no_outcome(const struct semel_publish_outcome *outcome, void *user)
{
	(void)user;
	fail_msg("an outcome came: %s", semel_status_name(outcome->status));
}

static semel_status poll_without_outcome(struct semel_broker *broker, semel_error *error)
{
	return broker->driver->poll(broker, 0, expect_no_outcome, NULL, error);
}

static void nothing_is_visible_before_poll(void **state)
{
	(void)state;
	struct semel_broker *publisher = steps_open(url), *consumer = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	struct steps_event event;
	steps_subscribe(consumer, (struct steps_subscription){ .scope = "billing" });
	steps_event_make(&event, "a", 1);
	steps_offer(publisher, &event);
	steps_fetch_nothing(consumer);
	steps_confirm(publisher, &event, 1);
	steps_fetch_all(consumer, 1, batch);
	steps_batch_free(batch);
	semel_broker_close(publisher);
	semel_broker_close(consumer);
}

static void offer_and_wait(const char *broker_url, int argument, int ready_fd)
{
	struct steps_event event;
	struct semel_broker *broker = steps_open(broker_url);
	steps_event_make(&event, "a", argument);
	steps_offer(broker, &event);
	assert_int_equal(write(ready_fd, "r", 1), 1);
	for (;;)
		pause();
}

static void what_was_only_offered_dies_with_its_process(void **state)
{
	(void)state;
	int fd, child = steps_fork(offer_and_wait, url, 1, &fd);
	steps_await(fd);
	steps_reap(child, true);
	steps_consume(url, "billing", 0);
}

static void the_same_id_twice_is_two_entries(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	steps_publish(broker, "a", 1, 1);
	steps_publish(broker, "a", 1, 1);
	semel_broker_close(broker);
	steps_consume(url, "billing", 2);
}

static void a_full_topic_refuses_until_the_slowest_has_settled(void **state)
{
	(void)state;
	struct semel_broker *broker = open_with("max-length=5");
	struct steps_event events[3];
	steps_publish(broker, "a", 1, 4);
	steps_event_make(&events[0], "b", 1);
	steps_event_make(&events[1], "c", 1);
	steps_event_make(&events[2], "c", 2);
	for (int i = 0; i < 3; i++)
		steps_offer(broker, &events[i]);
	steps_confirm(broker, events, 3);
	assert_int_equal(events[0].status, SEMEL_OK);
	assert_int_equal(events[1].status, SEMEL_NACKED);
	assert_string_equal(events[1].reason, "topic order.events is full (max-length 5)");
	assert_int_equal(events[2].status, SEMEL_HELD);

	steps_consume(url, "quick", 5);
	struct semel_broker *slow = steps_open(url);
	steps_subscribe(slow, (struct steps_subscription){ .scope = "slow" });
	steps_event_make(&events[1], "c", 1);
	steps_offer(broker, &events[1]);
	steps_confirm(broker, &events[1], 1);
	assert_int_equal(events[1].status, SEMEL_NACKED);
	semel_broker_close(slow);

	steps_consume(url, "slow", 5);
	steps_publish(broker, "c", 1, 5);
	semel_broker_close(broker);
}

static void a_topic_keeps_its_partitions(void **state)
{
	(void)state;
	struct semel_broker *broker = open_with("partitions=3");
	steps_publish(broker, "a", 1, 1);
	semel_broker_close(broker);

	semel_error error = { 0 };
	struct steps_event event;
	broker = open_with("partitions=5");
	steps_event_make(&event, "a", 2);
	steps_offer(broker, &event);
	assert_int_equal(poll_without_outcome(broker, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "has 3 partitions"));
	assert_non_null(strstr(error.text, "partitions=5"));
	semel_broker_close(broker);

	broker = steps_open(url); /* who names no number takes theirs */
	steps_publish(broker, "a", 2, 2);
	semel_broker_close(broker);
	steps_consume(url, "billing", 2);
}

static void a_locked_file_is_busy_and_poll_can_be_repeated(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	struct steps_event event;
	semel_error error = { 0 };
	sqlite3 *other = NULL;
	assert_int_equal(sqlite3_open(steps_file(), &other), SQLITE_OK);
	sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	steps_event_make(&event, "a", 1);
	steps_offer(broker, &event);
	assert_int_equal(poll_without_outcome(broker, &error), SEMEL_BUSY);
	sqlite3_exec(other, "COMMIT", NULL, NULL, NULL);
	sqlite3_close(other);
	steps_confirm(broker, &event, 1);
	assert_int_equal(event.status, SEMEL_OK);
	semel_broker_close(broker);
	steps_consume(url, "billing", 1);
}

static void publish_without_end(const char *broker_url, int argument, int ready_fd)
{
	struct semel_broker *broker = steps_open(broker_url);
	char aggregate[2] = { (char)argument, '\0' };
	for (int i = 1;; i++) {
		steps_publish(broker, aggregate, i, i);
		if (i == 1)
			assert_int_equal(write(ready_fd, "r", 1), 1);
	}
}

/* Two begin again as soon as they have committed; every call of a third one gets through. */
static void hot_writers_do_not_keep_the_others_out(void **state)
{
	(void)state;
	char patient[512];
	int fds[2], refused = 0;
	semel_error error = { 0 };
	snprintf(patient, sizeof(patient), "local:%s?busy-timeout=2000", steps_file());
	int children[] = { steps_fork(publish_without_end, patient, 'a', &fds[0]),
			   steps_fork(publish_without_end, patient, 'b', &fds[1]) };
	for (int i = 0; i < 2; i++)
		steps_await(fds[i]);
	struct semel_broker *broker = steps_open(patient);
	for (int i = 1; i <= 200; i++) {
		struct steps_event event;
		steps_event_make(&event, "c", i);
		if (broker->driver->requeue(broker, "billing", &event.event, &event.metadata, 60000,
					    &error) != SEMEL_OK)
			refused++;
	}
	for (int i = 0; i < 2; i++)
		steps_reap(children[i], true);
	semel_broker_close(broker);
	assert_int_equal(refused, 0);
}

/* The file may not grow, so every allocation of a page fails, whichever statement it is in. */
static void a_full_disk_leaves_nothing_half_written(void **state)
{
	(void)state;
	struct semel_broker *broker = steps_open(url);
	sqlite3 *db = semel_local_of(broker)->db;
	struct steps_event events[20];
	semel_error error = { 0 };
	char large[8001];
	memset(large, 'x', sizeof(large) - 1);
	large[sizeof(large) - 1] = '\0';
	for (int i = 0; i < 20; i++) {
		steps_event_make(&events[i], "a", i + 1);
		events[i].event.payload = semel_text_of(large);
		steps_offer(broker, &events[i]);
	}
	int64_t pages = 0;
	assert_int_equal(semel_sqlite_int(db, "PRAGMA page_count", 0, &pages, &error), SEMEL_OK);
	for (int more = 0; more < 40; more++) { /* two pages for each event */
		char sql[64];
		snprintf(sql, sizeof(sql), "PRAGMA max_page_count = %lld", (long long)pages + more);
		assert_int_equal(semel_sqlite_exec(db, sql, &error), SEMEL_OK);
		assert_int_equal(poll_without_outcome(broker, &error), SEMEL_STORAGE_FULL);
		assert_int_equal(steps_backlog(broker, "billing").waiting, 0);
	}
	semel_sqlite_exec(db, "PRAGMA max_page_count = 100000", &error);
	steps_confirm(broker, events, 20);
	semel_broker_close(broker);
	steps_consume(url, "billing", 20);
}

static void positions_keep_topic_partition_and_offset_apart(void **state)
{
	(void)state;
	int64_t highest = semel_local_entry_key(
		SEMEL_LOCAL_TOPIC_MAX, SEMEL_LOCAL_PARTITIONS_MAX - 1, SEMEL_LOCAL_OFFSET_MAX);
	assert_int_equal(highest, INT64_MAX);
	assert_true(semel_local_entry_key(1, 0, SEMEL_LOCAL_OFFSET_MAX) <
		    semel_local_entry_key(1, 1, 0));
	assert_true(semel_local_entry_key(1, SEMEL_LOCAL_PARTITIONS_MAX - 1,
					  SEMEL_LOCAL_OFFSET_MAX) < semel_local_entry_key(2, 0, 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, drop_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nothing_is_visible_before_poll),
		TEST(what_was_only_offered_dies_with_its_process),
		TEST(the_same_id_twice_is_two_entries),
		TEST(a_full_topic_refuses_until_the_slowest_has_settled),
		TEST(a_topic_keeps_its_partitions),
		TEST(a_locked_file_is_busy_and_poll_can_be_repeated),
		TEST(hot_writers_do_not_keep_the_others_out),
		TEST(a_full_disk_leaves_nothing_half_written),
		TEST(positions_keep_topic_partition_and_offset_apart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
