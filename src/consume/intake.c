/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/intake.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "observe/log.h"
#include "observe/metrics.h"

#define CHECK_PAUSED_MS 1000
#define WAITING_BATCH   100

uint32_t semel_intake_cap(const struct semel_intake *intake, uint32_t wanted, uint32_t in_flight)
{
	uint64_t taken = intake->settled + in_flight;

	if (intake->max == 0)
		return wanted;
	uint64_t remaining = intake->max > taken ? intake->max - taken : 0;
	return remaining < wanted ? (uint32_t)remaining : wanted;
}

/* Not read in every step: a pause is not urgent. */
semel_status semel_intake_check_paused(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_intake *intake = &consumer->intake;
	int64_t now_ms = semel_steady_ms(consumer->env);
	bool before = intake->paused;

	if (now_ms < intake->check_pause_at_ms)
		return SEMEL_OK;
	intake->check_pause_at_ms = now_ms + CHECK_PAUSED_MS;
	semel_status status = consumer->store->driver->upkeep->subscription_is_paused(
		consumer->store, consumer->config.scope, &intake->paused, error);
	if (status != SEMEL_OK || intake->paused == before)
		return status;
	semel_log(
		SEMEL_LOG_WARN, intake->paused ? "subscription paused" : "subscription resumed",
		&(struct semel_log_fields){ .consumer = semel_text_shown(consumer->config.scope) });
	return SEMEL_OK;
}

/* The event that a topic waits for may come after copies of other events, so a small batch might
 * not reach it. */
static uint32_t batch_size(const struct semel_consumer *consumer)
{
	uint32_t batch = consumer->config.options.batch;
	bool waits = consumer->config.options.order == SEMEL_ORDER_TOTAL &&
		     consumer->intake.has_deferred;

	return waits && batch < WAITING_BATCH && !SEMEL_PLANTED("head-behind-copies")
		       ? WAITING_BATCH
		       : batch;
}

static uint32_t wanted_batch(struct semel_consumer *consumer)
{
	int64_t now_ms = semel_steady_ms(consumer->env);
	uint32_t batch = semel_intake_cap(&consumer->intake, batch_size(consumer), 0);

	if (consumer->intake.paused || now_ms < consumer->intake.deferred_until_ms)
		return 0;
	return semel_breaker_allow(&consumer->breaker, batch, now_ms);
}

semel_status semel_intake_fetch(struct semel_consumer *consumer, uint32_t max,
				struct semel_arena *arena, struct semel_delivery **deliveries_out,
				uint32_t *count_out, semel_error *error)
{
	struct semel_delivery *deliveries =
		semel_arena_alloc(arena, (max + 1) * sizeof *deliveries);

	*count_out = 0;
	*deliveries_out = deliveries;
	if (!deliveries)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for deliveries");
	int64_t began_us = semel_step_timer_begin();
	semel_status status = consumer->broker->driver->fetch(consumer->broker, max, arena,
							      deliveries, count_out, error);
	semel_step_timer_end(SEMEL_TIMED_RECEIVE, began_us);
	if (status != SEMEL_OK || *count_out == 0)
		return status;
	status = semel_positions_note_fetched(consumer->positions, deliveries, *count_out, error);
	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_RECEIVE, error);
}

semel_status semel_intake_fetch_batch(struct semel_consumer *consumer,
				      struct semel_item **items_out, uint32_t *count_out,
				      semel_error *error)
{
	struct semel_delivery *deliveries = NULL;
	semel_status status = semel_intake_fetch(consumer, wanted_batch(consumer), consumer->arena,
						 &deliveries, count_out, error);

	if (status != SEMEL_OK || *count_out == 0)
		return status;
	*items_out = semel_items_new(consumer, deliveries, *count_out, consumer->arena);
	return *items_out ? SEMEL_OK
			  : semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch");
}
