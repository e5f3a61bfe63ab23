/* SPDX-License-Identifier: Apache-2.0 */
#include "base/backoff.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

static const struct semel_backoff backoff = { .first_ms = 100, .cap_ms = 1000 };

static void it_doubles_up_to_the_cap(void **state)
{
	(void)state; /* the chances pick the whole of each delay */
	assert_int_equal(semel_backoff_ms(backoff, 1, 50), 100);
	assert_int_equal(semel_backoff_ms(backoff, 2, 100), 200);
	assert_int_equal(semel_backoff_ms(backoff, 3, 200), 400);
	assert_int_equal(semel_backoff_ms(backoff, 5, 500), 1000);
	assert_int_equal(semel_backoff_ms(backoff, 4000000000u, 500), 1000);
}

static void chance_spreads_it_over_the_upper_half(void **state)
{
	(void)state;
	for (uint64_t chance = 0; chance < 1000; chance++)
		assert_in_range(semel_backoff_ms(backoff, 2, chance * 7919), 100, 200);
	assert_int_equal(semel_backoff_ms(backoff, 2, 0), 100);
}

static void no_delay_stays_no_delay(void **state)
{
	(void)state;
	assert_int_equal(semel_backoff_ms((struct semel_backoff){ 0, 0 }, 3, 12345), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_doubles_up_to_the_cap),
		cmocka_unit_test(chance_spreads_it_over_the_upper_half),
		cmocka_unit_test(no_delay_stays_no_delay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
