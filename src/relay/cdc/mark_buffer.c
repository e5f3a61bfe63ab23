/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/mark_buffer.h"

#include <assert.h>
#include <stdlib.h>

bool semel_mark_buffer_open(struct semel_mark_buffer *buffer, uint32_t capacity)
{
	*buffer = (struct semel_mark_buffer){ .capacity = capacity };
	buffer->lanes = calloc(capacity, sizeof *buffer->lanes);
	buffer->seqs = calloc(capacity, sizeof *buffer->seqs);
	buffer->xids = calloc(capacity, sizeof *buffer->xids);
	buffer->ticket = calloc(SEMEL_FEEDBACK_MAX, sizeof *buffer->ticket);
	return buffer->lanes && buffer->seqs && buffer->xids && buffer->ticket;
}

bool semel_mark_buffer_is_empty(const struct semel_mark_buffer *buffer)
{
	return buffer->tickets == 0;
}

void semel_mark_buffer_add(struct semel_mark_buffer *buffer, const struct semel_relay_batch *batch,
			   bool marks, int64_t now_ms)
{
	if (semel_mark_buffer_is_empty(buffer))
		buffer->since_ms = now_ms;
	assert(buffer->tickets < SEMEL_FEEDBACK_MAX);
	buffer->ticket[buffer->tickets++] = batch->ticket;
	buffer->rows += batch->fetched.count;
	assert(!marks || buffer->count + batch->fetched.count <= buffer->capacity);
	for (uint32_t i = 0; marks && i < batch->fetched.count; i++) {
		buffer->lanes[buffer->count] = batch->fetched.rows[i].lane;
		buffer->xids[buffer->count] = batch->fetched.rows[i].xid;
		buffer->seqs[buffer->count++] = batch->fetched.rows[i].seq;
	}
}

void semel_mark_buffer_clear(struct semel_mark_buffer *buffer)
{
	buffer->rows = buffer->count = buffer->tickets = 0;
}

void semel_mark_buffer_free(struct semel_mark_buffer *buffer)
{
	free(buffer->lanes);
	free(buffer->seqs);
	free(buffer->xids);
	free(buffer->ticket);
	*buffer = (struct semel_mark_buffer){ 0 };
}

/* ---- without marks --------------------------------------------------------------------------- */

bool semel_unmarked_open(struct semel_unmarked *unmarked, uint32_t capacity)
{
	*unmarked = (struct semel_unmarked){ .capacity = capacity };
	unmarked->rows = capacity > 0 ? calloc(capacity, sizeof *unmarked->rows) : NULL;
	return capacity == 0 || unmarked->rows;
}

void semel_unmarked_add(struct semel_unmarked *unmarked, const struct semel_relay_batch *batch)
{
	for (uint32_t i = 0; i < batch->fetched.count && unmarked->count < unmarked->capacity;
	     i++) {
		const struct semel_outbox_row *row = &batch->fetched.rows[i];
		unmarked->rows[unmarked->count++] =
			(struct semel_unmarked_row){ row->seq, row->xid, row->lane };
	}
}

void semel_unmarked_drop_below(struct semel_unmarked *unmarked, int64_t low_seq)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < unmarked->count; i++)
		if (unmarked->rows[i].seq > low_seq)
			unmarked->rows[kept++] = unmarked->rows[i];
	unmarked->count = kept;
}

void semel_unmarked_move_to(struct semel_unmarked *unmarked, struct semel_mark_buffer *buffer)
{
	while (unmarked->count > 0 && buffer->count < buffer->capacity) {
		const struct semel_unmarked_row *row = &unmarked->rows[--unmarked->count];
		buffer->lanes[buffer->count] = row->lane;
		buffer->xids[buffer->count] = row->xid;
		buffer->seqs[buffer->count++] = row->seq;
	}
}

void semel_unmarked_free(struct semel_unmarked *unmarked)
{
	free(unmarked->rows);
	*unmarked = (struct semel_unmarked){ 0 };
}
