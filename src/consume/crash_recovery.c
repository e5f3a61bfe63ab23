/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/crash_recovery.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"

#include <string.h>

#define RECOVERY_MS 60000 /* by then partitions and queues of dead consumers have new owners */
#define FORGET_MS   (24 * 3600 * 1000LL) /* records of runs that began and did not end */
#define DEAD_MAX    16

/* ---- dead consumers -------------------------------------------------------------------------- */

struct search {
	const struct semel_consumer *consumer;
	char dead[DEAD_MAX][SEMEL_OWNER_SIZE];
	uint32_t count;
};

static void add_if_dead(const struct semel_presence *presence, void *user)
{
	struct search *search = user;
	const char *owner = semel_text_string(presence->owner);
	bool is_gone = semel_owner_is_gone(owner, presence->expires_at_ms,
					   semel_now_ms(search->consumer->env));

	if (search->count == DEAD_MAX || !is_gone || presence->owner.length >= SEMEL_OWNER_SIZE ||
	    strcmp(owner, search->consumer->owner) == 0)
		return;
	memcpy(search->dead[search->count++], owner, presence->owner.length + 1);
}

static semel_status search_dead(const struct semel_consumer *consumer, struct search *search,
				semel_error *error)
{
	*search = (struct search){ .consumer = consumer };
	return consumer->store->driver->upkeep->presence_each(
		consumer->store, consumer->config.scope, add_if_dead, search, error);
}

/* ---- begin and end --------------------------------------------------------------------------- */

semel_status semel_crash_recovery_begin(struct semel_consumer *consumer, semel_error *error)
{
	struct search search;

	if (!semel_consumer_is_same_tx(consumer))
		return SEMEL_OK;
	semel_status status = search_dead(consumer, &search, error);
	if (status != SEMEL_OK || search.count == 0)
		return status;
	consumer->recovery = (struct semel_crash_recovery){
		.active = true,
		.remaining = consumer->config.options.batch,
		.until_ms = semel_steady_ms(consumer->env) + RECOVERY_MS,
	};
	semel_log(
		SEMEL_LOG_INFO, "a consumer of the scope died, running events one by one",
		&(struct semel_log_fields){ .consumer = semel_text_shown(consumer->config.scope) });
	return SEMEL_OK;
}

void semel_crash_recovery_end(struct semel_consumer *consumer)
{
	struct search search;

	if (!consumer->recovery.active || !consumer->store)
		return;
	consumer->recovery.active = false;
	if (search_dead(consumer, &search, NULL) != SEMEL_OK)
		return;
	for (uint32_t i = 0; i < search.count; i++) {
		struct semel_presence presence = { .scope = consumer->config.scope,
						   .owner = semel_text_of(search.dead[i]) };
		(void)consumer->store->driver->upkeep->presence_remove(consumer->store, &presence,
								       0, NULL);
	}
}

/* ---- one event ------------------------------------------------------------------------------- */

static semel_status record_run(struct semel_consumer *consumer, const struct semel_item *item,
			       uint32_t *runs_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	int64_t now_ms = semel_now_ms(consumer->env);
	struct semel_running running = { .scope = consumer->config.scope,
					 .event_id = item->delivery->event.id,
					 .owner = consumer->owner,
					 .now_ms = now_ms,
					 .forget_ms = now_ms - FORGET_MS };
	semel_status status = semel_consumer_begin(consumer, error);

	if (status != SEMEL_OK)
		return status;
	status = driver->upkeep->running_begin(driver->tx(consumer->store), &running, runs_out,
					       error);
	if (status != SEMEL_OK) {
		semel_consumer_rollback(consumer);
		return status;
	}
	return driver->commit(consumer->store, error);
}

static bool is_over(const struct semel_consumer *consumer)
{
	const struct semel_crash_recovery *recovery = &consumer->recovery;

	return recovery->remaining == 0 || semel_steady_ms(consumer->env) >= recovery->until_ms;
}

semel_status semel_crash_recovery_before_run(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error)
{
	struct semel_crash_recovery *recovery = &consumer->recovery;
	uint32_t runs = 0;

	if (recovery->active && is_over(consumer))
		semel_crash_recovery_end(consumer);
	if (!recovery->active || item->broken != SEMEL_OK)
		return SEMEL_OK;
	recovery->remaining--;
	semel_status status = record_run(consumer, item, &runs, error);
	if (status != SEMEL_OK && semel_status_class(status) != SEMEL_CLASS_OUTAGE) {
		recovery->active = false;
		semel_log(SEMEL_LOG_WARN, "cannot record which event runs",
			  &(struct semel_log_fields){
				  .consumer = semel_text_shown(consumer->config.scope),
				  .error = error->text });
		return SEMEL_OK;
	}
	if (status != SEMEL_OK || runs <= consumer->retry.attempts_max)
		return status;
	item->skip_run = true;
	item->runs = runs - 2; /* without this run; settling the skipped run adds one */
	item->status = SEMEL_HANDLER_REJECT;
	item->reason =
		semel_arena_printf(consumer->arena, "crashed the consumer %u times", runs - 1);
	return SEMEL_OK;
}

semel_status semel_crash_recovery_after_run(struct semel_consumer *consumer,
					    const struct semel_item *item, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	if (!consumer->recovery.active || item->broken != SEMEL_OK)
		return SEMEL_OK;
	return driver->upkeep->running_end(driver->tx(consumer->store), consumer->config.scope,
					   item->delivery->event.id, error);
}
