/* SPDX-License-Identifier: Apache-2.0 */
/* - Columns are found by name, when the stream describes the table: before the first row, and
 *   again after every change of it.
 * - A row costs no allocation: its texts stay in the message. The byte after a text is the kind of
 *   the next column; once it was read, it becomes the NUL.
 * - Texts and binary values are both understood: servers before 14 know only texts.
 */
#include "store/postgres/pgoutput.h"

#include "base/error.h"
#include "base/time.h"

#include <string.h>

/* Milliseconds from 1970 to 2000, where PostgreSQL's time begins. */
#define EPOCH_MS INT64_C(946684800000)

enum column {
	SEQ,
	LANE,
	ID,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	EVENT_TYPE,
	TOPIC,
	ROUTING_KEY,
	CONTENT_TYPE,
	HEADERS,
	CREATED_AT,
	PAYLOAD,
	PAYLOAD_BYTES,
	COLUMNS
};

static const char *const names[COLUMNS] = {
	[SEQ] = "seq",
	[LANE] = "lane",
	[ID] = "id",
	[AGGREGATE_TYPE] = "aggregate_type",
	[AGGREGATE_ID] = "aggregate_id",
	[EVENT_TYPE] = "event_type",
	[TOPIC] = "topic",
	[ROUTING_KEY] = "routing_key",
	[CONTENT_TYPE] = "content_type",
	[HEADERS] = "headers",
	[CREATED_AT] = "created_at",
	[PAYLOAD] = "payload",
	[PAYLOAD_BYTES] = "payload_bytes",
};

/* One value of a row. */
struct value {
	char *data; /* NULL: none */
	size_t length;
	bool binary;
};

/* What is left of a message. */
struct bytes {
	char *at, *end;
	bool broken; /* the message is shorter than it says */
};

static inline uint64_t take_number(struct bytes *bytes, size_t size)
{
	const unsigned char *at = (const unsigned char *)bytes->at;
	uint64_t number = 0;
	if ((size_t)(bytes->end - bytes->at) < size) {
		bytes->broken = true;
		return 0;
	}
	for (size_t i = 0; i < size; i++)
		number = number << 8 | at[i];
	bytes->at += size;
	return number;
}

/* A number of four bytes, read faster: every column of every row has one. */
static inline uint32_t take_length(struct bytes *bytes)
{
	const unsigned char *at = (const unsigned char *)bytes->at;
	if (bytes->end - bytes->at < 4) {
		bytes->broken = true;
		return 0;
	}
	bytes->at += 4;
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static char *take_bytes(struct bytes *bytes, size_t length)
{
	char *data = bytes->at;
	if ((size_t)(bytes->end - bytes->at) < length) {
		bytes->broken = true;
		return NULL;
	}
	bytes->at += length;
	return data;
}

/* A string, up to its NUL. */
static const char *take_string(struct bytes *bytes)
{
	const char *string = bytes->at;
	char *end = memchr(bytes->at, '\0', (size_t)(bytes->end - bytes->at));
	if (end == NULL) {
		bytes->broken = true;
		return "";
	}
	bytes->at = end + 1;
	return string;
}

static semel_status refuse(const char *what, semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "cannot decode %s in the change stream",
			       what);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int8_t column_of(const char *name)
{
	for (int i = 0; i < COLUMNS; i++)
		if (strcmp(name, names[i]) == 0)
			return (int8_t)i;
	return -1;
}

static bool has_all(const struct semel_pgoutput *stream)
{
	bool found[COLUMNS] = { false };
	bool all = true;
	for (uint16_t i = 0; i < stream->column_count; i++)
		if (stream->columns[i] >= 0)
			found[stream->columns[i]] = true;
	for (int i = 0; i < COLUMNS; i++)
		all = all && found[i];
	return all;
}

/* Tables other than our outbox are ignored, and so are their rows. Our outbox is recognised by its
 * oid: an outbox of another schema has the same name and the same numbers, so its rows would mark
 * ours; and ours may have been renamed, or moved to another schema, for a while. */
static semel_status read_relation(struct semel_pgoutput *stream, struct bytes *bytes,
				  struct semel_pgoutput_message *message, semel_error *error)
{
	uint32_t relation = (uint32_t)take_number(bytes, 4);
	(void)take_string(bytes);    /* schema */
	(void)take_string(bytes);    /* name */
	(void)take_number(bytes, 1); /* replica identity */
	uint16_t count = (uint16_t)take_number(bytes, 2);
	if (bytes->broken)
		return refuse("a table", error);
	if (relation != stream->table)
		return SEMEL_OK;
	if (count > SEMEL_PGOUTPUT_COLUMNS_MAX)
		return refuse("an outbox with too many columns", error);
	stream->relation = relation;
	stream->column_count = count;
	for (uint16_t i = 0; i < count; i++) {
		(void)take_number(bytes, 1); /* flags */
		stream->columns[i] = column_of(take_string(bytes));
		(void)take_number(bytes, 8); /* type and its modifier */
	}
	if (bytes->broken || !has_all(stream))
		return refuse("an outbox without some of its columns", error);
	message->kind = SEMEL_PGOUTPUT_TABLE;
	return SEMEL_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static struct semel_text text_of(const struct value *value)
{
	return semel_text_from(value->data, value->length);
}

static int64_t binary_number(const struct value *value)
{
	struct bytes bytes = { value->data, value->data + value->length, false };
	uint64_t number = take_number(&bytes, value->length);
	unsigned unused = (unsigned)(8 - value->length) * 8;
	return (int64_t)(number << unused) >> unused;
}

static bool read_number(const struct value *value, int64_t *number_out)
{
	long long number = 0;
	if (value->data == NULL)
		return false;
	if (value->binary) {
		*number_out = value->length > 0 && value->length <= 8 ? binary_number(value) : 0;
		return value->length > 0 && value->length <= 8;
	}
	bool ok = semel_text_to_int64(value->data, INT64_MIN, INT64_MAX, &number);
	*number_out = number;
	return ok;
}

/* As text: "2026-11-15 12:00:00.123456+00"; the connection's zone is UTC. */
static bool read_time(const struct value *value, int64_t *time_ms_out)
{
	char text[SEMEL_TIME_SIZE + 8] = "";
	if (value->binary) {
		int64_t time_us = 0;
		bool ok = value->length == 8 && read_number(value, &time_us);
		*time_ms_out = time_us / 1000 - (time_us % 1000 < 0) + EPOCH_MS;
		return ok;
	}
	char *zone = value->data == NULL ? NULL : strrchr(value->data, '+');
	size_t length = zone == NULL ? 0 : (size_t)(zone - value->data);
	if (zone == NULL || length > sizeof(text) - 2)
		return false;
	memcpy(text, value->data, length);
	char *space = strchr(text, ' ');
	if (space == NULL)
		return false;
	*space = 'T';
	text[length] = 'Z';
	return semel_time_parse(text, time_ms_out);
}

static int nibble(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Decodes "\x6869" in place. */
static bool unfold_bytes(struct value *value)
{
	if (value->binary)
		return true;
	if (value->length < 2 || value->length % 2 != 0 || value->data[0] != '\\')
		return false;
	for (size_t i = 2; i < value->length; i += 2) {
		int high = nibble(value->data[i]), low = nibble(value->data[i + 1]);
		if (high < 0 || low < 0)
			return false;
		value->data[i / 2 - 1] = (char)(high << 4 | low);
	}
	value->length = value->length / 2 - 1;
	value->data[value->length] = '\0';
	return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool take_values(const struct semel_pgoutput *stream, struct bytes *bytes,
			struct value values[COLUMNS])
{
	char *ending = NULL; /* where the NUL of the previous text goes */
	uint16_t count = (uint16_t)take_number(bytes, 2);
	for (uint16_t i = 0; i < count && i < stream->column_count && !bytes->broken; i++) {
		struct value value = { NULL, 0, false };
		char kind = (char)take_number(bytes, 1);
		if (ending != NULL)
			*ending = '\0';
		ending = NULL;
		if (kind == 't' || kind == 'b') {
			value.binary = kind == 'b';
			value.length = take_length(bytes);
			value.data = take_bytes(bytes, value.length);
			ending = bytes->at;
		} else if (kind != 'n') {
			return false;
		}
		if (stream->columns[i] >= 0)
			values[stream->columns[i]] = value;
	}
	if (ending != NULL && !bytes->broken)
		*ending = '\0';
	return !bytes->broken && count == stream->column_count;
}

static bool fill_row(struct value values[COLUMNS], struct semel_arena *arena,
		     struct semel_outbox_row *row)
{
	struct semel_event *event = &row->event;
	int64_t lane = 0;
	bool bytes = values[PAYLOAD].data == NULL && values[PAYLOAD_BYTES].data != NULL;
	if (!read_number(&values[SEQ], &row->seq) || !read_number(&values[LANE], &lane) ||
	    !read_time(&values[CREATED_AT], &event->time_ms) ||
	    (bytes && !unfold_bytes(&values[PAYLOAD_BYTES])))
		return false;
	row->lane = (int32_t)lane;
	event->id = text_of(&values[ID]);
	event->type = text_of(&values[EVENT_TYPE]);
	event->aggregate_type = text_of(&values[AGGREGATE_TYPE]);
	event->aggregate_id = text_of(&values[AGGREGATE_ID]);
	event->topic = text_of(&values[TOPIC]);
	event->routing_key = text_of(&values[ROUTING_KEY]);
	event->content_type = text_of(&values[CONTENT_TYPE]);
	event->headers = text_of(&values[HEADERS]);
	event->payload = text_of(&values[bytes ? PAYLOAD_BYTES : PAYLOAD]);
	if (event->routing_key.data == NULL)
		event->routing_key = event->type;
	if (event->id.data == NULL || event->type.data == NULL ||
	    event->aggregate_type.data == NULL || event->aggregate_id.data == NULL ||
	    event->content_type.data == NULL || event->headers.data == NULL ||
	    event->payload.data == NULL)
		return false;
	if (event->topic.data == NULL)
		event->topic = semel_event_default_topic(event->aggregate_type, arena);
	return event->topic.data != NULL;
}

static semel_status read_insert(const struct semel_pgoutput *stream, struct bytes *bytes,
				struct semel_arena *arena, struct semel_pgoutput_message *message,
				semel_error *error)
{
	struct value values[COLUMNS] = { 0 };
	uint32_t relation = (uint32_t)take_number(bytes, 4);
	if (stream->relation == 0 || relation != stream->relation)
		return SEMEL_OK;
	if (take_number(bytes, 1) != 'N' || !take_values(stream, bytes, values) ||
	    !fill_row(values, arena, &message->row))
		return refuse("a row", error);
	message->kind = SEMEL_PGOUTPUT_ROW;
	return SEMEL_OK;
}

/* where the commit ends, when, who */
static semel_status read_begin(struct bytes *bytes, struct semel_pgoutput_message *message,
			       semel_error *error)
{
	message->position = take_number(bytes, 8);
	(void)take_number(bytes, 8);
	message->xid = (uint32_t)take_number(bytes, 4);
	if (bytes->broken)
		return refuse("a transaction", error);
	message->kind = SEMEL_PGOUTPUT_BEGIN;
	return SEMEL_OK;
}

/* flags, where the commit begins, where it ends, when */
static semel_status read_commit(struct bytes *bytes, struct semel_pgoutput_message *message,
				semel_error *error)
{
	(void)take_number(bytes, 1);
	(void)take_number(bytes, 8);
	message->position = take_number(bytes, 8);
	if (bytes->broken)
		return refuse("a commit", error);
	message->kind = SEMEL_PGOUTPUT_COMMIT;
	return SEMEL_OK;
}

semel_status semel_pgoutput_read(struct semel_pgoutput *stream, char *bytes, size_t length,
				 struct semel_arena *arena,
				 struct semel_pgoutput_message *message_out, semel_error *error)
{
	struct bytes rest = { bytes, bytes + length, false };
	*message_out = (struct semel_pgoutput_message){ .kind = SEMEL_PGOUTPUT_OTHER };
	switch ((char)take_number(&rest, 1)) {
	case 'B':
		return read_begin(&rest, message_out, error);
	case 'C':
		return read_commit(&rest, message_out, error);
	case 'R':
		return read_relation(stream, &rest, message_out, error);
	case 'I':
		return read_insert(stream, &rest, arena, message_out, error);
	default: /* types, origins, truncations, messages of others */
		return rest.broken ? refuse("an empty message", error) : SEMEL_OK;
	}
}
