/* SPDX-License-Identifier: Apache-2.0 */
/* Loads are made once and used again: one arena each, reset when its rows are marked. */
#include "relay/load.h"

#include <stdlib.h>

#define ARENA_BLOCK (16 * 1024)

static void load_free(struct semel_load *load)
{
	semel_arena_free(load->arena);
	free(load->batch.rows);
	free(load->flights);
	free(load->marks);
	free(load);
}

static struct semel_load *load_new(uint32_t capacity)
{
	struct semel_load *load = calloc(1, sizeof *load);
	if (!load)
		return NULL;
	load->arena = semel_arena_new(ARENA_BLOCK);
	load->batch.rows = calloc(capacity, sizeof *load->batch.rows);
	load->flights = calloc(capacity, sizeof *load->flights);
	load->marks = calloc(capacity, sizeof *load->marks);
	if (load->arena && load->batch.rows && load->flights && load->marks)
		return load;
	load_free(load);
	return NULL;
}

static struct semel_load *take(struct semel_loads *loads, struct semel_lane *lane, int64_t epoch)
{
	struct semel_load *load = loads->spare;
	if (load)
		loads->spare = load->next;
	else
		load = load_new(loads->rows_max);
	if (!load)
		return NULL;
	load->next = NULL;
	load->lane = lane;
	load->epoch = epoch;
	load->ticket = 0;
	load->batch.arena = load->arena;
	load->batch.count = 0;
	load->batch.by_commit = false;
	load->unanswered = load->unnoted = load->noted = 0;
	load->refused = load->exceptions = load->settling = false;
	load->bytes = 0;
	return load;
}

struct semel_load *semel_load_take(struct semel_loads *loads, struct semel_lane *lane)
{
	return take(loads, lane, lane->lease.epoch);
}

struct semel_load *semel_load_take_mixed(struct semel_loads *loads, const struct semel_lanes *lanes)
{
	return take(loads, NULL, lanes->tenure);
}

void semel_load_give_back(struct semel_loads *loads, struct semel_load *load)
{
	semel_arena_reset(load->arena);
	load->next = loads->spare;
	loads->spare = load;
}

void semel_load_launch(struct semel_loads *loads, struct semel_load *load)
{
	if (loads->flying)
		loads->last->next = load;
	else
		loads->flying = load;
	loads->last = load;
	loads->count++;
	if (load->lane)
		load->lane->in_flight++;
}

void semel_load_land(struct semel_loads *loads, struct semel_load *load)
{
	struct semel_load **at = &loads->flying;
	struct semel_load *before = NULL;

	while (*at && *at != load) {
		before = *at;
		at = &before->next;
	}
	*at = load->next;
	if (loads->last == load)
		loads->last = before;
	loads->count--;
	if (load->lane)
		load->lane->in_flight--;
}

void semel_loads_ground(struct semel_loads *loads)
{
	while (loads->flying) {
		struct semel_load *load = loads->flying;
		loads->flying = load->next;
		semel_load_give_back(loads, load);
	}
	loads->count = 0;
}

void semel_loads_free(struct semel_loads *loads)
{
	semel_loads_ground(loads);
	while (loads->spare) {
		struct semel_load *load = loads->spare;
		loads->spare = load->next;
		load_free(load);
	}
}
