/* SPDX-License-Identifier: Apache-2.0 */
/* Events: what a producer gives, and what a handler is shown. */
#ifndef SEMEL_EVENT_H
#define SEMEL_EVENT_H

#include <semel/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SEMEL_ID_SIZE     37 /* a UUID as text, with its NUL */
#define SEMEL_PAYLOAD_MAX ((size_t)16 * 1024 * 1024)

/* A plain input: zero what you do not use. Strings are copied before the call returns.
 * type, aggregate_type, aggregate_id and payload are required. */
typedef struct semel_event_input {
	const char *type;           /* "order.created.v1" */
	const char *aggregate_type; /* "order": with aggregate_id the ordering key */
	const char *aggregate_id;
	const void *payload;
	size_t payload_size; /* 0: payload is a C string */
	const char
		*content_type;   /* NULL: application/json, and the payload is checked to be that */
	const char *topic;       /* NULL: <aggregate_type>.events */
	const char *routing_key; /* NULL: the type */
	const char *headers;     /* NULL or a JSON object with text values */
	const char *id;          /* NULL: a UUIDv7 is generated */
	int64_t time_ms;         /* when it happened, since 1970 in UTC; 0: now */
} semel_event_input;

/* A read-only view of an event in flight; valid during the handler's call only. */
typedef struct semel_event semel_event;

SEMEL_API const char *semel_event_id(const semel_event *event);
SEMEL_API const char *semel_event_type(const semel_event *event);
SEMEL_API const char *semel_event_aggregate_type(const semel_event *event);
SEMEL_API const char *semel_event_aggregate_id(const semel_event *event);
SEMEL_API const char *semel_event_topic(const semel_event *event);
SEMEL_API const char *semel_event_routing_key(const semel_event *event);
SEMEL_API const char *semel_event_content_type(const semel_event *event);
/* The headers as the text of a JSON object. */
SEMEL_API const char *semel_event_headers(const semel_event *event);
/* Always followed by a NUL that does not count in the size. */
SEMEL_API const void *semel_event_payload(const semel_event *event, size_t *size_out);
SEMEL_API int64_t semel_event_time_ms(const semel_event *event);

#ifdef __cplusplus
}
#endif
#endif
