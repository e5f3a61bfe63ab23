/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/breaker.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#define BATCH 100

static void an_outage_opens_it_at_once(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	assert_int_equal(semel_breaker_allow(&breaker, BATCH, 0), BATCH);
	semel_breaker_report(&breaker, SEMEL_OUTAGE, NULL, 1000, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_OPEN);
	assert_int_equal(semel_breaker_allow(&breaker, BATCH, 1001), 0);
}

static void after_the_pause_one_delivery_is_tried(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	semel_breaker_report(&breaker, SEMEL_OUTAGE, NULL, 1000, 0);
	assert_int_equal(semel_breaker_allow(&breaker, BATCH, breaker.open_until_ms), 1);
	assert_int_equal(breaker.state, SEMEL_BREAKER_HALF_OPEN);
}

static void a_good_probe_closes_it_and_a_bad_one_doubles_the_pause(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	semel_breaker_report(&breaker, SEMEL_OUTAGE, NULL, 0, 0);
	int64_t first_ms = breaker.open_until_ms;
	semel_breaker_allow(&breaker, BATCH, first_ms);
	semel_breaker_report(&breaker, SEMEL_HANDLER_RETRY, NULL, first_ms, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_OPEN);
	assert_int_equal(breaker.open_until_ms - first_ms, 2 * first_ms);
	semel_breaker_allow(&breaker, BATCH, breaker.open_until_ms);
	semel_breaker_report(&breaker, SEMEL_OK, NULL, 5000, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_CLOSED);
	semel_breaker_report(&breaker, SEMEL_OUTAGE, NULL, 0, 0);
	assert_int_equal(breaker.open_until_ms, first_ms);
}

static void the_pause_is_capped(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	for (int i = 0; i < 50; i++) {
		int64_t now_ms = breaker.open_until_ms;
		semel_breaker_allow(&breaker, BATCH, now_ms);
		semel_breaker_report(&breaker, SEMEL_OUTAGE, NULL, now_ms, UINT64_MAX);
		assert_in_range(breaker.open_until_ms - now_ms, 1, 30000);
	}
}

static void many_failures_in_a_row_count_as_a_dependency_that_is_down(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	for (int i = 0; i < 19; i++)
		semel_breaker_report(&breaker, SEMEL_HANDLER_RETRY, NULL, 0, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_CLOSED);
	semel_breaker_report(&breaker, SEMEL_HANDLER_RETRY, NULL, 0, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_OPEN);
}

static void a_success_or_a_rejection_between_them_starts_the_count_again(void **state)
{
	struct semel_breaker breaker = { 0 };
	(void)state;
	for (int i = 0; i < 100; i++)
		semel_breaker_report(&breaker,
				     i % 10 == 9 ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY, NULL,
				     0, 0);
	assert_int_equal(breaker.state, SEMEL_BREAKER_CLOSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_outage_opens_it_at_once),
		cmocka_unit_test(after_the_pause_one_delivery_is_tried),
		cmocka_unit_test(a_good_probe_closes_it_and_a_bad_one_doubles_the_pause),
		cmocka_unit_test(the_pause_is_capped),
		cmocka_unit_test(many_failures_in_a_row_count_as_a_dependency_that_is_down),
		cmocka_unit_test(a_success_or_a_rejection_between_them_starts_the_count_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
