/* SPDX-License-Identifier: Apache-2.0 */
/* The change stream's messages are decoded, and broken ones are refused. */
#include "store/postgres/pgoutput.h"

#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct semel_pgoutput stream;
static struct semel_arena *arena;
static struct semel_buffer bytes;
static char *kept; /* what the last message's row points into */

static int set_up(void **state)
{
	(void)state;
	stream = (struct semel_pgoutput){ .table = 7 };
	arena = semel_arena_new(4096);
	bytes = (struct semel_buffer){ 0 };
	return arena == NULL;
}

static int tear_down(void **state)
{
	(void)state;
	semel_arena_free(arena);
	semel_buffer_free(&bytes);
	return 0;
}

static void put_number(uint64_t number, size_t size)
{
	for (size_t i = size; i-- > 0;) {
		char byte = (char)(number >> (i * 8));
		semel_buffer_append(&bytes, &byte, 1);
	}
}

static void put_string(const char *string)
{
	semel_buffer_append(&bytes, string, strlen(string) + 1);
}

static void put_text(const char *text)
{
	semel_buffer_append(&bytes, "t", 1);
	put_number(strlen(text), 4);
	semel_buffer_string(&bytes, text);
}

static void put_binary(uint64_t number, size_t size)
{
	semel_buffer_append(&bytes, "b", 1);
	put_number(size, 4);
	put_number(number, size);
}

static void put_null(void)
{
	semel_buffer_append(&bytes, "n", 1);
}

/* Another order than the table's, and a column that is not ours among them. */
static const char *const columns[] = { "lane",        "colour",        "id",      "seq",
				       "payload",     "payload_bytes", "headers", "created_at",
				       "event_type",  "aggregate_id",  "topic",   "aggregate_type",
				       "routing_key", "content_type" };
#define COUNT (sizeof(columns) / sizeof(columns[0]))

static void describe_in(const char *schema, uint32_t relation, const char *name)
{
	put_string("R");
	bytes.length--;
	put_number(relation, 4);
	put_string(schema);
	put_string(name);
	put_number('d', 1);
	put_number(COUNT, 2);
	for (size_t i = 0; i < COUNT; i++) {
		put_number(0, 1);
		put_string(columns[i]);
		put_number(25, 4);
		put_number(0xffffffff, 4);
	}
}

static void describe(uint32_t relation, const char *name)
{
	describe_in("public", relation, name);
}

static void begin_row(uint32_t relation)
{
	semel_buffer_append(&bytes, "I", 1);
	put_number(relation, 4);
	semel_buffer_append(&bytes, "N", 1);
	put_number(COUNT, 2);
}

static void put_row_as_text(void)
{
	begin_row(7);
	put_text("12");
	put_text("red");
	put_text("e1");
	put_text("4711");
	put_null();
	put_text("\\x6869");
	put_text("{\"a\":1}");
	put_text("2026-11-15 12:00:00.123456+00");
	put_text("order.created.v1");
	put_text("o1");
	put_null();
	put_text("order");
	put_null();
	put_text("application/json");
}

static void put_row_as_binary(void)
{
	begin_row(7);
	put_binary(12, 2);
	put_text("red");
	put_text("e1");
	put_binary(4711, 8);
	put_text("{}");
	put_null();
	put_text("{}");
	put_binary((uint64_t)INT64_C(-1), 8);
	put_text("order.created.v1");
	put_text("o1");
	put_text("t");
	put_text("order");
	put_text("k");
	put_text("application/json");
}

/* In memory of exactly its size, so that a sanitizer sees every step beyond it. */
static semel_status read_bytes(size_t length, struct semel_pgoutput_message *message)
{
	char *copy = malloc(length + 1);
	assert_non_null(copy);
	memcpy(copy, bytes.data, length);
	semel_error error = { .status = SEMEL_OK };
	semel_status status = semel_pgoutput_read(&stream, copy, length, arena, message, &error);
	kept = copy;
	return status;
}

static void forget(void)
{
	free(kept);
	kept = NULL;
}

static void learn_table(void)
{
	struct semel_pgoutput_message message;
	describe(7, "semel_outbox");
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	forget();
	semel_buffer_clear(&bytes);
}

static void a_row_is_read_by_the_names_of_its_columns(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	learn_table();
	put_row_as_text();
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	assert_int_equal(message.kind, SEMEL_PGOUTPUT_ROW);
	assert_int_equal(message.row.lane, 12);
	assert_int_equal(message.row.seq, 4711);
	assert_string_equal(message.row.event.id.data, "e1");
	assert_string_equal(message.row.event.aggregate_id.data, "o1");
	assert_string_equal(message.row.event.topic.data, "order.events");
	assert_string_equal(message.row.event.routing_key.data, "order.created.v1");
	assert_string_equal(message.row.event.headers.data, "{\"a\":1}");
	assert_string_equal(message.row.event.payload.data, "hi");
	assert_string_equal(message.row.event.content_type.data, "application/json");
	assert_int_equal(message.row.event.time_ms, INT64_C(1794744000123));
	forget();
}

static void binary_values_mean_the_same(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	learn_table();
	put_row_as_binary();
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	assert_int_equal(message.row.lane, 12);
	assert_int_equal(message.row.seq, 4711);
	assert_string_equal(message.row.event.topic.data, "t");
	assert_string_equal(message.row.event.routing_key.data, "k");
	assert_int_equal(message.row.event.time_ms, INT64_C(946684799999));
	forget();
}

static void rows_of_other_tables_are_passed_over(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	describe(8, "orders");
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	forget();
	assert_int_equal(stream.relation, 0);
	learn_table();
	begin_row(8);
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	assert_int_equal(message.kind, SEMEL_PGOUTPUT_OTHER);
	forget();
}

static void an_outbox_of_another_schema_is_not_ours(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	learn_table();
	uint32_t ours = stream.relation;
	describe_in("other", 8, "semel_outbox");
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	forget();
	assert_int_equal(stream.relation, ours);
}

static void ours_is_known_by_its_number_whatever_it_is_called(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	describe_in("other", 7, "semel_outbox_for_a_while");
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	forget();
	assert_int_equal(stream.relation, 7);
	assert_int_equal(message.kind, SEMEL_PGOUTPUT_TABLE);
}

static void a_commit_has_the_position_where_it_ends(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	semel_buffer_append(&bytes, "C", 1);
	put_number(0, 1);
	put_number(100, 8);
	put_number(200, 8);
	put_number(0, 8);
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	assert_int_equal(message.kind, SEMEL_PGOUTPUT_COMMIT);
	assert_int_equal(message.position, 200);
	forget();
}

static void a_transaction_has_its_number(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	semel_buffer_append(&bytes, "B", 1);
	put_number(200, 8);
	put_number(0, 8);
	put_number(4000000000, 4);
	assert_int_equal(read_bytes(bytes.length, &message), SEMEL_OK);
	assert_int_equal(message.kind, SEMEL_PGOUTPUT_BEGIN);
	assert_int_equal(message.xid, 4000000000);
	forget();
	assert_int_equal(read_bytes(bytes.length - 1, &message), SEMEL_INTERNAL);
	forget();
}

static void a_message_that_is_cut_short_is_refused(void **state)
{
	(void)state;
	struct semel_pgoutput_message message;
	learn_table();
	put_row_as_text();
	for (size_t length = 5; length < bytes.length; length++) {
		assert_int_equal(read_bytes(length, &message), SEMEL_INTERNAL);
		forget();
	}
	assert_int_equal(read_bytes(0, &message), SEMEL_INTERNAL);
	forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_row_is_read_by_the_names_of_its_columns, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(binary_values_mean_the_same, set_up, tear_down),
		cmocka_unit_test_setup_teardown(rows_of_other_tables_are_passed_over, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(an_outbox_of_another_schema_is_not_ours, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(ours_is_known_by_its_number_whatever_it_is_called,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_commit_has_the_position_where_it_ends, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_transaction_has_its_number, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_message_that_is_cut_short_is_refused, set_up,
						tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
