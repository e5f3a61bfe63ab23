/* SPDX-License-Identifier: Apache-2.0 */
/* When two samples of the health monitor show progress. */
#include "admin/health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct semel_health_sample before = { .waiting = 1,
						   .oldest_ms = 1000,
						   .lanes = { .low_sum = 7 } };

static void nothing_moves_while_the_same_event_waits_alone(void **state)
{
	(void)state;
	struct semel_health_sample now = before;
	assert_false(semel_health_has_progress(&before, &now));
	now.waiting = 2;
	assert_false(semel_health_has_progress(&before, &now));
}

static void events_published_meanwhile_count_as_progress(void **state)
{
	(void)state;
	struct semel_health_sample now = before;
	now.lanes.low_sum = 73;
	assert_true(semel_health_has_progress(&before, &now));
}

static void an_outbox_that_is_empty_has_moved(void **state)
{
	(void)state;
	struct semel_health_sample now = before;
	now.waiting = 0;
	assert_true(semel_health_has_progress(&before, &now));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_moves_while_the_same_event_waits_alone),
		cmocka_unit_test(events_published_meanwhile_count_as_progress),
		cmocka_unit_test(an_outbox_that_is_empty_has_moved),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
