/* SPDX-License-Identifier: Apache-2.0 */
/* Planted bugs: asked for by name in the test program, and not there in any other. */
#include "fault/plant.h"

static const bool planted_in_shipped_code = SEMEL_PLANTED("ack-before-commit");

#undef SEMEL_FAULT_PLANT_H
#undef SEMEL_PLANTED
#define SEMEL_PLANT_BUGS
#include "fault/plant.h" // again, with the bugs in

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void nothing_is_planted_in_what_is_shipped(void **state)
{
	(void)state;
	assert_false(planted_in_shipped_code);
}

static void only_the_named_bugs_are_at_work(void **state)
{
	(void)state;
	unsetenv("SEMEL_PLANT");
	assert_false(SEMEL_PLANTED("high-water-mark"));
	setenv("SEMEL_PLANT", "ack-before-commit,high-water-mark", 1);
	assert_true(SEMEL_PLANTED("high-water-mark"));
	assert_true(SEMEL_PLANTED("ack-before-commit"));
	assert_false(SEMEL_PLANTED("high-water"));
	assert_false(SEMEL_PLANTED("new-id-on-retry"));
	unsetenv("SEMEL_PLANT");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_planted_in_what_is_shipped),
		cmocka_unit_test(only_the_named_bugs_are_at_work),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
