/* SPDX-License-Identifier: Apache-2.0 */
/* Ids grow, whatever the clock does. */
#include "base/uuid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static int64_t clock_ms = INT64_C(4000000000000); /* later than the real one: state is per thread */
static uint64_t chance;

static int64_t fixed_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static uint64_t counted_chance(void *user)
{
	(void)user;
	return chance;
}

static const struct semel_env env = { .now_ms = fixed_clock,
				      .steady_ms = fixed_clock,
				      .random = counted_chance };

static void an_id_has_the_layout_of_version_7(void **state)
{
	(void)state;
	char id[SEMEL_UUID_SIZE];
	clock_ms = INT64_C(0x3A352944000);
	chance = UINT64_C(0xFEDCBA9876543210);
	semel_uuid_make(&env, id);
	assert_string_equal(id, "03a35294-4000-7210-bedc-ba9876543210");
	assert_true(semel_uuid_is_valid(id));
}

static void ids_grow_within_a_millisecond_beyond_the_counter(void **state)
{
	(void)state;
	char last[SEMEL_UUID_SIZE], id[SEMEL_UUID_SIZE];
	semel_uuid_make(&env, last);
	for (int i = 0; i < 20000; i++) {
		chance = UINT64_MAX / (uint64_t)(i + 1);
		semel_uuid_make(&env, id);
		assert_true(strcmp(last, id) < 0);
		memcpy(last, id, sizeof(id));
	}
}

static void ids_grow_when_the_clock_goes_back(void **state)
{
	(void)state;
	char last[SEMEL_UUID_SIZE], id[SEMEL_UUID_SIZE];
	semel_uuid_make(&env, last);
	for (int i = 0; i < 5000; i++) {
		clock_ms -= 1000;
		semel_uuid_make(&env, id);
		assert_true(strcmp(last, id) < 0);
		memcpy(last, id, sizeof(id));
	}
}

static void a_later_clock_is_in_the_id(void **state)
{
	(void)state;
	char id[SEMEL_UUID_SIZE];
	clock_ms = INT64_C(0x7A352944001);
	semel_uuid_make(&env, id);
	assert_memory_equal(id, "07a35294-4001-7", 15);
}

static void only_the_five_groups_are_valid(void **state)
{
	(void)state;
	assert_true(semel_uuid_is_valid("F47AC10B-58cc-4372-a567-0e02b2c3d479"));
	assert_true(semel_uuid_is_valid("00000000-0000-0000-0000-000000000000"));
	assert_false(semel_uuid_is_valid(NULL));
	assert_false(semel_uuid_is_valid(""));
	assert_false(semel_uuid_is_valid("f47ac10b-58cc-4372-a567-0e02b2c3d47"));
	assert_false(semel_uuid_is_valid("f47ac10b-58cc-4372-a567-0e02b2c3d4790"));
	assert_false(semel_uuid_is_valid("g47ac10b-58cc-4372-a567-0e02b2c3d479"));
	assert_false(semel_uuid_is_valid("f47ac10b058cc-4372-a567-0e02b2c3d479"));
	assert_false(semel_uuid_is_valid("{47ac10b-58cc-4372-a567-0e02b2c3d479"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_id_has_the_layout_of_version_7),
		cmocka_unit_test(ids_grow_within_a_millisecond_beyond_the_counter),
		cmocka_unit_test(ids_grow_when_the_clock_goes_back),
		cmocka_unit_test(a_later_clock_is_in_the_id),
		cmocka_unit_test(only_the_five_groups_are_valid),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
