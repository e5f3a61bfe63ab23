/* SPDX-License-Identifier: Apache-2.0 */
/* Properties and headers as any client may write them become an event. */
#include "broker/rabbitmq/rabbitmq.h"

/* cmocka wants these before it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct semel_arena *arena;
static struct semel_buffer headers;
static struct semel_wire_reading reading;

static int set_up(void **state)
{
	(void)state;
	arena = semel_arena_new(4096);
	return arena == NULL;
}

static int tear_down(void **state)
{
	(void)state;
	semel_buffer_free(&headers);
	semel_arena_free(arena);
	return 0;
}

/* The headers of an event whose message has this table; the tier that it left. */
static struct semel_text read_table(amqp_table_t table, bool is_stream, struct semel_text *tier_out)
{
	amqp_basic_properties_t properties = { ._flags = AMQP_BASIC_HEADERS_FLAG,
					       .headers = table };
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	reading.event.topic = reading.event.routing_key = SEMEL_TEXT("orders");
	assert_true(semel_rabbit_properties_read(&properties, is_stream, &reading, tier_out));
	assert_true(semel_wire_read_end(&reading));
	return reading.event.headers;
}

static void assert_text(struct semel_text text, const char *wanted)
{
	if (!semel_text_equal(text, semel_text_of(wanted)))
		fail_msg("\"%.*s\" is not \"%s\"", (int)text.length, semel_text_chars(text),
			 wanted);
}

static amqp_table_entry_t entry(const char *name, amqp_field_value_t value)
{
	return (amqp_table_entry_t){ semel_rabbit_string(name), value };
}

static amqp_field_value_t text_value(const char *text)
{
	return (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_UTF8,
				     .value.bytes = semel_rabbit_string(text) };
}

static void values_of_every_type_become_texts(void **state)
{
	struct semel_text tier;
	amqp_table_entry_t inner[] = {
		entry("a", (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_F64, .value.f64 = 1.5 }),
		entry("b", (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_F64, .value.f64 = NAN }),
		entry("c", (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_VOID }),
		entry("d", text_value("e\"\n")),
	};
	amqp_table_entry_t entries[] = {
		entry("text", text_value("x")),
		entry("yes",
		      (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1 }),
		entry("low",
		      (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_I64, .value.i64 = INT64_MIN }),
		entry("high",
		      (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_U64, .value.u64 = UINT64_MAX }),
		entry("much",
		      (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_F32, .value.f32 = -INFINITY }),
		entry("in", (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_TABLE,
						  .value.table = { 4, inner } }),
	};
	(void)state;
	assert_text(read_table((amqp_table_t){ 6, entries }, false, &tier),
		    "{\"text\":\"x\",\"yes\":\"true\",\"low\":\"-9223372036854775808\","
		    "\"high\":\"18446744073709551615\",\"much\":\"null\","
		    "\"in\":\"{\\\"a\\\":1.5,\\\"b\\\":null,\\\"c\\\":null,"
		    "\\\"d\\\":\\\"e\\\\\\\"\\\\n\\\"}\"}");
	assert_null(tier.data);
}

static void the_tier_that_a_message_left_is_found_and_the_brokers_notes_are_no_headers(void **state)
{
	struct semel_text tier;
	amqp_table_entry_t death[] = { entry("count", text_value("1")),
				       entry("queue", text_value("orders.retry.2")) };
	amqp_field_value_t deaths[] = { { .kind = AMQP_FIELD_KIND_TABLE,
					  .value.table = { 2, death } } };
	amqp_table_entry_t entries[] = {
		entry("x-death", (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_ARRAY,
						       .value.array = { 1, deaths } }),
		entry("x-first-death-queue", text_value("first")),
		entry("x-delivery-count", text_value("5")),
	};
	(void)state;
	assert_text(read_table((amqp_table_t){ 3, entries }, false, &tier), "{}");
	assert_text(tier, "orders.retry.2");
	assert_text(read_table((amqp_table_t){ 3, entries }, true, &tier), "{}");
	assert_text(tier, "first");
	entries[0].value.value.array.num_entries = 0;
	assert_text(read_table((amqp_table_t){ 1, entries }, false, &tier), "{}");
	assert_null(tier.data);
}

static void what_is_nested_too_deep_is_null(void **state)
{
	enum { LEVELS = 1000 };
	static amqp_table_entry_t levels[LEVELS];
	struct semel_text tier;
	(void)state;
	for (size_t i = 0; i < LEVELS; i++)
		levels[i] = entry("", (amqp_field_value_t){
					      .kind = AMQP_FIELD_KIND_TABLE,
					      .value.table = { i + 1 < LEVELS, &levels[i + 1] } });
	assert_text(read_table((amqp_table_t){ 1, levels }, false, &tier),
		    "{\"\":\"{\\\"\\\":{\\\"\\\":{\\\"\\\":{\\\"\\\":{\\\"\\\":{\\\"\\\":"
		    "{\\\"\\\":{\\\"\\\":{\\\"\\\":null}}}}}}}}}\"}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_of_every_type_become_texts),
		cmocka_unit_test(
			the_tier_that_a_message_left_is_found_and_the_brokers_notes_are_no_headers),
		cmocka_unit_test(what_is_nested_too_deep_is_null),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
