/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the change stream, one behind the other, each with its length before it: whatever
 * they say, a row that is accepted has all its texts within the bytes, each with its NUL. */
#include "store/postgres/pgoutput.h"

#include "fuzz.h"

static void check_text(struct semel_text text)
{
	PROMISE(text.data != NULL);
	PROMISE(text.data[text.length] == '\0');
}

static void check_row(const struct semel_outbox_row *row)
{
	check_text(row->event.id);
	check_text(row->event.type);
	check_text(row->event.aggregate_type);
	check_text(row->event.aggregate_id);
	check_text(row->event.topic);
	check_text(row->event.routing_key);
	check_text(row->event.headers);
	check_text(row->event.payload);
}

/* In memory of its own size and one byte, so that every step beyond is seen. */
static void read_message(struct semel_pgoutput *stream, const uint8_t *data, size_t size,
			 struct semel_arena *arena)
{
	struct semel_pgoutput_message message;
	semel_error error = { 0 };
	char *copy = fuzz_copy(data, size);
	if (semel_pgoutput_read(stream, copy, size, arena, &message, &error) == SEMEL_OK &&
	    message.kind == SEMEL_PGOUTPUT_ROW)
		check_row(&message.row);
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct semel_pgoutput stream = { .table = 7 };
	struct semel_arena *arena = semel_arena_new(4096);
	while (size > 2) {
		size_t length = (size_t)data[0] << 8 | data[1];
		if (length > size - 2)
			length = size - 2;
		read_message(&stream, data + 2, length, arena);
		data += 2 + length;
		size -= 2 + length;
	}
	semel_arena_free(arena);
	return 0;
}
