/* SPDX-License-Identifier: Apache-2.0 */
/* Which batches need no read of what lies beyond them. */
#include "store/postgres/postgres.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct semel_pg_commit_bound bound = { .from_seq = 100, .to_seq = 200, .latest = -50 };

static void a_batch_that_ends_within_the_bound_is_proven(void **state)
{
	(void)state;
	assert_true(semel_pg_is_bounded(&bound, 100, -50));
	assert_true(semel_pg_is_bounded(&bound, 199, -50));
	assert_true(semel_pg_is_bounded(&bound, 150, -51));
}

static void a_batch_that_ends_elsewhere_is_not(void **state)
{
	(void)state;
	assert_false(semel_pg_is_bounded(&bound, 99, -50));
	assert_false(semel_pg_is_bounded(&bound, 200, -50));
}

static void a_batch_with_a_later_commit_is_not(void **state)
{
	(void)state;
	assert_false(semel_pg_is_bounded(&bound, 150, -49));
}

static void at_the_end_of_the_table_only_the_commits_count(void **state)
{
	(void)state;
	struct semel_pg_commit_bound to_the_end = { .from_seq = 100,
						    .to_seq = INT64_MAX,
						    .latest = -50 };
	assert_true(semel_pg_is_bounded(&to_the_end, INT64_MAX - 1, -50));
	assert_false(semel_pg_is_bounded(&to_the_end, INT64_MAX - 1, -49));
}

static void nothing_is_proven_without_a_bound(void **state)
{
	(void)state;
	struct semel_pg_commit_bound none = { 0 };
	assert_false(semel_pg_is_bounded(&none, 0, INT64_MIN));
	assert_false(semel_pg_is_bounded(&none, 1, INT64_MIN));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_that_ends_within_the_bound_is_proven),
		cmocka_unit_test(a_batch_that_ends_elsewhere_is_not),
		cmocka_unit_test(a_batch_with_a_later_commit_is_not),
		cmocka_unit_test(at_the_end_of_the_table_only_the_commits_count),
		cmocka_unit_test(nothing_is_proven_without_a_bound),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
