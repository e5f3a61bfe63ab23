/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/crash_recovery.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "observe/log.h"

#include <string.h>

#define RECOVERY_MS 60000 /* until then shares and queues of the dead have moved on */
#define FORGET_MS   (24 * 3600 * 1000LL) /* of runs that nobody ended */
#define DEAD_MAX    16

/* ---- who died -------------------------------------------------------------------------------- */

struct search {
	const struct semel_consumer *consumer;
	char dead[DEAD_MAX][SEMEL_OWNER_SIZE];
	uint32_t count;
};

static void see(const struct semel_presence *presence, void *user)
{
	struct search *search = user;
	const char *owner = semel_text_string(presence->owner);
	bool is_dead = semel_owner_is_dead(owner) ||
		       presence->expires_at_ms <= semel_now_ms(search->consumer->env);

	if (search->count == DEAD_MAX || !is_dead || presence->owner.length >= SEMEL_OWNER_SIZE ||
	    strcmp(owner, search->consumer->owner) == 0)
		return;
	memcpy(search->dead[search->count++], owner, presence->owner.length + 1);
}

static semel_status search_dead(const struct semel_consumer *consumer, struct search *search,
				semel_error *error)
{
	*search = (struct search){ .consumer = consumer };
	return consumer->store->driver->upkeep->presence_each(consumer->store, consumer->scope, see,
							      search, error);
}

/* ---- for a while ----------------------------------------------------------------------------- */

semel_status semel_crash_recovery_begin(struct semel_consumer *consumer, semel_error *error)
{
	struct search search;

	if (!semel_consumer_joins(consumer))
		return SEMEL_OK;
	semel_status status = search_dead(consumer, &search, error);
	if (status != SEMEL_OK || search.count == 0)
		return status;
	consumer->recovery = (struct semel_crash_recovery){
		.on = true,
		.left = consumer->options.batch,
		.until_ms = semel_steady_ms(consumer->env) + RECOVERY_MS,
	};
	semel_log(SEMEL_LOG_INFO, "a consumer of the scope died; events run one by one for a while",
		  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope) });
	return SEMEL_OK;
}

void semel_crash_recovery_end(struct semel_consumer *consumer)
{
	struct search search;

	if (!consumer->recovery.on || !consumer->store)
		return;
	consumer->recovery.on = false;
	if (search_dead(consumer, &search, NULL) != SEMEL_OK)
		return;
	for (uint32_t i = 0; i < search.count; i++) {
		struct semel_presence presence = { .scope = consumer->scope,
						   .owner = semel_text_of(search.dead[i]) };
		(void)consumer->store->driver->upkeep->presence_remove(consumer->store, &presence,
								       0, NULL);
	}
}

/* ---- one event ------------------------------------------------------------------------------- */

static semel_status write_down(struct semel_consumer *consumer, const struct semel_item *item,
			       uint32_t *runs_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	int64_t now_ms = semel_now_ms(consumer->env);
	struct semel_running running = { .scope = consumer->scope,
					 .event_id = item->delivery->event.id,
					 .owner = consumer->owner,
					 .now_ms = now_ms,
					 .forget_ms = now_ms - FORGET_MS };
	semel_status status = driver->begin(consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	status = driver->upkeep->running_begin(driver->tx(consumer->store), &running, runs_out,
					       error);
	if (status == SEMEL_OK)
		return driver->commit(consumer->store, error);
	driver->rollback(consumer->store);
	return status;
}

semel_status semel_crash_recovery_before_run(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error)
{
	uint32_t runs = 0;

	if (consumer->recovery.on &&
	    (consumer->recovery.left == 0 ||
	     semel_steady_ms(consumer->env) >= consumer->recovery.until_ms))
		semel_crash_recovery_end(consumer);
	if (!consumer->recovery.on || item->broken != SEMEL_OK)
		return SEMEL_OK;
	consumer->recovery.left--;
	semel_status status = write_down(consumer, item, &runs, error);
	if (status != SEMEL_OK && semel_status_class(status) != SEMEL_CLASS_OUTAGE) {
		consumer->recovery.on = false;
		semel_log(SEMEL_LOG_WARN, "the consumer cannot record which event runs",
			  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope),
						      .error = error->text });
		return SEMEL_OK;
	}
	if (status != SEMEL_OK || runs <= consumer->retry.attempts_max)
		return status;
	item->refused = true;
	item->runs = runs - 2; /* this one does not count, and the refusal counts as one */
	item->status = SEMEL_HANDLER_REJECT;
	item->reason =
		semel_arena_printf(consumer->arena, "crashed the consumer %u times", runs - 1);
	return SEMEL_OK;
}

semel_status semel_crash_recovery_after_run(struct semel_consumer *consumer,
					    const struct semel_item *item, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	if (!consumer->recovery.on || item->broken != SEMEL_OK)
		return SEMEL_OK;
	return driver->upkeep->running_end(driver->tx(consumer->store), consumer->scope,
					   item->delivery->event.id, error);
}
