/* SPDX-License-Identifier: Apache-2.0 */
/* Which aggregates may have exceptions, so that the others need not be looked up. It may say yes
 * too often, never no: two aggregates of one hash are taken for one another, and one whose
 * exceptions are gone is remembered until the table is read anew, which is worth it when the set
 * has twice as many as it had then. */
#ifndef SEMEL_RELAY_CDC_EXCEPTION_SET_H
#define SEMEL_RELAY_CDC_EXCEPTION_SET_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct semel_exception_set {
	uint64_t *hashes; /* open addressing; 0: empty */
	size_t count, capacity;
	size_t loaded; /* so many there were when the table was read */
	bool all;      /* no memory: every aggregate may have exceptions */
};

void semel_exception_set_clear(struct semel_exception_set *set);
void semel_exception_set_add(struct semel_exception_set *set, struct semel_text type,
			     struct semel_text id);
/* The table was read. */
void semel_exception_set_loaded(struct semel_exception_set *set);
/* Most of it may be gone from the table: clear it, and read that anew. */
bool semel_exception_set_is_stale(const struct semel_exception_set *set);
bool semel_exception_set_contains(const struct semel_exception_set *set, struct semel_text type,
				  struct semel_text id);
void semel_exception_set_free(struct semel_exception_set *set);

#endif
