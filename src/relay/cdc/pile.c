/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/pile.h"

#include <assert.h>
#include <stdlib.h>

bool semel_pile_open(struct semel_pile *pile, uint32_t capacity)
{
	*pile = (struct semel_pile){ .capacity = capacity };
	pile->lanes = calloc(capacity, sizeof *pile->lanes);
	pile->seqs = calloc(capacity, sizeof *pile->seqs);
	pile->xids = calloc(capacity, sizeof *pile->xids);
	pile->ticket = calloc(SEMEL_FEEDBACK_MAX, sizeof *pile->ticket);
	return pile->lanes && pile->seqs && pile->xids && pile->ticket;
}

bool semel_pile_is_empty(const struct semel_pile *pile)
{
	return pile->tickets == 0;
}

void semel_pile_add(struct semel_pile *pile, const struct semel_load *load, bool marks,
		    int64_t now_ms)
{
	if (semel_pile_is_empty(pile))
		pile->since_ms = now_ms;
	assert(pile->tickets < SEMEL_FEEDBACK_MAX);
	pile->ticket[pile->tickets++] = load->ticket;
	pile->rows += load->batch.count;
	assert(!marks || pile->count + load->batch.count <= pile->capacity);
	for (uint32_t i = 0; marks && i < load->batch.count; i++) {
		pile->lanes[pile->count] = load->batch.rows[i].lane;
		pile->xids[pile->count] = load->batch.rows[i].xid;
		pile->seqs[pile->count++] = load->batch.rows[i].seq;
	}
}

void semel_pile_clear(struct semel_pile *pile)
{
	pile->rows = pile->count = pile->tickets = 0;
}

void semel_pile_free(struct semel_pile *pile)
{
	free(pile->lanes);
	free(pile->seqs);
	free(pile->xids);
	free(pile->ticket);
	*pile = (struct semel_pile){ 0 };
}
