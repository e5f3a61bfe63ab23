/* SPDX-License-Identifier: Apache-2.0 */
/* The hash that spreads aggregates. FNV-1a alone is weak in its low bits, by which lanes and
 * partitions are chosen; the mix at the end repairs that. Never change it: files depend on it. */
#include "event/hash.h"

static uint64_t fold(uint64_t hash, const char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

uint64_t semel_hash_aggregate(struct semel_text type, struct semel_text id)
{
	uint64_t hash = fold(UINT64_C(0xcbf29ce484222325), semel_text_chars(type), type.length);
	hash = fold(hash, "", 1);
	hash = fold(hash, semel_text_chars(id), id.length);

	hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
	hash = (hash ^ hash >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return hash ^ hash >> 33;
}
