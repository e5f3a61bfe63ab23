/* SPDX-License-Identifier: Apache-2.0 */
/* What has arrived and is not acked. It is kept here until then, so that a rewind hands it out once
 * more without the broker: a delivery that goes back there counts against the queue's
 * delivery-limit, and the broker throws an event away that has gone back too often.
 *
 * - Parcels stand in the order of their arrival, those in the caller's hands among them.
 * - Their memory is a shelf for several of them, which is given back when the last one is gone.
 */
#include "broker/rabbitmq/rabbitmq.h"

#include <stdlib.h>

#define SHELF_BYTES (64 * 1024) /* a full one takes no more parcels */
#define SHELF_BLOCK (16 * 1024)
#define SIZED_MAX   64 /* deliveries that their usual size is made from */

struct semel_rabbit_shelf {
	struct semel_arena *arena;
	uint32_t parcels;
};

/* ---- shelves --------------------------------------------------------------------------------- */

static void free_shelf(struct semel_rabbit_shelf *shelf)
{
	if (shelf)
		semel_arena_free(shelf->arena);
	free(shelf);
}

static struct semel_rabbit_shelf *make_shelf(void)
{
	struct semel_rabbit_shelf *shelf = calloc(1, sizeof(*shelf));
	if (shelf)
		shelf->arena = semel_arena_new(SHELF_BLOCK);
	if (shelf && shelf->arena)
		return shelf;
	free_shelf(shelf);
	return NULL;
}

/* One with room. NULL: no memory. */
static struct semel_rabbit_shelf *need_shelf(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	if (stage->shelf && semel_arena_used(stage->shelf->arena) < SHELF_BYTES)
		return stage->shelf;
	stage->shelf = stage->spare ? stage->spare : make_shelf();
	stage->spare = NULL;
	return stage->shelf;
}

static void leave_shelf(struct semel_rabbit *rabbit, struct semel_rabbit_shelf *shelf)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	if (--shelf->parcels > 0)
		return;
	semel_arena_reset(shelf->arena);
	if (shelf == stage->shelf)
		return;
	if (stage->spare)
		free_shelf(shelf);
	else
		stage->spare = shelf;
}

/* ---- parcels --------------------------------------------------------------------------------- */

struct semel_rabbit_parcel *semel_rabbit_parcel_make(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_shelf *shelf = need_shelf(rabbit);
	struct semel_rabbit_parcel *parcel =
		shelf ? semel_arena_alloc(shelf->arena, sizeof(*parcel)) : NULL;
	if (!parcel)
		return NULL;
	*parcel = (struct semel_rabbit_parcel){ .shelf = shelf, .size = sizeof(*parcel) };
	shelf->parcels++;
	rabbit->stage.bytes += parcel->size;
	return parcel;
}

struct semel_arena *semel_rabbit_parcel_arena(const struct semel_rabbit_parcel *parcel)
{
	return parcel->shelf->arena;
}

void semel_rabbit_parcel_grew(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel,
			      size_t bytes)
{
	parcel->size += bytes;
	rabbit->stage.bytes += bytes;
}

void semel_rabbit_parcel_free(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel)
{
	rabbit->stage.bytes -= parcel->size;
	leave_shelf(rabbit, parcel->shelf);
}

/* ---- the line of them ------------------------------------------------------------------------ */

/* The average of the first ones, then of about the last ones. */
static void note_size(struct semel_rabbit *rabbit, size_t size)
{
	if (rabbit->sized < SIZED_MAX)
		rabbit->sized++;
	rabbit->usual_size =
		rabbit->usual_size - rabbit->usual_size / rabbit->sized + size / rabbit->sized;
}

void semel_rabbit_stage_add(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	parcel->before = stage->last;
	parcel->after = NULL;
	if (stage->last)
		stage->last->after = parcel;
	else
		stage->first = parcel;
	stage->last = parcel;
	if (!stage->next)
		stage->next = parcel;
	stage->waiting++;
	note_size(rabbit, parcel->size);
}

void semel_rabbit_stage_remove(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	if (parcel->before)
		parcel->before->after = parcel->after;
	else
		stage->first = parcel->after;
	if (parcel->after)
		parcel->after->before = parcel->before;
	else
		stage->last = parcel->before;
	if (stage->next == parcel)
		stage->next = parcel->after;
	if (!parcel->out)
		stage->waiting--;
	semel_rabbit_parcel_free(rabbit, parcel);
}

void semel_rabbit_stage_forget(struct semel_rabbit *rabbit, uint32_t share)
{
	struct semel_rabbit_parcel *parcel = rabbit->stage.first;
	while (parcel) {
		struct semel_rabbit_parcel *after = parcel->after;
		if (parcel->share == share)
			semel_rabbit_stage_remove(rabbit, parcel);
		parcel = after;
	}
}

void semel_rabbit_stage_rewind(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	for (struct semel_rabbit_parcel *at = stage->first; at; at = at->after) {
		if (!at->out)
			continue;
		at->out = false;
		at->delivery.redelivered = true;
		stage->waiting++;
	}
	stage->next = stage->first;
}

/* Those before stage.next are all in the caller's hands. */
struct semel_rabbit_parcel *semel_rabbit_stage_next(struct semel_rabbit *rabbit,
						    const struct semel_rabbit_parcel *behind)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	while (stage->next && stage->next->out)
		stage->next = stage->next->after;
	struct semel_rabbit_parcel *parcel = behind ? behind->after : stage->next;
	while (parcel && (parcel->out || rabbit->shares[parcel->share].leaving))
		parcel = parcel->after;
	return parcel;
}

bool semel_rabbit_stage_is_full(const struct semel_rabbit *rabbit)
{
	return rabbit->share_count > 0 && rabbit->stage.first &&
	       rabbit->stage.bytes >= rabbit->budget;
}

void semel_rabbit_stage_free(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_stage *stage = &rabbit->stage;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		if (rabbit->shares[i].assembly.parcel)
			semel_rabbit_parcel_free(rabbit, rabbit->shares[i].assembly.parcel);
	while (stage->first)
		semel_rabbit_stage_remove(rabbit, stage->first);
	free_shelf(stage->shelf);
	free_shelf(stage->spare);
}
