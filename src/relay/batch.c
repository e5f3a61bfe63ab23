/* SPDX-License-Identifier: Apache-2.0 */
/* A batch has an arena of its own, which is reset when its rows are marked. */
#include "relay/batch.h"

#include <stdlib.h>

#define ARENA_BLOCK (16 * 1024)

static void batch_free(struct semel_relay_batch *batch)
{
	semel_arena_free(batch->arena);
	free(batch->fetched.rows);
	free(batch->inflight);
	free(batch->marks);
	free(batch);
}

static struct semel_relay_batch *batch_new(uint32_t capacity)
{
	struct semel_relay_batch *batch = calloc(1, sizeof *batch);
	if (!batch)
		return NULL;
	batch->arena = semel_arena_new(ARENA_BLOCK);
	batch->fetched.rows = calloc(capacity, sizeof *batch->fetched.rows);
	batch->inflight = calloc(capacity, sizeof *batch->inflight);
	batch->marks = calloc(capacity, sizeof *batch->marks);
	if (batch->arena && batch->fetched.rows && batch->inflight && batch->marks)
		return batch;
	batch_free(batch);
	return NULL;
}

static struct semel_relay_batch *take(struct semel_relay_batches *batches, struct semel_lane *lane,
				      int64_t epoch)
{
	struct semel_relay_batch *batch = batches->spare;
	if (batch)
		batches->spare = batch->next;
	else
		batch = batch_new(batches->rows_max);
	if (!batch)
		return NULL;
	batch->next = NULL;
	batch->lane = lane;
	batch->epoch = epoch;
	batch->ticket = 0;
	batch->fetched.arena = batch->arena;
	batch->fetched.count = 0;
	batch->fetched.by_commit = false;
	batch->unanswered = batch->unmarked_refusals = batch->marked_early = 0;
	batch->refused = batch->exceptions = batch->being_marked = false;
	batch->bytes = 0;
	return batch;
}

struct semel_relay_batch *semel_relay_batch_acquire(struct semel_relay_batches *batches,
						    struct semel_lane *lane)
{
	return take(batches, lane, lane->lease.epoch);
}

struct semel_relay_batch *semel_relay_batch_acquire_mixed(struct semel_relay_batches *batches,
							  const struct semel_lanes *lanes)
{
	return take(batches, NULL, lanes->generation);
}

void semel_relay_batch_release(struct semel_relay_batches *batches, struct semel_relay_batch *batch)
{
	semel_arena_reset(batch->arena);
	batch->next = batches->spare;
	batches->spare = batch;
}

void semel_relay_batch_start(struct semel_relay_batches *batches, struct semel_relay_batch *batch)
{
	if (batches->in_flight)
		batches->last->next = batch;
	else
		batches->in_flight = batch;
	batches->last = batch;
	batches->count++;
	if (batch->lane)
		batch->lane->in_flight++;
}

void semel_relay_batch_finish(struct semel_relay_batches *batches, struct semel_relay_batch *batch)
{
	struct semel_relay_batch **at = &batches->in_flight;
	struct semel_relay_batch *before = NULL;

	while (*at && *at != batch) {
		before = *at;
		at = &before->next;
	}
	*at = batch->next;
	if (batches->last == batch)
		batches->last = before;
	batches->count--;
	if (batch->lane)
		batch->lane->in_flight--;
}

void semel_relay_batches_reset(struct semel_relay_batches *batches)
{
	while (batches->in_flight) {
		struct semel_relay_batch *batch = batches->in_flight;
		batches->in_flight = batch->next;
		semel_relay_batch_release(batches, batch);
	}
	batches->count = 0;
}

void semel_relay_batches_free(struct semel_relay_batches *batches)
{
	semel_relay_batches_reset(batches);
	while (batches->spare) {
		struct semel_relay_batch *batch = batches->spare;
		batches->spare = batch->next;
		batch_free(batch);
	}
}
