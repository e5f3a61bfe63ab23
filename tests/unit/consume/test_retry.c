/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/retry.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_outage_never_consumes_the_last_attempt),
		cmocka_unit_test(a_rejected_event_is_given_up_at_once),
		cmocka_unit_test(the_first_runs_follow_at_once_and_the_later_ones_at_the_broker),
		cmocka_unit_test(the_last_attempt_of_the_budget_is_given_up),
		cmocka_unit_test(the_handlers_own_delay_is_honoured_up_to_an_hour),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
