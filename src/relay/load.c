/* SPDX-License-Identifier: Apache-2.0 */
/* Loads are made once and used again: one arena each, reset when its rows are marked. */
#include "relay/load.h"

#include <stdlib.h>

#define ARENA_BLOCK (64 * 1024)

void semel_load_free(struct semel_load *load)
{
	if (!load)
		return;
	semel_arena_free(load->arena);
	free(load->batch.rows);
	free(load->flights);
	free(load->marks);
	free(load);
}

struct semel_load *semel_load_new(uint32_t capacity)
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
	semel_load_free(load);
	return NULL;
}
