/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/retry.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#define HTTP    false
#define PROGRAM true

static const struct semel_retry_policy policy = {
	.attempts_max = 5,
	.immediate_max = 2,
	.immediate = { 20, 500 },
	.delayed = { 1000, 4000 },
};

static int64_t delay_ms;

static enum semel_retry after(uint32_t number, semel_status status)
{
	struct semel_attempt attempt = { .number = number, .status = status };

	return semel_retry_next(&policy, &attempt, 0, &delay_ms);
}

static void an_outage_never_consumes_the_last_attempt(void **state)
{
	(void)state;
	assert_int_equal(after(5, SEMEL_OUTAGE), SEMEL_RETRY_FREE);
	assert_int_equal(after(5, SEMEL_BUSY), SEMEL_RETRY_FREE);
}

static void a_rejected_event_is_given_up_at_once(void **state)
{
	(void)state;
	assert_int_equal(after(1, SEMEL_HANDLER_REJECT), SEMEL_RETRY_GIVE_UP);
	assert_int_equal(after(1, SEMEL_CONTRACT), SEMEL_RETRY_GIVE_UP);
}

static void the_first_runs_follow_at_once_and_the_later_ones_at_the_broker(void **state)
{
	(void)state;
	assert_int_equal(after(1, SEMEL_HANDLER_RETRY), SEMEL_RETRY_NOW);
	assert_int_equal(delay_ms, 10);
	assert_int_equal(after(2, SEMEL_HANDLER_RETRY), SEMEL_RETRY_LATER);
	assert_int_equal(delay_ms, 500);
	assert_int_equal(after(3, SEMEL_HANDLER_RETRY), SEMEL_RETRY_LATER);
	assert_int_equal(delay_ms, 1000);
	assert_int_equal(after(4, SEMEL_HANDLER_RETRY), SEMEL_RETRY_LATER);
	assert_int_equal(delay_ms, 2000);
}

static void the_last_attempt_of_the_budget_is_given_up(void **state)
{
	(void)state;
	assert_int_equal(after(5, SEMEL_HANDLER_RETRY), SEMEL_RETRY_GIVE_UP);
	assert_int_equal(after(6, SEMEL_HANDLER_RETRY), SEMEL_RETRY_GIVE_UP);
}

static void the_handlers_own_delay_is_honoured_up_to_an_hour(void **state)
{
	struct semel_attempt attempt = { .number = 1,
					 .status = SEMEL_HANDLER_RETRY,
					 .retry_after_ms = 7000 };
	(void)state;
	assert_int_equal(semel_retry_next(&policy, &attempt, 0, &delay_ms), SEMEL_RETRY_LATER);
	assert_int_equal(delay_ms, 7000);
	attempt.retry_after_ms = (int64_t)365 * 24 * 3600 * 1000;
	assert_int_equal(semel_retry_next(&policy, &attempt, 0, &delay_ms), SEMEL_RETRY_LATER);
	assert_int_equal(delay_ms, SEMEL_RETRY_AFTER_MAX_MS);
}

/* ---- time-outs ------------------------------------------------------------------------------- */

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
		cmocka_unit_test(an_outage_never_consumes_the_last_attempt),
		cmocka_unit_test(a_rejected_event_is_given_up_at_once),
		cmocka_unit_test(the_first_runs_follow_at_once_and_the_later_ones_at_the_broker),
		cmocka_unit_test(the_last_attempt_of_the_budget_is_given_up),
		cmocka_unit_test(the_handlers_own_delay_is_honoured_up_to_an_hour),
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
