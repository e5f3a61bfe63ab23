/* SPDX-License-Identifier: Apache-2.0 */
/* How far the change stream may be confirmed. */
#include "relay/cdc/feedback.h"

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

static void nothing_is_reached_before_the_oldest_load_is_settled(void **state)
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

static void a_load_that_ends_within_a_transaction_reaches_nothing(void **state)
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

static void tickets_of_an_earlier_stream_settle_nothing(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nothing_is_reached_before_the_oldest_load_is_settled,
				       set_up),
		cmocka_unit_test_setup(a_load_that_ends_within_a_transaction_reaches_nothing,
				       set_up),
		cmocka_unit_test_setup(an_idle_stream_is_reached_at_once, set_up),
		cmocka_unit_test_setup(a_position_without_rows_waits_for_what_is_open, set_up),
		cmocka_unit_test_setup(a_position_never_goes_back, set_up),
		cmocka_unit_test_setup(tickets_of_an_earlier_stream_settle_nothing, set_up),
		cmocka_unit_test_setup(it_is_full_and_goes_round, set_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
