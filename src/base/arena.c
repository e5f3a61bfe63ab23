/* SPDX-License-Identifier: Apache-2.0 */
/* A list of blocks, filled from the front. A large allocation gets a block of its own, inserted
 * after the current block, so that the current one is still filled. Some blocks are kept at the end
 * of a batch: freeing and allocating large blocks all the time makes the C library consolidate its
 * small ones just as often. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block {
	struct block *next;
	size_t size, used;
	_Alignas(max_align_t) unsigned char bytes[];
};

#define KEPT_MAX (128 * 1024)

struct semel_arena {
	struct block *current; /* of block_size; full and oversized blocks follow in the list */
	struct block *spare;   /* also of block_size; kept for the next batch */
	size_t block_size;
	size_t handed_out;
};

static struct block *block_new(size_t size)
{
	if (size > PTRDIFF_MAX - sizeof(struct block))
		return NULL;
	struct block *block = malloc(sizeof(struct block) + size);
	if (!block)
		return NULL;
	*block = (struct block){ .size = size };
	return block;
}

/* Returns an empty block of block_size. */
static struct block *block_take(struct semel_arena *arena)
{
	struct block *block = arena->spare;
	if (!block)
		return block_new(arena->block_size);
	arena->spare = block->next;
	*block = (struct block){ .size = block->size };
	return block;
}

static void free_all(struct block *block)
{
	while (block) {
		struct block *next = block->next;
		free(block);
		block = next;
	}
}

struct semel_arena *semel_arena_new(size_t block_size)
{
	struct semel_arena *arena = calloc(1, sizeof(*arena));
	if (!arena)
		return NULL;
	arena->block_size = block_size > 256 ? block_size : 256;
	return arena;
}

static void *take(struct block *block, size_t size)
{
	void *memory = block->bytes + block->used;
	block->used += size;
	return memory;
}

static void *alloc_oversized(struct semel_arena *arena, size_t size)
{
	struct block *block = block_new(size);
	if (!block)
		return NULL;
	if (arena->current) {
		block->next = arena->current->next;
		arena->current->next = block;
	} else {
		arena->current = block;
	}
	return take(block, size);
}

void *semel_arena_alloc(struct semel_arena *arena, size_t size)
{
	const size_t alignment = _Alignof(max_align_t);
	if (size > SIZE_MAX - alignment)
		return NULL;
	size = size == 0 ? alignment : (size + alignment - 1) / alignment * alignment;

	void *memory;
	struct block *current = arena->current;
	if (current && current->size - current->used >= size) {
		memory = take(current, size);
	} else if (size > arena->block_size / 4) {
		memory = alloc_oversized(arena, size);
	} else {
		struct block *fresh = block_take(arena);
		if (!fresh)
			return NULL;
		fresh->next = current;
		arena->current = fresh;
		memory = take(fresh, size);
	}
	if (memory)
		arena->handed_out += size;
	return memory;
}

struct semel_text semel_arena_text(struct semel_arena *arena, const void *data, size_t length)
{
	struct semel_text text = { NULL, data ? length : 0 };
	if (!data || length == SIZE_MAX)
		return text;
	semel_byte *copy = semel_arena_alloc(arena, length + 1);
	if (!copy) {
		text.length = length > 0 ? length : 1;
		return text;
	}
	memcpy(copy, data, length);
	copy[length] = '\0';
	text.data = copy;
	return text;
}

char *semel_arena_printf(struct semel_arena *arena, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0)
		return NULL;
	char *string = semel_arena_alloc(arena, (size_t)length + 1);
	if (!string)
		return NULL;
	va_start(arguments, format);
	vsnprintf(string, (size_t)length + 1, format, arguments);
	va_end(arguments);
	return string;
}

void semel_arena_reset(struct semel_arena *arena)
{
	size_t kept = 0;
	for (const struct block *block = arena->spare; block; block = block->next)
		kept += block->size;
	for (struct block *block = arena->current, *next; block; block = next) {
		next = block->next;
		if (block->size != arena->block_size ||
		    (kept > 0 && kept + block->size > KEPT_MAX)) {
			free(block);
			continue;
		}
		kept += block->size;
		block->next = arena->spare;
		arena->spare = block;
	}
	arena->current = NULL;
	arena->handed_out = 0;
}

size_t semel_arena_used(const struct semel_arena *arena)
{
	return arena->handed_out;
}

void semel_arena_free(struct semel_arena *arena)
{
	if (!arena)
		return;
	free_all(arena->current);
	free_all(arena->spare);
	free(arena);
}
