/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's loop: fetch, process, sleep until woken; after an outage start over. What was
 * fetched and not acked comes again, and the claims tell what was done. */
#include "base/backoff.h"
#include "base/error.h"
#include "consume/batch.h"
#include "consume/consumer.h"
#include "consume/order.h"
#include "consume/remaining.h"
#include "observe/log.h"

#include <stdio.h>

#define INTERRUPTED_MS     2000
#define RECONNECT_PAUSE_MS 50
#define CALLS_WAIT_MS      20

/* ---- one step -------------------------------------------------------------------------------- */

static semel_status run_batch(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	struct semel_item *items = NULL;
	uint32_t count = 0;
	semel_status status = semel_intake_fetch_batch(consumer, &items, &count, error);

	*busy_out = *busy_out || count > 0;
	if (status != SEMEL_OK || count == 0)
		return status;
	consumer->intake.has_deferred = false;
	status = semel_batch_process(consumer, items, count, error);
	if (status != SEMEL_OK || !consumer->intake.has_deferred)
		return status;
	return consumer->broker->driver->rewind(consumer->broker, error);
}

static semel_status run_followers(struct semel_consumer *consumer, bool *ran_out,
				  semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool holds = false;
	semel_status status = driver->holds->has_any(driver->tx(consumer->store),
						     consumer->config.scope, &holds, error);

	if (status != SEMEL_OK || !holds || consumer->intake.paused ||
	    semel_steady_ms(consumer->env) < consumer->intake.deferred_until_ms)
		return status;
	return semel_followers_run(consumer, ran_out, error);
}

static semel_status step_inside(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	bool ran = false;
	semel_status status = run_followers(consumer, &ran, error);

	if (status == SEMEL_OK)
		status = run_batch(consumer, busy_out, error);
	*busy_out = *busy_out || ran;
	return status;
}

/* What comes before anything is fetched. */
static semel_status prepare_step(struct semel_consumer *consumer, semel_error *error)
{
	bool outside = consumer->handler.kind == SEMEL_HANDLER_OUTSIDE;
	semel_status status = semel_consumer_connect(consumer, error);

	if (status != SEMEL_OK)
		return status;
	if (outside && !consumer->dispatch) {
		status = semel_dispatch_open(consumer, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = semel_unfinished_claim_resolve(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_positions_renew(consumer->positions, error);
	if (status != SEMEL_OK)
		return status;
	return semel_intake_check_paused(consumer, error);
}

static semel_status step(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	semel_arena_reset(consumer->arena);
	*busy_out = false;
	consumer->loop.step_began_ms = semel_now_ms(consumer->env);
	semel_consumer_counters_breaker(consumer);
	semel_status status = prepare_step(consumer, error);
	if (status != SEMEL_OK)
		return status;
	semel_presence_write(consumer, NULL);
	status = consumer->handler.kind == SEMEL_HANDLER_OUTSIDE
			 ? semel_dispatch_step(consumer, busy_out, error)
			 : step_inside(consumer, busy_out, error);
	if (status == SEMEL_OK)
		consumer->loop.outages = 0;
	return status;
}

/* ---- outages --------------------------------------------------------------------------------- */

/* Another process holds a lock: the connections are sound, and nothing in flight is lost. What a
 * handler inside the transaction was given has to be fetched again. */
static bool is_only_locked(const struct semel_consumer *consumer, semel_status status)
{
	return status == SEMEL_BUSY && consumer->handler.kind == SEMEL_HANDLER_OUTSIDE &&
	       consumer->connected;
}

/* An outage becomes a pause. A partition that moved to another consumer is none: what was fetched
 * of it is delivered there again. */
static semel_status handle_outage(struct semel_consumer *consumer, semel_status status,
				  int64_t *pause_ms_out, const semel_error *error)
{
	struct semel_consumer_loop *loop = &consumer->loop;
	struct semel_backoff backoff = { .first_ms = 50, .cap_ms = 5000 };

	*pause_ms_out = 0;
	if (status == SEMEL_OK || semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	*pause_ms_out = semel_backoff_ms(backoff, ++loop->outages, semel_random(consumer->env));
	snprintf(loop->last_error, sizeof loop->last_error, "%s", error->text);
	semel_log(SEMEL_LOG_WARN, "consuming failed, retrying",
		  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->config.scope),
					      .error = error->text,
					      .attempt = loop->outages });
	if (status == SEMEL_LEASE_LOST)
		semel_positions_forget(consumer->positions, true);
	else if (!consumer->broker) /* only the broker: a write to the store would wait for it */
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
	return handle_outage(consumer, step(consumer, busy_out, error), pause_ms_out, error);
}

/* ---- the end --------------------------------------------------------------------------------- */

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
			semel_dispatch_wait(consumer, CALLS_WAIT_MS);
		if (status != SEMEL_OK)
			semel_env_sleep_ms(consumer->env, RECONNECT_PAUSE_MS);
	}
}

/* Running calls are settled within the grace period; the rest is interrupted, and settled as such.
 */
static bool finish(struct semel_consumer *consumer)
{
	bool in_time = true;

	consumer->loop.ending = true;
	settle_calls(consumer, semel_steady_ms(consumer->env) + consumer->loop.grace_ms);
	if (semel_dispatch_call_count(consumer) > 0) {
		in_time = false;
		semel_dispatch_interrupt(consumer);
		settle_calls(consumer, semel_steady_ms(consumer->env) + INTERRUPTED_MS);
		if (semel_dispatch_call_count(consumer) > 0)
			semel_log(SEMEL_LOG_WARN, "interrupted calls were not settled",
				  &(struct semel_log_fields){
					  .consumer = semel_text_shown(consumer->config.scope) });
		semel_dispatch_close(consumer);
	}
	consumer->loop.ending = false;
	return in_time;
}

/* ---- running --------------------------------------------------------------------------------- */

semel_status semel_consumer_prepare(semel_consumer *consumer, uint64_t max, semel_error *error)
{
	struct semel_intake *intake = &consumer->intake;

	if (consumer->handler.kind == SEMEL_HANDLER_NONE)
		return semel_error_set(error, SEMEL_INVALID,
				       "the consumer of %s has no handler; set one before it runs",
				       semel_text_shown(consumer->config.scope));
	intake->max = max > 0 ? intake->settled + max : 0;
	semel_status status = semel_consumer_connect(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_order_check_mode(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_consumer_register(consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_crash_recovery_begin(consumer, error);
}

static bool is_over(const struct semel_consumer *consumer)
{
	const struct semel_intake *intake = &consumer->intake;

	return semel_wake_is_notified(consumer->wake) ||
	       (intake->max > 0 && intake->settled >= intake->max);
}

/* One run of the loop. */
struct run {
	bool draining, drained;
	struct semel_remaining remaining;
	semel_error error;
};

/* One step, and a sleep when there was nothing to do. */
static semel_status step_or_sleep(struct semel_consumer *consumer, struct run *run)
{
	bool busy = false;
	int64_t pause_ms = 0;
	semel_status status = semel_consumer_step(consumer, &busy, &pause_ms, &run->error);

	if (status != SEMEL_OK)
		return status;
	if (pause_ms > 0)
		pause_for(consumer, pause_ms);
	if (busy || pause_ms > 0 || is_over(consumer))
		return SEMEL_OK;
	if (run->draining || semel_remaining_is_outdated(consumer, &run->remaining)) {
		status =
			semel_remaining_read(consumer, run->draining, &run->remaining, &run->error);
		if (status != SEMEL_OK)
			return status;
	}
	run->drained = run->draining && semel_remaining_is_none(consumer, &run->remaining);
	if (!run->drained)
		semel_wake_sleep(consumer->wake,
				 semel_remaining_sleep_ms(consumer, &run->remaining));
	return SEMEL_OK;
}

static semel_status end_undrained(struct semel_consumer *consumer, struct run *run,
				  semel_error *error)
{
	(void)finish(consumer);
	if (consumer->store && consumer->broker)
		(void)semel_remaining_read(consumer, run->draining, &run->remaining, &run->error);
	return semel_remaining_explain(consumer, &run->remaining, error);
}

/* until_ms < 0: without a limit, and not draining. */
static semel_status run_until(struct semel_consumer *consumer, int64_t until_ms, uint64_t max,
			      semel_error *error)
{
	struct run run = { .draining = until_ms >= 0 };
	semel_status status = semel_consumer_prepare(consumer, max, error);
	if (status != SEMEL_OK)
		return status;

	while (!run.drained && !is_over(consumer)) {
		int64_t pause_ms = 0;
		status = step_or_sleep(consumer, &run);
		/* Of reading what remains: the step has handled its own. */
		status = handle_outage(consumer, status, &pause_ms, &run.error);
		if (pause_ms > 0)
			pause_for(consumer, pause_ms);
		if (status != SEMEL_OK)
			return semel_error_set(error, status, "%s", run.error.text);
		if (run.draining && !run.drained && !is_over(consumer) &&
		    semel_steady_ms(consumer->env) >= until_ms)
			return end_undrained(consumer, &run, error);
	}
	if (run.drained)
		semel_crash_recovery_end(consumer);
	if (!finish(consumer))
		return semel_error_set(
			error, SEMEL_NOT_FINISHED,
			"calls of %s did not finish within the grace period and were interrupted; "
			"they are repeated, or are in doubt (see: semel dlq list)",
			semel_text_shown(consumer->config.scope));
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
