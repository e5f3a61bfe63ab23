/* SPDX-License-Identifier: Apache-2.0 */
/* src/event: the envelope, one event as every room sees it. A view: the texts belong to an arena or
 * to the caller, and are NUL-terminated.
 *
 * To change here: this room checks, completes and writes events, as JSON (record.c) and
 * as fields of a protocol (wire.h); it has no store and no broker. What it refuses is part of the
 * promise to producers in other languages (docs/other-languages.md), and hashes of ids are kept in
 * stores: neither changes without a migration. */
#ifndef SEMEL_EVENT_EVENT_H
#define SEMEL_EVENT_EVENT_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/text.h"

#include <semel/event.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_event {
	struct semel_text id; /* data NULL only in a broken delivery */
	struct semel_text type;
	struct semel_text aggregate_type, aggregate_id;
	struct semel_text topic, routing_key;
	struct semel_text content_type;
	struct semel_text headers; /* text of a JSON object; never NULL, "{}" when empty */
	struct semel_text payload;
	int64_t time_ms;
};

/* Replaces the parts of an event that are not shown. */
#define SEMEL_HIDDEN "[hidden]"

/* An event in a log, by which a reader recognises the log. offset -1: none is known. */
struct semel_anchor {
	int64_t offset;
	uint64_t hash; /* of its id */
};

#define SEMEL_ANCHOR_NONE ((struct semel_anchor){ .offset = -1 })

/* The hash is stored, so this function must never change. */
uint64_t semel_event_hash_id(struct semel_text id);

#define SEMEL_NAME_MAX    255 /* type, aggregate, topic, routing key, id */
#define SEMEL_HEADERS_MAX 65536
/* The limit for deliveries: messages of other programs may have longer names than ours. A whole key
 * still fits into one index entry of every store. */
#define SEMEL_FOREIGN_NAME_MAX 1024

/* Checks an input and completes it (defaults, id, time), in the arena. INVALID or TOO_LARGE with a
 * text that names the field and says what to do. Everything of the input is copied except the
 * payload, which must outlive the event. */
semel_status semel_event_from_input(const semel_event_input *input, const struct semel_env *env,
				    struct semel_arena *arena, struct semel_event *event_out,
				    semel_error *error);

/* Checks an event of the outbox before it is sent, since other programs write into the table too.
 * INVALID when one of its names, or the name of a header, contains a NUL: brokers and their clients
 * would cut it there, and take it for another name. */
semel_status semel_event_check_names(const struct semel_event *event, semel_error *error);
/* <aggregate type>.events, in the arena; data NULL: out of memory. */
struct semel_text semel_event_default_topic(struct semel_text aggregate_type,
					    struct semel_arena *arena);

/* Does this delivery meet the contract? CONTRACT: no id, names that are missing or that a store
 * cannot keep, headers that are not a JSON object, or a payload that claims to be JSON and is
 * not. */
semel_status semel_event_check(const struct semel_event *event, semel_error *error);
/* Can every store keep this name, and find it again? CONTRACT, naming the field. */
semel_status semel_event_check_storable(const char *field, struct semel_text name,
					semel_error *error);
/* Replaces names that no store can keep by the beginning of the name and a hash; the same name
 * always gets the same replacement. In the arena; without memory a name is lost. */
void semel_event_make_storable(struct semel_event *event, struct semel_arena *arena);

bool semel_event_is_json(const struct semel_event *event);
/* True if both events are of the same aggregate. */
bool semel_event_has_same_aggregate(const struct semel_event *event,
				    const struct semel_event *other);

/* A known header ("correlationId"), or data NULL. */
struct semel_text semel_event_header(const struct semel_event *event, const char *name,
				     struct semel_arena *arena);

/* The headers that flow on to a follow-up of this event: correlationId (or the event's id where it
 * has none), causationId = the event's id, tenantId, sagaId, traceparent, tracestate. */
struct semel_text semel_event_flow_headers(const struct semel_event *event,
					   struct semel_arena *arena);
/* The same, but the follow-up's own headers win (a JSON object; data NULL: it has none). */
struct semel_text semel_event_follow_up_headers(const struct semel_event *event,
						struct semel_text own, struct semel_arena *arena);

/* The record as one JSON object: id, type, aggregateType, aggregateId, topic, routingKey, time,
 * contentType, headers, payload (the value itself when it is JSON, else a string; payloadBase64
 * when it is not UTF-8). Always one line: line breaks between JSON tokens become spaces. */
void semel_event_to_json(const struct semel_event *event, struct semel_buffer *buffer);
/* The same for display, for example of a dead letter: an unknown time is null. Handlers get
 * 1970-01-01 instead, since a claim of their own needs a time. */
void semel_event_to_record(const struct semel_event *event, struct semel_buffer *buffer);

/* Reads a line of `publish --batch`, with the same members (payload may be any JSON value: a text
 * stays as it is only with a contentType that is not JSON). Unknown members are INVALID. All in the
 * arena. */
semel_status semel_event_input_from_json(struct semel_text line, struct semel_arena *arena,
					 semel_event_input *input_out, semel_error *error);

#endif
