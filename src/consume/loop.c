/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's loop: fetch, process, sleep until woken; after an outage, start over. Deliveries
 * that were fetched and not acked are redelivered, and the claims show what was done. What remains
 * to be done determines when to wake, when a drain is over, and why it is not. */
#include "base/backoff.h"
#include "base/error.h"
#include "consume/batch.h"
#include "consume/consumer.h"
#include "observe/log.h"

#include <stdio.h>

#define INTERRUPTED_MS     2000
#define RECONNECT_PAUSE_MS 50
#define CALLS_WAIT_MS      20
#define POLL_MS            1000

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
	semel_status status = run_followers(consumer, busy_out, error);

	if (status != SEMEL_OK)
		return status;
	return run_batch(consumer, busy_out, error);
}

/* The part of a step before anything is fetched. */
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

/* Another process holds a lock: the connections are intact, and nothing in flight is lost. With a
 * handler inside the transaction this does not apply: its deliveries have to be fetched again. */
static bool is_only_locked(const struct semel_consumer *consumer, semel_status status)
{
	return status == SEMEL_BUSY && consumer->handler.kind == SEMEL_HANDLER_OUTSIDE &&
	       consumer->connected;
}

/* An outage becomes a pause. So does a partition that moved to another consumer (LEASE_LOST); what
 * was fetched from it is redelivered there. */
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
	else if (!consumer->broker) /* if the store is down, the write would block */
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

static semel_status settle_ended_calls(struct semel_consumer *consumer, bool *busy_out,
				       semel_error *error)
{
	semel_arena_reset(consumer->arena);
	semel_status status = semel_consumer_connect(consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_dispatch_step(consumer, busy_out, error);
}

/* Settles calls that end, even while the store or the broker has to be reconnected. */
static void settle_calls(struct semel_consumer *consumer, int64_t until_ms)
{
	semel_error error = { .status = SEMEL_OK };

	while (semel_dispatch_call_count(consumer) > 0 &&
	       semel_steady_ms(consumer->env) < until_ms) {
		bool busy = false;
		semel_status status = settle_ended_calls(consumer, &busy, &error);
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

/* Running calls are settled within the grace period; after it the rest are interrupted, and settled
 * as interrupted. */
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

/* ---- what remains ---------------------------------------------------------------------------- */

/* What remains to be done for the subscription, as last read. */
struct remaining {
	struct semel_backlog backlog;
	struct semel_hold_counts holds;
	int64_t read_at_ms; /* steady */
	uint64_t failures;  /* count of failures when read */
};

static uint64_t failures_of(const struct semel_consumer *consumer)
{
	return consumer->counts.retried + consumer->counts.dead + consumer->counts.parked;
}

static bool is_past(int64_t then_ms, int64_t now_ms)
{
	return then_ms > 0 && then_ms <= now_ms;
}

/* Reading costs calls to broker and store. Without it, only the due times of new delayed events are
 * missed, and those come from failures here or from another process. */
static bool is_outdated(const struct semel_consumer *consumer, const struct remaining *remaining)
{
	int64_t now_ms = semel_now_ms(consumer->env);

	return semel_steady_ms(consumer->env) - remaining->read_at_ms >= POLL_MS ||
	       remaining->failures != failures_of(consumer) ||
	       is_past(remaining->backlog.next_due_ms, now_ms) ||
	       is_past(remaining->holds.next_due_ms, now_ms);
}

/* A drain needs to know how much remains; otherwise it is enough to know when to wake. */
static semel_status read_backlog(struct semel_consumer *consumer, bool draining,
				 struct semel_backlog *backlog, semel_error *error)
{
	const struct semel_broker_driver *driver = consumer->broker->driver;
	const char *const *topics = (const char *const *)consumer->config.topics;

	if (draining || !driver->next_due)
		return driver->backlog(consumer->broker, semel_text_string(consumer->config.scope),
				       topics, backlog, error);
	return driver->next_due(consumer->broker, semel_text_string(consumer->config.scope), topics,
				&backlog->next_due_ms, error);
}

/* Held events are counted for a drain only: there may be a million behind a dead letter. */
static semel_status read_remaining(struct semel_consumer *consumer, bool draining,
				   struct remaining *remaining_out, semel_error *error)
{
	const struct semel_hold_functions *holds = consumer->store->driver->holds;

	remaining_out->read_at_ms = semel_steady_ms(consumer->env);
	remaining_out->failures = failures_of(consumer);
	semel_status status = read_backlog(consumer, draining, &remaining_out->backlog, error);
	if (status != SEMEL_OK)
		return status;
	if (draining)
		return holds->count(consumer->store, consumer->config.scope, &remaining_out->holds,
				    error);
	return holds->next_due(consumer->store, consumer->config.scope,
			       &remaining_out->holds.next_due_ms, error);
}

static bool is_drained(const struct semel_consumer *consumer, const struct remaining *remaining)
{
	return remaining->backlog.waiting == 0 && remaining->holds.waiting == 0 &&
	       remaining->holds.blocked == 0 && semel_dispatch_task_count(consumer) == 0;
}

static void limit_wait(int64_t *wait_ms, int64_t then_ms, int64_t now_ms)
{
	if (then_ms > 0 && then_ms - now_ms < *wait_ms)
		*wait_ms = then_ms - now_ms;
}

/* An event that was due when the last step began, and was not fetched, is running here, belongs to
 * another consumer, or waits for the breaker: it is no reason to wake. */
static int64_t due_unless_missed(const struct semel_consumer *consumer, int64_t due_ms)
{
	return due_ms > consumer->loop.step_began_ms ? due_ms : 0;
}

/* How long an idle consumer may sleep. */
static int64_t sleep_ms(const struct semel_consumer *consumer, const struct remaining *remaining)
{
	int64_t now_ms = semel_now_ms(consumer->env), steady_ms = semel_steady_ms(consumer->env);
	int64_t wait_ms = consumer->config.options.lease_ms / 3;

	if (wait_ms > POLL_MS)
		wait_ms = POLL_MS;
	limit_wait(&wait_ms, due_unless_missed(consumer, remaining->backlog.next_due_ms), now_ms);
	limit_wait(&wait_ms, due_unless_missed(consumer, remaining->holds.next_due_ms), now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_OPEN)
		limit_wait(&wait_ms, consumer->breaker.open_until_ms, steady_ms);
	if (consumer->intake.deferred_until_ms > steady_ms)
		limit_wait(&wait_ms, consumer->intake.deferred_until_ms, steady_ms);
	limit_wait(&wait_ms, semel_dispatch_next_ms(consumer), steady_ms);
	return wait_ms > 1 ? wait_ms : 1;
}

/* In total order no event is parked behind a dead letter: it blocks the topic itself. */
static bool topic_is_blocked(const struct semel_consumer *consumer)
{
	const struct semel_store_driver *driver = consumer->store ? consumer->store->driver : NULL;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };

	if (!driver || consumer->config.options.order != SEMEL_ORDER_TOTAL)
		return false;
	for (size_t i = 0; consumer->config.topics[i] && hold.state != SEMEL_HOLD_DEAD; i++) {
		struct semel_hold_key key = { .type = SEMEL_TEXT(""),
					      .id = semel_text_of(consumer->config.topics[i]) };
		if (driver->holds->get(driver->tx(consumer->store), consumer->config.scope, &key,
				       consumer->arena, &hold, NULL) != SEMEL_OK)
			return false;
	}
	return hold.state == SEMEL_HOLD_DEAD;
}

/* Returns NOT_FINISHED, with what remains and why. */
static semel_status explain_remaining(const struct semel_consumer *consumer,
				      const struct remaining *remaining, semel_error *error)
{
	const char *blocked =
		consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
	const char *why = blocked ? blocked : consumer->loop.last_error;
	const char *scope = semel_text_shown(consumer->config.scope);
	char paused[SEMEL_ERROR_TEXT_MAX], breaker[sizeof consumer->breaker.reason + 32];

	snprintf(paused, sizeof paused, "subscription paused (run: semel subscriptions resume %s)",
		 scope);
	snprintf(breaker, sizeof breaker, "the breaker is open: %s", consumer->breaker.reason);
	if (consumer->intake.paused)
		why = paused;
	else if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		why = breaker;
	else if (remaining->holds.blocked > 0)
		why = "a dead letter blocks its aggregate (run: semel dlq list)";
	else if (topic_is_blocked(consumer))
		why = "a dead letter blocks the topic (run: semel dlq list)";
	else if (!why[0])
		why = "the timeout was too short, or another consumer owns partitions (try a "
		      "longer --timeout)";
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "subscription %s not drained: %llu waiting (%llu delayed), %llu "
			       "held behind a retry, a gap or earlier events, %llu blocked: %s",
			       scope, (unsigned long long)remaining->backlog.waiting,
			       (unsigned long long)remaining->backlog.delayed,
			       (unsigned long long)remaining->holds.waiting,
			       (unsigned long long)remaining->holds.blocked, why);
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
	struct remaining remaining;
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
	if (run->draining || is_outdated(consumer, &run->remaining)) {
		status = read_remaining(consumer, run->draining, &run->remaining, &run->error);
		if (status != SEMEL_OK)
			return status;
	}
	run->drained = run->draining && is_drained(consumer, &run->remaining);
	if (!run->drained)
		semel_wake_sleep(consumer->wake, sleep_ms(consumer, &run->remaining));
	return SEMEL_OK;
}

static semel_status end_undrained(struct semel_consumer *consumer, struct run *run,
				  semel_error *error)
{
	(void)finish(consumer);
	if (consumer->store && consumer->broker)
		(void)read_remaining(consumer, run->draining, &run->remaining, &run->error);
	return explain_remaining(consumer, &run->remaining, error);
}

/* until_ms < 0: no time limit, and no drain. */
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
		/* An outage while reading what remains; the step has handled its own. */
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
			"they are repeated, or are in doubt (run: semel dlq list)",
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
