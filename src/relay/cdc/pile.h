/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that the broker has confirmed and that are not marked yet, with the tickets of their loads:
 * a pile that grows until it is worth a statement. */
#ifndef SEMEL_RELAY_CDC_PILE_H
#define SEMEL_RELAY_CDC_PILE_H

#include "relay/cdc/feedback.h"
#include "relay/load.h"

struct semel_pile {
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
bool semel_pile_open(struct semel_pile *pile, uint32_t capacity);
/* marks false: the rows count, and are left as they are. */
void semel_pile_add(struct semel_pile *pile, const struct semel_load *load, bool marks,
		    int64_t now_ms);
bool semel_pile_is_empty(const struct semel_pile *pile);
void semel_pile_clear(struct semel_pile *pile);
void semel_pile_free(struct semel_pile *pile);

#endif
