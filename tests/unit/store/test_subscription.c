/* SPDX-License-Identifier: Apache-2.0 */
#include "store/subscription.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void a_pattern_is_compared_word_by_word(void **state)
{
	(void)state;
	static const struct {
		const char *pattern, *key;
		bool matches;
	} cases[] = {
		{ "order.created", "order.created", true },
		{ "order.created", "order.created.v1", false },
		{ "order.created.v1", "order.created", false },
		{ "order.*", "order.created", true },
		{ "order.*", "order", false },
		{ "order.*", "order.created.v1", false },
		{ "*.created.*", "order.created.v1", true },
		{ "#", "", true },
		{ "#", "order", true },
		{ "#", "order.created.v1", true },
		{ "order.#", "order", true },
		{ "order.#", "order.created.v1", true },
		{ "order.#", "orders.created", false },
		{ "#.v1", "order.created.v1", true },
		{ "#.v1", "v1", true },
		{ "#.v1", "order.created.v2", false },
		{ "order.#.v1", "order.v1.created.v1", true },
		{ "order.#.v1.#", "order.a.v1.b.c", true },
		{ "#.#", "a", true },
		{ "*.#.*", "a", false },
		{ "*.#.*", "a.b", true },
		{ "*", "", true },
		{ "*", "a", true },
		{ "a..b", "a..b", true },
		{ "a.*.b", "a..b", true },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (semel_pattern_matches(semel_text_of(cases[i].pattern),
					  semel_text_of(cases[i].key)) != cases[i].matches)
			fail_msg("%s and %s", cases[i].pattern, cases[i].key);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pattern_is_compared_word_by_word),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
