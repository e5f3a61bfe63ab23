/* SPDX-License-Identifier: Apache-2.0 */
/* How an event is written to Kafka as a record and read from it; and the metadata of a commit.
 *
 * The key of a record is the aggregate's id, its value the payload, which librdkafka reads in place
 * (the event is unchanged until its outcome); everything else is a header. Foreign records are read
 * as far as possible: a null key, a null value (a tombstone), headers without a value, keys that
 * are not text.
 *
 * librdkafka allocates every header separately, which is a fifth of a record's cost. Most events of
 * one type differ in a few headers only; so the headers of a delivered record are used again, as a
 * template. We own them until the next record uses them, and a value is overwritten by one of the
 * same length.
 *
 * The metadata of a commit is "semel:N", or "semel:N:O:H", or "semel:N:O:H:O:H":
 *
 * N  records up to this offset may have been fetched; written ahead, so that it costs next to
 *    nothing. From it the next owner knows what is redelivered.
 * O  the offset of a record that was in the log, and H its hash (16 hexadecimal digits): with these
 *    the next owner checks that the log is still the same (anchor.c). */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "event/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_AT       1 /* in the headers of a typical event: after the content type */
#define METADATA_PREFIX "semel:"

/* In all its versions so far, librdkafka returns a pointer to the value that it will send. Later
 * versions may not: there the headers are created for each event. */
#define VERSION_UNKNOWN 0x03000000

/* ---- writing a record ------------------------------------------------------------------------ */

static bool add_header(const struct semel_kafka_library *library, rd_kafka_headers_t *headers,
		       struct semel_wire_field field)
{
	return library->header_add(headers, semel_text_chars(field.name),
				   (ssize_t)field.name.length, field.value.data,
				   (ssize_t)field.value.length) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static bool replace_header(const struct semel_kafka_library *library, rd_kafka_headers_t *headers,
			   struct semel_wire_field field)
{
	(void)library->header_remove(headers, semel_text_string(field.name));
	return add_header(library, headers, field);
}

/* False: the previous value has another length. */
static bool write_over(const struct semel_kafka_library *library, rd_kafka_headers_t *headers,
		       size_t at, struct semel_wire_field field)
{
	const char *name = NULL;
	const void *value = NULL;
	size_t size = 0;
	if (library->header_get_all(headers, at, &name, &value, &size) !=
		    RD_KAFKA_RESP_ERR_NO_ERROR ||
	    size != field.value.length || !semel_text_equals_string(field.name, name))
		return false;
	memcpy((void *)(uintptr_t)value, field.value.data, size);
	return true;
}

static bool has_own_routing_key(const struct semel_event *event)
{
	return event->routing_key.data && !semel_text_equal(event->routing_key, event->type);
}

/* ---- templates ------------------------------------------------------------------------------- */

/* The event has exactly the headers that most events have. */
static bool is_usual(const struct semel_kafka_outgoing *outgoing)
{
	const struct semel_event *event = outgoing->event;
	const struct semel_publish_metadata *metadata = outgoing->metadata;
	return semel_text_equal(event->headers, SEMEL_TEXT("{}")) && event->id.data &&
	       event->type.data && event->aggregate_type.data && event->aggregate_id.data &&
	       event->content_type.data && !has_own_routing_key(event) && metadata->previous.data &&
	       metadata->attempt == 0 && metadata->replay == 0 && outgoing->extra_count == 0;
}

/* What events of a template have in common; a NUL ends each text. 0: it is too long. */
static size_t write_kind(const struct semel_event *event, char *text, size_t size)
{
	const struct semel_text parts[] = { event->type, event->aggregate_type,
					    event->content_type };
	size_t length = 0;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (parts[i].length >= size - length)
			return 0;
		memcpy(text + length, parts[i].data, parts[i].length);
		length += parts[i].length;
		text[length++] = '\0';
	}
	return length;
}

uint64_t semel_kafka_header_template_of(struct semel_kafka *kafka,
					const struct semel_kafka_outgoing *outgoing)
{
	const struct semel_event *event = outgoing->event;
	char text[sizeof(kafka->header_templates[0].text)];
	bool usual = kafka->library->version() < VERSION_UNKNOWN && is_usual(outgoing);
	size_t length = usual ? write_kind(event, text, sizeof(text)) : 0;
	if (length == 0)
		return 0;
	struct semel_kafka_header_template *kind =
		&kafka->header_templates[semel_hash_aggregate(event->aggregate_type, event->type) %
					 SEMEL_KAFKA_HEADER_TEMPLATES];
	if (kind->length == length && memcmp(kind->text, text, length) == 0)
		return kind->number;
	kind->number = ++kafka->header_template_count;
	kind->length = length;
	memcpy(kind->text, text, length);
	return kind->number;
}

/* ---- headers --------------------------------------------------------------------------------- */

/* The last header may have any length: a replaced header becomes the last one. */
static bool overwrite_headers(const struct semel_kafka_library *library,
			      rd_kafka_headers_t *headers, const struct semel_wire_message *message)
{
	bool done = true;
	for (size_t i = 0; done && i < message->count; i++) {
		if ((message->varying >> i & 1) == 0)
			continue;
		done = write_over(library, headers, FIELDS_AT + i, message->fields[i]);
		if (!done && i == message->count - 1)
			done = replace_header(library, headers, message->fields[i]);
	}
	return done;
}

/* NULL: no template, or it does not fit. */
static rd_kafka_headers_t *renew_headers(struct semel_kafka *kafka,
					 const struct semel_kafka_outgoing *outgoing)
{
	struct semel_wire_message message;
	if (!outgoing->used)
		return NULL;
	semel_arena_reset(kafka->scratch);
	if (semel_wire_write(outgoing->event, outgoing->metadata, &semel_wire_kafka, kafka->scratch,
			     &message) &&
	    overwrite_headers(kafka->library, outgoing->used, &message))
		return outgoing->used;
	kafka->library->headers_destroy(outgoing->used);
	return NULL;
}

/* Only one header has this name: an event's own header of it is dropped. */
static const struct semel_text content_type_name = SEMEL_TEXT_CONST("content-type");

/* NULL: out of memory. A record for one of our own subscriptions is never plain. */
static rd_kafka_headers_t *make_headers(struct semel_kafka *kafka,
					const struct semel_kafka_outgoing *outgoing,
					bool *plain_out)
{
	const struct semel_event *event = outgoing->event;
	struct semel_wire_message message;
	struct semel_wire_names names = semel_wire_kafka;
	names.may_be_plain = outgoing->extra_count == 0;
	semel_arena_reset(kafka->scratch);
	if (!semel_wire_write(event, outgoing->metadata, &names, kafka->scratch, &message))
		return NULL;
	*plain_out = message.plain;
	rd_kafka_headers_t *headers =
		kafka->library->headers_new(message.count + 2 + outgoing->extra_count);
	bool added = headers != NULL;
	bool typed = event->content_type.data && !message.plain;
	if (added && typed)
		added = add_header(
			kafka->library, headers,
			(struct semel_wire_field){ content_type_name, event->content_type });
	for (size_t i = 0; i < message.count && added; i++)
		added = (typed && semel_text_equal(message.fields[i].name, content_type_name)) ||
			add_header(kafka->library, headers, message.fields[i]);
	for (size_t i = 0; i < outgoing->extra_count && added; i++)
		added = add_header(kafka->library, headers, outgoing->extra[i]);
	if (added && !message.plain && has_own_routing_key(event))
		added = add_header(kafka->library, headers, semel_wire_routing_key(event));
	if (added || !headers)
		return headers;
	kafka->library->headers_destroy(headers);
	return NULL;
}

static semel_status explain(struct semel_kafka *kafka, rd_kafka_resp_err_t err, semel_error *error)
{
	switch (err) {
	case RD_KAFKA_RESP_ERR_NO_ERROR:
		return SEMEL_OK;
	case RD_KAFKA_RESP_ERR__QUEUE_FULL:
		return SEMEL_FULL;
	case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "the event is larger than message.max.bytes of the kafka: "
				       "URL (1000000 unless it is set)");
	case RD_KAFKA_RESP_ERR__FATAL:
	case RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE:
	case RD_KAFKA_RESP_ERR__STATE: /* its transaction has failed */
		kafka->window.broken = true;
		return SEMEL_OK;
	default:
		return semel_error_set(error, SEMEL_OUTAGE, "%s does not accept events: %s",
				       kafka->address, kafka->library->err2str(err));
	}
}

semel_status semel_kafka_produce(struct semel_kafka *kafka, rd_kafka_topic_t *topic,
				 const struct semel_kafka_outgoing *outgoing, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	const struct semel_event *event = outgoing->event;
	bool plain = false;
	rd_kafka_headers_t *headers = renew_headers(kafka, outgoing);
	if (!headers)
		headers = make_headers(kafka, outgoing, &plain);
	if (!headers)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a record");
	void *value = (void *)(uintptr_t)event->payload.data;
	const rd_kafka_vu_t fields[] = {
		{ .vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = topic },
		/* In other programs' records a NULL payload is not a value. */
		{ .vtype = RD_KAFKA_VTYPE_VALUE,
		  .u.mem = { plain && event->payload.length == 0 ? NULL : value,
			     event->payload.length } },
		{ .vtype = RD_KAFKA_VTYPE_TIMESTAMP, .u.i64 = plain ? event->time_ms : 0 },
		{ .vtype = RD_KAFKA_VTYPE_KEY,
		  .u.mem = { (void *)(uintptr_t)event->aggregate_id.data,
			     event->aggregate_id.length } },
		{ .vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers },
		{ .vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = outgoing->opaque },
	};
	rd_kafka_error_t *failure =
		library->produceva(kafka->producer, fields, sizeof(fields) / sizeof(fields[0]));
	if (!failure)
		return SEMEL_OK;
	semel_status status = explain(kafka, library->error_code(failure), error);
	library->error_destroy(failure);
	library->headers_destroy(headers);
	return status;
}

/* ---- reading a record ------------------------------------------------------------------------ */

static const char empty[] = "";

struct semel_text semel_kafka_header(const struct semel_kafka *kafka,
				     const rd_kafka_message_t *message, const char *name)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_headers_t *headers = NULL;
	const void *value = NULL;
	size_t size = 0;
	if (library->message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
	    library->header_get_last(headers, name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return (struct semel_text){ NULL, 0 };
	return (struct semel_text){ value ? value : empty, size };
}

int64_t semel_kafka_due_of(const struct semel_kafka *kafka, const rd_kafka_message_t *message)
{
	struct semel_text text = semel_kafka_header(kafka, message, "semel-due");
	char digits[24];
	long long due_ms = 0;
	if (!text.data || text.length >= sizeof(digits) || semel_text_has_nul(text))
		return 0;
	memcpy(digits, text.data, text.length);
	digits[text.length] = '\0';
	return semel_text_to_int64(digits, 0, INT64_MAX, &due_ms) ? due_ms : 0;
}

static void read_headers(const struct semel_kafka *kafka, const rd_kafka_message_t *message,
			 struct semel_wire_reading *reading)
{
	rd_kafka_headers_t *headers = NULL;
	const char *name;
	const void *value;
	size_t size;
	if (kafka->library->message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return;
	for (size_t i = 0; kafka->library->header_get_all(headers, i, &name, &value, &size) ==
			   RD_KAFKA_RESP_ERR_NO_ERROR;
	     i++) {
		struct semel_text text = { value ? value : empty, value ? size : 0 };
		struct semel_text key = semel_text_of(name);
		if (semel_text_equal(key, SEMEL_TEXT("content-type")))
			reading->event.content_type = text;
		else
			semel_wire_read_field(reading, key, text);
	}
}

/* The ordering key of a foreign record. A record without a key has no order to keep: it is an
 * aggregate of its own. Bytes that are not text become base64. */
static struct semel_text key_of(const rd_kafka_message_t *message, struct semel_arena *arena,
				struct semel_text id)
{
	struct semel_text key = { message->key, message->key_len };
	if (!message->key)
		return id;
	if (semel_text_is_utf8(key) && !semel_text_has_control(key))
		return key;
	struct semel_buffer text = { 0 };
	semel_buffer_base64(&text, message->key, message->key_len);
	struct semel_text copy = semel_arena_text(arena, text.data, text.length);
	semel_buffer_free(&text);
	return copy;
}

static void complete(struct semel_wire_reading *reading, struct semel_text key)
{
	struct semel_event *event = &reading->event;
	if (!event->type.data && event->routing_key.data)
		event->type = event->routing_key;
	if (!event->type.data)
		event->type = event->topic;
	if (!event->routing_key.data)
		event->routing_key = event->type;
	if (!event->aggregate_id.data || event->aggregate_id.length == 0)
		event->aggregate_id = key;
}

bool semel_kafka_read_record(struct semel_kafka *kafka,
			     const struct semel_kafka_assignment *assignment,
			     const rd_kafka_message_t *message, struct semel_arena *arena,
			     struct semel_delivery *delivery_out)
{
	struct semel_wire_reading reading;
	rd_kafka_timestamp_type_t kind;
	int64_t stamp_ms = kafka->library->message_timestamp(message, &kind);
	semel_wire_read_begin(&reading, &semel_wire_kafka, arena, &kafka->header_text);
	reading.event.topic = semel_text_of(assignment->event_topic);
	reading.event.time_ms =
		kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE || stamp_ms < 0 ? 0 : stamp_ms;
	read_headers(kafka, message, &reading);
	complete(&reading, key_of(message, arena, reading.event.id));
	if (!semel_wire_read_end(&reading))
		return false;
	if (!message->payload) /* a tombstone is not invalid JSON, whatever its headers say */
		reading.event.content_type = SEMEL_TEXT("application/octet-stream");
	reading.event.payload = semel_arena_text(arena, message->payload ? message->payload : empty,
						 message->payload ? message->len : 0);
	*delivery_out = (struct semel_delivery){
		.event = reading.event,
		.metadata = reading.metadata,
		.partition = message->partition,
		.offset = message->offset,
	};
	return reading.event.payload.data != NULL;
}

/* ---- the metadata of a commit ---------------------------------------------------------------- */

static void add_anchor(char *metadata, struct semel_anchor anchor)
{
	size_t length = strlen(metadata);
	snprintf(metadata + length, SEMEL_KAFKA_COMMIT_METADATA_SIZE - length,
		 ":%" PRId64 ":%016" PRIx64, anchor.offset, anchor.hash);
}

void semel_kafka_commit_metadata_write(const struct semel_kafka_assignment *assignment,
				       int64_t fetched_to,
				       char metadata_out[SEMEL_KAFKA_COMMIT_METADATA_SIZE])
{
	snprintf(metadata_out, SEMEL_KAFKA_COMMIT_METADATA_SIZE, METADATA_PREFIX "%" PRId64,
		 fetched_to);
	if (assignment->verified.offset >= 0)
		add_anchor(metadata_out, assignment->verified);
	if (assignment->last_acked.offset >= 0 &&
	    assignment->last_acked.offset != assignment->verified.offset)
		add_anchor(metadata_out, assignment->last_acked);
}

/* Reads the next number of the text, followed by ':' or the end. False: there is none. */
static bool read_number(char **text, int base, uint64_t *number_out)
{
	char *end = NULL;
	if (!**text || strchr("+- \t", **text))
		return false;
	*number_out = strtoull(*text, &end, base);
	if (end == *text || (*end != ':' && *end != '\0'))
		return false;
	*text = *end ? end + 1 : end;
	return true;
}

int64_t semel_kafka_commit_metadata_read(const rd_kafka_topic_partition_t *entry,
					 struct semel_anchor anchors_out[2], uint32_t *count_out)
{
	char text[SEMEL_KAFKA_COMMIT_METADATA_SIZE], *at = text + strlen(METADATA_PREFIX);
	uint64_t fetched_to = 0, offset = 0, hash = 0;
	*count_out = 0;
	if (!entry->metadata)
		return -1;
	if (entry->metadata_size <= strlen(METADATA_PREFIX) ||
	    entry->metadata_size >= sizeof(text) ||
	    memcmp(entry->metadata, METADATA_PREFIX, strlen(METADATA_PREFIX)) != 0)
		return 0;
	memcpy(text, entry->metadata, entry->metadata_size);
	text[entry->metadata_size] = '\0';
	if (!read_number(&at, 10, &fetched_to) || fetched_to > INT64_MAX)
		return 0;
	while (*count_out < 2 && read_number(&at, 10, &offset) && offset <= INT64_MAX &&
	       read_number(&at, 16, &hash))
		anchors_out[(*count_out)++] =
			(struct semel_anchor){ .offset = (int64_t)offset, .hash = hash };
	return (int64_t)fetched_to;
}
