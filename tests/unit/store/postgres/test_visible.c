/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot sees, by the lower half of a transaction's number. */
#include "store/postgres/changes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void what_has_ended_is_seen_and_what_is_open_or_later_is_not(void **state)
{
	(void)state;
	const char *snapshot = "100:110:100,103,109";
	assert_true(semel_pg_snapshot_sees(snapshot, 99));
	assert_true(semel_pg_snapshot_sees(snapshot, 3));
	assert_false(semel_pg_snapshot_sees(snapshot, 100));
	assert_true(semel_pg_snapshot_sees(snapshot, 101));
	assert_false(semel_pg_snapshot_sees(snapshot, 103));
	assert_true(semel_pg_snapshot_sees(snapshot, 108));
	assert_false(semel_pg_snapshot_sees(snapshot, 109));
	assert_false(semel_pg_snapshot_sees(snapshot, 110));
	assert_false(semel_pg_snapshot_sees(snapshot, 1000));
	assert_true(semel_pg_snapshot_sees("110:110:", 109));
}

/* 4294967296 is 2^32: the numbers begin anew there. */
static void numbers_that_began_anew_are_understood(void **state)
{
	(void)state;
	const char *snapshot = "4294967290:4294967300:4294967291,4294967298";
	assert_true(semel_pg_snapshot_sees(snapshot, 4294967289));
	assert_false(semel_pg_snapshot_sees(snapshot, 4294967291));
	assert_true(semel_pg_snapshot_sees(snapshot, 4294967295));
	assert_true(semel_pg_snapshot_sees(snapshot, 0));
	assert_false(semel_pg_snapshot_sees(snapshot, 2));
	assert_true(semel_pg_snapshot_sees(snapshot, 3));
	assert_false(semel_pg_snapshot_sees(snapshot, 4));
	assert_false(semel_pg_snapshot_sees(snapshot, 1000));
}

static void what_cannot_be_read_sees_nothing(void **state)
{
	(void)state;
	assert_false(semel_pg_snapshot_sees("", 1));
	assert_false(semel_pg_snapshot_sees("100", 1));
	assert_false(semel_pg_snapshot_sees("100:110", 1));
	assert_false(semel_pg_snapshot_sees("100:110:x", 105));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_has_ended_is_seen_and_what_is_open_or_later_is_not),
		cmocka_unit_test(numbers_that_began_anew_are_understood),
		cmocka_unit_test(what_cannot_be_read_sees_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
