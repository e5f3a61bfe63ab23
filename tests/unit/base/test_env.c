/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's clock and chance. */
#include "base/env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void the_clocks_run_forward(void **state)
{
	(void)state;
	const struct semel_env *env = semel_env_system();
	int64_t steady = semel_steady_ms(env), now = semel_now_ms(env);
	assert_in_range(now / 1000, (uintmax_t)time(NULL) - 2, (uintmax_t)time(NULL) + 2);
	for (int i = 0; i < 1000; i++)
		assert_true(semel_steady_ms(env) >= steady);
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

static void chance_does_not_repeat_itself(void **state)
{
	(void)state;
	enum { COUNT = 5000 };
	static uint64_t numbers[COUNT];
	uint64_t all_or = 0, all_and = UINT64_MAX;
	for (size_t i = 0; i < COUNT; i++) {
		numbers[i] = semel_random(semel_env_system());
		all_or |= numbers[i];
		all_and &= numbers[i];
	}
	assert_true(all_or == UINT64_MAX);
	assert_true(all_and == 0);
	qsort(numbers, COUNT, sizeof(numbers[0]), compare);
	for (size_t i = 1; i < COUNT; i++)
		assert_true(numbers[i] != numbers[i - 1]);
}

static void a_child_does_not_draw_its_parents_numbers(void **state)
{
	(void)state;
	int ends[2];
	assert_int_equal(pipe(ends), 0);
	semel_random(semel_env_system()); /* fills the parent's run */
	pid_t child = fork();
	if (child == 0) {
		uint64_t drawn = semel_random(semel_env_system());
		ssize_t written = write(ends[1], &drawn, sizeof(drawn));
		_exit(written == (ssize_t)sizeof(drawn) ? 0 : 1);
	}
	uint64_t of_child = 0;
	assert_int_equal(read(ends[0], &of_child, sizeof(of_child)), sizeof(of_child));
	assert_int_equal(waitpid(child, NULL, 0), child);
	for (int i = 0; i < 64; i++)
		assert_true(semel_random(semel_env_system()) != of_child);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_clocks_run_forward),
		cmocka_unit_test(chance_does_not_repeat_itself),
		cmocka_unit_test(a_child_does_not_draw_its_parents_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
