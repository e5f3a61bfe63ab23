/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/cdc/exception_set.h"

#include "event/hash.h"

#include <stdlib.h>

#define CAPACITY_MIN 64

static uint64_t hash_of(struct semel_text type, struct semel_text id)
{
	uint64_t hash = semel_hash_aggregate(type, id);
	return hash == 0 ? 1 : hash;
}

/* Where the hash is, or would be. */
static size_t entry_of(const struct semel_exception_set *set, uint64_t hash)
{
	size_t at = hash & (set->capacity - 1);
	while (set->hashes[at] != 0 && set->hashes[at] != hash)
		at = (at + 1) & (set->capacity - 1);
	return at;
}

static bool grow(struct semel_exception_set *set)
{
	struct semel_exception_set larger = { .capacity = set->capacity ? set->capacity * 2
									: CAPACITY_MIN };
	larger.hashes = calloc(larger.capacity, sizeof *larger.hashes);
	if (!larger.hashes)
		return false;
	for (size_t i = 0; i < set->capacity; i++)
		if (set->hashes[i] != 0)
			larger.hashes[entry_of(&larger, set->hashes[i])] = set->hashes[i];
	larger.count = set->count;
	free(set->hashes);
	*set = larger;
	return true;
}

void semel_exception_set_clear(struct semel_exception_set *set)
{
	semel_exception_set_free(set);
}

void semel_exception_set_loaded(struct semel_exception_set *set)
{
	set->loaded = set->count;
}

bool semel_exception_set_is_stale(const struct semel_exception_set *set)
{
	return set->all || set->count > 2 * set->loaded + CAPACITY_MIN;
}

void semel_exception_set_add(struct semel_exception_set *set, struct semel_text type,
			     struct semel_text id)
{
	if (set->count * 2 >= set->capacity && !grow(set)) {
		set->all = true;
		return;
	}
	uint64_t hash = hash_of(type, id);
	size_t at = entry_of(set, hash);
	if (set->hashes[at] == 0)
		set->count++;
	set->hashes[at] = hash;
}

bool semel_exception_set_contains(const struct semel_exception_set *set, struct semel_text type,
				  struct semel_text id)
{
	if (set->all)
		return true;
	if (set->count == 0)
		return false;
	return set->hashes[entry_of(set, hash_of(type, id))] != 0;
}

void semel_exception_set_free(struct semel_exception_set *set)
{
	free(set->hashes);
	*set = (struct semel_exception_set){ 0 };
}
