/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are read together and marked together, with the outcome of each; and the pool of all
 * batches of a relay, which are allocated once and reused. */
#ifndef SEMEL_RELAY_BATCH_H
#define SEMEL_RELAY_BATCH_H

#include "broker/broker.h"
#include "relay/lanes.h"

/* One event in flight at the broker. */
struct semel_relay_inflight {
	struct semel_relay_batch *batch;
	struct semel_publish_metadata metadata;
	bool answered; /* its outcome was reported */
	bool marked;   /* before the rest of its batch was */
	semel_status outcome;
	const char *reason;
};

/* Refused rows are marked as soon as the refusal is known, before the rest of the batch. */
struct semel_relay_batch {
	struct semel_relay_batch *next;
	struct semel_arena *arena;
	struct semel_outbox_batch fetched;
	struct semel_relay_inflight *inflight;
	struct semel_mark *marks;
	struct semel_lane *lane; /* NULL: rows of all lanes, each with its own */
	int64_t epoch;           /* of the lease when read; without a lane: the lanes' generation */
	uint64_t ticket;         /* the source's own */
	uint32_t unanswered;
	uint32_t unmarked_refusals; /* refused and not marked yet; HELD ones not counted */
	uint32_t marked_early;      /* marked before the rest */
	bool refused;               /* an event in it was refused */
	bool being_marked;          /* by the statement that runs now */
	bool exceptions;            /* its rows come from the exceptions */
	uint64_t bytes;
	int64_t offered_at_ms;  /* steady */
	int64_t answered_at_ms; /* the last of its rows; steady */
};

struct semel_relay_batches {
	struct semel_relay_batch *in_flight; /* offered and not marked, oldest first */
	struct semel_relay_batch *last;      /* the youngest of these */
	struct semel_relay_batch *spare;
	uint32_t rows_max; /* in a batch */
	uint32_t count;    /* in flight */
};

/* A batch for rows of this lane. NULL: out of memory. */
struct semel_relay_batch *semel_relay_batch_acquire(struct semel_relay_batches *batches,
						    struct semel_lane *lane);
/* The same for rows of any lane; this relay owns all lanes. */
struct semel_relay_batch *semel_relay_batch_acquire_mixed(struct semel_relay_batches *batches,
							  const struct semel_lanes *lanes);
void semel_relay_batch_release(struct semel_relay_batches *batches,
			       struct semel_relay_batch *batch);
/* From here on it is in flight, until it is finished and released. */
void semel_relay_batch_start(struct semel_relay_batches *batches, struct semel_relay_batch *batch);
void semel_relay_batch_finish(struct semel_relay_batches *batches, struct semel_relay_batch *batch);
/* Returns everything in flight to the pool; what was not marked will be read again. */
void semel_relay_batches_reset(struct semel_relay_batches *batches);
void semel_relay_batches_free(struct semel_relay_batches *batches);

#endif
