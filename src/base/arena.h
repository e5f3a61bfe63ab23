/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that lives as long as a batch: allocated piece by piece, freed all at once. Not for
 * sharing between threads. */
#ifndef SEMEL_BASE_ARENA_H
#define SEMEL_BASE_ARENA_H

#include "base/text.h"

#include <stddef.h>

struct semel_arena;

/* NULL when there is no memory. */
struct semel_arena *semel_arena_new(size_t block_size);
/* Aligned for any type, not zeroed; NULL when there is no memory. */
void *semel_arena_alloc(struct semel_arena *arena, size_t size);
/* Copies the bytes and appends a NUL; data NULL stays NULL. Out of memory: data NULL, and length
 * not 0. */
struct semel_text semel_arena_text(struct semel_arena *arena, const void *data, size_t length);
char *semel_arena_printf(struct semel_arena *arena, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Frees everything that was handed out. Some blocks are kept for the next batch; oversized ones are
 * not. */
void semel_arena_reset(struct semel_arena *arena);
/* Bytes handed out since the last reset. */
size_t semel_arena_used(const struct semel_arena *arena);
/* arena may be NULL. */
void semel_arena_free(struct semel_arena *arena);

#endif
