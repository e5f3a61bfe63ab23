/* SPDX-License-Identifier: Apache-2.0 */
/* Without marks: rows that were settled above the low marks, so that they can be marked when the
 * stream ends, and whoever polls then repeats none of them. A bounded memory: what it has no room
 * for is repeated. */
#ifndef SEMEL_RELAY_CDC_TAIL_H
#define SEMEL_RELAY_CDC_TAIL_H

#include "relay/cdc/pile.h"

struct semel_tail {
	struct semel_tail_row {
		int64_t seq;
		uint32_t xid;
		int32_t lane;
	} * rows;
	uint32_t count, capacity; /* 0: no rows are kept */
};

/* False: no memory. */
bool semel_tail_open(struct semel_tail *tail, uint32_t capacity);
void semel_tail_add(struct semel_tail *tail, const struct semel_load *load);
/* The low marks say it of those up to this number. */
void semel_tail_pass(struct semel_tail *tail, int64_t low_seq);
/* Moves as many as there is room for to an empty pile. */
void semel_tail_move(struct semel_tail *tail, struct semel_pile *pile);
void semel_tail_free(struct semel_tail *tail);

#endif
