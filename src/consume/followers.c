/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/followers.h"

#include "base/error.h"
#include "consume/batch.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "observe/log.h"

#define RELEASED_MAX       64
#define RELEASED_BYTES_MAX ((size_t)4 * 1024 * 1024) /* one follower may exceed it */

static const struct semel_store_driver *driver_of(const struct semel_consumer *consumer)
{
	return consumer->store->driver;
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct semel_delivery *delivery_of(const struct semel_dead_letter_row *entry, uint32_t runs,
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
	if (hold->state != SEMEL_HOLD_GAP)
		return;
	semel_log(
		SEMEL_LOG_WARN, "predecessor not seen in time, releasing the events behind it",
		&(struct semel_log_fields){ .message_id = semel_text_shown(hold->head_id),
					    .consumer = semel_text_shown(consumer->config.scope) });
}

/* In strict order a follower is released when its own predecessor is settled, or did not arrive in
 * time. */
static semel_status check_predecessor(struct semel_consumer *consumer,
				      const struct semel_hold *hold,
				      const struct semel_dead_letter_row *entry, bool *ready_out,
				      semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);

	*ready_out = hold->state == SEMEL_HOLD_GAP || semel_text_is_blank(entry->parked_behind) ||
		     semel_text_equal(entry->event.id, hold->head_id);
	if (*ready_out)
		return SEMEL_OK;
	semel_status status =
		semel_claims_is_settled(consumer, entry->parked_behind, ready_out, error);
	if (status != SEMEL_OK || *ready_out)
		return status;
	struct semel_hold gap = *hold;
	gap.state = SEMEL_HOLD_GAP;
	gap.head_id = entry->parked_behind;
	gap.due_ms = semel_now_ms(consumer->env) + consumer->config.options.strict_wait_ms;
	return semel_hold_move(driver->tx(consumer->store), consumer->config.scope, hold, &gap,
			       SEMEL_BY_CONSUMER, error);
}

/* *ready_out false: there are no more followers, or the next one has to wait. */
static semel_status next_follower(struct semel_consumer *consumer, const struct semel_hold *hold,
				  struct semel_arena *arena,
				  struct semel_dead_letter_row *entry_out, bool *ready_out,
				  semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	bool strict = consumer->config.options.order == SEMEL_ORDER_STRICT;
	semel_tx tx = driver->tx(consumer->store);
	semel_status status =
		strict ? driver->dead_letters->parked_next(tx, consumer->config.scope, hold, arena,
							   entry_out, error)
		       : driver->dead_letters->parked_first(tx, consumer->config.scope, hold, arena,
							    entry_out, error);

	*ready_out = false;
	if (status != SEMEL_OK)
		return status;
	if (!entry_out->entry_id.data) {
		struct semel_hold none = { .state = SEMEL_HOLD_NONE };
		return semel_hold_move(tx, consumer->config.scope, hold, &none, SEMEL_BY_CONSUMER,
				       error);
	}
	log_gap(consumer, hold);
	*ready_out = true;
	return strict ? check_predecessor(consumer, hold, entry_out, ready_out, error) : SEMEL_OK;
}

/* If the next follower of the hold is ready, it becomes an item, and *count grows. */
static semel_status read_follower(struct semel_consumer *consumer, const struct semel_hold *hold,
				  struct semel_arena *arena, struct semel_item *items,
				  uint32_t *count, semel_error *error)
{
	struct semel_dead_letter_row entry = { .status = SEMEL_DEAD_PENDING };
	bool ready = false;
	semel_status status = next_follower(consumer, hold, arena, &entry, &ready, error);

	if (status != SEMEL_OK || !ready)
		return status;
	struct semel_delivery *delivery = delivery_of(&entry, hold->attempts, arena);
	struct semel_item *item = delivery ? semel_items_new(consumer, delivery, 1, arena) : NULL;
	if (!item)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a follower");
	item->entry_id = entry.entry_id;
	items[(*count)++] = *item;
	return SEMEL_OK;
}

/* Reads one follower per hold; the next ones are read in the next round, in order. */
semel_status semel_followers_read(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_item **items_out,
				  uint32_t *count_out, semel_error *error)
{
	const struct semel_store_driver *driver = driver_of(consumer);
	size_t start = semel_arena_used(arena);
	struct semel_hold *found = semel_arena_alloc(arena, max * sizeof *found);
	struct semel_holds holds = { .arena = arena, .holds = found, .capacity = max };

	*count_out = 0;
	*items_out = semel_arena_alloc(arena, max * sizeof **items_out);
	if (!found || !*items_out)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the followers");
	semel_status status = semel_order_check_mode(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = driver->holds->list_ready(driver->tx(consumer->store), consumer->config.scope,
					   semel_now_ms(consumer->env), &holds, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < holds.count; i++) {
		if (semel_arena_used(arena) - start >= RELEASED_BYTES_MAX)
			break;
		status = read_follower(consumer, &holds.holds[i], arena, *items_out, count_out,
				       error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* What one transaction has run, round by round. */
struct rounds {
	struct semel_item *items; /* those of the last round */
	uint32_t count;
	struct semel_item **all;
	uint32_t total, max;
	size_t start; /* bytes of the arena in use at the start */
};

static semel_status read_round(struct semel_consumer *consumer, struct rounds *rounds,
			       semel_error *error)
{
	uint32_t rows_left = rounds->max - rounds->total;

	return semel_followers_read(consumer, rows_left < RELEASED_MAX ? rows_left : RELEASED_MAX,
				    consumer->arena, &rounds->items, &rounds->count, error);
}

/* A handler that ends the transaction undoes the earlier rounds as well, and can be identified only
 * when it runs in the first round. */
static bool has_room(const struct semel_consumer *consumer, const struct rounds *rounds)
{
	return !consumer->followers.single_round && rounds->total < rounds->max &&
	       semel_arena_used(consumer->arena) - rounds->start < RELEASED_BYTES_MAX &&
	       !semel_items_have_deferred(rounds->items, rounds->count);
}

static semel_status run_round(struct semel_consumer *consumer, struct rounds *rounds,
			      semel_error *error)
{
	semel_status status = semel_batch_run_in_order(consumer, rounds->items, rounds->count,
						       semel_batch_run_one, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_items_check(rounds->items, rounds->count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < rounds->count; i++)
		rounds->all[rounds->total++] = &rounds->items[i];
	return SEMEL_OK;
}

/* Each round runs the next follower of every hold, so that many followers of one hold cost one
 * commit. */
static semel_status run_rounds(struct semel_consumer *consumer, struct rounds *rounds,
			       semel_error *error)
{
	rounds->all = semel_arena_alloc(consumer->arena, rounds->max * sizeof *rounds->all);
	if (!rounds->all)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the followers");
	while (rounds->count > 0) {
		semel_status status = run_round(consumer, rounds, error);
		if (status != SEMEL_OK)
			return status;
		if (!has_room(consumer, rounds))
			break;
		status = read_round(consumer, rounds, error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < rounds->total; i++) {
		semel_status status =
			semel_crash_recovery_after_run(consumer, rounds->all[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- transactions that failed ---------------------------------------------------------------- */

static semel_status settle_ended_transactions(struct semel_consumer *consumer,
					      struct semel_item *items, uint32_t count,
					      semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (!items[i].ended_transaction)
			continue;
		semel_status status = semel_settle_dead_alone(consumer, &items[i], error);
		if (status != SEMEL_OK)
			return status;
		status = semel_acknowledge_all(consumer, &items[i], 1, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* The store refused to commit what the followers did, and the transaction was rolled back: they run
 * again, each in a transaction of its own. If there is only one, the refusal is known to be its
 * own. */
static semel_status handle_refused_commit(struct semel_consumer *consumer,
					  const struct rounds *rounds, semel_error *error)
{
	struct semel_item *item = rounds->all[0];

	if (rounds->total > 1) {
		consumer->followers.single = rounds->total;
		return SEMEL_OK;
	}
	semel_item_reset(item);
	item->runs--;
	semel_batch_commit_refused(consumer, item, error);
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_batch_run_one(consumer, item, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	status = semel_consumer_commit(consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_acknowledge_all(consumer, item, 1, error);
}

/* ---- running --------------------------------------------------------------------------------- */

static semel_status commit_rounds(struct semel_consumer *consumer, const struct rounds *rounds,
				  semel_error *error)
{
	semel_status status = semel_consumer_commit(consumer, error);

	if (semel_batch_is_verdict(status))
		return handle_refused_commit(consumer, rounds, error);
	if (status != SEMEL_OK)
		return status;
	return semel_acknowledge(consumer, rounds->all, rounds->total, error);
}

/* Followers are read, run and removed in one transaction, so that no other consumer can
 * intervene. */
static semel_status run_released(struct semel_consumer *consumer, struct rounds *rounds,
				 semel_error *error)
{
	semel_status status = run_rounds(consumer, rounds, error);
	bool ended = status == SEMEL_NO_TRANSACTION;

	if (status != SEMEL_OK)
		semel_consumer_rollback(consumer);
	if (status != SEMEL_OK && !ended)
		return status;
	consumer->followers.single_round = ended;
	if (!ended)
		return commit_rounds(consumer, rounds, error);
	return rounds->total > 0
		       ? SEMEL_OK
		       : settle_ended_transactions(consumer, rounds->items, rounds->count, error);
}

/* During crash recovery the follower is recorded in a transaction of its own, and read again after
 * it. count 0: another consumer was faster. */
static semel_status record_first(struct semel_consumer *consumer, struct rounds *rounds,
				 semel_error *error)
{
	struct semel_item recorded = rounds->items[0];
	semel_status status = driver_of(consumer)->commit(consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_crash_recovery_before_run(consumer, &recorded, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_followers_read(consumer, 1, consumer->arena, &rounds->items, &rounds->count,
				      error);
	if (status != SEMEL_OK || rounds->count == 0)
		return status;
	if (!semel_text_equal(rounds->items[0].entry_id, recorded.entry_id)) {
		rounds->count = 0;
		return SEMEL_OK;
	}
	if (recorded.skip_run)
		rounds->items[0] = recorded;
	return SEMEL_OK;
}

static semel_status read_first_round(struct semel_consumer *consumer, struct rounds *rounds,
				     bool *ran_out, semel_error *error)
{
	semel_status status = read_round(consumer, rounds, error);

	if (status != SEMEL_OK)
		return status;
	*ran_out = rounds->count > 0;
	return *ran_out && consumer->recovery.active ? record_first(consumer, rounds, error)
						     : SEMEL_OK;
}

static uint32_t runs_in_transaction(struct semel_consumer *consumer)
{
	uint32_t max = semel_breaker_allow(&consumer->breaker, consumer->config.options.batch,
					   semel_steady_ms(consumer->env));

	if (max == 0)
		return 0;
	if (consumer->followers.single > 0) {
		consumer->followers.single--;
		return 1;
	}
	return consumer->recovery.active ? 1 : max;
}

semel_status semel_followers_run(struct semel_consumer *consumer, bool *ran_out, semel_error *error)
{
	struct rounds rounds = { .start = semel_arena_used(consumer->arena),
				 .max = runs_in_transaction(consumer) };

	*ran_out = false;
	if (rounds.max == 0)
		return SEMEL_OK;
	semel_status status = semel_consumer_begin(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = read_first_round(consumer, &rounds, ran_out, error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	if (rounds.count == 0)
		return driver_of(consumer)->commit(consumer->store, error);
	if (semel_consumer_is_same_tx(consumer))
		return run_released(consumer, &rounds, error);
	/* One by one here too, so that a crash leaves only one of them in doubt. */
	status = semel_consumer_commit_metered(consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_batch_claim_first(consumer, rounds.items, rounds.count, error);
}
