/* SPDX-License-Identifier: Apache-2.0 */
/* Which aggregates may have exceptions, so that the others need not be looked up. It may say yes
 * too often, never no: two aggregates of one hash are taken for one another, and one whose
 * exceptions are gone is remembered until the table is read anew, which is worth it when the set
 * has twice as many as it had then. */
#ifndef SEMEL_RELAY_CDC_HELD_H
#define SEMEL_RELAY_CDC_HELD_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct semel_held {
	uint64_t *hashes; /* open addressing; 0: empty */
	size_t count, capacity;
	size_t known; /* so many there were when the table was read */
	bool all;     /* no memory: everything may be held */
};

void semel_held_clear(struct semel_held *held);
void semel_held_add(struct semel_held *held, struct semel_text type, struct semel_text id);
/* The table was read. */
void semel_held_is_known(struct semel_held *held);
/* Most of it may be gone from the table: clear it, and read that anew. */
bool semel_held_has_grown(const struct semel_held *held);
bool semel_held_has(const struct semel_held *held, struct semel_text type, struct semel_text id);
void semel_held_free(struct semel_held *held);

#endif
