/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/presence.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"

#define CHANGED_MS 1000    /* a change is told after so long at the earliest */
#define ALWAYS_MS  5000    /* and without one, after so long */
#define FORGET_MS  3600000 /* rows of those who died */

/* Where the broker tells what is in hand, only what waits here or is at work is counted. */
static uint64_t count_in_hand(const struct semel_consumer *consumer)
{
	const struct semel_broker *broker = consumer->broker;

	if (broker && broker->driver->count_in_flight)
		return broker->driver->count_in_flight(consumer->broker);
	return semel_dispatch_task_count(consumer);
}

static const char *reason_of(const struct semel_consumer *consumer, const char *trouble)
{
	if (trouble)
		return trouble;
	if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		return consumer->breaker.reason[0] ? consumer->breaker.reason
						   : "the handler's dependency does not answer";
	return consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
}

static struct semel_presence presence_of(const struct semel_consumer *consumer, const char *reason)
{
	int64_t now_ms = semel_now_ms(consumer->env);
	bool open = consumer->breaker.state == SEMEL_BREAKER_OPEN;
	int64_t left_ms = consumer->breaker.open_until_ms - semel_steady_ms(consumer->env);

	return (struct semel_presence){
		.scope = consumer->scope,
		.owner = semel_text_of(consumer->owner),
		.in_flight = count_in_hand(consumer),
		.breaker = (uint32_t)consumer->breaker.state,
		.reason = semel_text_of(reason),
		.next_try_ms = open ? now_ms + (left_ms > 0 ? left_ms : 0) : 0,
		.paused = consumer->paused,
		.updated_ms = now_ms,
		.expires_at_ms = now_ms + SEMEL_PRESENCE_LEASE_MS,
	};
}

static bool is_due(const struct semel_consumer *consumer, const struct semel_presence *now,
		   bool waits)
{
	const struct semel_presence_state *last = &consumer->presence;
	int64_t rested_ms = semel_steady_ms(consumer->env) - last->written_at_ms;
	bool changed = now->in_flight != last->in_flight || now->breaker != last->breaker ||
		       now->paused != last->paused || waits != (last->since_ms > 0);

	return last->written_at_ms == 0 || rested_ms >= ALWAYS_MS ||
	       (changed && rested_ms >= CHANGED_MS);
}

static void remember(struct semel_consumer *consumer, const struct semel_presence *now)
{
	struct semel_presence_state *last = &consumer->presence;

	last->written_at_ms = semel_steady_ms(consumer->env);
	last->in_flight = now->in_flight;
	last->breaker = now->breaker;
	last->paused = now->paused;
}

/* Once: it comes again every few seconds. */
static void complain(struct semel_consumer *consumer, const semel_error *error)
{
	if (consumer->presence.refused)
		return;
	consumer->presence.refused = true;
	semel_log(SEMEL_LOG_WARN, "the consumer cannot record its state",
		  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope),
					      .error = error->text });
}

void semel_presence_write(struct semel_consumer *consumer, const char *trouble)
{
	const char *reason = reason_of(consumer, trouble);
	struct semel_presence now = presence_of(consumer, reason);
	bool waits = reason != NULL || consumer->paused;
	semel_error error = { .status = SEMEL_OK };
	semel_status status = SEMEL_OK;

	if (!consumer->store || !is_due(consumer, &now, waits))
		return;
	if (!waits)
		consumer->presence.since_ms = 0;
	else if (consumer->presence.since_ms == 0)
		consumer->presence.since_ms = now.updated_ms;
	now.waits_since_ms = consumer->presence.since_ms;
	remember(consumer, &now);
	if (!consumer->presence.begun)
		status = consumer->store->driver->upkeep->presence_remove(
			consumer->store, &now, now.updated_ms - FORGET_MS, &error);
	consumer->presence.begun = true;
	if (status == SEMEL_OK)
		status = consumer->store->driver->upkeep->presence_put(consumer->store, &now,
								       &error);
	if (status != SEMEL_OK && semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		complain(consumer, &error);
}

void semel_presence_end(struct semel_consumer *consumer)
{
	if (!consumer->store || consumer->presence.written_at_ms == 0)
		return;
	struct semel_presence last = presence_of(consumer, NULL);
	(void)consumer->store->driver->upkeep->presence_remove(consumer->store, &last,
							       last.updated_ms - FORGET_MS, NULL);
	consumer->presence = (struct semel_presence_state){ 0 };
}
