/* SPDX-License-Identifier: Apache-2.0 */
/* The hash is part of the file format: its values are pinned here forever. */
#include "event/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

static void the_values_never_change(void **state)
{
	(void)state;
	assert_true(semel_hash_aggregate(SEMEL_TEXT("order"), SEMEL_TEXT("ord-1")) ==
		    UINT64_C(0x69fc63bc2f19d8d0));
	assert_true(semel_hash_aggregate(SEMEL_TEXT(""), SEMEL_TEXT("")) ==
		    UINT64_C(0xb9034ad37056f5fb));
	assert_true(semel_hash_aggregate(SEMEL_TEXT("order"), SEMEL_TEXT("ord-2")) ==
		    UINT64_C(0x10d3e5d6d35309ed));
	assert_true(semel_hash_aggregate(SEMEL_TEXT("caf\xC3\xA9"), SEMEL_TEXT("\xC3\xBC")) ==
		    UINT64_C(0xb87c1a9f23b76f15));
}

static void type_and_id_do_not_run_together(void **state)
{
	(void)state;
	assert_true(semel_hash_aggregate(SEMEL_TEXT("a"), SEMEL_TEXT("bc")) !=
		    semel_hash_aggregate(SEMEL_TEXT("ab"), SEMEL_TEXT("c")));
}

static void consecutive_ids_spread_evenly(void **state)
{
	(void)state;
	unsigned counts[16] = { 0 };
	for (unsigned i = 0; i < 16000; i++) {
		char id[16];
		snprintf(id, sizeof(id), "%u", i);
		counts[semel_hash_aggregate(SEMEL_TEXT("order"), semel_text_of(id)) % 16]++;
	}
	for (size_t i = 0; i < 16; i++)
		assert_in_range(counts[i], 850, 1150);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_values_never_change),
		cmocka_unit_test(type_and_id_do_not_run_together),
		cmocka_unit_test(consecutive_ids_spread_evenly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
