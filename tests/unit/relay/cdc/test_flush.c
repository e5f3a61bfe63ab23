/* SPDX-License-Identifier: Apache-2.0 */
/* How far the change stream may be confirmed, and what is recorded of rows that are confirmed and
 * not marked. */
#include "relay/cdc/cdc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct semel_feedback feedback;

static int set_up(void **state)
{
	(void)state;
	semel_feedback_reset(&feedback);
	return 0;
}

static void nothing_is_reached_before_the_oldest_batch_is_complete(void **state)
{
	(void)state;
	uint64_t first = semel_feedback_open(&feedback, 10);
	uint64_t second = semel_feedback_open(&feedback, 20);
	semel_feedback_complete(&feedback, second);
	assert_int_equal(feedback.position, 0);
	semel_feedback_complete(&feedback, first);
	assert_int_equal(feedback.position, 20);
	assert_true(semel_feedback_is_idle(&feedback));
}

static void a_batch_that_ends_within_a_transaction_reaches_nothing(void **state)
{
	(void)state;
	uint64_t begin = semel_feedback_open(&feedback, 0);
	uint64_t end = semel_feedback_open(&feedback, 30);
	semel_feedback_complete(&feedback, begin);
	assert_int_equal(feedback.position, 0);
	semel_feedback_complete(&feedback, end);
	assert_int_equal(feedback.position, 30);
}

static void an_idle_stream_is_reached_at_once(void **state)
{
	(void)state;
	semel_feedback_pass(&feedback, 40);
	assert_int_equal(feedback.position, 40);
}

static void a_position_without_rows_waits_for_what_is_open(void **state)
{
	(void)state;
	uint64_t open = semel_feedback_open(&feedback, 50);
	semel_feedback_pass(&feedback, 60);
	assert_int_equal(feedback.position, 0);
	semel_feedback_complete(&feedback, open);
	assert_int_equal(feedback.position, 60);
}

static void a_position_never_goes_back(void **state)
{
	(void)state;
	semel_feedback_pass(&feedback, 80);
	semel_feedback_pass(&feedback, 70);
	assert_int_equal(feedback.position, 80);
}

static void tickets_of_an_earlier_stream_complete_nothing(void **state)
{
	(void)state;
	uint64_t old = semel_feedback_open(&feedback, 90);
	semel_feedback_reset(&feedback);
	uint64_t young = semel_feedback_open(&feedback, 10);
	semel_feedback_complete(&feedback, old);
	assert_int_equal(feedback.position, 0);
	semel_feedback_complete(&feedback, young);
	assert_int_equal(feedback.position, 10);
}

static void it_is_full_and_goes_round(void **state)
{
	(void)state;
	uint64_t position = 0;
	for (int round = 0; round < 3; round++) {
		uint64_t first = 0;
		for (int i = 0; i < SEMEL_FEEDBACK_MAX; i++) {
			uint64_t ticket = semel_feedback_open(&feedback, ++position);
			first = i == 0 ? ticket : first;
		}
		assert_true(semel_feedback_is_full(&feedback));
		for (uint64_t i = SEMEL_FEEDBACK_MAX; i > 0; i--)
			semel_feedback_complete(&feedback, first + i - 1);
		assert_int_equal(feedback.position, position);
	}
}

#define ROWS 10

static struct semel_outbox_row rows[ROWS];

static struct semel_relay_batch batch_of(int64_t first_seq)
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
	struct semel_relay_batch batch = batch_of(1);
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
	struct semel_relay_batch batch = batch_of(1);
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
		cmocka_unit_test_setup(nothing_is_reached_before_the_oldest_batch_is_complete,
				       set_up),
		cmocka_unit_test_setup(a_batch_that_ends_within_a_transaction_reaches_nothing,
				       set_up),
		cmocka_unit_test_setup(an_idle_stream_is_reached_at_once, set_up),
		cmocka_unit_test_setup(a_position_without_rows_waits_for_what_is_open, set_up),
		cmocka_unit_test_setup(a_position_never_goes_back, set_up),
		cmocka_unit_test_setup(tickets_of_an_earlier_stream_complete_nothing, set_up),
		cmocka_unit_test_setup(it_is_full_and_goes_round, set_up),
		cmocka_unit_test(what_is_above_the_low_marks_is_moved_to_the_mark_buffer),
		cmocka_unit_test(there_is_no_room_for_more_than_was_asked_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
