/* SPDX-License-Identifier: Apache-2.0 */
/* What the pipeline carries at a time, with room for what is heard of each row. */
#ifndef SEMEL_RELAY_LOAD_H
#define SEMEL_RELAY_LOAD_H

#include "broker/broker.h"
#include "relay/lanes.h"

/* One row on its way. */
struct semel_flight {
	struct semel_load *load;
	struct semel_passage passage;
	bool answered;
	semel_status answer;
	const char *reason;
};

/* Rows of one lane that were read together and are marked together. */
struct semel_load {
	struct semel_load *next;
	struct semel_arena *arena;
	struct semel_outbox_batch batch;
	struct semel_flight *flights;
	struct semel_mark *marks;
	struct semel_lane *lane;
	int64_t epoch; /* of the lease under which it was read */
	uint32_t unanswered;
	bool refused;    /* an event in it was refused */
	bool settling;   /* it is being marked */
	bool exceptions; /* its rows come from the exceptions */
	uint64_t bytes;
	int64_t offered_at_ms; /* steady */
};

/* NULL: no memory. */
struct semel_load *semel_load_new(uint32_t capacity);
/* load may be NULL. */
void semel_load_free(struct semel_load *load);

#endif
