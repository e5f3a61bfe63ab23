/* SPDX-License-Identifier: Apache-2.0 */
/* Events become named texts and come back; messages of others are understood as far as they go. */
#include "event/wire.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct semel_arena *arena;
static struct semel_buffer headers;

static int make(void **state)
{
	(void)state;
	arena = semel_arena_new(4096);
	return arena ? 0 : -1;
}

static int drop(void **state)
{
	(void)state;
	semel_arena_free(arena);
	semel_buffer_free(&headers);
	headers = (struct semel_buffer){ 0 };
	return 0;
}

static void assert_text(struct semel_text text, const char *expected)
{
	if (!expected) {
		assert_null(text.data);
		return;
	}
	assert_non_null(text.data);
	assert_string_equal(text.data, expected);
}

static struct semel_event order_event(void)
{
	return (struct semel_event){
		.id = SEMEL_TEXT("id-1"),
		.type = SEMEL_TEXT("order.created.v1"),
		.aggregate_type = SEMEL_TEXT("order"),
		.aggregate_id = SEMEL_TEXT("o-1"),
		.topic = SEMEL_TEXT("order.events"),
		.routing_key = SEMEL_TEXT("orders.eu"),
		.content_type = SEMEL_TEXT("application/json"),
		.headers =
			SEMEL_TEXT("{\"correlationId\":\"c\",\"producer\":\"shop\",\"x\":\"y\"}"),
		.payload = SEMEL_TEXT("{}"),
		.time_ms = 1700000000123,
	};
}

static const char *field(const struct semel_wire_message *message, const char *name)
{
	for (size_t i = 0; i < message->count; i++)
		if (semel_text_equal(message->fields[i].name, semel_text_of(name)))
			return semel_text_string(message->fields[i].value);
	return NULL;
}

static void an_event_is_written_under_the_names_of_the_contract(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { .previous = SEMEL_TEXT("id-0"), .attempt = 3 };
	struct semel_wire_message message;
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_amqp, arena, &message));
	assert_string_equal(field(&message, "cloudEvents_id"), "id-1");
	assert_string_equal(field(&message, "cloudEvents_type"), "order.created.v1");
	assert_string_equal(field(&message, "cloudEvents_source"), "shop");
	assert_string_equal(field(&message, "cloudEvents_time"), "2023-11-14T22:13:20.123Z");
	assert_string_equal(field(&message, "semel-aggregate-type"), "order");
	assert_string_equal(field(&message, "semel-aggregate-id"), "o-1");
	assert_string_equal(field(&message, "semel-previous"), "id-0");
	assert_string_equal(field(&message, "semel-attempt"), "3");
	assert_null(field(&message, "semel-replay"));
	assert_string_equal(field(&message, "x"), "y");
	assert_text(message.correlation, "c");
	assert_text(message.producer, "shop");
}

static void what_was_written_is_read_back(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { .previous = SEMEL_TEXT("id-0"), .replay = 2 };
	struct semel_wire_message message;
	struct semel_wire_reading reading;
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_amqp, arena, &message));
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	reading.event.topic = event.topic;
	reading.event.routing_key = event.routing_key;
	for (size_t i = 0; i < message.count; i++)
		semel_wire_read_field(&reading, message.fields[i].name, message.fields[i].value);
	assert_true(semel_wire_read_end(&reading));
	assert_text(reading.event.id, "id-1");
	assert_text(reading.event.type, "order.created.v1");
	assert_text(reading.event.aggregate_id, "o-1");
	assert_text(reading.event.headers, semel_text_string(event.headers));
	assert_int_equal(reading.event.time_ms, event.time_ms);
	assert_text(reading.metadata.previous, "id-0");
	assert_int_equal(reading.metadata.replay, 2);
}

/* An event's producer writes its headers, and is not to speak for Semel or for the broker. */
static void headers_of_an_event_do_not_replace_ours(void **state)
{
	(void)state;
	const struct semel_wire_names *const both[] = { &semel_wire_amqp, &semel_wire_kafka };
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { .attempt = 3 };
	event.headers = SEMEL_TEXT(
		"{\"cloudEvents_id\":\"F\",\"cloudEvents:id\":\"F\",\"ce_id\":\"F\",\"CE_ID\":"
		"\"F\","
		"\"ce-id\":\"F\",\"ce_id\\u0000\":\"F\",\"cloudEvents_id\\u0000x\":\"F\","
		"\"ce_time\":\"F\",\"semel-attempt\":\"F\",\"Semel-Attempt\":\"F\","
		"\"semel-replay\":\"F\",\"semel-due\":\"F\",\"semel-reason\":\"F\","
		"\"semel-routing-key\":\"F\",\"semel-anything\":\"F\",\"mine\":\"1\","
		"\"cloudEvents_subject\":\"2\",\"ce_subject\":\"3\"}");
	for (size_t i = 0; i < 2; i++) {
		struct semel_wire_message message;
		assert_true(semel_wire_write(&event, &metadata, both[i], arena, &message));
		for (size_t j = 0; j < message.count; j++)
			assert_false(semel_text_equal(message.fields[j].value, SEMEL_TEXT("F")));
		assert_string_equal(field(&message, i ? "ce_id" : "cloudEvents_id"), "id-1");
		assert_string_equal(field(&message, "semel-attempt"), "3");
		assert_string_equal(field(&message, "mine"), "1");
		assert_string_equal(field(&message, "cloudEvents_subject"), "2");
		assert_string_equal(field(&message, "ce_subject"), "3");
	}
}

static void headers_that_rabbitmq_obeys_or_writes_are_not_an_events(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { 0 };
	struct semel_wire_message message;
	event.headers =
		SEMEL_TEXT("{\"CC\":\"F\",\"BCC\":\"F\",\"x-death\":\"F\",\"X-Death\":\"F\","
			   "\"x-first-death-queue\":\"F\",\"x-delivery-count\":\"F\","
			   "\"x-stream-offset\":\"F\",\"x-stream-filter-value\":\"F\","
			   "\"cc\":\"1\",\"x-tenant\":\"2\"}");
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_amqp, arena, &message));
	for (size_t j = 0; j < message.count; j++)
		assert_false(semel_text_equal(message.fields[j].value, SEMEL_TEXT("F")));
	assert_string_equal(field(&message, "cc"), "1");
	assert_string_equal(field(&message, "x-tenant"), "2");
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_kafka, arena, &message));
	assert_string_equal(field(&message, "CC"), "F");
}

static void a_foreign_message_is_understood_by_its_routing_key(void **state)
{
	(void)state;
	struct semel_wire_reading reading;
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	reading.event.topic = SEMEL_TEXT("order.events");
	reading.event.routing_key = SEMEL_TEXT("order.paid");
	reading.correlation = SEMEL_TEXT("c");
	semel_wire_read_field(&reading, SEMEL_TEXT("n"), SEMEL_TEXT("3"));
	assert_true(semel_wire_read_end(&reading));
	assert_text(reading.event.id, NULL); /* never made up */
	assert_text(reading.event.type, "order.paid");
	assert_text(reading.event.aggregate_type, "order.events");
	assert_text(reading.event.aggregate_id, "order.paid");
	assert_text(reading.event.headers, "{\"n\":\"3\",\"correlationId\":\"c\"}");
	assert_int_equal(reading.event.time_ms, 0);
}

static void the_own_property_wins_over_the_attribute(void **state)
{
	(void)state;
	struct semel_wire_reading reading;
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	reading.event.id = SEMEL_TEXT("mine");
	semel_wire_read_field(&reading, SEMEL_TEXT("cloudEvents_id"), SEMEL_TEXT("other"));
	semel_wire_read_field(&reading, SEMEL_TEXT("cloudEvents_time"), SEMEL_TEXT("not a time"));
	semel_wire_read_field(&reading, SEMEL_TEXT("semel-attempt"), SEMEL_TEXT("many"));
	assert_true(semel_wire_read_end(&reading));
	assert_text(reading.event.id, "mine");
	assert_int_equal(reading.event.time_ms, 0);
	assert_int_equal(reading.metadata.attempt, 0);
}

static void a_number_or_a_time_with_a_zero_byte_is_none(void **state)
{
	(void)state;
	struct semel_wire_reading reading;
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	semel_wire_read_field(&reading, SEMEL_TEXT("semel-attempt"), SEMEL_TEXT("3\0x"));
	semel_wire_read_field(&reading, SEMEL_TEXT("semel-replay"), SEMEL_TEXT("1\0"));
	semel_wire_read_field(&reading, SEMEL_TEXT("cloudEvents_time"),
			      SEMEL_TEXT("2026-11-15T12:00:00Z\0x"));
	assert_true(semel_wire_read_end(&reading));
	assert_int_equal(reading.metadata.attempt, 0);
	assert_int_equal(reading.metadata.replay, 0);
	assert_int_equal(reading.event.time_ms, 0);
}

static void a_time_that_no_store_can_keep_is_none(void **state)
{
	(void)state;
	static const int64_t strange[] = { INT64_MAX, INT64_MIN, INT64_C(1794744000000000),
					   INT64_C(-62135596800001) };
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
		struct semel_wire_reading reading;
		semel_wire_read_begin(&reading, &semel_wire_kafka, arena, &headers);
		reading.event.time_ms = strange[i];
		assert_true(semel_wire_read_end(&reading));
		assert_int_equal(reading.event.time_ms, 0);
	}
}

static void names_with_a_meaning_of_their_own_are_no_headers(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { 0 };
	struct semel_wire_message message;
	event.headers = SEMEL_TEXT("{\"semel-attempt\":\"9\",\"cloudEvents_id\":\"z\"}");
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_amqp, arena, &message));
	assert_null(field(&message, "semel-attempt"));
	assert_string_equal(field(&message, "cloudEvents_id"), "id-1");
}

static size_t count_of(const struct semel_wire_message *message, const char *name)
{
	size_t count = 0;
	for (size_t i = 0; i < message->count; i++)
		count += semel_text_equal(message->fields[i].name, semel_text_of(name));
	return count;
}

static void attributes_that_are_not_understood_travel_untouched(void **state)
{
	(void)state;
	struct semel_wire_reading reading;
	struct semel_publish_metadata metadata = { .attempt = 1 };
	struct semel_wire_message message;
	semel_wire_read_begin(&reading, &semel_wire_kafka, arena, &headers);
	reading.event.topic = SEMEL_TEXT("order.events");
	semel_wire_read_field(&reading, SEMEL_TEXT("ce_id"), SEMEL_TEXT("id-1"));
	semel_wire_read_field(&reading, SEMEL_TEXT("ce_specversion"), SEMEL_TEXT("1.0"));
	semel_wire_read_field(&reading, SEMEL_TEXT("ce_subject"), SEMEL_TEXT("cart"));
	semel_wire_read_field(&reading, SEMEL_TEXT("ce_idea"), SEMEL_TEXT("own"));
	assert_true(semel_wire_read_end(&reading));
	assert_text(reading.event.id, "id-1");
	assert_text(reading.event.headers, "{\"ce_subject\":\"cart\",\"ce_idea\":\"own\"}");
	assert_true(
		semel_wire_write(&reading.event, &metadata, &semel_wire_kafka, arena, &message));
	assert_string_equal(field(&message, "ce_subject"), "cart");
	assert_string_equal(field(&message, "ce_idea"), "own");
	assert_int_equal(count_of(&message, "ce_subject"), 1);
	assert_int_equal(count_of(&message, "ce_id"), 1);
	assert_int_equal(count_of(&message, "ce_specversion"), 1);
}

static void an_aggregate_keeps_its_lane(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	uint32_t lane = semel_wire_lane(&event);
	event.id = SEMEL_TEXT("id-2");
	assert_int_equal(semel_wire_lane(&event), lane);
	assert_true(lane < SEMEL_WIRE_LANES);
}

static void an_adopted_event_goes_to_kafka_with_its_own_headers_alone(void **state)
{
	(void)state;
	struct semel_event event = order_event();
	struct semel_publish_metadata metadata = { .replay = 1 };
	struct semel_wire_message message;
	event.headers = SEMEL_TEXT("{\"id\":\"id-1\",\"semel-wire\":\"plain\"}");
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_kafka, arena, &message));
	assert_true(message.plain);
	assert_int_equal(message.count, 1);
	assert_string_equal(field(&message, "id"), "id-1");
	assert_true(semel_wire_write(&event, &metadata, &semel_wire_amqp, arena, &message));
	assert_false(message.plain);
	assert_string_equal(field(&message, "cloudEvents_id"), "id-1");
	assert_null(field(&message, "semel-wire"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_event_is_written_under_the_names_of_the_contract),
		TEST(what_was_written_is_read_back),
		TEST(headers_of_an_event_do_not_replace_ours),
		TEST(headers_that_rabbitmq_obeys_or_writes_are_not_an_events),
		TEST(a_foreign_message_is_understood_by_its_routing_key),
		TEST(the_own_property_wins_over_the_attribute),
		TEST(a_number_or_a_time_with_a_zero_byte_is_none),
		TEST(a_time_that_no_store_can_keep_is_none),
		TEST(names_with_a_meaning_of_their_own_are_no_headers),
		TEST(attributes_that_are_not_understood_travel_untouched),
		TEST(an_aggregate_keeps_its_lane),
		TEST(an_adopted_event_goes_to_kafka_with_its_own_headers_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
