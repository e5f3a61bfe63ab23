/* SPDX-License-Identifier: Apache-2.0 */
/* An event as a record: the key is the aggregate's id, the value the payload, which librdkafka
 * reads where it lies (the event is unchanged until its outcome); everything else is a header. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

static bool add(const struct semel_kafka_library *library, rd_kafka_headers_t *headers,
		struct semel_wire_field field)
{
	return library->header_add(headers, field.name.data, (ssize_t)field.name.length,
				   field.value.data,
				   (ssize_t)field.value.length) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* NULL: no memory. What goes to one of our own subscriptions is never plain. */
static rd_kafka_headers_t *make_headers(struct semel_kafka *kafka,
					const struct semel_kafka_post *post, bool *plain_out)
{
	const struct semel_event *event = post->event;
	struct semel_wire_message message;
	struct semel_wire_names names = semel_wire_kafka;
	names.may_be_plain = post->extra_count == 0;
	semel_arena_reset(kafka->scratch);
	if (!semel_wire_write(event, post->passage, &names, kafka->scratch, &message))
		return NULL;
	*plain_out = message.plain;
	rd_kafka_headers_t *headers =
		kafka->library->headers_new(message.count + 2 + post->extra_count);
	bool added = headers != NULL;
	for (size_t i = 0; i < message.count && added; i++)
		added = add(kafka->library, headers, message.fields[i]);
	for (size_t i = 0; i < post->extra_count && added; i++)
		added = add(kafka->library, headers, post->extra[i]);
	if (added && event->content_type.data && !message.plain)
		added = add(kafka->library, headers,
			    (struct semel_wire_field){ SEMEL_TEXT("content-type"),
						       event->content_type });
	if (added && event->routing_key.data && !message.plain &&
	    !semel_text_equal(event->routing_key, event->type))
		added = add(kafka->library, headers, semel_wire_routing_key(event));
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
		kafka->window.broken = true;
		return SEMEL_OK;
	default:
		return semel_error_set(error, SEMEL_OUTAGE, "%s takes no event: %s", kafka->place,
				       kafka->library->err2str(err));
	}
}

semel_status semel_kafka_post(struct semel_kafka *kafka, rd_kafka_topic_t *topic,
			      const struct semel_kafka_post *post, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	const struct semel_event *event = post->event;
	bool plain = false;
	rd_kafka_headers_t *headers = make_headers(kafka, post, &plain);
	if (!headers)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a record");
	void *value = (void *)(uintptr_t)event->payload.data;
	const rd_kafka_vu_t fields[] = {
		{ .vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = topic },
		/* Others have no value where their payload is NULL. */
		{ .vtype = RD_KAFKA_VTYPE_VALUE,
		  .u.mem = { plain && event->payload.length == 0 ? NULL : value,
			     event->payload.length } },
		{ .vtype = RD_KAFKA_VTYPE_TIMESTAMP, .u.i64 = plain ? event->time_ms : 0 },
		{ .vtype = RD_KAFKA_VTYPE_KEY,
		  .u.mem = { (void *)(uintptr_t)event->aggregate_id.data,
			     event->aggregate_id.length } },
		{ .vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers },
		{ .vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = post->opaque },
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
