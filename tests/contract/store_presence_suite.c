/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: which consumers are at work, and which topics a scope has ever read. */
#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>

#define BILLING SEMEL_TEXT("billing")

/* What was visited, as one line each. */
struct visited {
	char lines[1024];
	uint32_t count;
	struct semel_presence last; /* without its texts */
};

static void visit_presence(const struct semel_presence *presence, void *user)
{
	struct visited *visited = user;
	size_t length = strlen(visited->lines);
	snprintf(visited->lines + length, sizeof(visited->lines) - length, "%s/%s %s\n",
		 semel_text_shown(presence->scope), semel_text_shown(presence->owner),
		 semel_text_shown_or(presence->reason, "-"));
	visited->count++;
	visited->last = *presence;
}

static struct visited presences(semel_store *store, struct semel_text scope)
{
	struct visited visited = { .count = 0 };
	assert_ok(
		store->driver->upkeep->presence_each(store, scope, visit_presence, &visited, NULL));
	return visited;
}

static struct semel_presence presence(struct semel_text scope, const char *owner)
{
	return (struct semel_presence){ .scope = scope,
					.owner = semel_text_of(owner),
					.in_flight = 3,
					.updated_ms = STORE_NOW,
					.expires_at_ms = STORE_NOW + 15000 };
}

static void a_consumer_has_one_row_that_it_keeps_up_to_date(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_presence mine = presence(BILLING, "me");
	assert_int_equal(presences(store, BILLING).count, 0);
	assert_ok(store->driver->upkeep->presence_put(store, &mine, NULL));
	struct visited visited = presences(store, BILLING);
	assert_string_equal(visited.lines, "billing/me -\n");
	assert_int_equal(visited.last.in_flight, 3);
	assert_int_equal(visited.last.waits_since_ms, 0);
	assert_false(visited.last.paused);

	mine.in_flight = 16;
	mine.breaker = 2;
	mine.reason = SEMEL_TEXT("http://127.0.0.1:1/: connection refused");
	mine.next_try_ms = STORE_NOW + 10000;
	mine.waits_since_ms = STORE_NOW - 60000;
	mine.paused = true;
	mine.expires_at_ms += 5000;
	assert_ok(store->driver->upkeep->presence_put(store, &mine, NULL));
	visited = presences(store, BILLING);
	assert_string_equal(visited.lines, "billing/me http://127.0.0.1:1/: connection refused\n");
	assert_int_equal(visited.last.in_flight, 16);
	assert_int_equal(visited.last.breaker, 2);
	assert_int_equal(visited.last.next_try_ms, STORE_NOW + 10000);
	assert_int_equal(visited.last.waits_since_ms, STORE_NOW - 60000);
	assert_int_equal(visited.last.updated_ms, STORE_NOW);
	assert_in_range(visited.last.expires_at_ms, STORE_NOW + 19000, STORE_NOW + 21000);
	assert_true(visited.last.paused);
	semel_store_close(store);
}

static void consumers_are_listed_by_scope_or_all_of_them(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_presence first = presence(BILLING, "first");
	struct semel_presence second = presence(BILLING, "second");
	struct semel_presence other = presence(SEMEL_TEXT("audit"), "third");
	assert_ok(store->driver->upkeep->presence_put(store, &second, NULL));
	assert_ok(store->driver->upkeep->presence_put(store, &first, NULL));
	assert_ok(store->driver->upkeep->presence_put(store, &other, NULL));
	assert_string_equal(presences(store, BILLING).lines, "billing/first -\nbilling/second -\n");
	assert_string_equal(presences(store, (struct semel_text){ NULL, 0 }).lines,
			    "audit/third -\nbilling/first -\nbilling/second -\n");
	semel_store_close(store);
}

static void a_consumer_that_ends_removes_its_row_and_those_that_expired_long_ago(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_presence mine = presence(BILLING, "me");
	struct semel_presence old = presence(BILLING, "old");
	struct semel_presence young = presence(BILLING, "young");
	struct semel_presence other = presence(SEMEL_TEXT("audit"), "old");
	old.expires_at_ms = other.expires_at_ms = STORE_NOW - 7200000;
	young.expires_at_ms = STORE_NOW - 60000;
	assert_ok(store->driver->upkeep->presence_put(store, &mine, NULL));
	assert_ok(store->driver->upkeep->presence_put(store, &old, NULL));
	assert_ok(store->driver->upkeep->presence_put(store, &young, NULL));
	assert_ok(store->driver->upkeep->presence_put(store, &other, NULL));
	assert_ok(store->driver->upkeep->presence_remove(store, &mine, STORE_NOW - 3600000, NULL));
	assert_string_equal(presences(store, BILLING).lines, "billing/young -\n");
	assert_int_equal(presences(store, SEMEL_TEXT("audit")).count, 1);
	semel_store_close(store);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static void append_topic(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms,
			 void *user)
{
	char *lines = user;
	size_t length = strlen(lines);
	snprintf(lines + length, 512 - length, "%s +%d -%d\n", semel_text_shown(topic),
		 (int)(since_ms - STORE_NOW), removed_at_ms ? (int)(removed_at_ms - STORE_NOW) : 0);
}

static const char *topics(semel_store *store)
{
	static char lines[512];
	lines[0] = '\0';
	assert_ok(store->driver->upkeep->subscription_topics(store, BILLING, append_topic, lines,
							     NULL));
	return lines;
}

static void subscribe(semel_store *store, const char *list, int64_t at_ms)
{
	struct semel_subscription_row row = { .scope = BILLING, .topics = semel_text_of(list) };
	assert_ok(store->driver->upkeep->subscription_put(store, &row, at_ms, NULL));
}

static void a_topic_that_was_taken_out_is_remembered_with_the_time(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_string_equal(topics(store), "");
	subscribe(store, "[\"order.events\",\"payment.events\"]", STORE_NOW);
	assert_string_equal(topics(store), "order.events +0 -0\npayment.events +0 -0\n");
	subscribe(store, "[\"order.events\"]", STORE_NOW + 1000);
	subscribe(store, "[\"order.events\"]", STORE_NOW + 2000);
	assert_string_equal(topics(store), "order.events +0 -0\npayment.events +0 -1000\n");
	subscribe(store, "[\"payment.events\",\"order.events\"]", STORE_NOW + 3000);
	assert_string_equal(topics(store), "order.events +0 -0\npayment.events +0 -0\n");
	semel_store_close(store);
}

static void the_binding_of_a_subscription_is_kept(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_subscription_row row = { .scope = BILLING,
					      .topics = SEMEL_TEXT("[\"order.events\"]"),
					      .bind = SEMEL_TEXT("order.*.eu") };
	uint32_t count = 0;
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW, NULL));
	assert_ok(store->driver->upkeep->subscription_list(store, arena, &row, 1, &count, NULL));
	assert_string_equal(row.bind.data, "order.*.eu");
	row.bind = (struct semel_text){ NULL, 0 };
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW, NULL));
	assert_ok(store->driver->upkeep->subscription_list(store, arena, &row, 1, &count, NULL));
	assert_null(row.bind.data);
	semel_arena_free(arena);
	semel_store_close(store);
}

static uint32_t begin_run(semel_store *store, const char *event, const char *owner, int64_t now_ms)
{
	struct semel_running running = { .scope = BILLING,
					 .event_id = semel_text_of(event),
					 .owner = owner,
					 .now_ms = now_ms,
					 .forget_ms = now_ms - 1000 };
	uint32_t runs = 0;
	store_begin(store);
	assert_ok(store->driver->upkeep->running_begin(store_tx(store), &running, &runs, NULL));
	store_commit(store);
	return runs;
}

static void a_run_that_was_begun_and_not_ended_is_counted_once_for_each_owner(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_int_equal(begin_run(store, "e1", "first", STORE_NOW), 1);
	assert_int_equal(begin_run(store, "e1", "first", STORE_NOW), 1);
	assert_int_equal(begin_run(store, "e1", "second", STORE_NOW), 2);
	assert_int_equal(begin_run(store, "e2", "second", STORE_NOW), 1);
	assert_int_equal(begin_run(store, "e1", "third", STORE_NOW), 3);
	store_begin(store);
	assert_ok(store->driver->upkeep->running_end(store_tx(store), BILLING, SEMEL_TEXT("e1"),
						     NULL));
	store_commit(store);
	assert_int_equal(begin_run(store, "e1", "fourth", STORE_NOW), 1);
	semel_store_close(store);
}

static void runs_of_long_ago_are_forgotten(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_int_equal(begin_run(store, "e1", "first", STORE_NOW), 1);
	assert_int_equal(begin_run(store, "e1", "second", STORE_NOW + 2000), 1);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_run_that_was_begun_and_not_ended_is_counted_once_for_each_owner),
	cmocka_unit_test(runs_of_long_ago_are_forgotten),
	cmocka_unit_test(a_consumer_has_one_row_that_it_keeps_up_to_date),
	cmocka_unit_test(consumers_are_listed_by_scope_or_all_of_them),
	cmocka_unit_test(a_consumer_that_ends_removes_its_row_and_those_that_expired_long_ago),
	cmocka_unit_test(a_topic_that_was_taken_out_is_remembered_with_the_time),
	cmocka_unit_test(the_binding_of_a_subscription_is_kept),
};
const struct store_tests store_presence_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
