/* SPDX-License-Identifier: Apache-2.0 */
/* A record of Kafka with any key, value, time and headers, and the metadata of a commit. A byte of
 * length stands before each piece; 255: it is null. */
#include "broker/kafka/kafka.h"

#include "wire_promises.h"

#define HEADERS_MAX 32

struct piece {
	uint8_t *data; /* NULL: null */
	size_t length;
};

struct input {
	const uint8_t *at, *end;
};

static struct {
	char *names[HEADERS_MAX];
	struct piece values[HEADERS_MAX];
	size_t count;
	int64_t stamp_ms;
	rd_kafka_timestamp_type_t kind;
} record;

/* ---- the record, as librdkafka would give it --------------------------------------------------
 */

static rd_kafka_resp_err_t give_headers(const rd_kafka_message_t *message,
					rd_kafka_headers_t **headers_out)
{
	(void)message;
	*headers_out = NULL;
	return record.count > 0 ? RD_KAFKA_RESP_ERR_NO_ERROR : RD_KAFKA_RESP_ERR__NOENT;
}

static rd_kafka_resp_err_t give_header(const rd_kafka_headers_t *headers, size_t at,
				       const char **name_out, const void **value_out,
				       size_t *size_out)
{
	(void)headers;
	if (at >= record.count)
		return RD_KAFKA_RESP_ERR__NOENT;
	*name_out = record.names[at];
	*value_out = record.values[at].data;
	*size_out = record.values[at].length;
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t give_last(const rd_kafka_headers_t *headers, const char *name,
				     const void **value_out, size_t *size_out)
{
	const char *found;
	for (size_t at = record.count; at > 0; at--)
		if (strcmp(record.names[at - 1], name) == 0)
			return give_header(headers, at - 1, &found, value_out, size_out);
	return RD_KAFKA_RESP_ERR__NOENT;
}

static int64_t give_stamp(const rd_kafka_message_t *message, rd_kafka_timestamp_type_t *kind_out)
{
	(void)message;
	*kind_out = record.kind;
	return record.stamp_ms;
}

static const struct semel_kafka_library library = { .message_headers = give_headers,
						    .header_get_all = give_header,
						    .header_get_last = give_last,
						    .message_timestamp = give_stamp };

/* ---- the input --------------------------------------------------------------------------------
 */

/* In memory of its own size, so that every step beyond is seen. */
static struct piece next_piece(struct input *input)
{
	if (input->at == input->end || *input->at++ == 255)
		return (struct piece){ NULL, 0 };
	size_t length = input->at[-1], left = (size_t)(input->end - input->at);
	if (length > left)
		length = left;
	struct piece piece = { malloc(length > 0 ? length : 1), length };
	PROMISE(piece.data);
	if (length > 0)
		memcpy(piece.data, input->at, length);
	input->at += length;
	return piece;
}

static int64_t next_number(struct input *input)
{
	int64_t number = 0;
	size_t left = (size_t)(input->end - input->at);
	size_t length = left < sizeof number ? left : sizeof number;
	memcpy(&number, input->at, length);
	input->at += length;
	return number;
}

static void read_record_headers(struct input *input)
{
	record.count = 0;
	while (input->at < input->end && record.count < HEADERS_MAX) {
		struct piece name = next_piece(input);
		record.names[record.count] = fuzz_copy(name.data, name.length);
		record.values[record.count++] = next_piece(input);
		free(name.data);
	}
}

static void free_record_headers(void)
{
	for (size_t i = 0; i < record.count; i++) {
		free(record.names[i]);
		free(record.values[i].data);
	}
}

/* ---- what is promised -------------------------------------------------------------------------
 */

static void read_record(const rd_kafka_message_t *message)
{
	struct semel_kafka kafka = { .library = &library };
	char topic[] = "orders";
	struct semel_kafka_assignment assignment = { .event_topic = topic };
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_delivery delivery;
	PROMISE(semel_kafka_read_record(&kafka, &assignment, message, arena, &delivery));
	check_event(&delivery.event, &delivery.metadata);
	check_way_back(&delivery.event, &delivery.metadata, &semel_wire_kafka, arena);
	PROMISE(delivery.event.payload.length == message->len);
	PROMISE(message->len == 0 ||
		memcmp(delivery.event.payload.data, message->payload, message->len) == 0);
	PROMISE(semel_kafka_due_of(&kafka, message) >= 0);
	semel_buffer_free(&kafka.header_text);
	semel_arena_free(arena);
}

/* What we write ourselves is understood; what others wrote never means a place below zero. */
static void read_note(struct piece metadata)
{
	rd_kafka_topic_partition_t entry = { .metadata = metadata.data,
					     .metadata_size = metadata.length };
	struct semel_anchor anchors[2], again[2];
	uint32_t count = 9, count_again = 9;
	int64_t fetched_to = semel_kafka_commit_metadata_read(&entry, anchors, &count);
	PROMISE(count <= 2);
	PROMISE(metadata.data ? fetched_to >= 0 : fetched_to == -1 && count == 0);
	for (uint32_t i = 0; i < count; i++)
		PROMISE(anchors[i].offset >= 0);
	struct semel_kafka_assignment assignment = {
		.verified = count > 0 ? anchors[0] : SEMEL_ANCHOR_NONE,
		.last_acked = count > 1 ? anchors[1] : SEMEL_ANCHOR_NONE
	};
	char note[SEMEL_KAFKA_COMMIT_METADATA_SIZE];
	semel_kafka_commit_metadata_write(&assignment, fetched_to < 0 ? 0 : fetched_to, note);
	entry = (rd_kafka_topic_partition_t){ .metadata = note, .metadata_size = strlen(note) };
	PROMISE(semel_kafka_commit_metadata_read(&entry, again, &count_again) ==
		(fetched_to < 0 ? 0 : fetched_to));
	PROMISE(count_again == count ||
		(count == 2 && count_again == 1 && anchors[0].offset == anchors[1].offset));
	for (uint32_t i = 0; i < count_again; i++)
		PROMISE(anchors[i].offset == again[i].offset && anchors[i].hash == again[i].hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = { data, data + size };
	record.kind = size > 0 ? (rd_kafka_timestamp_type_t)(*input.at++ % 3) : 0;
	record.stamp_ms = next_number(&input);
	struct piece metadata = next_piece(&input), key = next_piece(&input),
		     value = next_piece(&input);
	read_record_headers(&input);
	const rd_kafka_message_t message = {
		.key = key.data, .key_len = key.length, .payload = value.data, .len = value.length
	};
	read_record(&message);
	read_note(metadata);
	free_record_headers();
	free(metadata.data);
	free(key.data);
	free(value.data);
	return 0;
}
