/* SPDX-License-Identifier: Apache-2.0 */
/* The id of the previous event of the same aggregate, from a small cache of the events read last:
 * an index for it would cost every business transaction. When a relay takes over a lane or the
 * change stream, it reads once what was published last.
 *
 * The cache is direct-mapped by the aggregate's hash. Two aggregates with the same 64-bit hash
 * would be mistaken for each other; at worst, a strict consumer then waits as long as it ever waits
 * for a predecessor. */
#include "store/postgres/postgres.h"

#include "event/hash.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES 8192
#define ID_MAX  39

struct entry {
	uint64_t hash;
	int64_t seq;
	uint8_t length; /* 0: empty */
	char id[ID_MAX];
};

struct semel_pg_previous {
	struct entry entries[ENTRIES];
};

static void remember(struct entry *entry, uint64_t hash, const struct semel_outbox_row *row)
{
	entry->length = 0;
	if (row->event.id.length == 0 || row->event.id.length > ID_MAX)
		return;
	entry->hash = hash;
	entry->seq = row->seq;
	entry->length = (uint8_t)row->event.id.length;
	memcpy(entry->id, row->event.id.data, row->event.id.length);
}

/* NULL: out of memory. */
static struct entry *entry_of(struct semel_pg_previous **cache, uint64_t hash)
{
	if (*cache == NULL)
		*cache = calloc(1, sizeof(**cache));
	return *cache == NULL ? NULL : &(*cache)->entries[hash % ENTRIES];
}

void semel_pg_previous_fill(struct semel_pg_previous **cache, struct semel_outbox_row *row,
			    struct semel_arena *arena)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct entry *entry = entry_of(cache, hash);
	if (entry == NULL)
		return;
	bool same = entry->length > 0 && entry->hash == hash;
	if (same && entry->seq >= row->seq)
		return;
	if (same)
		row->previous = semel_arena_text(arena, entry->id, entry->length);
	remember(entry, hash, row);
}

/* Newest first. Includes some rows after the number where reading begins, because commits are not
 * in the order of numbers, and marks are ahead of low marks. Everything at or below a low mark was
 * published, even if it was never marked. */
static const struct semel_pg_statement fetch_published = {
	"read what was published last",
	"SELECT p.seq, p.id, p.aggregate_type, p.aggregate_id"
	" FROM unnest($1::smallint[], $2::bigint[]) AS l (lane, after)"
	" JOIN semel_lease m ON m.lane = l.lane,"
	" LATERAL (SELECT * FROM semel_outbox w WHERE w.lane = l.lane AND w.seq <= l.after + 5000"
	" AND (w.seq <= m.low_seq OR w.status = 'PUBLISHED')"
	" ORDER BY w.lane DESC, w.seq DESC LIMIT 500) AS p"
};

/* Caches a row that was sent before. */
static void record_sent(struct semel_pg_previous **cache, const struct semel_outbox_row *row)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct entry *entry = entry_of(cache, hash);
	if (entry != NULL && (entry->length == 0 || entry->hash != hash || entry->seq < row->seq))
		remember(entry, hash, row);
}

static struct semel_text text_at(const PGresult *result, int row, int column)
{
	return semel_text_of(semel_pg_value(result, row, column));
}

static void record_all_sent(struct semel_pg_previous **cache, const PGresult *result)
{
	for (int at = semel_pg_rows(result) - 1; at >= 0; at--) {
		const struct semel_outbox_row row = {
			.seq = semel_pg_int(result, at, 0),
			.event = { .id = text_at(result, at, 1),
				   .aggregate_type = text_at(result, at, 2),
				   .aggregate_id = text_at(result, at, 3) },
		};
		record_sent(cache, &row);
	}
}

semel_status semel_pg_previous_load(struct semel_pg_previous **cache, semel_tx tx,
				    const int32_t *lanes, const int64_t *after_seqs, size_t count,
				    semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer lane_list = { 0 }, after_list = { 0 };
	PGresult *result = NULL;
	if (count == 0)
		return SEMEL_OK;
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lane_list, lanes[i]);
		semel_pg_array_int(&after_list, after_seqs[i]);
	}
	semel_pg_add_array(&params, &lane_list);
	semel_pg_add_array(&params, &after_list);
	semel_status status = semel_pg_run(tx, &fetch_published, &params, &result, error);
	semel_buffer_free(&lane_list);
	semel_buffer_free(&after_list);
	record_all_sent(cache, result);
	semel_pg_clear(result);
	return status;
}

void semel_pg_previous_clear(struct semel_pg_previous *cache)
{
	if (cache != NULL)
		memset(cache->entries, 0, sizeof(cache->entries));
}

void semel_pg_previous_free(struct semel_pg_previous *cache)
{
	free(cache);
}
