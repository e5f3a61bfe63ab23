/* SPDX-License-Identifier: Apache-2.0 */
/* The config file: its keys are the options' names, and every error names line and cause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/arguments/config.h"
#include "cli/arguments/delivery_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOUR_MS ((int64_t)3600 * 1000)

static char path[] = "/tmp/semel-test-config-XXXXXX";
static struct semel_config *config;
static semel_error error;

static int make_file(void **state)
{
	(void)state;
	int fd = mkstemp(path);
	return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
	(void)state;
	semel_config_free(config);
	return unlink(path);
}

static semel_status read_text(const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	semel_config_free(config);
	config = NULL;
	memset(&error, 0, sizeof error);
	return semel_config_read(path, &config, &error);
}

/* The complaint is "PATH:LINE: …part…". */
static void assert_refused(const char *text, int line, const char *part)
{
	assert_int_equal(read_text(text), SEMEL_CONFIG);
	char place[64];
	snprintf(place, sizeof place, "%s:%d: ", path, line);
	if (strncmp(error.text, place, strlen(place)) != 0 || !strstr(error.text, part))
		fail_msg("\"%s\" is not \"%s… %s\"", error.text, place, part);
}

static void without_a_file_the_defaults_hold(void **state)
{
	(void)state;
	semel_config_free(config);
	assert_int_equal(semel_config_read(NULL, &config, &error), SEMEL_OK);
	assert_null(config->store);
	assert_false(config->has_relay);
	assert_int_equal(config->retention.outbox_ms, 14 * 24 * HOUR_MS);
	assert_int_equal(config->retention.inbox_ms, 30 * 24 * HOUR_MS);
	assert_int_equal(config->retention.dead_ms, 168 * HOUR_MS);
}

static void an_empty_file_is_no_mistake(void **state)
{
	(void)state;
	assert_int_equal(read_text(""), SEMEL_OK);
	assert_int_equal(read_text("# nothing yet\n"), SEMEL_OK);
	assert_int_equal(read_text("relay:\nretention:\nsubscriptions:\n"), SEMEL_OK);
	assert_true(config->has_relay);
}

static void a_whole_file_is_read(void **state)
{
	(void)state;
	assert_int_equal(read_text("store: sqlite:shop.db\n"
				   "broker: local:mq.db\n"
				   "relay: { window: 50, poison: block }\n"
				   "subscriptions:\n"
				   "  - scope: billing\n"
				   "    topics: [order.events, return.events]\n"
				   "    sql: [INSERT INTO a VALUES (1), INSERT INTO b VALUES (2)]\n"
				   "    attempts: 3\n"
				   "    upcasters:\n"
				   "      - { from: o.v1, to: o.v2, sql: \":payload\" }\n"
				   "  - scope: mail\n"
				   "    topics: order.events\n"
				   "    exec: ./send\n"
				   "admin: { listen: \"127.0.0.1:8082\" }\n"
				   "retention: { outbox: 3d, inbox: 5d }\n"),
			 SEMEL_OK);
	assert_string_equal(config->store, "sqlite:shop.db");
	assert_string_equal(config->broker, "local:mq.db");
	assert_string_equal(semel_section_text(&config->relay, "window"), "50");
	assert_int_equal(config->subscription_count, 2);
	const struct semel_section *billing = semel_config_subscription(config, "billing");
	assert_non_null(billing);
	assert_int_equal(billing->settings[1].count, 2);
	assert_string_equal(billing->settings[1].name, "topic");
	assert_string_equal(billing->settings[1].values[1], "return.events");
	assert_string_equal(semel_section_text(billing, "upcast"), "o.v1=o.v2:sql::payload");
	assert_string_equal(semel_section_text(semel_config_subscription(config, "mail"), "exec"),
			    "./send");
	assert_null(semel_config_subscription(config, "unknown"));
	assert_string_equal(semel_section_text(&config->admin, "listen"), "127.0.0.1:8082");
	assert_int_equal(config->retention.outbox_ms, 3 * 24 * HOUR_MS);
	assert_int_equal(config->retention.dead_ms, 168 * HOUR_MS);
}

static void unknown_keys_are_named_with_the_nearest_right_one(void **state)
{
	(void)state;
	assert_refused("stroe: sqlite:a.db\n", 1, "\"stroe\" (did you mean store?)");
	assert_refused("relay:\n  windwo: 5\n", 2, "did you mean window?");
	assert_refused("subscriptions:\n- scope: a\n  topcis: [b]\n", 3, "did you mean topics?");
	assert_refused("retention: { outbx: 3d }\n", 1, "did you mean outbox?");
	assert_refused("admin: { lisen: x }\n", 1, "did you mean listen?");
}

static void options_of_one_run_are_no_keys(void **state)
{
	(void)state;
	assert_refused("relay:\n  drain: true\n", 2, "unknown key \"drain\"");
}

static void bad_values_are_refused_where_they_stand(void **state)
{
	(void)state;
	assert_refused("relay:\n  window: 5\n  attempts: many\n", 3, "\"many\" for attempts");
	assert_refused("relay:\n  poison: parkkey\n", 2, "did you mean park-key?");
	assert_refused("retention:\n  inbox: soon\n", 2, "duration");
	assert_refused("store: shop.db\n", 1, "sqlite:shop.db");
	assert_refused("store: [a, b]\n", 1, "single value");
	assert_refused("relay: 5\n", 1, "expected a mapping");
	assert_refused("subscriptions: { scope: a }\n", 1, "list");
}

static void a_subscription_needs_its_scope_and_topics(void **state)
{
	(void)state;
	assert_refused("subscriptions:\n- topics: [a]\n  exec: x\n", 2, "missing key scope");
	assert_refused("subscriptions:\n- scope: a\n  exec: x\n", 2, "missing key topics");
}

static void a_subscription_has_one_handler_and_a_scope_of_its_own(void **state)
{
	(void)state;
	assert_refused("subscriptions:\n- { scope: a, topics: t, exec: x, sql: y }\n", 2,
		       "are mutually exclusive");
	assert_refused("subscriptions:\n"
		       "- { scope: a, topics: t, exec: x }\n"
		       "- { scope: a, topics: u, exec: x }\n",
		       3, "duplicate scope");
}

static void a_key_given_twice_is_refused(void **state)
{
	(void)state;
	assert_refused("relay:\n  window: 1\n  window: 2\n", 3, "duplicate key");
	assert_refused("store: sqlite:a\nstore: sqlite:b\n", 2, "duplicate key");
}

static void what_is_no_yaml_is_refused_with_its_line(void **state)
{
	(void)state;
	assert_refused("store: sqlite:a\nrelay: [\n", 3, "invalid YAML");
	assert_refused("store: sqlite:a\n---\nbroker: local:b\n", 3, "second document");
}

/* Before there were bounds, 200 kB of brackets took a minute. */
static void what_is_nested_too_deep_is_refused_where_that_begins(void **state)
{
	(void)state;
	static const char *const openings[] = { "[", "{ a: ", "[?" };
	char *text = malloc(200100);
	assert_non_null(text);
	for (size_t i = 0; i < sizeof openings / sizeof *openings; i++) {
		size_t length = (size_t)sprintf(text, "store: sqlite:a\nrelay: ");
		while (length < 200000)
			length += (size_t)sprintf(text + length, "%s", openings[i]);
		assert_refused(text, 2, "deeper than 32 levels");
	}
	free(text);
	/* map, and 31 lists: what is wrong with it is reported, not how deep it is */
	assert_refused("relay: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n", 1,
		       "expected a mapping");
	assert_refused("relay: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n",
		       1, "deeper than 32 levels");
}

/* A list of so many pieces below relay, a piece per line. */
static void assert_list_refused(const char *piece, size_t count, int line, const char *part)
{
	char *text = malloc(32 + count * (strlen(piece) + 16));
	assert_non_null(text);
	size_t length = (size_t)sprintf(text, "relay:\n");
	for (size_t i = 0; i < count; i++) {
		length += (size_t)sprintf(text + length, "- ");
		length += (size_t)sprintf(text + length, "%s%zu x\n", piece, i);
	}
	assert_refused(text, line, part);
	free(text);
}

static void too_many_values_or_anchors_or_too_long_ones_are_refused(void **state)
{
	(void)state;
	assert_list_refused("x", 19990, 2, "expected a mapping");
	assert_list_refused("x", 20001, 19999, "more than 20000 values");
	assert_list_refused("&a", 500, 2, "expected a mapping");
	assert_list_refused("&a", 501, 502, "more than 500 anchors");
	char *text = malloc(70000);
	assert_non_null(text);
	size_t length = (size_t)sprintf(text, "\nstore: ");
	memset(text + length, 'x', 65537);
	text[length + 65537] = '\0';
	assert_refused(text, 2, "longer than 64 KiB");
	text[length + 65536] = '\0';
	assert_refused(text, 2, "\"xxx");
	free(text);
}

static void a_file_that_is_too_large_is_refused(void **state)
{
	(void)state;
	size_t size = (size_t)1024 * 1024;
	char *text = malloc(size + 2);
	assert_non_null(text);
	memset(text, '#', size + 1);
	text[size] = '\0';
	assert_int_equal(read_text(text), SEMEL_OK);
	text[size] = '#';
	text[size + 1] = '\0';
	assert_int_equal(read_text(text), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "larger than 1 MiB"));
	free(text);
}

static void a_file_that_is_not_there_is_named(void **state)
{
	(void)state;
	struct semel_config *none = NULL;
	assert_int_equal(semel_config_read("/nowhere/semel.yaml", &none, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "/nowhere/semel.yaml"));
	assert_null(none);
}

static void settings_of_a_section_become_defaults_of_its_options(void **state)
{
	(void)state;
	static const struct semel_command consume = { .name = "consume",
						      .options = semel_consume_rows };
	static const struct semel_command *const commands[] = { &consume, NULL };
	char words[][16] = { "semel", "consume", "--exec", "mine", "--attempts=9" };
	char *argv[] = { words[0], words[1], words[2], words[3], words[4] };
	struct semel_args *args = NULL;
	assert_int_equal(read_text("subscriptions:\n"
				   "- { scope: a, topics: [t], sql: x, attempts: 3, batch: 7 }\n"),
			 SEMEL_OK);
	assert_int_equal(semel_args_parse(5, argv, commands, &args, &error), SEMEL_OK);
	const struct semel_section *section = semel_config_subscription(config, "a");
	assert_int_equal(semel_config_fill(section, args, &error), SEMEL_OK);
	assert_int_equal(semel_args_check(args, &error), SEMEL_OK);
	assert_int_equal(semel_args_number(args, "attempts"), 9);
	assert_int_equal(semel_args_number(args, "batch"), 7);
	assert_false(semel_args_has(args, "sql"));
	assert_string_equal(semel_args_list(args, "topic", NULL)[0], "t");
	semel_args_free(args);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_file_the_defaults_hold),
		cmocka_unit_test(an_empty_file_is_no_mistake),
		cmocka_unit_test(a_whole_file_is_read),
		cmocka_unit_test(unknown_keys_are_named_with_the_nearest_right_one),
		cmocka_unit_test(options_of_one_run_are_no_keys),
		cmocka_unit_test(bad_values_are_refused_where_they_stand),
		cmocka_unit_test(a_subscription_needs_its_scope_and_topics),
		cmocka_unit_test(a_subscription_has_one_handler_and_a_scope_of_its_own),
		cmocka_unit_test(a_key_given_twice_is_refused),
		cmocka_unit_test(what_is_no_yaml_is_refused_with_its_line),
		cmocka_unit_test(what_is_nested_too_deep_is_refused_where_that_begins),
		cmocka_unit_test(too_many_values_or_anchors_or_too_long_ones_are_refused),
		cmocka_unit_test(a_file_that_is_too_large_is_refused),
		cmocka_unit_test(a_file_that_is_not_there_is_named),
		cmocka_unit_test(settings_of_a_section_become_defaults_of_its_options),
	};
	return cmocka_run_group_tests(tests, make_file, remove_file);
}
