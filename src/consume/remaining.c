/* SPDX-License-Identifier: Apache-2.0 */
/* What is remaining of the subscription: when it is time to wake, when a drain is over, and why it
 * is not. */
#include "consume/remaining.h"
#include "consume/consumer.h"

#include "base/error.h"

#define POLL_MS 1000

static uint64_t failures_of(const struct semel_consumer *consumer)
{
	return consumer->counts.retried + consumer->counts.dead + consumer->counts.parked;
}

static bool is_past(int64_t then_ms, int64_t now_ms)
{
	return then_ms > 0 && then_ms <= now_ms;
}

/* To look costs calls to broker and store. Without it nothing is missed but the time of delayed
 * events, and those are made by failures, or by somebody else. */
bool semel_remaining_is_outdated(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining)
{
	int64_t now_ms = semel_now_ms(consumer->env);

	return semel_steady_ms(consumer->env) - remaining->read_at_ms >= POLL_MS ||
	       remaining->failures != failures_of(consumer) ||
	       is_past(remaining->backlog.next_due_ms, now_ms) ||
	       is_past(remaining->holds.next_due_ms, now_ms);
}

/* One who drains has to know how much is remaining; one who goes on, only when to wake. */
static semel_status read_backlog(struct semel_consumer *consumer, bool draining,
				 struct semel_backlog *backlog, semel_error *error)
{
	const struct semel_broker_driver *driver = consumer->broker->driver;
	const char *const *topics = (const char *const *)consumer->topics;

	if (draining || !driver->next_due)
		return driver->backlog(consumer->broker, semel_text_string(consumer->scope), topics,
				       backlog, error);
	return driver->next_due(consumer->broker, semel_text_string(consumer->scope), topics,
				&backlog->next_due_ms, error);
}

/* What is held is counted only for those who ask: there may be a million behind a dead letter. */
semel_status semel_remaining_read(struct semel_consumer *consumer, bool draining,
				  struct semel_remaining *remaining_out, semel_error *error)
{
	const struct semel_store_driver *store = consumer->store->driver;

	remaining_out->read_at_ms = semel_steady_ms(consumer->env);
	remaining_out->failures = failures_of(consumer);
	semel_status status = read_backlog(consumer, draining, &remaining_out->backlog, error);
	if (status == SEMEL_OK && draining)
		return store->holds->count(consumer->store, consumer->scope, &remaining_out->holds,
					   error);
	if (status == SEMEL_OK)
		status = store->holds->next_due(consumer->store, consumer->scope,
						&remaining_out->holds.next_due_ms, error);
	return status;
}

bool semel_remaining_is_none(const struct semel_consumer *consumer,
			     const struct semel_remaining *remaining)
{
	return remaining->backlog.waiting == 0 && remaining->holds.waiting == 0 &&
	       remaining->holds.blocked == 0 && semel_dispatch_task_count(consumer) == 0;
}

static void sooner(int64_t *wait_ms, int64_t then_ms, int64_t now_ms)
{
	if (then_ms > 0 && then_ms - now_ms < *wait_ms)
		*wait_ms = then_ms - now_ms;
}

/* What was due when the last turn began and was not taken is at work here, or somebody else's, or
 * waits for the breaker: it is no reason to wake. */
static int64_t unless_missed(const struct semel_consumer *consumer, int64_t due_ms)
{
	return due_ms > consumer->step_began_ms ? due_ms : 0;
}

int64_t semel_remaining_sleep_ms(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining)
{
	int64_t now_ms = semel_now_ms(consumer->env), steady_ms = semel_steady_ms(consumer->env);
	int64_t wait_ms = consumer->options.lease_ms / 3;

	if (wait_ms > POLL_MS)
		wait_ms = POLL_MS;
	sooner(&wait_ms, unless_missed(consumer, remaining->backlog.next_due_ms), now_ms);
	sooner(&wait_ms, unless_missed(consumer, remaining->holds.next_due_ms), now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_OPEN)
		sooner(&wait_ms, consumer->breaker.open_until_ms, steady_ms);
	if (consumer->pause_until_ms > steady_ms)
		sooner(&wait_ms, consumer->pause_until_ms, steady_ms);
	sooner(&wait_ms, semel_dispatch_next_ms(consumer), steady_ms);
	return wait_ms > 1 ? wait_ms : 1;
}

/* In total order nothing is parked: a dead letter holds the topic where it is. */
static bool topic_is_blocked(const struct semel_consumer *consumer)
{
	const struct semel_store_driver *driver = consumer->store ? consumer->store->driver : NULL;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };

	if (!driver || consumer->options.order != SEMEL_ORDER_TOTAL)
		return false;
	for (size_t i = 0; consumer->topics[i] && hold.state != SEMEL_HOLD_DEAD; i++) {
		struct semel_hold_key key = { .type = SEMEL_TEXT(""),
					      .id = semel_text_of(consumer->topics[i]) };
		if (driver->holds->get(driver->tx(consumer->store), consumer->scope, &key,
				       consumer->arena, &hold, NULL) != SEMEL_OK)
			return false;
	}
	return hold.state == SEMEL_HOLD_DEAD;
}

semel_status semel_remaining_explain(const struct semel_consumer *consumer,
				     const struct semel_remaining *remaining, semel_error *error)
{
	const char *blocked =
		consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
	const char *why = blocked ? blocked : consumer->trouble;

	if (consumer->paused)
		why = "the subscription is paused by a person";
	else if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		why = "the breaker is open: the handler's dependency does not answer";
	else if (remaining->holds.blocked > 0)
		why = "a dead letter blocks its aggregate (see: semel dlq list)";
	else if (topic_is_blocked(consumer))
		why = "a dead letter blocks the topic (see: semel dlq list)";
	else if (!why[0])
		why = "the time was too short, or another consumer holds a share (try a longer "
		      "--timeout)";
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "%s is not drained: %llu wait (%llu of them delayed), %llu held, "
			       "%llu blocked: %s",
			       semel_text_shown(consumer->scope),
			       (unsigned long long)remaining->backlog.waiting,
			       (unsigned long long)remaining->backlog.delayed,
			       (unsigned long long)remaining->holds.waiting,
			       (unsigned long long)remaining->holds.blocked, why);
}
