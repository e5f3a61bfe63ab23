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
