/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/timeouts.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#define HTTP    false
#define PROGRAM true

/* One call after another. */
static bool time_out(struct semel_timeouts *timeouts, uint64_t event, bool presumed_up)
{
	return semel_timeouts_count(timeouts, event, semel_timeouts_begin(timeouts), presumed_up);
}

static void answer(struct semel_timeouts *timeouts)
{
	semel_timeouts_answered(timeouts, semel_timeouts_begin(timeouts));
}

static void one_that_is_overtaken_is_counted_from_the_first_time_on(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	uint64_t slow = semel_timeouts_begin(&timeouts);
	answer(&timeouts);
	assert_true(semel_timeouts_count(&timeouts, 7, slow, HTTP));
	for (int attempt = 0; attempt < 5; attempt++)
		assert_true(time_out(&timeouts, 7, HTTP));
}

static void an_answer_to_a_call_that_began_earlier_proves_nothing(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	uint64_t before = semel_timeouts_begin(&timeouts), slow = semel_timeouts_begin(&timeouts);
	semel_timeouts_answered(&timeouts, before);
	assert_false(semel_timeouts_count(&timeouts, 7, slow, HTTP));
	assert_false(time_out(&timeouts, 7, HTTP));
}

static void while_nothing_is_answered_no_time_out_counts(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	for (int round = 0; round < 10; round++)
		for (uint64_t event = 1; event <= 5; event++)
			assert_false(time_out(&timeouts, event, HTTP));
}

static void one_that_times_out_while_others_are_answered_is_counted(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	assert_false(time_out(&timeouts, 7, HTTP));
	answer(&timeouts);
	for (int attempt = 0; attempt < 5; attempt++)
		assert_true(time_out(&timeouts, 7, HTTP));
}

static void when_several_others_time_out_too_it_is_down_again(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	time_out(&timeouts, 7, HTTP);
	answer(&timeouts);
	for (uint64_t event = 10; event < 10 + SEMEL_TIMEOUTS_SEVERAL; event++)
		assert_false(time_out(&timeouts, event, HTTP));
	assert_false(time_out(&timeouts, 7, HTTP));
	answer(&timeouts);
	assert_true(time_out(&timeouts, 7, HTTP));
}

static void what_was_answered_before_the_first_time_out_proves_nothing(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	answer(&timeouts);
	assert_false(time_out(&timeouts, 7, HTTP));
	assert_false(time_out(&timeouts, 7, HTTP));
}

static void a_lone_event_of_a_program_is_counted_at_once(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	for (int attempt = 0; attempt < 5; attempt++)
		assert_true(time_out(&timeouts, 7, PROGRAM));
}

static void when_all_runs_of_a_program_hang_only_the_first_few_count(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	uint64_t event = 1;
	(void)state;
	for (; event <= SEMEL_TIMEOUTS_SEVERAL; event++)
		assert_true(time_out(&timeouts, event, PROGRAM));
	for (int round = 0; round < 10; round++)
		for (event = 10; event > 0; event--)
			assert_false(time_out(&timeouts, event, PROGRAM));
	answer(&timeouts);
	assert_true(time_out(&timeouts, 1, PROGRAM));
}

static void an_event_that_is_settled_or_forgotten_is_judged_as_a_new_one(void **state)
{
	struct semel_timeouts timeouts = { 0 };
	(void)state;
	time_out(&timeouts, 7, HTTP);
	assert_true(semel_timeouts_has(&timeouts, 7));
	semel_timeouts_forget(&timeouts, 7);
	assert_false(semel_timeouts_has(&timeouts, 7));
	answer(&timeouts);
	assert_false(time_out(&timeouts, 7, HTTP));
	for (uint64_t event = 100; event < 100 + SEMEL_TIMEOUTS_REMEMBERED; event++)
		assert_false(time_out(&timeouts, event, HTTP));
	answer(&timeouts);
	assert_false(time_out(&timeouts, 7, HTTP));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(while_nothing_is_answered_no_time_out_counts),
		cmocka_unit_test(one_that_is_overtaken_is_counted_from_the_first_time_on),
		cmocka_unit_test(an_answer_to_a_call_that_began_earlier_proves_nothing),
		cmocka_unit_test(one_that_times_out_while_others_are_answered_is_counted),
		cmocka_unit_test(when_several_others_time_out_too_it_is_down_again),
		cmocka_unit_test(what_was_answered_before_the_first_time_out_proves_nothing),
		cmocka_unit_test(a_lone_event_of_a_program_is_counted_at_once),
		cmocka_unit_test(when_all_runs_of_a_program_hang_only_the_first_few_count),
		cmocka_unit_test(an_event_that_is_settled_or_forgotten_is_judged_as_a_new_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
