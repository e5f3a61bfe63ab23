/* SPDX-License-Identifier: Apache-2.0 */
/* When it is time to wake, when a drain is over, and why it is not. */
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

bool semel_remaining_is_outdated(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining)
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
semel_status semel_remaining_read(struct semel_consumer *consumer, bool draining,
				  struct semel_remaining *remaining_out, semel_error *error)
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

/* What was due when the last step began and was not fetched is running here, belongs to another
 * consumer, or waits for the breaker: it is no reason to wake. */
static int64_t unless_missed(const struct semel_consumer *consumer, int64_t due_ms)
{
	return due_ms > consumer->loop.step_began_ms ? due_ms : 0;
}

int64_t semel_remaining_sleep_ms(const struct semel_consumer *consumer,
				 const struct semel_remaining *remaining)
{
	int64_t now_ms = semel_now_ms(consumer->env), steady_ms = semel_steady_ms(consumer->env);
	int64_t wait_ms = consumer->config.options.lease_ms / 3;

	if (wait_ms > POLL_MS)
		wait_ms = POLL_MS;
	sooner(&wait_ms, unless_missed(consumer, remaining->backlog.next_due_ms), now_ms);
	sooner(&wait_ms, unless_missed(consumer, remaining->holds.next_due_ms), now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_OPEN)
		sooner(&wait_ms, consumer->breaker.open_until_ms, steady_ms);
	if (consumer->intake.deferred_until_ms > steady_ms)
		sooner(&wait_ms, consumer->intake.deferred_until_ms, steady_ms);
	sooner(&wait_ms, semel_dispatch_next_ms(consumer), steady_ms);
	return wait_ms > 1 ? wait_ms : 1;
}

/* In total order nothing is parked: a dead letter holds the topic where it is. */
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

semel_status semel_remaining_explain(const struct semel_consumer *consumer,
				     const struct semel_remaining *remaining, semel_error *error)
{
	const char *blocked =
		consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
	const char *why = blocked ? blocked : consumer->loop.last_error;

	if (consumer->intake.paused)
		why = "the subscription is paused (resume it with: semel subscriptions resume)";
	else if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		why = "the breaker is open: the handler's dependency does not answer";
	else if (remaining->holds.blocked > 0)
		why = "a dead letter blocks its aggregate (see: semel dlq list)";
	else if (topic_is_blocked(consumer))
		why = "a dead letter blocks the topic (see: semel dlq list)";
	else if (!why[0])
		why = "the time was too short, or another consumer holds partitions (try a longer "
		      "--timeout)";
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "%s is not drained: %llu wait (%llu of them delayed), %llu held, "
			       "%llu blocked: %s",
			       semel_text_shown(consumer->config.scope),
			       (unsigned long long)remaining->backlog.waiting,
			       (unsigned long long)remaining->backlog.delayed,
			       (unsigned long long)remaining->holds.waiting,
			       (unsigned long long)remaining->holds.blocked, why);
}
