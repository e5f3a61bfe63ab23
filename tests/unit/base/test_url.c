/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of stores and brokers. */
#include "base/url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct semel_url url;
static semel_error error;

static int drop(void **state)
{
	(void)state;
	semel_url_free(&url);
	return 0;
}

static semel_status parse(const char *text)
{
	semel_url_free(&url);
	return semel_url_parse(text, &url, &error);
}

static void a_file_url_is_scheme_and_path(void **state)
{
	(void)state;
	assert_int_equal(parse("sqlite:/var/lib/shop.db"), SEMEL_OK);
	assert_string_equal(url.text, "sqlite:/var/lib/shop.db");
	assert_string_equal(url.scheme, "sqlite");
	assert_string_equal(url.path, "/var/lib/shop.db");
	assert_int_equal(url.param_count, 0);
}

static void a_server_url_keeps_its_slashes(void **state)
{
	(void)state;
	assert_int_equal(parse("AMQP://user:secret@host:5672/vhost?heartbeat=10"), SEMEL_OK);
	assert_string_equal(url.scheme, "amqp");
	assert_string_equal(url.path, "//user:secret@host:5672/vhost");
	assert_string_equal(semel_url_param(&url, "heartbeat"), "10");
	assert_null(semel_url_param(&url, "heart"));
}

static void parameters_are_split_once(void **state)
{
	(void)state;
	assert_int_equal(parse("local:b.db?partitions=8&&note=a=b&empty=&"), SEMEL_OK);
	assert_string_equal(url.path, "b.db");
	assert_int_equal(url.param_count, 3);
	assert_string_equal(semel_url_param(&url, "note"), "a=b");
	assert_string_equal(semel_url_param(&url, "empty"), "");
}

static void what_is_no_url_is_refused_with_an_example(void **state)
{
	(void)state;
	const char *const wrong[] = { NULL, "", "semel.db", ":x", "1a:x", "sql ite:x", "/a:b" };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(parse(wrong[i]), SEMEL_CONFIG);
		assert_non_null(strstr(error.text, "sqlite:"));
	}
}

static void wrong_parameters_are_refused(void **state)
{
	(void)state;
	assert_int_equal(parse("local:x?partitions"), SEMEL_CONFIG);
	assert_int_equal(parse("local:x?=8"), SEMEL_CONFIG);
	assert_int_equal(parse("local:x?a=1&a=2"), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "twice"));
	char many[200];
	size_t length = (size_t)snprintf(many, sizeof(many), "local:x?");
	for (int i = 0; i <= SEMEL_URL_PARAMS_MAX; i++)
		length += (size_t)snprintf(many + length, sizeof(many) - length, "p%d=1&", i);
	assert_int_equal(parse(many), SEMEL_CONFIG);
}

static void a_password_is_not_shown(void **state)
{
	(void)state;
	assert_int_equal(parse("user:secret@host"), SEMEL_OK);
	assert_int_equal(parse("1://user:secret@host"), SEMEL_CONFIG);
	assert_null(strstr(error.text, "secret"));
	assert_int_equal(parse("amqp://user:secret@host?x"), SEMEL_CONFIG);
	assert_null(strstr(error.text, "secret"));
}

static void numbers_have_bounds_and_a_fallback(void **state)
{
	(void)state;
	const struct semel_range range = { .min = 1, .max = 64, .fallback = 8 };
	int64_t value;
	assert_int_equal(parse("local:x?partitions=16&other=65&word=many"), SEMEL_OK);
	assert_int_equal(semel_url_param_int(&url, "partitions", range, &value, &error), SEMEL_OK);
	assert_int_equal(value, 16);
	assert_int_equal(semel_url_param_int(&url, "absent", range, &value, &error), SEMEL_OK);
	assert_int_equal(value, 8);
	assert_int_equal(semel_url_param_int(&url, "other", range, &value, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "other=65"));
	assert_non_null(strstr(error.text, "64"));
	assert_int_equal(semel_url_param_int(&url, "word", range, &value, &error), SEMEL_CONFIG);
}

static void a_mistyped_parameter_is_told_its_neighbour(void **state)
{
	(void)state;
	const char *const known[] = { "partitions", "retention" };
	assert_int_equal(parse("local:x?partitions=1"), SEMEL_OK);
	assert_int_equal(semel_url_check_params(&url, known, 2, &error), SEMEL_OK);
	assert_int_equal(parse("local:x?partition=1"), SEMEL_OK);
	assert_int_equal(semel_url_check_params(&url, known, 2, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "\"partition\""));
	assert_non_null(strstr(error.text, "\"partitions\""));
}

static void assert_shown(const char *text, const char *expected)
{
	char shown[128];
	semel_url_show(text, shown, sizeof(shown));
	assert_string_equal(shown, expected);
}

static void passwords_are_hidden_where_a_url_is_shown(void **state)
{
	(void)state;
	assert_shown("sqlite:semel.db", "sqlite:semel.db");
	assert_shown("postgres://shop@db/shop", "postgres://shop@db/shop");
	assert_shown("postgres://shop:sesame@db:5432/shop", "postgres://shop:***@db:5432/shop");
	assert_shown("postgres://shop:a@b:c@db/shop?x=@", "postgres://shop:***@db/shop?x=@");
	assert_shown("postgres://db:5432/shop?user=u@v", "postgres://db:5432/shop?user=u@v");
	assert_shown("postgres://db/shop?password=sesame&sslmode=disable",
		     "postgres://db/shop?password=***&sslmode=disable");
	assert_shown("postgres://db/shop?sslmode=disable&sslpassword=sesame",
		     "postgres://db/shop?sslmode=disable&sslpassword=***");
}

static void what_is_shown_is_cut_to_its_room(void **state)
{
	(void)state;
	char shown[12];
	semel_url_show("postgres://shop:sesame@db/shop", shown, sizeof(shown));
	assert_string_equal(shown, "postgres://");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_file_url_is_scheme_and_path, drop),
		cmocka_unit_test_teardown(a_server_url_keeps_its_slashes, drop),
		cmocka_unit_test_teardown(parameters_are_split_once, drop),
		cmocka_unit_test_teardown(what_is_no_url_is_refused_with_an_example, drop),
		cmocka_unit_test_teardown(wrong_parameters_are_refused, drop),
		cmocka_unit_test_teardown(a_password_is_not_shown, drop),
		cmocka_unit_test_teardown(numbers_have_bounds_and_a_fallback, drop),
		cmocka_unit_test_teardown(a_mistyped_parameter_is_told_its_neighbour, drop),
		cmocka_unit_test(passwords_are_hidden_where_a_url_is_shown),
		cmocka_unit_test(what_is_shown_is_cut_to_its_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
