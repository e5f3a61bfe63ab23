/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dynamic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct table {
	double (*cosine)(double angle);
};

static const struct semel_dynamic_symbol cosine[] = { { "cos", offsetof(struct table, cosine) } };
static const struct semel_dynamic_symbol future[] = {
	{ "cos", offsetof(struct table, cosine) },
	{ "function_of_a_later_version", offsetof(struct table, cosine) },
};
static const char *const mathematics[] = { "libnobody-has-this.so.9", "libm.so.6", NULL };
static const char *const nowhere[] = { "libnobody-has-this.so.9", NULL };

static void functions_are_found_in_the_first_library_that_is_there(void **state)
{
	(void)state;
	const struct semel_dynamic_library library = { mathematics, "a test", "libc6",
						       cosine,      1,        NULL };
	struct table table = { 0 };
	assert_int_equal(semel_dynamic_load(&library, &table, NULL), SEMEL_OK);
	assert_true(table.cosine(0.0) > 0.99);
}

static void a_missing_library_is_reported_with_its_package(void **state)
{
	(void)state;
	const struct semel_dynamic_library library = { nowhere, "a test", "libnobody9",
						       cosine,  1,        NULL };
	struct table table = { 0 };
	semel_error error;
	assert_int_equal(semel_dynamic_load(&library, &table, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "a test needs libnobody-has-this.so.9"));
	assert_non_null(strstr(error.text, "apt install libnobody9"));
}

static void a_library_that_is_too_old_leaves_the_table_alone(void **state)
{
	(void)state;
	const struct semel_dynamic_library library = { mathematics, "a test", "libc6",
						       future,      2,        NULL };
	struct table table = { 0 };
	semel_error error;
	assert_int_equal(semel_dynamic_load(&library, &table, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "function_of_a_later_version"));
	assert_null(table.cosine);
}

static unsigned begun;
static semel_status answer_of_begin;

static semel_status count_begin(void *table, semel_error *error)
{
	(void)table, (void)error;
	begun++;
	return answer_of_begin;
}

static void what_was_loaded_is_not_loaded_again(void **state)
{
	(void)state;
	const struct semel_dynamic_library library = { mathematics, "a test", "libc6",
						       cosine,      1,        count_begin };
	double (*table[1])(double) = { NULL };
	bool loaded = false;
	begun = 0;
	answer_of_begin = SEMEL_OUTAGE;
	assert_int_equal(semel_dynamic_load_once(&library, table, &loaded, NULL), SEMEL_OUTAGE);
	assert_false(loaded);
	answer_of_begin = SEMEL_OK;
	for (int i = 0; i < 3; i++)
		assert_int_equal(semel_dynamic_load_once(&library, table, &loaded, NULL), SEMEL_OK);
	assert_true(loaded);
	assert_int_equal(begun, 2); /* once in vain, and once */
	assert_non_null(table[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(functions_are_found_in_the_first_library_that_is_there),
		cmocka_unit_test(a_missing_library_is_reported_with_its_package),
		cmocka_unit_test(a_library_that_is_too_old_leaves_the_table_alone),
		cmocka_unit_test(what_was_loaded_is_not_loaded_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
