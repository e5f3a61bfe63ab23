/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of aggregates that may have exceptions never says no wrongly. */
#include "relay/cdc/held.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static const struct semel_text order = SEMEL_TEXT_CONST("order");

static void who_was_added_is_there_and_others_are_not(void **state)
{
	(void)state;
	struct semel_held held = { 0 };
	char name[16];
	assert_false(semel_held_has(&held, order, SEMEL_TEXT("0")));
	for (int i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		semel_held_add(&held, order, semel_text_of(name));
		semel_held_add(&held, order, semel_text_of(name));
	}
	assert_int_equal(held.count, 5000);
	for (int i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		assert_int_equal(semel_held_has(&held, order, semel_text_of(name)), i < 5000);
	}
	semel_held_clear(&held);
	assert_false(semel_held_has(&held, order, SEMEL_TEXT("1")));
	semel_held_free(&held);
}

/* Each was refused once, and is settled since; the table has few of them. */
static void it_is_read_anew_before_it_is_much_larger_than_the_table(void **state)
{
	(void)state;
	struct semel_held held = { 0 };
	char name[16];
	size_t most = 0;
	for (int i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		semel_held_add(&held, order, semel_text_of(name));
		most = held.capacity > most ? held.capacity : most;
		if (!semel_held_has_grown(&held))
			continue;
		semel_held_clear(&held);
		semel_held_add(&held, order, semel_text_of(name));
		semel_held_is_known(&held);
	}
	assert_true(most <= 256);
	semel_held_free(&held);
}

static void without_memory_everybody_may_be_held(void **state)
{
	(void)state;
	struct semel_held held = { .all = true };
	assert_true(semel_held_has(&held, order, SEMEL_TEXT("1")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_was_added_is_there_and_others_are_not),
		cmocka_unit_test(it_is_read_anew_before_it_is_much_larger_than_the_table),
		cmocka_unit_test(without_memory_everybody_may_be_held),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
