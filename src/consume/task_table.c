/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/task_table.h"

#include <stdlib.h>

#define TASK_BLOCK 4096

bool semel_task_table_init(struct semel_task_table *table, uint32_t capacity)
{
	*table = (struct semel_task_table){ .tasks = calloc(capacity, sizeof *table->tasks) };
	if (!table->tasks)
		return false;
	table->capacity = capacity;
	for (uint32_t i = capacity; i > 0; i--) {
		table->tasks[i - 1].next = table->unused;
		table->unused = &table->tasks[i - 1];
	}
	return true;
}

void semel_task_table_clear(struct semel_task_table *table)
{
	for (uint32_t i = 0; i < table->capacity; i++)
		semel_arena_free(table->tasks[i].arena);
	free(table->tasks);
	*table = (struct semel_task_table){ 0 };
}

static uint64_t hash_key(const struct semel_item *item)
{
	return semel_event_hash_id(item->key.id);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool copy_text(struct semel_arena *arena, struct semel_text from, struct semel_text *to)
{
	*to = semel_arena_text(arena, from.data, from.length);
	return to->data || !from.data;
}

bool semel_delivery_copy(struct semel_arena *arena, const struct semel_delivery *from,
			 struct semel_delivery *to)
{
	const struct semel_event *event = &from->event;
	struct semel_event *copy = &to->event;

	*to = *from;
	return copy_text(arena, event->id, &copy->id) &&
	       copy_text(arena, event->type, &copy->type) &&
	       copy_text(arena, event->aggregate_type, &copy->aggregate_type) &&
	       copy_text(arena, event->aggregate_id, &copy->aggregate_id) &&
	       copy_text(arena, event->topic, &copy->topic) &&
	       copy_text(arena, event->routing_key, &copy->routing_key) &&
	       copy_text(arena, event->content_type, &copy->content_type) &&
	       copy_text(arena, event->headers, &copy->headers) &&
	       copy_text(arena, event->payload, &copy->payload) &&
	       copy_text(arena, from->metadata.previous, &to->metadata.previous);
}

static bool fill(struct semel_task *task, const struct semel_consumer *consumer,
		 const struct semel_delivery *delivery, struct semel_text entry_id)
{
	struct semel_item *item = NULL;

	if (semel_delivery_copy(task->arena, delivery, &task->delivery))
		item = semel_items_new(consumer, &task->delivery, 1, task->arena);
	if (!item || !copy_text(task->arena, entry_id, &item->entry_id))
		return false;
	task->item = *item;
	task->id_hash = semel_event_hash_id(task->delivery.event.id);
	task->key_hash = hash_key(&task->item);
	task->bytes = semel_arena_used(task->arena);
	return true;
}

/* ---- adding and removing --------------------------------------------------------------------- */

struct semel_task *semel_task_table_add(struct semel_task_table *table,
					const struct semel_consumer *consumer,
					const struct semel_delivery *delivery,
					struct semel_text entry_id)
{
	struct semel_task *task = table->unused;
	struct semel_arena *arena = task ? task->arena : NULL;

	if (task && !arena)
		arena = semel_arena_new(TASK_BLOCK);
	if (!task || !arena)
		return NULL;
	struct semel_task *unused = task->next;
	*task = (struct semel_task){ .arena = arena, .next = unused };
	if (!fill(task, consumer, delivery, entry_id)) {
		semel_arena_reset(arena);
		return NULL;
	}
	table->unused = unused;
	task->next = NULL;
	task->previous = table->last;
	*(table->last ? &table->last->next : &table->first) = task;
	table->last = task;
	table->count++;
	table->bytes += task->bytes;
	return task;
}

void semel_task_table_remove(struct semel_task_table *table, struct semel_task *task)
{
	*(task->previous ? &task->previous->next : &table->first) = task->next;
	*(task->next ? &task->next->previous : &table->last) = task->previous;
	table->count--;
	table->bytes -= task->bytes;
	semel_arena_reset(task->arena);
	task->previous = NULL;
	task->next = table->unused;
	table->unused = task;
}

/* ---- finding --------------------------------------------------------------------------------- */

bool semel_task_has_same_key(const struct semel_task *left, const struct semel_task *right)
{
	return left->key_hash == right->key_hash &&
	       semel_item_has_same_key(&left->item, &right->item);
}

struct semel_task *semel_task_table_find_detached(const struct semel_task_table *table,
						  const struct semel_delivery *delivery)
{
	uint64_t hash = semel_event_hash_id(delivery->event.id);

	for (struct semel_task *task = table->first; task; task = task->next)
		if (task->item.detached && task->id_hash == hash &&
		    task->delivery.metadata.attempt == delivery->metadata.attempt &&
		    task->delivery.metadata.replay == delivery->metadata.replay &&
		    semel_text_equal(task->delivery.event.id, delivery->event.id) &&
		    semel_text_equal(task->delivery.event.topic, delivery->event.topic))
			return task;
	return NULL;
}

bool semel_task_table_has_call(const struct semel_task_table *table, struct semel_text event_id)
{
	uint64_t hash = semel_event_hash_id(event_id);

	for (const struct semel_task *task = table->first; task; task = task->next)
		if ((task->state == SEMEL_TASK_RUNNING || task->state == SEMEL_TASK_ENDED) &&
		    task->id_hash == hash && semel_text_equal(task->item.claim.event_id, event_id))
			return true;
	return false;
}

bool semel_task_table_has_key(const struct semel_task_table *table, const struct semel_item *item)
{
	uint64_t hash = hash_key(item);

	for (const struct semel_task *task = table->first; task; task = task->next)
		if (task->key_hash == hash && semel_item_has_same_key(&task->item, item))
			return true;
	return false;
}
