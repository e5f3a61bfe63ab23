/* SPDX-License-Identifier: Apache-2.0 */
/* The properties of an AMQP message as they are on the wire, with any header table: whatever they
 * say, an event comes out that can be kept and sent again. The first byte: a stream or a queue. */
#include "broker/rabbitmq/rabbitmq.h"

#include "wire_promises.h"

static bool is_within(struct semel_text text, amqp_bytes_t bytes)
{
	const unsigned char *first = bytes.bytes;
	return text.data >= first && text.data + text.length <= first + bytes.len;
}

static void read_properties(const amqp_basic_properties_t *properties, bool is_stream,
			    amqp_bytes_t bytes)
{
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_buffer headers = { 0 };
	struct semel_wire_reading reading;
	struct semel_text tier;
	semel_wire_read_begin(&reading, &semel_wire_amqp, arena, &headers);
	reading.event.topic = SEMEL_TEXT("orders");
	reading.event.routing_key = SEMEL_TEXT("order.created");
	PROMISE(semel_rabbit_properties_read(properties, is_stream, &reading, &tier));
	PROMISE(!tier.data || tier.length == 0 || is_within(tier, bytes));
	PROMISE(semel_wire_read_end(&reading));
	check_event(&reading.event, &reading.metadata);
	check_way_back(&reading.event, &reading.metadata, &semel_wire_amqp, arena);
	(void)semel_rabbit_offset_of(properties);
	/* A mark is dropped: nothing that could be an event may pass for one. */
	if (semel_rabbit_is_marker(properties, 0))
		PROMISE(!semel_rabbit_is_marker(properties, 1) && !reading.event.id.data);
	semel_buffer_free(&headers);
	semel_arena_free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	/* Of its own size, so that every step beyond is seen. */
	unsigned char *copy = malloc(size);
	PROMISE(copy);
	memcpy(copy, data, size);
	amqp_bytes_t bytes = { .len = size - 1, .bytes = copy + 1 };
	amqp_pool_t pool;
	init_amqp_pool(&pool, 4096);
	void *decoded = NULL;
	if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes, &decoded) == 0)
		read_properties(decoded, copy[0] & 1, bytes);
	empty_amqp_pool(&pool);
	free(copy);
	return 0;
}
