/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's connections: store, guard and broker, opened and closed together; and the
 * transactions on the store. */
#include "base/error.h"
#include "consume/claims.h"
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "observe/step_timer.h"

static semel_status open_store(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;
	semel_status status = semel_store_open_in(consumer->env, consumer->config.store_url,
						  &consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	status =
		semel_guard_open(SEMEL_GUARD_DEFAULT_URL, consumer->store, &consumer->guard, error);
	if (status != SEMEL_OK)
		return status;
	consumer->guard_joins = consumer->guard->driver->joins;
	if (handler->kind != SEMEL_HANDLER_SQL)
		return SEMEL_OK;
	return consumer->store->driver->inbox->effect_prepare(
		consumer->store, (const char *const *)handler->statements, handler->statement_count,
		error);
}

static semel_status open_broker(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = semel_broker_open(consumer->config.broker_url, consumer->env, 1,
						&consumer->broker, error);

	if (status != SEMEL_OK)
		return status;
	semel_broker_set_offset_store(consumer->broker,
				      semel_positions_offset_store(consumer->positions));
	status = semel_consumer_subscribe(consumer, error);
	if (status != SEMEL_OK)
		return status;
	consumer->broker->driver->watch(consumer->broker, consumer->wake);
	return SEMEL_OK;
}

semel_status semel_consumer_connect(struct semel_consumer *consumer, semel_error *error)
{
	if (consumer->connected)
		return SEMEL_OK;
	semel_status status = open_store(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = open_broker(consumer, error);
	if (status != SEMEL_OK)
		return status;
	consumer->connected = true;
	return SEMEL_OK;
}

void semel_consumer_disconnect(struct semel_consumer *consumer)
{
	semel_dispatch_detach(consumer);
	semel_broker_close(consumer->broker);
	if (consumer->positions)
		semel_positions_forget(consumer->positions, false);
	semel_guard_close(consumer->guard);
	semel_store_close(consumer->store);
	consumer->connected = false;
	consumer->broker = NULL;
	consumer->guard = NULL;
	consumer->store = NULL;
}

/* ---- transactions ---------------------------------------------------------------------------- */

semel_status semel_consumer_begin(struct semel_consumer *consumer, semel_error *error)
{
	return consumer->store->driver->begin(consumer->store, error);
}

semel_status semel_consumer_commit_metered(struct semel_consumer *consumer, semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = consumer->store->driver->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	return status;
}

semel_status semel_consumer_commit(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = semel_consumer_commit_metered(consumer, error);

	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
}

void semel_consumer_rollback(struct semel_consumer *consumer)
{
	consumer->store->driver->rollback(consumer->store);
}
