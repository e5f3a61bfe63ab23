/* SPDX-License-Identifier: Apache-2.0 */
/* Access control: addresses, tokens, Host and Origin; and what counts as progress. */
#include "admin/access.h"
#include "admin/health.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define LONG_TOKEN  "0123456789abcdef0123456789abcdef"
#define OTHER_TOKEN "fedcba9876543210fedcba9876543210"

static struct semel_listen_address at(const char *text)
{
	struct semel_listen_address listen;
	assert_int_equal(semel_listen_parse(text, &listen, NULL), SEMEL_OK);
	return listen;
}

static void loopback_is_known_in_every_form(void **state)
{
	(void)state;
	assert_true(at("127.0.0.1:8082").is_loopback);
	assert_true(at("127.1.2.3:8082").is_loopback);
	assert_true(at("[::1]:8082").is_loopback);
	assert_true(at("localhost:8082").is_loopback);
	assert_false(at("0.0.0.0:8082").is_loopback);
	assert_false(at("[::]:8082").is_loopback);
	assert_false(at("10.0.0.1:8082").is_loopback);
}

static void what_is_no_address_is_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = { "",
					     "8082",
					     ":8082",
					     "127.0.0.1",
					     "example:80",
					     "127.0.0.1:x",
					     "[::1]",
					     "::1:80",
					     "[127.0.0.1]:80",
					     "127.0.0.1:70000",
					     "127.0.0.1:-1" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct semel_listen_address listen;
		if (semel_listen_parse(wrong[i], &listen, NULL) == SEMEL_OK)
			fail_msg("%s was taken", wrong[i]);
	}
}

static enum semel_role role(const struct semel_tokens *tokens, const char *header)
{
	const struct semel_token *token = semel_tokens_find(tokens, header);
	return token ? token->role : SEMEL_ROLE_NONE;
}

static void a_token_has_the_role_of_its_line(void **state)
{
	(void)state;
	struct semel_tokens tokens;
	assert_int_equal(
		semel_tokens_parse("# ours\n\n read " LONG_TOKEN "\r\n" OTHER_TOKEN, &tokens, NULL),
		SEMEL_OK);
	assert_int_equal(role(&tokens, "Bearer " LONG_TOKEN), SEMEL_ROLE_READ);
	assert_int_equal(role(&tokens, "bearer  " OTHER_TOKEN), SEMEL_ROLE_OPERATE);
	assert_int_equal(role(&tokens, "Bearer " LONG_TOKEN "0"), SEMEL_ROLE_NONE);
	assert_int_equal(role(&tokens, "Bearer 0123"), SEMEL_ROLE_NONE);
	assert_int_equal(role(&tokens, "Bearer "), SEMEL_ROLE_NONE);
	assert_int_equal(role(&tokens, "Basic " LONG_TOKEN), SEMEL_ROLE_NONE);
	assert_int_equal(role(&tokens, NULL), SEMEL_ROLE_NONE);
	semel_tokens_free(&tokens);
}

static const char *name(const struct semel_tokens *tokens, const char *header)
{
	const struct semel_token *token = semel_tokens_find(tokens, header);
	return token ? token->name : "";
}

static void a_token_has_the_name_of_its_line_or_of_its_hash(void **state)
{
	(void)state;
	struct semel_tokens tokens, moved;
	assert_int_equal(semel_tokens_parse("operate\tann.b-c_1  " LONG_TOKEN "\n" OTHER_TOKEN,
					    &tokens, NULL),
			 SEMEL_OK);
	assert_int_equal(role(&tokens, "Bearer " LONG_TOKEN), SEMEL_ROLE_OPERATE);
	assert_string_equal(name(&tokens, "Bearer " LONG_TOKEN), "ann.b-c_1");
	assert_memory_equal(name(&tokens, "Bearer " OTHER_TOKEN), "token:", 6);
	assert_int_equal(strlen(name(&tokens, "Bearer " OTHER_TOKEN)), 14);
	assert_int_equal(semel_tokens_parse("read " OTHER_TOKEN, &moved, NULL), SEMEL_OK);
	assert_string_equal(name(&moved, "Bearer " OTHER_TOKEN),
			    name(&tokens, "Bearer " OTHER_TOKEN));
	semel_tokens_free(&tokens);
	semel_tokens_free(&moved);
}

static void a_line_that_can_be_read_in_two_ways_is_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = {
		"ann " LONG_TOKEN,
		"operate ann b " LONG_TOKEN,
		"operate a:b " LONG_TOKEN,
		"operate loopback " LONG_TOKEN,
		"operate " LONG_TOKEN " ann-in-accounting",
		"operate ann short",
		"read ann " LONG_TOKEN "\noperate ann " OTHER_TOKEN,
		"read ann " LONG_TOKEN "\noperate bob " LONG_TOKEN,
		"read "
		"0123456789012345678901234567890123456789012345678901234567890123x " LONG_TOKEN,
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct semel_tokens tokens;
		assert_int_equal(semel_tokens_parse(wrong[i], &tokens, NULL), SEMEL_CONFIG);
		semel_tokens_free(&tokens);
	}
}

static void a_short_token_or_none_is_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = { "", "\n# only this\n", "short", "read short" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct semel_tokens tokens;
		assert_int_equal(semel_tokens_parse(wrong[i], &tokens, NULL), SEMEL_CONFIG);
		semel_tokens_free(&tokens);
	}
}

static void only_our_own_names_are_ours(void **state)
{
	(void)state;
	struct semel_listen_address listen = at("127.0.0.1:8082"), any = at("0.0.0.0:8082");
	static const char *const named[] = { "ops.example", NULL };
	assert_true(semel_host_is_ours("127.0.0.1:8082", &listen, NULL));
	assert_true(semel_host_is_ours("LocalHost:8082", &listen, NULL));
	assert_false(semel_host_is_ours("localhost", &listen, NULL));
	assert_false(semel_host_is_ours("localhost:80", &listen, NULL));
	assert_false(semel_host_is_ours("localhost:8082.evil", &listen, NULL));
	assert_false(semel_host_is_ours("evil.example:8082", &listen, NULL));
	assert_false(semel_host_is_ours("10.0.0.1:8082", &listen, NULL));
	assert_false(semel_host_is_ours(NULL, &listen, NULL));
	assert_false(semel_host_is_ours("", &listen, NULL));
	assert_true(semel_host_is_ours("10.0.0.1:8082", &any, NULL));
	assert_false(semel_host_is_ours("evil.example:8082", &any, NULL));
	assert_true(semel_host_is_ours("ops.example:8082", &any, named));
}

static void a_name_without_a_port_is_enough_where_the_port_is_the_schemes(void **state)
{
	(void)state;
	struct semel_listen_address listen = at("127.0.0.1:443");
	assert_true(semel_host_is_ours("localhost", &listen, NULL));
	assert_true(semel_host_is_ours("127.0.0.1", &listen, NULL));
	assert_false(semel_host_is_ours("local", &listen, NULL));
}

static void a_foreign_origin_is_not_ours(void **state)
{
	(void)state;
	assert_true(semel_origin_is_ours(NULL, "localhost:8082"));
	assert_true(semel_origin_is_ours("http://localhost:8082", "localhost:8082"));
	assert_false(semel_origin_is_ours("http://evil.example", "localhost:8082"));
	assert_false(semel_origin_is_ours("null", "localhost:8082"));
	assert_false(semel_origin_is_ours("http://localhost:8083", "localhost:8082"));
}

static void movement_is_an_empty_outbox_another_oldest_or_fewer(void **state)
{
	(void)state;
	struct semel_health_sample before = { .waiting = 5, .oldest_ms = 100 };
	assert_true(semel_health_has_progress(
		&before, &(struct semel_health_sample){ .waiting = 0, .oldest_ms = 0 }));
	assert_true(semel_health_has_progress(
		&before, &(struct semel_health_sample){ .waiting = 5, .oldest_ms = 200 }));
	assert_true(semel_health_has_progress(
		&before, &(struct semel_health_sample){ .waiting = 4, .oldest_ms = 100 }));
	assert_false(semel_health_has_progress(
		&before, &(struct semel_health_sample){ .waiting = 5, .oldest_ms = 100 }));
	assert_false(semel_health_has_progress(
		&before, &(struct semel_health_sample){ .waiting = 6, .oldest_ms = 100 }));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loopback_is_known_in_every_form),
		cmocka_unit_test(what_is_no_address_is_refused),
		cmocka_unit_test(a_token_has_the_role_of_its_line),
		cmocka_unit_test(a_token_has_the_name_of_its_line_or_of_its_hash),
		cmocka_unit_test(a_line_that_can_be_read_in_two_ways_is_refused),
		cmocka_unit_test(a_short_token_or_none_is_refused),
		cmocka_unit_test(only_our_own_names_are_ours),
		cmocka_unit_test(a_name_without_a_port_is_enough_where_the_port_is_the_schemes),
		cmocka_unit_test(a_foreign_origin_is_not_ours),
		cmocka_unit_test(movement_is_an_empty_outbox_another_oldest_or_fewer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
