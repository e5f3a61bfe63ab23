/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that the broker has confirmed and that are not marked yet. With marks: they collect, with
 * the tickets of their batches, until they are worth a statement. Without marks (--marks off):
 * those above the low marks are kept until the stream ends; marked then, they are not published
 * again by polling. */
#ifndef SEMEL_RELAY_CDC_MARK_BUFFER_H
#define SEMEL_RELAY_CDC_MARK_BUFFER_H

#include "relay/batch.h"
#include "relay/cdc/feedback.h"

struct semel_mark_buffer {
	uint32_t rows;  /* confirmed; repeated after a crash */
	uint32_t count; /* of them: to be marked */
	uint32_t capacity;
	int32_t *lanes;
	int64_t *seqs;
	uint32_t *xids;
	uint32_t tickets;
	uint64_t *ticket;
	int64_t since_ms; /* steady: when the first one was added */
};

/* False: no memory. */
bool semel_mark_buffer_open(struct semel_mark_buffer *buffer, uint32_t capacity);
/* marks false: the rows are counted, and not marked. */
void semel_mark_buffer_add(struct semel_mark_buffer *buffer, const struct semel_relay_batch *batch,
			   bool marks, int64_t now_ms);
bool semel_mark_buffer_is_empty(const struct semel_mark_buffer *buffer);
void semel_mark_buffer_clear(struct semel_mark_buffer *buffer);
void semel_mark_buffer_free(struct semel_mark_buffer *buffer);

/* Bounded: rows beyond the capacity are published again. */
struct semel_unmarked {
	struct semel_unmarked_row {
		int64_t seq;
		uint32_t xid;
		int32_t lane;
	} * rows;
	uint32_t count, capacity; /* 0: no row is kept */
};

/* False: no memory. */
bool semel_unmarked_open(struct semel_unmarked *unmarked, uint32_t capacity);
void semel_unmarked_add(struct semel_unmarked *unmarked, const struct semel_relay_batch *batch);
/* Drops the rows that the low marks cover by now. */
void semel_unmarked_drop_below(struct semel_unmarked *unmarked, int64_t low_seq);
/* Moves as many rows as there is room for to an empty buffer. */
void semel_unmarked_move_to(struct semel_unmarked *unmarked, struct semel_mark_buffer *buffer);
void semel_unmarked_free(struct semel_unmarked *unmarked);

#endif
