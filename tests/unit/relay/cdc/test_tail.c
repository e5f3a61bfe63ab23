/* SPDX-License-Identifier: Apache-2.0 */
/* What is remembered of rows that are settled and not marked. */
#include "relay/cdc/tail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ROWS 10

static struct semel_outbox_row rows[ROWS];

static struct semel_load load_of(int64_t first_seq)
{
	struct semel_load load = { .batch = { .rows = rows, .count = ROWS } };

	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct semel_outbox_row){ .seq = first_seq + i,
						     .lane = (int32_t)i,
						     .xid = 100 + i };
	return load;
}

static void what_is_above_the_low_marks_is_moved_to_a_pile(void **state)
{
	(void)state;
	struct semel_tail tail;
	struct semel_pile pile;
	struct semel_load load = load_of(1);
	assert_true(semel_tail_open(&tail, 100));
	assert_true(semel_pile_open(&pile, 4));
	semel_tail_add(&tail, &load);
	semel_tail_pass(&tail, 4);
	assert_int_equal(tail.count, 6);
	semel_tail_move(&tail, &pile);
	assert_int_equal(tail.count, 2);
	assert_int_equal(pile.count, 4);
	for (uint32_t i = 0; i < pile.count; i++) {
		assert_int_equal(pile.seqs[i], 10 - i);
		assert_int_equal(pile.lanes[i], 9 - i);
		assert_int_equal(pile.xids[i], 109 - i);
	}
	semel_pile_free(&pile);
	semel_tail_free(&tail);
}

static void there_is_no_room_for_more_than_was_asked_for(void **state)
{
	(void)state;
	struct semel_tail tail, none;
	struct semel_load load = load_of(1);
	assert_true(semel_tail_open(&tail, 5));
	assert_true(semel_tail_open(&none, 0));
	semel_tail_add(&tail, &load);
	semel_tail_add(&tail, &load);
	semel_tail_add(&none, &load);
	assert_int_equal(tail.count, 5);
	assert_int_equal(none.count, 0);
	semel_tail_free(&tail);
	semel_tail_free(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_above_the_low_marks_is_moved_to_a_pile),
		cmocka_unit_test(there_is_no_room_for_more_than_was_asked_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
