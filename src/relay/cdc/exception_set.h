/* SPDX-License-Identifier: Apache-2.0 */
/* Which aggregates may have exceptions, so that rows of the others need no check. It may say yes
 * too often, never no: two aggregates with the same hash count as one, and an aggregate whose
 * exceptions are gone stays until the table is read again, which is worth its cost when the set has
 * doubled. */
#ifndef SEMEL_RELAY_CDC_EXCEPTION_SET_H
#define SEMEL_RELAY_CDC_EXCEPTION_SET_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct semel_exception_set {
	uint64_t *hashes; /* open addressing; 0: empty */
	size_t count, capacity;
	size_t loaded; /* their number when the table was read */
	bool all;      /* out of memory: every aggregate may have exceptions */
};

void semel_exception_set_clear(struct semel_exception_set *set);
void semel_exception_set_add(struct semel_exception_set *set, struct semel_text type,
			     struct semel_text id);
/* The table was read. */
void semel_exception_set_loaded(struct semel_exception_set *set);
/* Most of its exceptions may be gone: clear it, and read the table again. */
bool semel_exception_set_is_stale(const struct semel_exception_set *set);
bool semel_exception_set_contains(const struct semel_exception_set *set, struct semel_text type,
				  struct semel_text id);
void semel_exception_set_free(struct semel_exception_set *set);

#endif
