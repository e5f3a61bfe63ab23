/* SPDX-License-Identifier: Apache-2.0 */
/* A direct-mapped cache keyed by the aggregate's hash. Two aggregates with one 64-bit hash would be
 * taken for one another; the worst that follows is that a strict consumer waits out its bound. */
#include "relay/previous.h"

#include "base/error.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS  2048
#define ID_MAX 39

struct slot {
	uint64_t hash;
	uint8_t length; /* 0: empty */
	char id[ID_MAX];
};

struct semel_previous {
	struct slot slots[SLOTS];
};

struct semel_previous *semel_previous_new(void)
{
	return calloc(1, sizeof(struct semel_previous));
}

static void remember(struct slot *slot, uint64_t hash, struct semel_text id)
{
	slot->length = 0;
	if (id.length > ID_MAX)
		return;
	slot->hash = hash;
	slot->length = (uint8_t)id.length;
	memcpy(slot->id, id.data, id.length);
}

semel_status semel_previous_of(struct semel_previous *previous, semel_store *store,
			       const struct semel_outbox_row *row, struct semel_arena *arena,
			       struct semel_text *id_out, semel_error *error)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct slot *slot = &previous->slots[hash % SLOTS];
	semel_status status = SEMEL_OK;

	if (row->exception || slot->length == 0 || slot->hash != hash)
		status = store->driver->outbox_previous(store, row, arena, id_out, error);
	else
		*id_out = semel_arena_text(arena, slot->id, slot->length);
	if (status != SEMEL_OK)
		return status;
	if (!id_out->data && id_out->length > 0)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a predecessor");
	if (!row->exception)
		remember(slot, hash, row->event.id);
	return SEMEL_OK;
}

void semel_previous_clear(struct semel_previous *previous)
{
	memset(previous->slots, 0, sizeof previous->slots);
}

void semel_previous_free(struct semel_previous *previous)
{
	free(previous);
}
