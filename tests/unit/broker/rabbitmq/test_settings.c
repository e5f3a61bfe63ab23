/* SPDX-License-Identifier: Apache-2.0 */
/* What an amqp: URL sets, and how a wrong one is reported. No server is needed. */
#include "broker/rabbitmq/rabbitmq.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static semel_status read_url(const char *text, struct semel_rabbit_settings *settings,
			     semel_error *error)
{
	const struct semel_rabbit_library *library = NULL;
	struct semel_url url = { 0 };
	*settings = (struct semel_rabbit_settings){ 0 };
	assert_int_equal(semel_rabbit_library_get(&library, error), SEMEL_OK);
	semel_status status = semel_url_parse(text, &url, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_settings_read(library, &url, settings, error);
	semel_url_free(&url);
	return status;
}

static void a_short_url_has_the_defaults(void **state)
{
	(void)state;
	static const char *const urls[] = { "amqp://mq", "amqp://mq/",
					    "amqp://guest:guest@mq:5672/%2F" };
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		struct semel_rabbit_settings settings;
		semel_error error = { 0 };
		assert_int_equal(read_url(urls[i], &settings, &error), SEMEL_OK);
		assert_string_equal(settings.host, "mq");
		assert_string_equal(settings.vhost, "/");
		assert_string_equal(settings.user, "guest");
		assert_int_equal(settings.port, 5672);
		assert_string_equal(settings.queue_type, "quorum");
		assert_true(settings.single_active);
		assert_false(settings.tls);
		semel_rabbit_settings_free(&settings);
	}
}

static void every_part_is_read(void **state)
{
	(void)state;
	struct semel_rabbit_settings settings;
	semel_error error = { 0 };
	assert_int_equal(read_url("amqps://app:p%40ss@mq:1234/shop?queue-type=classic&"
				  "single-active=no&partitions=4&heartbeat=30&cacert=/dev/null&"
				  "alternate-exchange=lost&max-message=1000",
				  &settings, &error),
			 SEMEL_OK);
	assert_string_equal(settings.user, "app");
	assert_string_equal(settings.password, "p@ss");
	assert_string_equal(settings.vhost, "shop");
	assert_int_equal(settings.port, 1234);
	assert_true(settings.tls);
	assert_string_equal(settings.cacert, "/dev/null");
	assert_string_equal(settings.queue_type, "classic");
	assert_false(settings.single_active);
	assert_int_equal(settings.partitions, 4);
	assert_int_equal(settings.heartbeat_s, 30);
	assert_int_equal(settings.max_message, 1000);
	assert_string_equal(settings.alternate_exchange, "lost");
	semel_rabbit_settings_free(&settings);
}

static void a_wrong_url_is_refused_without_its_password(void **state)
{
	(void)state;
	static const struct {
		const char *url, *words;
	} rows[] = {
		{ "amqp://app:secret@mq:x/", "a port has digits" },
		{ "amqp://app:sec?secret@mq/", "%3F for ?" },
		{ "amqp://app:sec@secret@mq/", "%40 for @" },
		{ "amqp://app:1?heartbeat=secret@mq/", "%3F for ?" },
		{ "amqp://app:1?queue-type=secret@mq/", "%3F for ?" },
		{ "amqp://app:secret@mq/?queue-type=fast", "quorum" },
		{ "amqp://app:secret@mq/?queuetype=quorum", "queue-type" },
		{ "amqp://app:secret@mq/?single-active=maybe", "yes" },
		{ "amqp://app:secret@mq/?partitions=17", "16" },
		{ "amqp://app:secret@mq/?cacert=/dev/null", "amqps" },
		{ "amqps://app:secret@mq/?cacert=/nowhere", "/nowhere" },
		{ "amqps://app:secret@mq/?cacert=/dev/null&cert=/dev/null", "both" },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct semel_rabbit_settings settings;
		semel_error error = { 0 };
		assert_int_equal(read_url(rows[i].url, &settings, &error), SEMEL_CONFIG);
		assert_non_null(strstr(error.text, rows[i].words));
		assert_null(strstr(error.text, "secret"));
		semel_rabbit_settings_free(&settings);
	}
}

static void a_delay_maps_to_the_tier_that_is_at_least_as_long(void **state)
{
	(void)state;
	static const struct {
		int64_t delay_ms, tier_ms;
	} rows[] = {
		{ 1, 1000 },
		{ 1000, 1000 },
		{ 1001, 2000 },
		{ 3000, 4000 },
		{ 33000, 60000 },
		{ 60000, 60000 },
		{ 61000, 300000 },
		{ 3600000, 3600000 },
		{ 86400000, 86400000 },
		{ 99000000, 86400000 },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(semel_rabbit_tier_ms(semel_rabbit_tier_for(rows[i].delay_ms)),
				 rows[i].tier_ms);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_short_url_has_the_defaults),
		cmocka_unit_test(every_part_is_read),
		cmocka_unit_test(a_wrong_url_is_refused_without_its_password),
		cmocka_unit_test(a_delay_maps_to_the_tier_that_is_at_least_as_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
