/* SPDX-License-Identifier: Apache-2.0 */
/* What is recorded of rows that are settled and not marked. */
#include "relay/cdc/mark_buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ROWS 10

static struct semel_outbox_row rows[ROWS];

static struct semel_relay_batch load_of(int64_t first_seq)
{
	struct semel_relay_batch batch = { .fetched = { .rows = rows, .count = ROWS } };

	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct semel_outbox_row){ .seq = first_seq + i,
						     .lane = (int32_t)i,
						     .xid = 100 + i };
	return batch;
}

static void what_is_above_the_low_marks_is_moved_to_the_mark_buffer(void **state)
{
	(void)state;
	struct semel_unmarked unmarked;
	struct semel_mark_buffer buffer;
	struct semel_relay_batch batch = load_of(1);
	assert_true(semel_unmarked_open(&unmarked, 100));
	assert_true(semel_mark_buffer_open(&buffer, 4));
	semel_unmarked_add(&unmarked, &batch);
	semel_unmarked_drop_below(&unmarked, 4);
	assert_int_equal(unmarked.count, 6);
	semel_unmarked_move_to(&unmarked, &buffer);
	assert_int_equal(unmarked.count, 2);
	assert_int_equal(buffer.count, 4);
	for (uint32_t i = 0; i < buffer.count; i++) {
		assert_int_equal(buffer.seqs[i], 10 - i);
		assert_int_equal(buffer.lanes[i], 9 - i);
		assert_int_equal(buffer.xids[i], 109 - i);
	}
	semel_mark_buffer_free(&buffer);
	semel_unmarked_free(&unmarked);
}

static void there_is_no_room_for_more_than_was_asked_for(void **state)
{
	(void)state;
	struct semel_unmarked unmarked, none;
	struct semel_relay_batch batch = load_of(1);
	assert_true(semel_unmarked_open(&unmarked, 5));
	assert_true(semel_unmarked_open(&none, 0));
	semel_unmarked_add(&unmarked, &batch);
	semel_unmarked_add(&unmarked, &batch);
	semel_unmarked_add(&none, &batch);
	assert_int_equal(unmarked.count, 5);
	assert_int_equal(none.count, 0);
	semel_unmarked_free(&unmarked);
	semel_unmarked_free(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_above_the_low_marks_is_moved_to_the_mark_buffer),
		cmocka_unit_test(there_is_no_room_for_more_than_was_asked_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
