/* SPDX-License-Identifier: Apache-2.0 */
/* The id of the event before this one in its aggregate, from a small cache of what was read last:
 * asking the table would need an index that every business transaction pays for. What was published
 * last, before a relay took a lane or the change stream over, it reads once. */
#ifndef SEMEL_STORE_POSTGRES_PREVIOUS_H
#define SEMEL_STORE_POSTGRES_PREVIOUS_H

#include "store/store.h"

struct semel_pg_previous;

/* Fills in row->previous if it is known, and remembers the row. Rows of an aggregate come in the
 * order of their numbers; one that comes again has no predecessor that is known. *cache is made
 * when it is first needed; without memory nothing is known. */
void semel_pg_previous_fill(struct semel_pg_previous **cache, struct semel_outbox_row *row,
			    struct semel_arena *arena);
/* Remembers what went out of these lanes before reading begins behind these numbers: the last 500
 * rows of each lane. */
semel_status semel_pg_previous_load(struct semel_pg_previous **cache, semel_tx tx,
				    const int32_t *lanes, const int64_t *afters, size_t count,
				    semel_error *error);
/* Another relay may have published events of these aggregates: clears the cache, which may be NULL.
 */
void semel_pg_previous_clear(struct semel_pg_previous *cache);
void semel_pg_previous_free(struct semel_pg_previous *cache);

#endif
