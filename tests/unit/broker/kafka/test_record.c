/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a record are used again for the next one: with librdkafka's own, and a producer
 * that keeps what it is given. */
#include "broker/kafka/kafka.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct semel_kafka_library library;
static struct semel_kafka kafka;
static rd_kafka_headers_t *sent;
static int known_version;

static rd_kafka_error_t *fake_produceva(rd_kafka_t *client, const rd_kafka_vu_t *fields,
					size_t count)
{
	(void)client;
	for (size_t i = 0; i < count; i++)
		if (fields[i].vtype == RD_KAFKA_VTYPE_HEADERS)
			sent = fields[i].u.headers;
	return NULL;
}

static int fake_version(void)
{
	return known_version;
}

static int set_up(void **state)
{
	(void)state;
	semel_error error = { 0 };
	const struct semel_kafka_library *real = NULL;
	assert_int_equal(semel_kafka_library_get(&real, &error), SEMEL_OK);
	library = *real;
	library.produceva = fake_produceva;
	library.version = fake_version;
	known_version = real->version();
	kafka = (struct semel_kafka){ .library = &library, .scratch = semel_arena_new(1000) };
	sent = NULL;
	return kafka.scratch ? 0 : -1;
}

static int drop(void **state)
{
	(void)state;
	if (sent)
		library.headers_destroy(sent);
	semel_arena_free(kafka.scratch);
	return 0;
}

static const char *header(const char *name)
{
	const void *value = NULL;
	size_t size = 0;
	assert_int_equal(library.header_get_last(sent, name, &value, &size), 0);
	assert_int_equal(strlen(value), size);
	return value;
}

static size_t count_headers(void)
{
	const char *name = NULL;
	const void *value = NULL;
	size_t count = 0, size = 0;
	while (library.header_get_all(sent, count, &name, &value, &size) == 0)
		count++;
	return count;
}

/* With the headers of the one before it, if it may have them. */
static void outgoing(const char *id, const char *key, const char *previous)
{
	semel_error error = { 0 };
	struct semel_event event = { .id = semel_text_of(id),
				     .type = SEMEL_TEXT("made"),
				     .aggregate_type = SEMEL_TEXT("order"),
				     .aggregate_id = semel_text_of(key),
				     .headers = SEMEL_TEXT("{}"),
				     .content_type = SEMEL_TEXT("text/plain"),
				     .payload = SEMEL_TEXT("x") };
	struct semel_publish_metadata metadata = { .previous = semel_text_of(previous) };
	struct semel_kafka_outgoing message = { .event = &event, .metadata = &metadata };
	if (semel_kafka_header_template_of(&kafka, &message) != 0)
		message.used = sent;
	else if (sent)
		library.headers_destroy(sent);
	sent = NULL;
	assert_int_equal(semel_kafka_produce(&kafka, NULL, &message, &error), SEMEL_OK);
	assert_string_equal(header("ce_id"), id);
	assert_string_equal(header("semel-aggregate-id"), key);
	assert_string_equal(header("semel-previous"), previous);
	assert_string_equal(header("content-type"), "text/plain");
	assert_string_equal(header("ce_type"), "made");
	assert_int_equal(count_headers(), 9);
}

static void every_record_has_its_own_values_in_the_headers_of_another(void **state)
{
	(void)state;
	outgoing("id-1", "a-1", "id-0");
	rd_kafka_headers_t *first = sent;
	const char *address = header("ce_id");
	outgoing("id-2", "a-2", "id-1");
	assert_ptr_equal(sent, first);
	assert_ptr_equal(header("ce_id"), address);
}

static void an_aggregate_id_may_have_another_length_than_the_one_before(void **state)
{
	(void)state;
	outgoing("id-1", "a-1", "id-0");
	rd_kafka_headers_t *first = sent;
	outgoing("id-2", "a-1000", "id-1");
	outgoing("id-3", "a", "id-2");
	outgoing("id-4", "b", "id-3");
	assert_ptr_equal(sent, first);
}

static void ids_of_another_length_get_headers_of_their_own(void **state)
{
	(void)state;
	outgoing("id-1", "a-1", "id-0");
	outgoing("id-1000", "a-1", "id-1");
	outgoing("id-1001", "a-1", "id-1000");
	outgoing("id-3", "a-1", "id-1001");
}

static void headers_of_an_unknown_library_version_are_not_used_again(void **state)
{
	(void)state;
	struct semel_event event = { .id = SEMEL_TEXT("id-1"),
				     .type = SEMEL_TEXT("made"),
				     .aggregate_type = SEMEL_TEXT("order"),
				     .aggregate_id = SEMEL_TEXT("a-1"),
				     .headers = SEMEL_TEXT("{}"),
				     .content_type = SEMEL_TEXT("text/plain") };
	struct semel_publish_metadata metadata = { .previous = SEMEL_TEXT("id-0") };
	struct semel_kafka_outgoing message = { .event = &event, .metadata = &metadata };
	assert_int_not_equal(semel_kafka_header_template_of(&kafka, &message), 0);
	known_version = 0x03000000;
	assert_int_equal(semel_kafka_header_template_of(&kafka, &message), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_record_has_its_own_values_in_the_headers_of_another),
		TEST(an_aggregate_id_may_have_another_length_than_the_one_before),
		TEST(ids_of_another_length_get_headers_of_their_own),
		TEST(headers_of_an_unknown_library_version_are_not_used_again),
	};
	return cmocka_run_group_tests_name("events as records", tests, NULL, NULL);
}
