/* SPDX-License-Identifier: Apache-2.0 */
/* Without marks: rows that were settled above the low marks, so that they can be marked when the
 * stream ends, and whoever polls then repeats none of them. A bounded memory: what it has no room
 * for is repeated. */
#ifndef SEMEL_RELAY_CDC_UNMARKED_H
#define SEMEL_RELAY_CDC_UNMARKED_H

#include "relay/cdc/mark_buffer.h"

struct semel_unmarked {
	struct semel_unmarked_row {
		int64_t seq;
		uint32_t xid;
		int32_t lane;
	} * rows;
	uint32_t count, capacity; /* 0: no rows are kept */
};

/* False: no memory. */
bool semel_unmarked_open(struct semel_unmarked *unmarked, uint32_t capacity);
void semel_unmarked_add(struct semel_unmarked *unmarked, const struct semel_relay_batch *batch);
/* The low marks say it of those up to this number. */
void semel_unmarked_drop_below(struct semel_unmarked *unmarked, int64_t low_seq);
/* Moves as many as there is room for to an empty buffer. */
void semel_unmarked_move_to(struct semel_unmarked *unmarked, struct semel_mark_buffer *buffer);
void semel_unmarked_free(struct semel_unmarked *unmarked);

#endif
