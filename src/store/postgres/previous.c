/* SPDX-License-Identifier: Apache-2.0 */
/* A direct-mapped cache keyed by the aggregate's hash. Two aggregates with one 64-bit hash would be
 * taken for one another; the worst that follows is that a strict consumer waits out its bound. */
#include "store/postgres/previous.h"

#include "event/hash.h"
#include "store/postgres/postgres.h"

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

/* Newest first. A little beyond where reading begins, for commits have another order than numbers,
 * and marks are ahead of low marks. Below those everything went out, also what was never marked. */
static const struct semel_pg_query fetch_published = {
	"read what was published last",
	"SELECT p.seq, p.id, p.aggregate_type, p.aggregate_id"
	" FROM unnest($1::smallint[], $2::bigint[]) AS l (lane, after)"
	" JOIN semel_lease m ON m.lane = l.lane,"
	" LATERAL (SELECT * FROM semel_outbox w WHERE w.lane = l.lane AND w.seq <= l.after + 5000"
	" AND (w.seq <= m.low_seq OR w.status = 'PUBLISHED')"
	" ORDER BY w.lane DESC, w.seq DESC LIMIT 500) AS p"
};

/* It was sent before. */
static void seen(struct semel_pg_previous **memory, const struct semel_outbox_row *row)
{
	uint64_t hash = semel_hash_aggregate(row->event.aggregate_type, row->event.aggregate_id);
	struct slot *slot = slot_of(memory, hash);
	if (slot != NULL && (slot->length == 0 || slot->hash != hash || slot->seq < row->seq))
		remember(slot, hash, row);
}

static struct semel_text peek(const PGresult *result, int row, int column)
{
	return semel_text_of(semel_pg_value(result, row, column));
}

static void all_seen(struct semel_pg_previous **memory, const PGresult *result)
{
	for (int at = semel_pg_rows(result) - 1; at >= 0; at--) {
		const struct semel_outbox_row row = {
			.seq = semel_pg_int(result, at, 0),
			.event = { .id = peek(result, at, 1),
				   .aggregate_type = peek(result, at, 2),
				   .aggregate_id = peek(result, at, 3) },
		};
		seen(memory, &row);
	}
}

semel_status semel_pg_previous_recall(struct semel_pg_previous **memory, semel_tx tx,
				      const int32_t *lanes, const int64_t *afters, size_t count,
				      semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer lane_list = { 0 }, after_list = { 0 };
	PGresult *result = NULL;
	if (count == 0)
		return SEMEL_OK;
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lane_list, lanes[i]);
		semel_pg_array_int(&after_list, afters[i]);
	}
	semel_pg_add_array(&params, &lane_list);
	semel_pg_add_array(&params, &after_list);
	semel_status status = semel_pg_run(tx, &fetch_published, &params, &result, error);
	semel_buffer_free(&lane_list);
	semel_buffer_free(&after_list);
	all_seen(memory, result);
	semel_pg_clear(result);
	return status;
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
