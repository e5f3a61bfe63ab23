/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/presence.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"

#define CHANGED_MS 1000    /* shortest interval, after a change */
#define ALWAYS_MS  5000    /* interval without a change */
#define FORGET_MS  3600000 /* age of rows of dead consumers */

/* Where the broker cannot count what it has delivered, only the tasks here are counted. */
static uint64_t count_in_flight(const struct semel_consumer *consumer)
{
	const struct semel_broker *broker = consumer->broker;

	if (broker && broker->driver->count_in_flight)
		return broker->driver->count_in_flight(consumer->broker);
	return semel_dispatch_task_count(consumer);
}

static const char *reason_of(const struct semel_consumer *consumer, const char *outage)
{
	if (outage)
		return outage;
	if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		return consumer->breaker.reason[0] ? consumer->breaker.reason
						   : "the handler fails repeatedly";
	return consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
}

static struct semel_presence presence_of(const struct semel_consumer *consumer, const char *reason)
{
	int64_t now_ms = semel_now_ms(consumer->env);
	bool open = consumer->breaker.state == SEMEL_BREAKER_OPEN;
	int64_t remaining_ms = consumer->breaker.open_until_ms - semel_steady_ms(consumer->env);

	return (struct semel_presence){
		.scope = consumer->config.scope,
		.owner = semel_text_of(consumer->owner),
		.in_flight = count_in_flight(consumer),
		.breaker = (uint32_t)consumer->breaker.state,
		.reason = semel_text_of(reason),
		.next_try_ms = open ? now_ms + (remaining_ms > 0 ? remaining_ms : 0) : 0,
		.paused = consumer->intake.paused,
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

/* Logs once: the write fails again every few seconds. */
static void log_failure(struct semel_consumer *consumer, const semel_error *error)
{
	if (consumer->presence.failed)
		return;
	consumer->presence.failed = true;
	semel_log(SEMEL_LOG_WARN, "cannot record the state of the consumer",
		  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->config.scope),
					      .error = error->text });
}

static semel_status put_row(struct semel_consumer *consumer, const struct semel_presence *now,
			    semel_error *error)
{
	const struct semel_upkeep_functions *upkeep = consumer->store->driver->upkeep;
	bool begun = consumer->presence.begun;

	consumer->presence.begun = true;
	if (!begun) {
		semel_status status = upkeep->presence_remove(consumer->store, now,
							      now->updated_ms - FORGET_MS, error);
		if (status != SEMEL_OK)
			return status;
	}
	return upkeep->presence_put(consumer->store, now, error);
}

void semel_presence_write(struct semel_consumer *consumer, const char *outage)
{
	const char *reason = reason_of(consumer, outage);
	struct semel_presence now = presence_of(consumer, reason);
	struct semel_presence_state *last = &consumer->presence;
	bool waits = reason != NULL || consumer->intake.paused;
	semel_error error = { .status = SEMEL_OK };

	if (!consumer->store || !is_due(consumer, &now, waits))
		return;
	if (!waits)
		last->since_ms = 0;
	else if (last->since_ms == 0)
		last->since_ms = now.updated_ms;
	now.waits_since_ms = last->since_ms;
	remember(consumer, &now);
	semel_status status = put_row(consumer, &now, &error);
	if (status != SEMEL_OK && semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		log_failure(consumer, &error);
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
