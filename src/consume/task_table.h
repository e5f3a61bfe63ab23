/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer with an outside handler has in flight: deliveries that wait, calls that run, and
 * calls that have ended. Bounded by count here, and by bytes by the caller that adds.
 *
 * A task has memory of its own, which the next task reuses; so a slow call retains nothing but its
 * own event, and once the table has been full, an event costs no allocation.
 *
 * Threads: the consumer's. A worker reads the event of a running task, and fills in its call.
 */
#ifndef SEMEL_CONSUME_TASK_TABLE_H
#define SEMEL_CONSUME_TASK_TABLE_H

#include "consume/consumer.h"
#include "consume/workers.h"

enum semel_task_state {
	SEMEL_TASK_WAITING,
	SEMEL_TASK_RUNNING,       /* its call was submitted */
	SEMEL_TASK_ENDED,         /* its call has ended; the outcome is not committed */
	SEMEL_TASK_COMMIT_UNKNOWN /* did not start; its claim may or may not be committed */
};

struct semel_task {
	struct semel_item item, before; /* before: as it was when the transaction began */
	struct semel_delivery delivery; /* item.delivery points to it */
	struct semel_call call;
	struct semel_arena *arena;
	struct semel_task *previous, *next; /* in the order in which they were added */
	enum semel_task_state state;
	uint64_t id_hash, key_hash;
	uint64_t call_number;
	size_t bytes;
	bool upcast;           /* item.event is the handler's version */
	int64_t not_before_ms; /* steady */
};

/* Copies everything into the arena. False: out of memory. */
bool semel_delivery_copy(struct semel_arena *arena, const struct semel_delivery *from,
			 struct semel_delivery *to);

struct semel_task_table {
	struct semel_task *tasks;
	struct semel_task *first, *last, *unused;
	uint32_t capacity, count;
	size_t bytes; /* of all in flight */
};

/* False: out of memory. Call clear even after a failure. */
bool semel_task_table_init(struct semel_task_table *table, uint32_t capacity);
void semel_task_table_clear(struct semel_task_table *table);

/* Adds a copy of the delivery, last in the order. entry_id: of a follower; otherwise its data is
 * NULL. NULL: the table is full, or out of memory. */
struct semel_task *semel_task_table_add(struct semel_task_table *table,
					const struct semel_consumer *consumer,
					const struct semel_delivery *delivery,
					struct semel_text entry_id);
void semel_task_table_remove(struct semel_task_table *table, struct semel_task *task);

/* The task of exactly this copy whose connection was closed, or NULL. */
struct semel_task *semel_task_table_find_detached(const struct semel_task_table *table,
						  const struct semel_delivery *delivery);
/* A call of this event runs, or has ended and is not settled. */
bool semel_task_table_has_call(const struct semel_task_table *table, struct semel_text event_id);
bool semel_task_table_has_key(const struct semel_task_table *table, const struct semel_item *item);
bool semel_task_has_same_key(const struct semel_task *left, const struct semel_task *right);

#endif
