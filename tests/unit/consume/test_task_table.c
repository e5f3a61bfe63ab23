/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/task_table.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#define CAPACITY 4

struct fixture {
	struct semel_consumer consumer;
	struct semel_task_table table;
};

static int set_up(void **state)
{
	struct fixture *fixture = calloc(1, sizeof *fixture);
	fixture->consumer.env = semel_env_system();
	fixture->consumer.config.scope = SEMEL_TEXT("billing");
	*state = fixture;
	return semel_task_table_init(&fixture->table, CAPACITY) ? 0 : -1;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;
	semel_task_table_clear(&fixture->table);
	free(fixture);
	return 0;
}

static struct semel_delivery delivery(const char *id, const char *aggregate, size_t payload)
{
	static char text[100001];
	memset(text, ' ', payload);
	text[0] = '1';
	return (struct semel_delivery){ .event = { .id = semel_text_of(id),
						   .type = SEMEL_TEXT("order.created.v1"),
						   .aggregate_type = SEMEL_TEXT("order"),
						   .aggregate_id = semel_text_of(aggregate),
						   .topic = SEMEL_TEXT("order.events"),
						   .routing_key = SEMEL_TEXT("order.created.v1"),
						   .content_type = SEMEL_TEXT("application/json"),
						   .headers = SEMEL_TEXT("{}"),
						   .payload = semel_text_from(text, payload),
						   .time_ms = 1 } };
}

static struct semel_task *add(struct fixture *fixture, const char *id, const char *aggregate,
			      size_t payload)
{
	struct semel_delivery one = delivery(id, aggregate, payload);
	return semel_task_table_add(&fixture->table, &fixture->consumer, &one,
				    (struct semel_text){ 0 });
}

static void it_holds_so_many_and_no_more(void **state)
{
	struct fixture *fixture = *state;
	for (int i = 0; i < CAPACITY; i++)
		assert_non_null(add(fixture, "e", "a", 10));
	assert_null(add(fixture, "e", "a", 10));
	semel_task_table_remove(&fixture->table, fixture->table.first->next);
	assert_int_equal(fixture->table.count, CAPACITY - 1);
	assert_non_null(add(fixture, "e", "a", 10));
}

static void they_stay_in_the_order_in_which_they_came(void **state)
{
	struct fixture *fixture = *state;
	struct semel_task *first = add(fixture, "e1", "a", 10),
			  *second = add(fixture, "e2", "b", 10);
	struct semel_task *third = add(fixture, "e3", "a", 10);
	semel_task_table_remove(&fixture->table, first);
	struct semel_task *fourth = add(fixture, "e4", "c", 10);
	assert_ptr_equal(fourth, first); /* its room */
	assert_ptr_equal(fixture->table.first, second);
	assert_ptr_equal(second->next, third);
	assert_ptr_equal(third->next, fourth);
	assert_ptr_equal(fixture->table.last, fourth);
}

static void what_is_settled_gives_its_bytes_back(void **state)
{
	struct fixture *fixture = *state;
	struct semel_task *slow = add(fixture, "e1", "a", 10);
	size_t before = fixture->table.bytes;
	struct semel_task *large = add(fixture, "e2", "b", 100000);
	assert_true(fixture->table.bytes >= before + 100000);
	semel_task_table_remove(&fixture->table, large);
	assert_int_equal(fixture->table.bytes, before);
	assert_string_equal(slow->item.event.id.data, "e1");
}

static void a_copy_finds_the_call_whose_connection_is_gone(void **state)
{
	struct fixture *fixture = *state;
	struct semel_delivery again = delivery("e1", "a", 10), other = delivery("e2", "a", 10);
	struct semel_delivery replay = again;
	struct semel_task *task = add(fixture, "e1", "a", 10);
	replay.metadata.replay = 1;
	assert_null(semel_task_table_find_detached(&fixture->table, &again));
	task->item.detached = true;
	assert_ptr_equal(semel_task_table_find_detached(&fixture->table, &again), task);
	assert_null(semel_task_table_find_detached(&fixture->table, &other));
	assert_null(semel_task_table_find_detached(&fixture->table, &replay));
}

static void a_call_is_one_that_was_begun_and_is_not_concluded(void **state)
{
	struct fixture *fixture = *state;
	struct semel_task *task = add(fixture, "e1", "a", 10);
	assert_false(semel_task_table_has_call(&fixture->table, SEMEL_TEXT("e1")));
	task->state = SEMEL_TASK_RUNNING;
	assert_true(semel_task_table_has_call(&fixture->table, SEMEL_TEXT("e1")));
	assert_false(semel_task_table_has_call(&fixture->table, SEMEL_TEXT("e2")));
	task->state = SEMEL_TASK_ENDED;
	assert_true(semel_task_table_has_call(&fixture->table, SEMEL_TEXT("e1")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(it_holds_so_many_and_no_more, set_up, tear_down),
		cmocka_unit_test_setup_teardown(they_stay_in_the_order_in_which_they_came, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(what_is_settled_gives_its_bytes_back, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_copy_finds_the_call_whose_connection_is_gone,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_call_is_one_that_was_begun_and_is_not_concluded,
						set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
