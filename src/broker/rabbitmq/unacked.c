/* SPDX-License-Identifier: Apache-2.0 */
/* Deliveries that were read and are not acked. They are kept here until then, so that a rewind can
 * deliver them again without the broker: a delivery that goes back there counts against the queue's
 * delivery-limit, and the broker drops an event that has gone back too often.
 *
 * - The list is in the order of arrival; fetched ones stay in it.
 * - Their memory is a slab for several of them, which is reused when the last one is freed.
 */
#include "broker/rabbitmq/rabbitmq.h"

#include <stdlib.h>

#define SLAB_BYTES       (64 * 1024) /* a full one takes no more deliveries */
#define SLAB_BLOCK       (16 * 1024)
#define SIZE_SAMPLES_MAX 64 /* of the average size */

struct semel_rabbit_slab {
	struct semel_arena *arena;
	uint32_t deliveries;
};

/* ---- slabs ----------------------------------------------------------------------- */

static void free_slab(struct semel_rabbit_slab *slab)
{
	if (slab)
		semel_arena_free(slab->arena);
	free(slab);
}

static struct semel_rabbit_slab *make_slab(void)
{
	struct semel_rabbit_slab *slab = calloc(1, sizeof(*slab));
	if (slab)
		slab->arena = semel_arena_new(SLAB_BLOCK);
	if (slab && slab->arena)
		return slab;
	free_slab(slab);
	return NULL;
}

/* The slab with a free element. NULL: out of memory. */
static struct semel_rabbit_slab *current_slab(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	if (list->slab && semel_arena_used(list->slab->arena) < SLAB_BYTES)
		return list->slab;
	list->slab = list->spare ? list->spare : make_slab();
	list->spare = NULL;
	return list->slab;
}

static void release_slab(struct semel_rabbit *rabbit, struct semel_rabbit_slab *slab)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	if (--slab->deliveries > 0)
		return;
	semel_arena_reset(slab->arena);
	if (slab == list->slab)
		return;
	if (list->spare)
		free_slab(slab);
	else
		list->spare = slab;
}

/* ---- deliveries ------------------------------------------------------------------------------ */

struct semel_rabbit_unacked *semel_rabbit_unacked_new(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_slab *slab = current_slab(rabbit);
	struct semel_rabbit_unacked *unacked =
		slab ? semel_arena_alloc(slab->arena, sizeof(*unacked)) : NULL;
	if (!unacked)
		return NULL;
	*unacked = (struct semel_rabbit_unacked){ .slab = slab, .size = sizeof(*unacked) };
	slab->deliveries++;
	rabbit->unacked.bytes += unacked->size;
	return unacked;
}

struct semel_arena *semel_rabbit_unacked_arena(const struct semel_rabbit_unacked *unacked)
{
	return unacked->slab->arena;
}

void semel_rabbit_unacked_grew(struct semel_rabbit *rabbit, struct semel_rabbit_unacked *unacked,
			       size_t bytes)
{
	unacked->size += bytes;
	rabbit->unacked.bytes += bytes;
}

void semel_rabbit_unacked_free(struct semel_rabbit *rabbit, struct semel_rabbit_unacked *unacked)
{
	rabbit->unacked.bytes -= unacked->size;
	release_slab(rabbit, unacked->slab);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The average of the first sizes, then roughly that of the last ones. */
static void note_size(struct semel_rabbit *rabbit, size_t size)
{
	if (rabbit->size_samples < SIZE_SAMPLES_MAX)
		rabbit->size_samples++;
	rabbit->average_size = rabbit->average_size - rabbit->average_size / rabbit->size_samples +
			       size / rabbit->size_samples;
}

void semel_rabbit_unacked_list_add(struct semel_rabbit *rabbit,
				   struct semel_rabbit_unacked *unacked)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	unacked->before = list->last;
	unacked->after = NULL;
	if (list->last)
		list->last->after = unacked;
	else
		list->first = unacked;
	list->last = unacked;
	if (!list->next)
		list->next = unacked;
	list->waiting++;
	note_size(rabbit, unacked->size);
}

void semel_rabbit_unacked_list_remove(struct semel_rabbit *rabbit,
				      struct semel_rabbit_unacked *unacked)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	if (unacked->before)
		unacked->before->after = unacked->after;
	else
		list->first = unacked->after;
	if (unacked->after)
		unacked->after->before = unacked->before;
	else
		list->last = unacked->before;
	if (list->next == unacked)
		list->next = unacked->after;
	if (!unacked->fetched)
		list->waiting--;
	semel_rabbit_unacked_free(rabbit, unacked);
}

void semel_rabbit_unacked_list_drop(struct semel_rabbit *rabbit, uint32_t assignment)
{
	struct semel_rabbit_unacked *unacked = rabbit->unacked.first;
	while (unacked) {
		struct semel_rabbit_unacked *after = unacked->after;
		if (unacked->assignment == assignment)
			semel_rabbit_unacked_list_remove(rabbit, unacked);
		unacked = after;
	}
}

void semel_rabbit_unacked_list_rewind(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	for (struct semel_rabbit_unacked *at = list->first; at; at = at->after) {
		if (!at->fetched)
			continue;
		at->fetched = false;
		at->delivery.redelivered = true;
		list->waiting++;
	}
	list->next = list->first;
}

/* All deliveries before list.next are fetched. */
struct semel_rabbit_unacked *semel_rabbit_unacked_list_next(
	struct semel_rabbit *rabbit, const struct semel_rabbit_unacked *behind)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	while (list->next && list->next->fetched)
		list->next = list->next->after;
	struct semel_rabbit_unacked *unacked = behind ? behind->after : list->next;
	while (unacked && (unacked->fetched || rabbit->assignments[unacked->assignment].releasing))
		unacked = unacked->after;
	return unacked;
}

bool semel_rabbit_unacked_list_is_full(const struct semel_rabbit *rabbit)
{
	return rabbit->assignment_count > 0 && rabbit->unacked.first &&
	       rabbit->unacked.bytes >= rabbit->budget;
}

void semel_rabbit_unacked_list_free(struct semel_rabbit *rabbit)
{
	struct semel_rabbit_unacked_list *list = &rabbit->unacked;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		if (rabbit->assignments[i].assembly.unacked)
			semel_rabbit_unacked_free(rabbit, rabbit->assignments[i].assembly.unacked);
	while (list->first)
		semel_rabbit_unacked_list_remove(rabbit, list->first);
	free_slab(list->slab);
	free_slab(list->spare);
}
