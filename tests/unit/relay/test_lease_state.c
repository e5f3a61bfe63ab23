/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/lanes.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

static const struct semel_lease theirs = { .owner = "them" };

static void a_lane_without_an_owner_is_free(void **state)
{
	struct semel_lease lease = { .expires_at_ms = 9000 };
	(void)state;
	assert_int_equal(semel_lease_state(&lease, "me", false), SEMEL_LEASE_FREE);
}

static void a_lane_is_free_once_its_owner_is_gone(void **state)
{
	(void)state;
	assert_int_equal(semel_lease_state(&theirs, "me", false), SEMEL_LEASE_TAKEN);
	assert_int_equal(semel_lease_state(&theirs, "me", true), SEMEL_LEASE_FREE);
}

static void my_own_lane_is_mine_also_when_the_lease_ran_out(void **state)
{
	(void)state;
	assert_int_equal(semel_lease_state(&theirs, "them", true), SEMEL_LEASE_MINE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lane_without_an_owner_is_free),
		cmocka_unit_test(a_lane_is_free_once_its_owner_is_gone),
		cmocka_unit_test(my_own_lane_is_mine_also_when_the_lease_ran_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
