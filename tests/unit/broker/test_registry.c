/* SPDX-License-Identifier: Apache-2.0 */

#include "broker/broker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void only_answers_that_no_setting_corrects_are_about_an_event(void **state)
{
	(void)state;
	static const semel_status about[] = { SEMEL_NACKED,  SEMEL_UNROUTABLE, SEMEL_TOO_LARGE,
					      SEMEL_INVALID, SEMEL_HELD,       SEMEL_STALLED };
	static const semel_status not_about[] = { SEMEL_OK,        SEMEL_CONFIG,  SEMEL_OUTAGE,
						  SEMEL_BUSY,      SEMEL_FULL,    SEMEL_LEASE_LOST,
						  SEMEL_NO_SCHEMA, SEMEL_INTERNAL };
	for (size_t i = 0; i < sizeof about / sizeof about[0]; i++)
		assert_true(semel_outcome_is_about_event(about[i]));
	for (size_t i = 0; i < sizeof not_about / sizeof not_about[0]; i++)
		assert_false(semel_outcome_is_about_event(not_about[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_answers_that_no_setting_corrects_are_about_an_event),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
