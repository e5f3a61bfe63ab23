/* SPDX-License-Identifier: Apache-2.0 */
/* An event as brokers carry it: named texts beside the payload. The names, and the meaning of a
 * foreign message that has only some of them, are the same for all brokers; a driver adds the
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
	bool replayed;              /* sent again from the outbox: semel-replay is 0 */
	uint64_t transaction;       /* events with the same number were committed together, and are
				     * consecutive; 0: unknown. Not sent. */
};

/* How a protocol spells the attributes of CloudEvents. */
struct semel_wire_names {
	struct semel_text prefix; /* "cloudEvents_" */
	struct semel_text id, type, source, time, version;
	bool has_lanes;    /* the broker chooses a queue by the header semel-lane */
	bool may_be_plain; /* events with the header semel-wire: plain are sent without ours */
};

extern const struct semel_wire_names semel_wire_amqp, semel_wire_kafka;

/* The number of queues that a topic's aggregates can be spread over, by the header semel-lane. */
#define SEMEL_WIRE_LANES 16

uint32_t semel_wire_lane(const struct semel_event *event);

struct semel_wire_field {
	struct semel_text name, value;
};

/* The fields of an event. Their texts belong to the event or to the arena, or are static. */
struct semel_wire_message {
	struct semel_wire_field *fields;
	size_t count;
	uint32_t varying; /* as bits: the fields whose value differs for every event */
	struct semel_text correlation, producer; /* data NULL: none */
	bool plain; /* only the event's own headers, as a foreign program would send it */
};

/* Everything but the payload, the content type and the routing key, which have places of their own
 * in every protocol. False: out of memory. The event's headers must be valid JSON. */
bool semel_wire_write(const struct semel_event *event,
		      const struct semel_publish_metadata *metadata,
		      const struct semel_wire_names *names, struct semel_arena *arena,
		      struct semel_wire_message *message_out);
/* The original routing key of an event that is sent under another one (to one queue only). */
struct semel_wire_field semel_wire_routing_key(const struct semel_event *event);

/* An incoming message. Set event.id, .type, .routing_key, .topic, .content_type, .payload and the
 * rest below from the protocol's own properties (data NULL: it has none); then pass every header to
 * semel_wire_read_field; then call semel_wire_read_end. */
struct semel_wire_reading {
	const struct semel_wire_names *names;
	struct semel_arena *arena; /* of all texts that result */
	struct semel_buffer *headers;
	struct semel_event event;
	struct semel_publish_metadata metadata;
	struct semel_text correlation, producer;
	bool has_correlation, has_producer, has_headers;
};

/* headers: a work buffer of the caller. */
void semel_wire_read_begin(struct semel_wire_reading *reading, const struct semel_wire_names *names,
			   struct semel_arena *arena, struct semel_buffer *headers);
/* Known names are interpreted, others become headers of the event. */
void semel_wire_read_field(struct semel_wire_reading *reading, struct semel_text name,
			   struct semel_text value);
/* Fills in what a foreign message leaves out: type and aggregate from the routing key, the time of
 * 1970-01-01. An id is never made up. False: out of memory. */
bool semel_wire_read_end(struct semel_wire_reading *reading);

#endif
