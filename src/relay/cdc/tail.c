/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/tail.h"

#include <stdlib.h>

bool semel_tail_open(struct semel_tail *tail, uint32_t capacity)
{
	*tail = (struct semel_tail){ .capacity = capacity };
	tail->rows = capacity > 0 ? calloc(capacity, sizeof *tail->rows) : NULL;
	return capacity == 0 || tail->rows;
}

void semel_tail_add(struct semel_tail *tail, const struct semel_load *load)
{
	for (uint32_t i = 0; i < load->batch.count && tail->count < tail->capacity; i++) {
		const struct semel_outbox_row *row = &load->batch.rows[i];
		tail->rows[tail->count++] =
			(struct semel_tail_row){ row->seq, row->xid, row->lane };
	}
}

void semel_tail_pass(struct semel_tail *tail, int64_t low_seq)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < tail->count; i++)
		if (tail->rows[i].seq > low_seq)
			tail->rows[kept++] = tail->rows[i];
	tail->count = kept;
}

void semel_tail_move(struct semel_tail *tail, struct semel_pile *pile)
{
	while (tail->count > 0 && pile->count < pile->capacity) {
		const struct semel_tail_row *row = &tail->rows[--tail->count];
		pile->lanes[pile->count] = row->lane;
		pile->xids[pile->count] = row->xid;
		pile->seqs[pile->count++] = row->seq;
	}
}

void semel_tail_free(struct semel_tail *tail)
{
	free(tail->rows);
	*tail = (struct semel_tail){ 0 };
}
