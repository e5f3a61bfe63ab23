/* SPDX-License-Identifier: Apache-2.0 */
/* An event as brokers carry it: named texts beside the payload. Which names, and what a foreign
 * message means that has only some of them, is the same for all brokers; a driver adds the
 * properties of its own protocol. */
#ifndef SEMEL_EVENT_WIRE_H
#define SEMEL_EVENT_WIRE_H

#include "base/buffer.h"
#include "event/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What travels with an event besides the event. */
struct semel_publish_metadata {
	struct semel_text previous; /* semel-previous; data NULL: unknown or none */
	uint32_t attempt;           /* semel-attempt: runs of the handler so far; 0: none */
	uint32_t replay;            /* semel-replay: which replay of its dead letter; 0: none */
	bool replayed;              /* sent again from the outbox: semel-replay says 0 */
	uint64_t transaction; /* those of one number were committed together, and come one after
			       * another; 0: not known. It does not travel. */
};

/* How a protocol spells the attributes of CloudEvents. */
struct semel_wire_names {
	struct semel_text prefix; /* "cloudEvents_" */
	struct semel_text id, type, source, time, version;
	bool has_lanes;    /* the broker chooses a queue by the header semel-lane */
	bool may_be_plain; /* an event may go without ours: its own header semel-wire says plain */
};

extern const struct semel_wire_names semel_wire_amqp, semel_wire_kafka;

/* The queues that a topic's aggregates can be spread over: the header semel-lane. */
#define SEMEL_WIRE_LANES 16

uint32_t semel_wire_lane(const struct semel_event *event);

struct semel_wire_field {
	struct semel_text name, value;
};

/* The fields of an event; texts of the event, of the arena, or for ever. */
struct semel_wire_message {
	struct semel_wire_field *fields;
	size_t count;
	uint32_t varying; /* bits of the fields that every event has its own value of */
	struct semel_text correlation, producer; /* data NULL: none */
	bool plain; /* only the event's own headers, as a foreign program would send it */
};

/* Everything but the payload, the content type and the routing key, which have places of their own
 * in every protocol. False: no memory. The event's headers must be valid JSON. */
bool semel_wire_write(const struct semel_event *event,
		      const struct semel_publish_metadata *metadata,
		      const struct semel_wire_names *names, struct semel_arena *arena,
		      struct semel_wire_message *message_out);
/* The original routing key of an event that is sent under another one (to one queue only). */
struct semel_wire_field semel_wire_routing_key(const struct semel_event *event);

/* A message on its way in. Set event.id, .type, .routing_key, .topic, .content_type, .payload and
 * the rest below from the protocol's own properties (data NULL: it has none); then offer every
 * header; then finish. */
struct semel_wire_reading {
	const struct semel_wire_names *names;
	struct semel_arena *arena; /* of all texts that result */
	struct semel_buffer *headers;
	struct semel_event event;
	struct semel_publish_metadata metadata;
	struct semel_text correlation, producer;
	bool has_correlation, has_producer, has_headers;
};

/* headers: memory to work in, kept by the caller. */
void semel_wire_read_begin(struct semel_wire_reading *reading, const struct semel_wire_names *names,
			   struct semel_arena *arena, struct semel_buffer *headers);
/* Known names are taken for what they mean, others become headers of the event. */
void semel_wire_read_field(struct semel_wire_reading *reading, struct semel_text name,
			   struct semel_text value);
/* Fills in what a foreign message leaves out: type and aggregate from the routing key, the time of
 * 1970-01-01. An id is never made up. False: no memory. */
bool semel_wire_read_end(struct semel_wire_reading *reading);

#endif
