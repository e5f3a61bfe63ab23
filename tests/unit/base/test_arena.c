/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a batch. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static int make(void **state)
{
	*state = semel_arena_new(1024);
	return *state ? 0 : -1;
}

static int drop(void **state)
{
	semel_arena_free(*state);
	return 0;
}

static void pieces_are_aligned_and_do_not_overlap(void **state)
{
	struct semel_arena *arena = *state;
	unsigned char *pieces[200];
	size_t sizes[200];
	for (size_t i = 0; i < 200; i++) {
		sizes[i] = i % 7 == 0 ? i * 20 : i;
		pieces[i] = semel_arena_alloc(arena, sizes[i]);
		assert_non_null(pieces[i]);
		assert_int_equal((uintptr_t)pieces[i] % _Alignof(max_align_t), 0);
		memset(pieces[i], (int)i, sizes[i]);
	}
	for (size_t i = 0; i < 200; i++)
		for (size_t j = 0; j < sizes[i]; j++)
			assert_int_equal(pieces[i][j], (unsigned char)i);
}

static void texts_are_copied_with_a_nul_behind(void **state)
{
	char from[] = { 'a', '\0', 'b' };
	struct semel_text text = semel_arena_text(*state, from, 3);
	from[0] = 'x';
	assert_int_equal(text.length, 3);
	assert_memory_equal(text.data, "a\0b", 4);
	assert_null(semel_arena_text(*state, NULL, 0).data);
	assert_string_equal(semel_arena_text(*state, "", 0).data, "");
}

static void an_impossible_size_is_reported(void **state)
{
	assert_null(semel_arena_alloc(*state, SIZE_MAX));
	assert_null(semel_arena_alloc(*state, SIZE_MAX - 64));
	struct semel_text text = semel_arena_text(*state, "x", SIZE_MAX);
	assert_null(text.data);
	assert_true(text.length > 0);
	assert_non_null(semel_arena_alloc(*state, 8));
}

static void printing_measures_itself(void **state)
{
	char *text = semel_arena_printf(*state, "%s-%0500d", "n", 7);
	assert_int_equal(strlen(text), 502);
	assert_string_equal(text + 499, "007");
}

static void a_reset_counts_anew_and_reuses_its_block(void **state)
{
	struct semel_arena *arena = *state;
	void *first = semel_arena_alloc(arena, 100);
	memset(semel_arena_alloc(arena, 100000), 1, 100000);
	assert_true(semel_arena_used(arena) >= 100100);
	semel_arena_reset(arena);
	assert_int_equal(semel_arena_used(arena), 0);
	assert_ptr_equal(semel_arena_alloc(arena, 100), first);
}

static void an_oversized_first_piece_is_given_back_too(void **state)
{
	struct semel_arena *arena = *state;
	assert_non_null(semel_arena_alloc(arena, 5000));
	assert_non_null(semel_arena_alloc(arena, 10));
	semel_arena_reset(arena);
	assert_non_null(semel_arena_alloc(arena, 10));
	semel_arena_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pieces_are_aligned_and_do_not_overlap, make, drop),
		cmocka_unit_test_setup_teardown(texts_are_copied_with_a_nul_behind, make, drop),
		cmocka_unit_test_setup_teardown(an_impossible_size_is_reported, make, drop),
		cmocka_unit_test_setup_teardown(printing_measures_itself, make, drop),
		cmocka_unit_test_setup_teardown(a_reset_counts_anew_and_reuses_its_block, make,
						drop),
		cmocka_unit_test_setup_teardown(an_oversized_first_piece_is_given_back_too, make,
						drop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
