/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/held.h"

#include "base/hash.h"

#include <stdlib.h>

#define CAPACITY_MIN 64

static uint64_t hash_of(struct semel_text type, struct semel_text id)
{
	uint64_t hash = semel_hash_aggregate(type, id);
	return hash == 0 ? 1 : hash;
}

/* Where the hash is, or would be. */
static size_t place_of(const struct semel_held *held, uint64_t hash)
{
	size_t at = hash & (held->capacity - 1);
	while (held->hashes[at] != 0 && held->hashes[at] != hash)
		at = (at + 1) & (held->capacity - 1);
	return at;
}

static bool grow(struct semel_held *held)
{
	struct semel_held larger = { .capacity =
					     held->capacity ? held->capacity * 2 : CAPACITY_MIN };
	larger.hashes = calloc(larger.capacity, sizeof *larger.hashes);
	if (!larger.hashes)
		return false;
	for (size_t i = 0; i < held->capacity; i++)
		if (held->hashes[i] != 0)
			larger.hashes[place_of(&larger, held->hashes[i])] = held->hashes[i];
	larger.count = held->count;
	free(held->hashes);
	*held = larger;
	return true;
}

void semel_held_clear(struct semel_held *held)
{
	semel_held_free(held);
}

void semel_held_is_known(struct semel_held *held)
{
	held->known = held->count;
}

bool semel_held_has_grown(const struct semel_held *held)
{
	return held->all || held->count > 2 * held->known + CAPACITY_MIN;
}

void semel_held_add(struct semel_held *held, struct semel_text type, struct semel_text id)
{
	if (held->count * 2 >= held->capacity && !grow(held)) {
		held->all = true;
		return;
	}
	uint64_t hash = hash_of(type, id);
	size_t at = place_of(held, hash);
	if (held->hashes[at] == 0)
		held->count++;
	held->hashes[at] = hash;
}

bool semel_held_has(const struct semel_held *held, struct semel_text type, struct semel_text id)
{
	if (held->all)
		return true;
	if (held->count == 0)
		return false;
	return held->hashes[place_of(held, hash_of(type, id))] != 0;
}

void semel_held_free(struct semel_held *held)
{
	free(held->hashes);
	*held = (struct semel_held){ 0 };
}
