/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's loop: fetch, process, sleep until woken; after an outage start over. What was
 * fetched and not acked comes again, and the claims tell what was done. */
#include "consume/consumer.h"
#include "consume/remaining.h"

#include "base/backoff.h"
#include "base/error.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "observe/log.h"
#include "observe/step_timer.h"

#include <stdio.h>

#define CHECK_PAUSED_MS    1000
#define WAITING_BATCH      100
#define INTERRUPTED_MS     2000
#define RECONNECT_PAUSE_US 50000

uint32_t semel_consumer_cap(const struct semel_consumer *consumer, uint32_t wanted_count,
			    uint32_t at_hand)
{
	uint64_t taken = consumer->settled + at_hand;

	if (consumer->max == 0)
		return wanted_count;
	uint64_t remaining = consumer->max > taken ? consumer->max - taken : 0;
	return remaining < wanted_count ? (uint32_t)remaining : wanted_count;
}

/* Has a person paused the subscription? Looked at now and then: to pause is not urgent. */
static semel_status check_paused(struct semel_consumer *consumer, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(consumer->env);
	bool before = consumer->paused;

	if (now_ms < consumer->check_pause_at_ms)
		return SEMEL_OK;
	consumer->check_pause_at_ms = now_ms + CHECK_PAUSED_MS;
	semel_status status = consumer->store->driver->upkeep->subscription_is_paused(
		consumer->store, consumer->scope, &consumer->paused, error);
	if (status == SEMEL_OK && consumer->paused != before)
		semel_log(SEMEL_LOG_WARN,
			  consumer->paused ? "the subscription is paused: nothing is taken"
					   : "the subscription goes on",
			  &(struct semel_log_fields){ .consumer =
							      semel_text_shown(consumer->scope) });
	return status;
}

/* The event that a topic waits for may stand behind copies of others, however small a batch is. */
static uint32_t batch_size(const struct semel_consumer *consumer)
{
	uint32_t batch = consumer->options.batch;
	bool waits = consumer->options.order == SEMEL_ORDER_TOTAL && consumer->has_deferred;

	return waits && batch < WAITING_BATCH && !SEMEL_PLANTED("head-behind-copies")
		       ? WAITING_BATCH
		       : batch;
}

static uint32_t wanted(struct semel_consumer *consumer)
{
	int64_t steady_ms = semel_steady_ms(consumer->env);
	uint32_t batch = semel_consumer_cap(consumer, batch_size(consumer), 0);

	if (consumer->paused || steady_ms < consumer->pause_until_ms)
		return 0;
	return semel_breaker_allow(&consumer->breaker, batch, steady_ms);
}

semel_status semel_consumer_fetch(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_delivery **deliveries_out,
				  uint32_t *count_out, semel_error *error)
{
	struct semel_delivery *deliveries =
		semel_arena_alloc(arena, (max + 1) * sizeof *deliveries);

	*count_out = 0;
	*deliveries_out = deliveries;
	if (!deliveries)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for deliveries");
	int64_t began_us = semel_step_timer_begin();
	semel_status status = consumer->broker->driver->fetch(consumer->broker, max, arena,
							      deliveries, count_out, error);
	semel_step_timer_end(SEMEL_TIMED_RECEIVE, began_us);
	if (status != SEMEL_OK || *count_out == 0)
		return status;
	status = semel_positions_note_fetched(consumer->positions, deliveries, *count_out, error);
	return status == SEMEL_OK ? semel_failpoint(SEMEL_FP_CONSUME_AFTER_RECEIVE, error) : status;
}

semel_status semel_consumer_fetch_items(struct semel_consumer *consumer, uint32_t max,
					struct semel_arena *arena, struct semel_item **items_out,
					uint32_t *count_out, semel_error *error)
{
	struct semel_delivery *deliveries = NULL;
	semel_status status =
		semel_consumer_fetch(consumer, max, arena, &deliveries, count_out, error);

	if (status != SEMEL_OK || *count_out == 0)
		return status;
	*items_out = semel_items_make(consumer, deliveries, *count_out, arena);
	return *items_out ? SEMEL_OK
			  : semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
}

static semel_status take_batch(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	struct semel_item *items = NULL;
	uint32_t count = 0;
	semel_status status = semel_consumer_fetch_items(consumer, wanted(consumer),
							 consumer->arena, &items, &count, error);

	*busy_out = *busy_out || count > 0;
	if (status != SEMEL_OK || count == 0)
		return status;
	consumer->has_deferred = false;
	status = semel_batch_process(consumer, items, count, error);
	if (status == SEMEL_OK && consumer->has_deferred)
		status = consumer->broker->driver->rewind(consumer->broker, error);
	return status;
}

static semel_status step_inside(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool holds = false, ran = false;
	semel_status status =
		driver->holds->has_any(driver->tx(consumer->store), consumer->scope, &holds, error);

	if (status == SEMEL_OK && holds && !consumer->paused &&
	    semel_steady_ms(consumer->env) >= consumer->pause_until_ms)
		status = semel_followers_run(consumer, &ran, error);
	if (status == SEMEL_OK)
		status = take_batch(consumer, busy_out, error);
	*busy_out = *busy_out || ran;
	return status;
}

static semel_status turn(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	semel_arena_reset(consumer->arena);
	*busy_out = false;
	consumer->step_began_ms = semel_now_ms(consumer->env);
	semel_consumer_counters_breaker(consumer);
	semel_status status = semel_consumer_connect(consumer, error);
	if (status == SEMEL_OK && consumer->kind == SEMEL_HANDLER_OUTSIDE && !consumer->dispatch)
		status = semel_dispatch_open(consumer, error);
	if (status == SEMEL_OK)
		status = semel_unfinished_claim_resolve(consumer, error);
	if (status == SEMEL_OK)
		status = semel_positions_renew(consumer->positions, error);
	if (status == SEMEL_OK)
		status = check_paused(consumer, error);
	if (status != SEMEL_OK)
		return status;
	semel_presence_write(consumer, NULL);
	status = consumer->kind == SEMEL_HANDLER_OUTSIDE
			 ? semel_dispatch_step(consumer, busy_out, error)
			 : step_inside(consumer, busy_out, error);
	if (status == SEMEL_OK)
		consumer->outages = 0;
	return status;
}

/* Somebody holds a lock: the connections are sound, and nothing of what is in hand is lost. What a
 * handler inside the transaction was given has to be fetched again. */
static bool is_only_locked(const struct semel_consumer *consumer, semel_status status)
{
	return status == SEMEL_BUSY && consumer->kind == SEMEL_HANDLER_OUTSIDE &&
	       consumer->connected;
}

/* A share that moved on is no outage: what was fetched of it comes again elsewhere. */
static semel_status handle_outage(struct semel_consumer *consumer, semel_status status,
				  int64_t *pause_ms_out, const semel_error *error)
{
	struct semel_backoff backoff = { .first_ms = 50, .cap_ms = 5000 };

	*pause_ms_out = 0;
	if (status == SEMEL_OK || semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	*pause_ms_out = semel_backoff_ms(backoff, ++consumer->outages, semel_random(consumer->env));
	snprintf(consumer->trouble, sizeof consumer->trouble, "%s", error->text);
	semel_log(SEMEL_LOG_WARN, "the consumer starts over",
		  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope),
					      .error = error->text,
					      .attempt = consumer->outages });
	if (status == SEMEL_LEASE_LOST)
		semel_positions_forget(consumer->positions, true);
	else if (!consumer->broker) /* only that is away: a store that is would be waited for */
		semel_presence_write(consumer, error->text);
	if (!is_only_locked(consumer, status))
		semel_consumer_disconnect(consumer);
	return SEMEL_OK;
}

static void pause_for(const struct semel_consumer *consumer, int64_t wait_ms)
{
	int64_t until_ms = semel_steady_ms(consumer->env) + wait_ms;

	while (!semel_wake_is_notified(consumer->wake) && semel_steady_ms(consumer->env) < until_ms)
		semel_wake_sleep(consumer->wake, until_ms - semel_steady_ms(consumer->env));
}

semel_status semel_consumer_step(semel_consumer *consumer, bool *busy_out, int64_t *pause_ms_out,
				 semel_error *error)
{
	return handle_outage(consumer, turn(consumer, busy_out, error), pause_ms_out, error);
}

/* ---- running -----------------------------------------------------------------------------------
 */

static bool is_over(const struct semel_consumer *consumer)
{
	return semel_wake_is_notified(consumer->wake) ||
	       (consumer->max > 0 && consumer->settled >= consumer->max);
}

/* One turn, and a sleep when there was nothing to do. until_ms < 0: for ever. */
static semel_status step_or_sleep(struct semel_consumer *consumer, bool draining, bool *drained_out,
				  struct semel_remaining *remaining, semel_error *error)
{
	bool busy = false;
	int64_t pause_ms = 0;
	semel_status status = semel_consumer_step(consumer, &busy, &pause_ms, error);

	if (status == SEMEL_OK && pause_ms > 0)
		pause_for(consumer, pause_ms);
	if (status != SEMEL_OK || busy || pause_ms > 0 || is_over(consumer))
		return status;
	if (draining || semel_remaining_is_outdated(consumer, remaining))
		status = semel_remaining_read(consumer, draining, remaining, error);
	if (status != SEMEL_OK)
		return status;
	*drained_out = draining && semel_remaining_is_none(consumer, remaining);
	if (!*drained_out)
		semel_wake_sleep(consumer->wake, semel_remaining_sleep_ms(consumer, remaining));
	return SEMEL_OK;
}

/* Also while the store or the broker comes back. */
static void settle_calls(struct semel_consumer *consumer, int64_t until_ms)
{
	semel_error error = { .status = SEMEL_OK };

	while (semel_dispatch_call_count(consumer) > 0 &&
	       semel_steady_ms(consumer->env) < until_ms) {
		bool busy = false;
		semel_arena_reset(consumer->arena);
		semel_status status = semel_consumer_connect(consumer, &error);
		if (status == SEMEL_OK)
			status = semel_dispatch_step(consumer, &busy, &error);
		if (status != SEMEL_OK && semel_status_class(status) != SEMEL_CLASS_OUTAGE)
			return;
		if (status != SEMEL_OK && !is_only_locked(consumer, status))
			semel_consumer_disconnect(consumer);
		if (!busy)
			semel_dispatch_wait(consumer, 20);
		if (status != SEMEL_OK)
			semel_sleep_us(RECONNECT_PAUSE_US);
	}
}

/* Calls under way are concluded within the grace; the rest is interrupted, and concluded as such.
 */
static bool finish(struct semel_consumer *consumer)
{
	bool in_time = true;

	consumer->ending = true;
	settle_calls(consumer, semel_steady_ms(consumer->env) + consumer->grace_ms);
	if (semel_dispatch_call_count(consumer) > 0) {
		in_time = false;
		semel_dispatch_interrupt(consumer);
		settle_calls(consumer, semel_steady_ms(consumer->env) + INTERRUPTED_MS);
		if (semel_dispatch_call_count(consumer) > 0)
			semel_log(SEMEL_LOG_WARN, "calls ended that could not be concluded",
				  &(struct semel_log_fields){
					  .consumer = semel_text_shown(consumer->scope) });
		semel_dispatch_close(consumer);
	}
	consumer->ending = false;
	return in_time;
}

semel_status semel_consumer_prepare(semel_consumer *consumer, uint64_t max, semel_error *error)
{
	if (consumer->kind == SEMEL_HANDLER_NONE)
		return semel_error_set(error, SEMEL_INVALID,
				       "the consumer of %s has no handler; give it one before it "
				       "runs",
				       semel_text_shown(consumer->scope));
	consumer->max = max > 0 ? consumer->settled + max : 0;
	semel_status status = semel_consumer_connect(consumer, error);
	if (status == SEMEL_OK)
		status = semel_order_check_mode(consumer, error);
	if (status == SEMEL_OK)
		status = semel_consumer_register(consumer, error);
	return status == SEMEL_OK ? semel_crash_recovery_begin(consumer, error) : status;
}

static semel_status run_until(struct semel_consumer *consumer, int64_t until_ms, uint64_t max,
			      semel_error *error)
{
	bool draining = until_ms >= 0, drained = false;
	semel_error trouble = { .status = SEMEL_OK };
	struct semel_remaining remaining = { 0 };
	semel_status status = semel_consumer_prepare(consumer, max, error);
	if (status != SEMEL_OK)
		return status;

	while (status == SEMEL_OK && !drained && !is_over(consumer)) {
		status = step_or_sleep(consumer, draining, &drained, &remaining, &trouble);
		int64_t pause_ms = 0;
		status = handle_outage(consumer, status, &pause_ms, &trouble); /* of a look */
		if (pause_ms > 0)
			pause_for(consumer, pause_ms);
		if (status == SEMEL_OK && draining && !drained && !is_over(consumer) &&
		    semel_steady_ms(consumer->env) >= until_ms) {
			(void)finish(consumer);
			if (consumer->store && consumer->broker)
				(void)semel_remaining_read(consumer, draining, &remaining,
							   &trouble);
			return semel_remaining_explain(consumer, &remaining, error);
		}
	}
	if (status != SEMEL_OK)
		return semel_error_set(error, status, "%s", trouble.text);
	if (drained)
		semel_crash_recovery_end(consumer);
	if (!finish(consumer))
		return semel_error_set(
			error, SEMEL_NOT_FINISHED,
			"calls of %s were not finished within the grace period and "
			"were broken off; they are made again, or are in doubt (see: "
			"semel dlq list)",
			semel_text_shown(consumer->scope));
	return SEMEL_OK;
}

semel_status semel_consumer_run(semel_consumer *consumer, uint64_t max, semel_error *error)
{
	return run_until(consumer, -1, max, error);
}

semel_status semel_consumer_drain(semel_consumer *consumer, int64_t timeout_ms, uint64_t max,
				  semel_error *error)
{
	return run_until(consumer, semel_steady_ms(consumer->env) + timeout_ms, max, error);
}

void semel_consumer_stop(semel_consumer *consumer)
{
	semel_wake_notify(consumer->wake);
}

semel_consumer_counts semel_consumer_count(const semel_consumer *consumer)
{
	return consumer->counts;
}
