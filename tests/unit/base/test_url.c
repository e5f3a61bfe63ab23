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

static void a_mistyped_parameter_is_answered_with_the_nearest_one(void **state)
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
	semel_url_redact(text, shown, sizeof(shown));
	assert_string_equal(shown, expected);
}

static void passwords_are_hidden_where_a_url_is_shown(void **state)
{
	(void)state;
	assert_shown("sqlite:semel.db", "sqlite:semel.db");
	assert_shown("sqlite:/srv/a@b/semel.db", "sqlite:/srv/a@b/semel.db");
	assert_shown("local:b.db?partitions=8&x=y", "local:b.db?partitions=8&***");
	assert_shown("shop.db", "shop.db");
	assert_shown("postgres://shop@db/shop", "postgres://shop@db/shop");
	assert_shown("postgres:///shop?host=/run/postgresql",
		     "postgres:///shop?host=/run/postgresql");
	assert_shown("postgres://shop:sesame@db:5432/shop", "postgres://shop:***@db:5432/shop");
	assert_shown("postgres://shop:x@[::1]:5432/shop", "postgres://shop:***@[::1]:5432/shop");
	assert_shown("postgres://shop:a@b:c@db/shop", "postgres://shop:***@db/shop");
	assert_shown("postgres://shop:a#b/c@db/shop", "postgres://shop:***@db/shop");
	assert_shown("amqp://u:p@h1,u:p@h2/v", "amqp://u:***@h2/v");
	assert_shown("amqp://:p@h", "amqp://:***@h");
	assert_shown("kafka://a:9092,b:9092/?prefix=x&sasl.password=p&partitions=2",
		     "kafka://a:9092,b:9092/?prefix=x&***");
	assert_shown("postgres://db/shop?sslmode=disable&sslpassword=sesame",
		     "postgres://db/shop?sslmode=disable&***");
	assert_shown("https://u@api.example.org:8443/hooks/orders?sig=x",
		     "https://***@api.example.org:8443/hooks/orders?***");
	assert_shown("https://h/T1/B2/0123456789abcdefghij", "https://h/T1/B2/***");
}

static void what_can_be_read_in_two_ways_is_hidden(void **state)
{
	(void)state;
	assert_shown("postgres://shop:a?b@db/shop", "postgres://***");
	assert_shown("postgres://db/shop?password=a@b", "postgres://***");
	assert_shown("postgres://shop:sesame", "postgres://***");
	assert_shown("postgres:shop:sesame@db", "postgres:shop:***@db");
	assert_shown("//shop:sesame@db/shop", "***");
	assert_shown("postgre://shop:sesame@db/shop", "***");
	assert_shown("host=db password=sesame", "***");
	assert_shown("sqlite:host=db password=sesame", "sqlite:***");
	assert_shown("sqlite://shop:sesame@db", "sqlite:***");
}

#define SECRET_SIZE 64

/* A secret with one strange character in every place, and twice, in everything that can hold one.
 */
static const char *const holders[] = {
	"postgres://shop:{}@db/shop",
	"postgresql://shop:{}@db:5432/shop?sslmode=disable",
	"PostgreS://shop:{}@[::1]/shop",
	"postgres://:{}@db",
	"postgres://shop:{}",
	"postgres://shop:{}/shop",
	"postgres://db/shop?password={}",
	"postgres://db/shop?password={}&sslmode=disable",
	"postgres://shop@db/shop?sslmode=disable&sslpassword={}&user=x",
	"postgres://shop:{}@db/shop?password={}",
	"postgres://db/shop?pass%77ord={}",
	"postgres:shop:{}@db/shop",
	"postgres:host=db password='{}'",
	"postgres:host=db password = '{}' user=x",
	"host=db password={}",
	"host=db password='{}' user=x",
	"//shop:{}@db",
	"shop:{}@db",
	"postgre://shop:{}@db/shop",
	"amqp://shop:{}@mq/",
	"amqps://shop:{}@mq:5671/vhost?heartbeat=10",
	"amqp://shop:{}@a,shop:{}@b/",
	"amqp://shop:{}",
	"kafka://shop:{}@k:9092",
	"kafka://a:9092,b:9092/?sasl.username=shop&sasl.password={}",
	"kafka://a:9092?sasl.oauthbearer.client.secret={}",
	"http://shop:{}@h/events",
	"https://{}@h/events",
	"https://h/events?sig={}",
	"https://h/events?{}",
	"https://h/events?a=b&sig={}#part",
	"https://h/events#{}",
	"sqlite:shop.db?key={}",
	"sqlite://shop:{}@h/shop.db",
	"local:broker.db?password={}",
};

static void fill(const char *holder, const char *secret, char *out, size_t size)
{
	size_t length = 0;
	for (const char *at = holder; *at;) {
		bool place = strncmp(at, "{}", 2) == 0;
		length += (size_t)snprintf(out + length, size - length, "%.*s",
					   place ? SECRET_SIZE : 1, place ? secret : at);
		at += place ? 2 : 1;
	}
}

/* In "postgres://shop:a@b" without a host, b is the host: nothing shows otherwise. */
static bool is_ambiguous(const char *holder, const char *secret)
{
	return !strpbrk(holder, "@?#=") && strchr(secret, '@');
}

static void assert_hidden(const char *holder, const char *secret)
{
	if (is_ambiguous(holder, secret))
		return;
	char text[256], shown[256];
	fill(holder, secret, text, sizeof(text));
	assert_false(semel_url_redact(text, shown, sizeof(shown)));
	if (strstr(shown, "Qz") || strstr(shown, "Xv") || strstr(shown, "Wk"))
		fail_msg("%s is shown as %s", text, shown);
	semel_url_free(&url);
	error.text[0] = '\0';
	if (strncmp(text, "http", 4) != 0 && semel_url_parse(text, &url, &error) == SEMEL_OK)
		(void)semel_url_check_params(&url, NULL, 0, &error);
	if (strstr(error.text, "Qz") || strstr(error.text, "Xv") || strstr(error.text, "Wk"))
		fail_msg("%s is refused with %s", text, error.text);
}

/* The pieces Qz, Xv and Wk stand between the strange characters. */
static void no_character_of_a_password_lets_it_out(void **state)
{
	(void)state;
	static const char others[] = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\tA1";
	char secret[SECRET_SIZE];
	for (size_t i = 0; i < sizeof(holders) / sizeof(holders[0]); i++)
		for (int one = 1; one < 128; one++) {
			snprintf(secret, sizeof(secret), "Qz%cXv", one);
			assert_hidden(holders[i], secret);
			snprintf(secret, sizeof(secret), "%cQzXv%c", one, one);
			assert_hidden(holders[i], secret);
			for (const char *other = others; *other; other++) {
				snprintf(secret, sizeof(secret), "Qz%cXv%cWk", one, *other);
				assert_hidden(holders[i], secret);
				snprintf(secret, sizeof(secret), "%cQz%cXv", one, *other);
				assert_hidden(holders[i], secret);
			}
		}
}

static void a_password_that_is_not_encoded_is_refused_not_cut(void **state)
{
	(void)state;
	const char *const wrong[] = { "postgres://u:a@b@db/shop", "postgres://u:a/b@db/shop",
				      "postgres://u:1/b@db/shop", "amqp://u:a?b@mq/",
				      "amqp://u:1?b@mq/",         "kafka://u:secret" };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(parse(wrong[i]), SEMEL_CONFIG);
		assert_non_null(strstr(error.text, "%40 for @"));
	}
	assert_int_equal(parse("postgres://u:a%40b#c@%2Frun%2Fpg,[::1]:5432/shop?user=u@v"),
			 SEMEL_OK);
}

static void a_text_that_repeats_a_secret_is_found(void **state)
{
	(void)state;
	static const char place[] = "https://shop:ses%2Fame@h/events?sig=qx7abc&to=x";
	assert_true(semel_url_has_leaked(place, "Cannot POST /events?sig=qx7abc"));
	assert_true(semel_url_has_leaked(place, "not for shop"));
	assert_true(semel_url_has_leaked(place, "a/2Fame"));
	assert_false(semel_url_has_leaked(place, "Cannot POST /events to x"));
	assert_false(semel_url_has_leaked(place, ""));
}

static void what_is_shown_is_cut_to_its_room(void **state)
{
	(void)state;
	char shown[12];
	semel_url_redact("postgres://shop:sesame@db/shop", shown, sizeof(shown));
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
		cmocka_unit_test_teardown(a_mistyped_parameter_is_answered_with_the_nearest_one,
					  drop),
		cmocka_unit_test(passwords_are_hidden_where_a_url_is_shown),
		cmocka_unit_test(what_can_be_read_in_two_ways_is_hidden),
		cmocka_unit_test_teardown(no_character_of_a_password_lets_it_out, drop),
		cmocka_unit_test_teardown(a_password_that_is_not_encoded_is_refused_not_cut, drop),
		cmocka_unit_test(a_text_that_repeats_a_secret_is_found),
		cmocka_unit_test(what_is_shown_is_cut_to_its_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
