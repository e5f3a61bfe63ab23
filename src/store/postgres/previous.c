/* SPDX-License-Identifier: Apache-2.0 */
/* A direct-mapped cache keyed by the aggregate's hash. Two aggregates with one 64-bit hash would be
 * taken for one another; the worst that follows is that a strict consumer waits out its bound. */
#include "store/postgres/previous.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS  8192
#define ID_MAX 39

struct slot {
	uint64_t hash;
	int64_t seq;
	uint8_t length; /* 0: empty */
	char id[ID_MAX];
};

struct semel_pg_previous {
	struct slot slots[SLOTS];
};

static void remember(struct slot *slot, uint64_t hash, const struct semel_outbox_row *row)
{
	slot->length = 0;
	if (row->event.id.length > ID_MAX)
		return;
	slot->hash = hash;
	slot->seq = row->seq;
	slot->length = (uint8_t)row->event.id.length;
	memcpy(slot->id, row->event.id.data, row->event.id.length);
}

/* NULL: no memory. */
static struct slot *slot_of(struct semel_pg_previous **memory, uint64_t hash)
{
	if (*memory == NULL)
		*memory = calloc(1, sizeof(**memory));
	return *memory == NULL ? NULL : &(*memory)->slots[hash % SLOTS];
}

void semel_pg_previous_seen(struct semel_pg_previous **memory, const struct semel_outbox_row *row)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct slot *slot = slot_of(memory, hash);
	if (slot != NULL && (slot->length == 0 || slot->hash != hash || slot->seq < row->seq))
		remember(slot, hash, row);
}

void semel_pg_previous_of(struct semel_pg_previous **memory, struct semel_outbox_row *row,
			  struct semel_arena *arena)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct slot *slot = slot_of(memory, hash);
	if (slot == NULL)
		return;
	bool same = slot->length > 0 && slot->hash == hash;
	if (same && slot->seq >= row->seq)
		return;
	if (same)
		row->previous = semel_arena_text(arena, slot->id, slot->length);
	remember(slot, hash, row);
}

void semel_pg_previous_clear(struct semel_pg_previous *memory)
{
	if (memory != NULL)
		memset(memory->slots, 0, sizeof(memory->slots));
}

void semel_pg_previous_free(struct semel_pg_previous *memory)
{
	free(memory);
}
