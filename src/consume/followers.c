/* SPDX-License-Identifier: Apache-2.0 */
/* Parked followers whose head is settled: read from the store, run in order, removed with their
 * effect. */
#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"
#include "observe/step_timer.h"

#define RELEASED_MAX       64
#define RELEASED_BYTES_MAX ((size_t)4 * 1024 * 1024) /* one follower may exceed it */

static const struct semel_store_driver *driver_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver;
}

static struct semel_delivery *delivery_of(const struct semel_dead_entry *entry, uint32_t runs,
					  struct semel_arena *arena)
{
	struct semel_delivery *delivery = semel_arena_alloc(arena, sizeof *delivery);
	if (delivery)
		*delivery = (struct semel_delivery){
			.event = entry->event,
			.metadata = { .attempt = runs, .replay = entry->replay_count },
			.partition = entry->partition,
			.offset = entry->offset,
		};
	return delivery;
}

static void log_gap(const struct semel_consumer *consumer, const struct semel_hold *hold)
{
	if (hold->state == SEMEL_HOLD_GAP)
		semel_log(SEMEL_LOG_WARN,
			  "a predecessor was not seen in time; the events behind it go on",
			  &(struct semel_log_fields){ .message_id = semel_text_shown(hold->head_id),
						      .consumer =
							      semel_text_shown(consumer->scope) });
}

/* In strict order a follower goes when its own predecessor is settled, or was waited for in vain.
 */
static semel_status check_predecessor(struct semel_consumer *consumer,
				      const struct semel_hold *hold,
				      const struct semel_dead_entry *entry, bool *ready_out,
				      semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	semel_tx tx = driver->tx(consumer->store);

	*ready_out = hold->state == SEMEL_HOLD_GAP || semel_text_is_blank(entry->parked_behind) ||
		     semel_text_equal(entry->event.id, hold->head_id);
	if (*ready_out)
		return SEMEL_OK;
	semel_status status = consumer->guard->driver->is_settled(
		consumer->guard, consumer->scope, entry->parked_behind, ready_out, error);
	if (status != SEMEL_OK || *ready_out)
		return status;
	struct semel_hold gap = *hold;
	gap.state = SEMEL_HOLD_GAP;
	gap.head_id = entry->parked_behind;
	gap.due_ms = semel_now_ms(consumer->env) + consumer->options.strict_wait_ms;
	return semel_hold_move(tx, consumer->scope, hold, &gap, SEMEL_BY_CONSUMER, error);
}

/* ready_out false: none is left, or the next one has to wait. */
static semel_status next_follower(struct semel_consumer *consumer, const struct semel_hold *hold,
				  struct semel_arena *arena, struct semel_dead_entry *entry_out,
				  bool *ready_out, semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	bool strict = consumer->options.order == SEMEL_ORDER_STRICT;
	semel_tx tx = driver->tx(consumer->store);
	semel_status status = (strict ? driver->holds->parked_next : driver->holds->parked_first)(
		tx, consumer->scope, hold, arena, entry_out, error);

	*ready_out = false;
	if (status != SEMEL_OK)
		return status;
	if (!entry_out->entry_id.data) {
		struct semel_hold none = { .state = SEMEL_HOLD_NONE };
		return semel_hold_move(tx, consumer->scope, hold, &none, SEMEL_BY_CONSUMER, error);
	}
	log_gap(consumer, hold);
	*ready_out = true;
	return strict ? check_predecessor(consumer, hold, entry_out, ready_out, error) : SEMEL_OK;
}

/* The next ones of a hold come with the next round, in order. */
semel_status semel_followers_read(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_item **items_out,
				  uint32_t *count_out, semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	size_t start = semel_arena_used(arena);
	struct semel_hold *found = semel_arena_alloc(arena, max * sizeof *found);
	struct semel_holds holds = { .arena = arena, .holds = found, .capacity = max };
	struct semel_item *items = semel_arena_alloc(arena, max * sizeof *items);

	*count_out = 0;
	*items_out = items;
	if (!found || !items)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the followers");
	semel_status status = semel_order_check_mode(consumer, error);
	if (status == SEMEL_OK)
		status = driver->holds->list_ready(driver->tx(consumer->store), consumer->scope,
						   semel_now_ms(consumer->env), &holds, error);
	for (uint32_t i = 0; i < holds.count && status == SEMEL_OK &&
			     semel_arena_used(arena) - start < RELEASED_BYTES_MAX;
	     i++) {
		struct semel_dead_entry entry = { .status = SEMEL_DEAD_PENDING };
		bool ready = false;
		status = next_follower(consumer, &holds.holds[i], arena, &entry, &ready, error);
		if (status != SEMEL_OK)
			return status;
		if (!ready)
			continue;
		struct semel_delivery *delivery =
			delivery_of(&entry, holds.holds[i].attempts, arena);
		struct semel_item *item =
			delivery ? semel_items_make(consumer, delivery, 1, arena) : NULL;
		if (!item)
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for a follower");
		item->entry_id = entry.entry_id;
		items[(*count_out)++] = *item;
	}
	return status;
}

static semel_status settle_ended_transactions(struct semel_consumer *consumer,
					      struct semel_item *items, uint32_t count,
					      semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		if (!items[i].ended_transaction)
			continue;
		status = semel_batch_settle_dead(consumer, &items[i], error);
		if (status == SEMEL_OK)
			status = semel_batch_acknowledge(consumer, &items[i], 1, error);
	}
	return status;
}

static bool any_deferred(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_DEFERRED)
			return true;
	return false;
}

/* What one transaction has done of the followers, round by round. */
struct rounds {
	struct semel_item *items; /* of the last round */
	uint32_t count;
	struct semel_item **all;
	uint32_t total, max;
	size_t start; /* of the arena */
};

/* A handler that ended the transaction undid the earlier rounds; it is told from the others when
 * it comes in the first one. */
static bool may_go_on(const struct semel_consumer *consumer, const struct rounds *rounds)
{
	return !consumer->one_round && rounds->total < rounds->max &&
	       semel_arena_used(consumer->arena) - rounds->start < RELEASED_BYTES_MAX &&
	       !any_deferred(rounds->items, rounds->count);
}

/* Each round has the next follower of every hold; so many followers of one cost one commit. */
static semel_status run_rounds(struct semel_consumer *consumer, struct rounds *rounds,
			       semel_error *error)
{
	semel_status status = SEMEL_OK;

	while (status == SEMEL_OK && rounds->count > 0) {
		status = semel_batch_run_each(consumer, rounds->items, rounds->count, error);
		if (status == SEMEL_OK)
			status = semel_items_check(rounds->items, rounds->count, error);
		for (uint32_t i = 0; i < rounds->count && status == SEMEL_OK; i++)
			rounds->all[rounds->total++] = &rounds->items[i];
		if (status != SEMEL_OK || !may_go_on(consumer, rounds))
			return status;
		uint32_t left = rounds->max - rounds->total;
		status = semel_followers_read(consumer, left < RELEASED_MAX ? left : RELEASED_MAX,
					      consumer->arena, &rounds->items, &rounds->count,
					      error);
	}
	return status;
}

/* The store has refused to commit what they did, and nothing of it happened: they run again, each
 * in a transaction of its own. Of a single one it is known then that it is its own doing. */
static semel_status isolate_runs(struct semel_consumer *consumer, const struct rounds *rounds,
				 semel_error *error)
{
	struct semel_item *item = rounds->all[0];

	if (rounds->total > 1) {
		consumer->alone = rounds->total;
		return SEMEL_OK;
	}
	semel_item_reset(item);
	item->runs--;
	semel_batch_commit_refused(consumer, item, error);
	semel_status status = driver_of(consumer)->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_batch_run_each(consumer, item, 1, error);
	if (status != SEMEL_OK) {
		driver_of(consumer)->rollback(consumer->store);
		return status;
	}
	status = semel_batch_commit(consumer, error);
	return status == SEMEL_OK ? semel_batch_acknowledge(consumer, item, 1, error) : status;
}

/* Read, run and removed in one transaction, so that no other consumer comes in between. */
static semel_status run_released(struct semel_consumer *consumer, struct rounds *rounds,
				 semel_error *error)
{
	rounds->all = semel_arena_alloc(consumer->arena, rounds->max * sizeof *rounds->all);
	semel_status status =
		rounds->all ? run_rounds(consumer, rounds, error)
			    : semel_error_set(error, SEMEL_INTERNAL, "no memory for the followers");

	for (uint32_t i = 0; i < rounds->total && status == SEMEL_OK; i++)
		status = semel_crash_recovery_after_run(consumer, rounds->all[i], error);
	if (status == SEMEL_OK) {
		consumer->one_round = false;
		status = semel_batch_commit(consumer, error);
		if (status == SEMEL_OK)
			return semel_acknowledge(consumer, rounds->all, rounds->total, error);
		return semel_batch_is_verdict(status) ? isolate_runs(consumer, rounds, error)
						      : status;
	}
	driver_of(consumer)->rollback(consumer->store);
	if (status != SEMEL_NO_TRANSACTION)
		return status;
	consumer->one_round = true;
	return rounds->total > 0
		       ? SEMEL_OK
		       : settle_ended_transactions(consumer, rounds->items, rounds->count, error);
}

/* It is written down in a transaction of its own, and read again behind it; count 0: somebody else
 * was quicker. */
static semel_status record_first(struct semel_consumer *consumer, struct rounds *rounds,
				 semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	struct semel_item noted = rounds->items[0];
	semel_status status = driver->commit(consumer->store, error);

	if (status == SEMEL_OK)
		status = semel_crash_recovery_before_run(consumer, &noted, error);
	if (status == SEMEL_OK)
		status = driver->begin(consumer->store, error);
	if (status == SEMEL_OK)
		status = semel_followers_read(consumer, 1, consumer->arena, &rounds->items,
					      &rounds->count, error);
	if (status != SEMEL_OK || rounds->count == 0)
		return status;
	if (!semel_text_equal(rounds->items[0].entry_id, noted.entry_id)) {
		rounds->count = 0;
		return SEMEL_OK;
	}
	if (noted.refused)
		rounds->items[0] = noted;
	return SEMEL_OK;
}

/* One by one here too: a crash leaves one of them in doubt. */
static semel_status run_released_claimed(struct semel_consumer *consumer, struct semel_item *items,
					 uint32_t count, semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = driver_of(consumer)->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	return status == SEMEL_OK ? semel_batch_one_by_one(consumer, items, count, error) : status;
}

semel_status semel_followers_run(struct semel_consumer *consumer, bool *ran_out, semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	struct rounds rounds = { .start = semel_arena_used(consumer->arena) };

	rounds.max = semel_breaker_allow(&consumer->breaker, consumer->options.batch,
					 semel_steady_ms(consumer->env));
	*ran_out = false;
	if (rounds.max == 0)
		return SEMEL_OK;
	if (consumer->recovery.on)
		rounds.max = 1;
	if (consumer->alone > 0) {
		consumer->alone--;
		rounds.max = 1;
	}
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_followers_read(consumer,
				      rounds.max < RELEASED_MAX ? rounds.max : RELEASED_MAX,
				      consumer->arena, &rounds.items, &rounds.count, error);
	if (status != SEMEL_OK) {
		driver->rollback(consumer->store);
		return status;
	}
	*ran_out = rounds.count > 0;
	if (rounds.count > 0 && consumer->recovery.on)
		status = record_first(consumer, &rounds, error);
	if (status != SEMEL_OK) {
		driver->rollback(consumer->store);
		return status;
	}
	if (rounds.count == 0)
		return driver->commit(consumer->store, error);
	return semel_consumer_joins(consumer)
		       ? run_released(consumer, &rounds, error)
		       : run_released_claimed(consumer, rounds.items, rounds.count, error);
}
