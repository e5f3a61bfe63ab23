/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that the broker has confirmed and that are not marked yet, with the tickets of their
 * batches: a buffer that grows until it is worth a statement. */
#ifndef SEMEL_RELAY_CDC_MARK_BUFFER_H
#define SEMEL_RELAY_CDC_MARK_BUFFER_H

#include "relay/batch.h"
#include "relay/cdc/feedback.h"

struct semel_mark_buffer {
	uint32_t rows;  /* that count: confirmed, and repeated after a crash */
	uint32_t count; /* of them are to be marked */
	uint32_t capacity;
	int32_t *lanes;
	int64_t *seqs;
	uint32_t *xids;
	uint32_t tickets;
	uint64_t *ticket;
	int64_t since_ms; /* steady: when the first one came */
};

/* False: no memory. */
bool semel_mark_buffer_open(struct semel_mark_buffer *buffer, uint32_t capacity);
/* marks false: the rows count, and are left as they are. */
void semel_mark_buffer_add(struct semel_mark_buffer *buffer, const struct semel_relay_batch *batch,
			   bool marks, int64_t now_ms);
bool semel_mark_buffer_is_empty(const struct semel_mark_buffer *buffer);
void semel_mark_buffer_clear(struct semel_mark_buffer *buffer);
void semel_mark_buffer_free(struct semel_mark_buffer *buffer);

#endif
