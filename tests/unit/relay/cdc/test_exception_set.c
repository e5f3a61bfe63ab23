/* SPDX-License-Identifier: Apache-2.0 */
/* The set of aggregates that may have exceptions has no false negatives. */
#include "relay/cdc/exception_set.h"

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
	struct semel_exception_set set = { 0 };
	char name[16];
	assert_false(semel_exception_set_contains(&set, order, SEMEL_TEXT("0")));
	for (int i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		semel_exception_set_add(&set, order, semel_text_of(name));
		semel_exception_set_add(&set, order, semel_text_of(name));
	}
	assert_int_equal(set.count, 5000);
	for (int i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		assert_int_equal(semel_exception_set_contains(&set, order, semel_text_of(name)),
				 i < 5000);
	}
	semel_exception_set_clear(&set);
	assert_false(semel_exception_set_contains(&set, order, SEMEL_TEXT("1")));
	semel_exception_set_free(&set);
}

/* Each was refused once, and is settled since; the table has few of them. */
static void it_is_read_anew_before_it_is_much_larger_than_the_table(void **state)
{
	(void)state;
	struct semel_exception_set set = { 0 };
	char name[16];
	size_t most = 0;
	for (int i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "%d", i);
		semel_exception_set_add(&set, order, semel_text_of(name));
		most = set.capacity > most ? set.capacity : most;
		if (!semel_exception_set_is_stale(&set))
			continue;
		semel_exception_set_clear(&set);
		semel_exception_set_add(&set, order, semel_text_of(name));
		semel_exception_set_loaded(&set);
	}
	assert_true(most <= 256);
	semel_exception_set_free(&set);
}

static void without_memory_every_aggregate_may_be_held(void **state)
{
	(void)state;
	struct semel_exception_set set = { .all = true };
	assert_true(semel_exception_set_contains(&set, order, SEMEL_TEXT("1")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_was_added_is_there_and_others_are_not),
		cmocka_unit_test(it_is_read_anew_before_it_is_much_larger_than_the_table),
		cmocka_unit_test(without_memory_every_aggregate_may_be_held),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
