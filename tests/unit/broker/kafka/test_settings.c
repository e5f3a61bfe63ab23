/* SPDX-License-Identifier: Apache-2.0 */
/* What a kafka: URL sets, and how a wrong one is reported. No server is needed. */
#include "broker/kafka/kafka.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static semel_status read_url(const char *text, struct semel_kafka_settings *settings,
			     semel_error *error)
{
	struct semel_url url = { 0 };
	*settings = (struct semel_kafka_settings){ 0 };
	semel_status status = semel_url_parse(text, &url, error);
	if (status == SEMEL_OK)
		status = semel_kafka_settings_read(&url, settings, error);
	semel_url_free(&url);
	return status;
}

static const char *forwarded(const struct semel_kafka_settings *settings, const char *name)
{
	for (size_t i = 0; i < settings->forwarded_count; i++)
		if (strcmp(settings->forwarded[i].name, name) == 0)
			return settings->forwarded[i].value;
	return NULL;
}

static void a_short_url_has_the_defaults(void **state)
{
	(void)state;
	static const char *const urls[] = { "kafka://a:9092,b:9093", "kafka://a:9092,b:9093/",
					    "kafka:a:9092,b:9093" };
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		struct semel_kafka_settings settings;
		semel_error error = { 0 };
		assert_int_equal(read_url(urls[i], &settings, &error), SEMEL_OK);
		assert_string_equal(settings.servers, "a:9092,b:9093");
		assert_true(settings.create_topics);
		assert_int_equal(settings.partitions, 0);
		assert_int_equal(settings.forwarded_count, 0);
		semel_kafka_settings_free(&settings);
	}
}

static void addresses_of_every_kind_are_servers(void **state)
{
	(void)state;
	static const char *const urls[] = { "kafka://a", "kafka://a,b:1,c:65535", "kafka://[::1]",
					    "kafka://[::1]:9092", "kafka://::1" };
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		struct semel_kafka_settings settings;
		semel_error error = { 0 };
		assert_int_equal(read_url(urls[i], &settings, &error), SEMEL_OK);
		assert_string_equal(settings.servers, urls[i] + strlen("kafka://"));
		semel_kafka_settings_free(&settings);
	}
}

static void settings_of_librdkafka_are_handed_on(void **state)
{
	(void)state;
	struct semel_kafka_settings settings;
	semel_error error = { 0 };
	assert_int_equal(read_url("kafka://a/?create-topics=no&partitions=12&replication=3&"
				  "security.protocol=ssl&linger.ms=5",
				  &settings, &error),
			 SEMEL_OK);
	assert_false(settings.create_topics);
	assert_int_equal(settings.partitions, 12);
	assert_int_equal(settings.replication, 3);
	assert_string_equal(forwarded(&settings, "security.protocol"), "ssl");
	assert_string_equal(forwarded(&settings, "linger.ms"), "5");
	assert_null(forwarded(&settings, "partitions"));
	semel_kafka_settings_free(&settings);
}

static void a_wrong_url_is_explained(void **state)
{
	(void)state;
	static const struct {
		const char *url, *words;
	} rows[] = {
		{ "kafka://", "write: kafka://host:port" },
		{ "kafka://user@host", "sasl.username=NAME" },
		{ "kafka://host/topic", "write: kafka://host:port" },
		{ "kafka://a:b", "a port has digits" },
		{ "kafka://a:0", "where host:port is expected" },
		{ "kafka://a:9092,b:65536", "\"b:65536\"" },
		{ "kafka://a:9092,b:99999999999999999999", "a port has digits" },
		{ "kafka://a:verysecret", "a port has digits" },
		{ "kafka://:9092", "where host:port is expected" },
		{ "kafka://a:9092,", "where host:port is expected" },
		{ "kafka://[::1]:x", "a port has digits" },
		{ "kafka://host/?acks=1", "no parameter \"acks\"" },
		{ "kafka://host/?enable.idempotence=false", "no parameter" },
		{ "kafka://host/?linger-ms=1", "did you mean \"linger.ms\"" },
		{ "kafka://host/?create-topics=maybe", "must be yes" },
		{ "kafka://host/?partitions=0", "whole number" },
		{ "kafka://host/?sasl.password=verysecret", "sasl.password-file=PATH" },
		{ "kafka://host/?sasl.password-file=/nowhere/at/all", "cannot be read" },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct semel_kafka_settings settings;
		semel_error error = { 0 };
		assert_int_equal(read_url(rows[i].url, &settings, &error), SEMEL_CONFIG);
		if (!strstr(error.text, rows[i].words))
			fail_msg("%s: %s", rows[i].url, error.text);
		assert_null(strstr(error.text, "verysecret"));
		semel_kafka_settings_free(&settings);
	}
}

static void a_password_comes_from_a_file(void **state)
{
	(void)state;
	char path[] = "/tmp/semel-kafka-XXXXXX", url[128];
	struct semel_kafka_settings settings;
	semel_error error = { 0 };
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "hush hush\nmore\n", 15), 15);
	close(fd);
	snprintf(url, sizeof(url), "kafka://a/?sasl.password-file=%s", path);
	assert_int_equal(read_url(url, &settings, &error), SEMEL_OK);
	assert_string_equal(forwarded(&settings, "sasl.password"), "hush hush");
	semel_kafka_settings_free(&settings);

	setenv("SEMEL_KAFKA_PASSWORD_FILE", path, 1);
	assert_int_equal(read_url("kafka://a", &settings, &error), SEMEL_OK);
	assert_string_equal(forwarded(&settings, "sasl.password"), "hush hush");
	semel_kafka_settings_free(&settings);
	unsetenv("SEMEL_KAFKA_PASSWORD_FILE");
	unlink(path);
}

static void delays_go_to_the_tier_that_is_long_enough(void **state)
{
	(void)state;
	assert_int_equal(semel_kafka_tier_for(0), 1);
	assert_int_equal(semel_kafka_tier_for(1), 2);
	assert_int_equal(semel_kafka_tier_for(2000), 2);
	assert_int_equal(semel_kafka_tier_for(2001), 3);
	assert_int_equal(semel_kafka_tier_for(60000), 4);
	assert_int_equal(semel_kafka_tier_for(INT64_MAX), SEMEL_KAFKA_TIERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_short_url_has_the_defaults),
		cmocka_unit_test(addresses_of_every_kind_are_servers),
		cmocka_unit_test(settings_of_librdkafka_are_handed_on),
		cmocka_unit_test(a_wrong_url_is_explained),
		cmocka_unit_test(a_password_comes_from_a_file),
		cmocka_unit_test(delays_go_to_the_tier_that_is_long_enough),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
