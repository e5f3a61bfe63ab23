/* SPDX-License-Identifier: Apache-2.0 */
/* What the pipeline carries at a time, with room for what is heard of each row; and all the loads
 * of one relay, which are made once and used again. */
#ifndef SEMEL_RELAY_LOAD_H
#define SEMEL_RELAY_LOAD_H

#include "broker/broker.h"
#include "relay/lanes.h"

/* One row on its way. */
struct semel_flight {
	struct semel_load *load;
	struct semel_publish_metadata metadata;
	bool answered;
	bool marked; /* before the rest of its load */
	semel_status answer;
	const char *reason;
};

/* Rows that were read together and are marked together, but for those that were refused: they are
 * marked as soon as that is heard. */
struct semel_load {
	struct semel_load *next;
	struct semel_arena *arena;
	struct semel_outbox_batch batch;
	struct semel_flight *flights;
	struct semel_mark *marks;
	struct semel_lane *lane; /* NULL: rows of all lanes, each with its own */
	int64_t epoch;           /* of the lease under which it was read; of all, without a lane */
	uint64_t ticket;         /* the source's own */
	uint32_t unanswered;
	uint32_t unnoted; /* were refused, and that is not marked; without those that are HELD */
	uint32_t noted;   /* were marked before the rest */
	bool refused;     /* an event in it was refused */
	bool settling;    /* it is being marked */
	bool exceptions;  /* its rows come from the exceptions */
	uint64_t bytes;
	int64_t offered_at_ms;  /* steady */
	int64_t answered_at_ms; /* the last of its rows; steady */
};

struct semel_loads {
	struct semel_load *flying; /* offered and not marked, oldest first */
	struct semel_load *last;   /* of the flying */
	struct semel_load *spare;
	uint32_t rows_max; /* in a load */
	uint32_t count;    /* of the flying */
};

/* A load for rows of this lane. NULL: no memory. */
struct semel_load *semel_load_take(struct semel_loads *loads, struct semel_lane *lane);
/* The same for rows of any lane; all of them are ours. */
struct semel_load *semel_load_take_mixed(struct semel_loads *loads,
					 const struct semel_lanes *lanes);
void semel_load_give_back(struct semel_loads *loads, struct semel_load *load);
/* From here on it is in flight, until it is landed and given back. */
void semel_load_launch(struct semel_loads *loads, struct semel_load *load);
void semel_load_land(struct semel_loads *loads, struct semel_load *load);
/* Everything in flight is spare again, whatever becomes of it. */
void semel_loads_ground(struct semel_loads *loads);
void semel_loads_free(struct semel_loads *loads);

#endif
