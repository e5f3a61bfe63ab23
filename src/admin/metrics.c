/* SPDX-License-Identifier: Apache-2.0 */
/* The gauges at /metrics. The counters of this process are already there; the gauges are read from
 * the store and the broker for each scrape, so they are the same in every process. A gauge that
 * cannot be read is left out rather than repeated. */
#include "observe/metrics.h"
#include "admin/health.h"
#include "admin/routes.h"
#include "base/error.h"
#include "observe/span.h"
#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "store/subscription.h"

#include <semel/version.h>

#include <stdio.h>

#define OVERDUE_MS 30000

static void set(enum semel_metric metric, const char *first, const char *second, uint64_t value)
{
	semel_series_set(semel_series(metric, first, second), (int64_t)value);
}

static uint64_t age_s(int64_t now_ms, int64_t then_ms)
{
	return then_ms > 0 && now_ms > then_ms ? (uint64_t)(now_ms - then_ms) / 1000 : 0;
}

/* ---- the store ------------------------------------------------------------------------------- */

static semel_status set_outbox(struct semel_admin_request *request, semel_error *error)
{
	struct semel_outbox_counts counts = { 0 };
	int64_t now_ms = semel_now_ms(request->context->env);
	semel_status status = request->store->driver->outbox->count(request->store, &counts, error);

	if (status != SEMEL_OK)
		return status;
	set(SEMEL_METRIC_OUTBOX_UNPUBLISHED, NULL, NULL,
	    counts.waiting + counts.retrying + counts.parked + counts.blocked);
	set(SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE, NULL, NULL, age_s(now_ms, counts.oldest_ms));
	set(SEMEL_METRIC_OUTBOX_EVENTS, "waiting", NULL, counts.waiting);
	set(SEMEL_METRIC_OUTBOX_EVENTS, "retrying", NULL, counts.retrying);
	set(SEMEL_METRIC_OUTBOX_EVENTS, "parked", NULL, counts.parked);
	set(SEMEL_METRIC_OUTBOX_EVENTS, "blocked", NULL, counts.blocked);
	set(SEMEL_METRIC_OUTBOX_EVENTS, "failed", NULL, counts.failed);
	return SEMEL_OK;
}

static semel_status set_dead_letters(struct semel_admin_request *request, semel_error *error)
{
	const struct semel_store_driver *driver = request->store->driver;
	const semel_dead_letter_filter oldest = { .status = SEMEL_DEAD_PENDING, .limit = 1 };
	struct semel_dead_letter_row entry = { .failed_at_ms = 0 };
	uint64_t pending = 0;
	uint32_t count = 0;
	semel_status status = driver->dead_letters->count(request->store, NULL, &pending, error);

	if (status != SEMEL_OK)
		return status;
	status = driver->dead_letters->list(request->store, &oldest, request->arena, &entry, &count,
					    error);
	if (status != SEMEL_OK)
		return status;
	set(SEMEL_METRIC_DLQ_PENDING, NULL, NULL, pending);
	set(SEMEL_METRIC_DLQ_PENDING_AGE, NULL, NULL,
	    count > 0 ? age_s(semel_now_ms(request->context->env), entry.failed_at_ms) : 0);
	return SEMEL_OK;
}

static semel_status set_slot(struct semel_admin_request *request, semel_error *error)
{
	const struct semel_upkeep_functions *upkeep = request->store->driver->upkeep;
	struct semel_slot_status slot = { 0 };

	semel_metric_clear(SEMEL_METRIC_SLOT_RETAINED);
	if (!upkeep->slot_read)
		return SEMEL_OK;
	semel_status status =
		upkeep->slot_read(request->store, request->context->options.slot, &slot, error);
	if (status != SEMEL_OK)
		return status;
	if (slot.exists)
		set(SEMEL_METRIC_SLOT_RETAINED, NULL, NULL, slot.retained);
	return SEMEL_OK;
}

static semel_status set_leases(struct semel_admin_request *request, semel_error *error)
{
	int32_t count = request->store->driver->outbox->lane_count(request->store);
	uint64_t unheld = 0;
	struct semel_lease *leases =
		semel_arena_alloc(request->arena, (size_t)count * sizeof *leases);

	if (!leases)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the leases");
	semel_status status =
		request->store->driver->outbox->lease_list(request->store, leases, error);
	if (status != SEMEL_OK)
		return status;
	for (int32_t i = 0; i < count; i++) {
		char lane[16];
		/* As in semel_store_lanes: a dead owner is known to its own machine only. */
		bool held = leases[i].owner[0] &&
			    leases[i].expires_at_ms > semel_now_ms(request->context->env);
		snprintf(lane, sizeof lane, "%d", (int)leases[i].lane);
		set(SEMEL_METRIC_LEASE_HELD, lane, NULL, held);
		unheld += !held;
	}
	set(SEMEL_METRIC_LANES_UNHELD, NULL, NULL, unheld);
	return SEMEL_OK;
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static void set_lag(struct semel_admin_request *request, struct semel_broker *broker,
		    const struct semel_subscription_row *row)
{
	struct semel_topics topics = { 0 };

	if (semel_subscription_topics(row, request->arena, &topics, NULL) != SEMEL_OK)
		return;
	for (size_t i = 0; i < topics.count; i++) {
		const char *one[] = { topics.names[i], NULL };
		struct semel_backlog backlog = { 0 };
		if (broker->driver->backlog(broker, semel_text_string(row->scope), one, &backlog,
					    NULL) == SEMEL_OK)
			set(SEMEL_METRIC_CONSUMER_LAG, semel_text_string(row->scope),
			    topics.names[i], backlog.waiting);
	}
}

/* Counts only what is overdue: to query the broker for every event under retry would cost too
 * much. */
static void set_stuck(struct semel_admin_request *request, struct semel_broker *broker,
		      const struct semel_subscription_row *row)
{
	struct semel_topics topics = { 0 };
	struct semel_consumers consumers = { 0 };
	int64_t now_ms = semel_now_ms(request->context->env);
	uint64_t count = 0;

	if (semel_subscription_all_topics(request->store, row, request->arena, &topics, NULL) !=
		    SEMEL_OK ||
	    semel_consumers_read(request->store, row->scope, now_ms, &consumers, NULL) != SEMEL_OK)
		return;
	struct semel_stuck_check stuck = { .store = request->store,
					   .broker = broker,
					   .scope = semel_text_string(row->scope),
					   .topics = topics.names,
					   .in_flight = consumers.in_flight,
					   .now_ms = now_ms,
					   .overdue_ms = OVERDUE_MS,
					   .arena = request->arena };
	if (semel_stuck_count(&stuck, &count, NULL) == SEMEL_OK)
		set(SEMEL_METRIC_STUCK, semel_text_string(row->scope), NULL, count);
}

static semel_status set_held(struct semel_admin_request *request,
			     const struct semel_subscription_row *row, semel_error *error)
{
	struct semel_hold_counts held = { 0 };
	semel_status status =
		request->store->driver->holds->count(request->store, row->scope, &held, error);

	if (status != SEMEL_OK)
		return status;
	set(SEMEL_METRIC_HELD_EVENTS, semel_text_string(row->scope), "retrying", held.waiting);
	set(SEMEL_METRIC_HELD_EVENTS, semel_text_string(row->scope), "blocked", held.blocked);
	set(SEMEL_METRIC_HELD_EVENTS, semel_text_string(row->scope), "parked", held.parked);
	set(SEMEL_METRIC_PAUSED, semel_text_string(row->scope), NULL, row->paused);
	return SEMEL_OK;
}

/* Without subscriptions the broker is not queried. If it is not reachable, no lag is reported. */
static semel_status set_subscriptions(struct semel_admin_request *request, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader;
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(request->store, request->arena, &rows, &count, error);

	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		status = set_held(request, &rows[i], error);
	if (status != SEMEL_OK || count == 0)
		return status;
	bool reached = semel_broker_open(request->context->options.broker, request->context->env, 1,
					 &broker, NULL) == SEMEL_OK;
	set(SEMEL_METRIC_UP, "broker", NULL, reached);
	if (!reached)
		return SEMEL_OK;
	semel_position_reader_attach(&position_reader, broker, request->store);
	for (uint32_t i = 0; i < count; i++) {
		set_lag(request, broker, &rows[i]);
		set_stuck(request, broker, &rows[i]);
	}
	semel_broker_close(broker);
	return SEMEL_OK;
}

/* ---- /metrics -------------------------------------------------------------------------------- */

static void set_process(struct semel_admin_context *context)
{
	struct semel_buffer reasons = { 0 };
	struct semel_series *dropped = semel_series(SEMEL_METRIC_SPANS_DROPPED, NULL, NULL);

	set(SEMEL_METRIC_READY, NULL, NULL,
	    semel_health_write_reasons(context, false, &reasons) == 0);
	set(SEMEL_METRIC_BUILD, SEMEL_VERSION, NULL, 1);
	semel_series_set(dropped, (int64_t)semel_spans_dropped());
	semel_buffer_free(&reasons);
}

static semel_status set_gauges(struct semel_admin_request *request, semel_error *error)
{
	static const enum semel_metric of_store[] = {
		SEMEL_METRIC_OUTBOX_UNPUBLISHED,
		SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE,
		SEMEL_METRIC_OUTBOX_EVENTS,
		SEMEL_METRIC_DLQ_PENDING,
		SEMEL_METRIC_DLQ_PENDING_AGE,
		SEMEL_METRIC_LEASE_HELD,
		SEMEL_METRIC_LANES_UNHELD,
		SEMEL_METRIC_SLOT_RETAINED,
		SEMEL_METRIC_HELD_EVENTS,
		SEMEL_METRIC_PAUSED,
		SEMEL_METRIC_STUCK,
		SEMEL_METRIC_CONSUMER_LAG,
		SEMEL_METRIC_UP,
	};
	semel_status status = semel_admin_request_open_store(request, error);

	for (size_t i = 0; i < sizeof of_store / sizeof *of_store; i++)
		semel_metric_clear(of_store[i]);
	static semel_status (*const sets[])(struct semel_admin_request *, semel_error *) = {
		set_outbox, set_dead_letters, set_leases, set_slot, set_subscriptions
	};
	for (size_t i = 0; i < sizeof sets / sizeof *sets && status == SEMEL_OK; i++)
		status = sets[i](request, error);
	return status;
}

/* One scrape at a time: the gauges belong to the process, and are cleared before they are set
 * again. A concurrent request gets the last text, or waits for this scrape, so only one thread
 * works, however many requests there are. */
#define LAST_TEXT_MS 10000

static pthread_mutex_t scrape_mutex = PTHREAD_MUTEX_INITIALIZER; /* protects what follows */
static pthread_cond_t scrape_ended = PTHREAD_COND_INITIALIZER;
static bool scrape_runs;
static uint64_t scrape_number;
static struct semel_buffer last_text;
static int64_t last_text_ms; /* steady; 0: none */

/* True: another request is scraping, and the response is its text or the last one. */
static bool share_scrape(struct semel_admin_request *request)
{
	pthread_mutex_lock(&scrape_mutex);
	uint64_t number = scrape_number;
	bool shared = scrape_runs;
	bool known = last_text_ms > 0 &&
		     semel_steady_ms(request->context->env) - last_text_ms <= LAST_TEXT_MS;
	while (shared && !known && number == scrape_number)
		pthread_cond_wait(&scrape_ended, &scrape_mutex);
	if (shared)
		semel_buffer_append(semel_admin_request_body(request), last_text.data,
				    last_text.length);
	else
		scrape_runs = true;
	pthread_mutex_unlock(&scrape_mutex);
	return shared;
}

static void end_scrape(struct semel_admin_request *request)
{
	const struct semel_buffer *body = semel_admin_request_body(request);

	pthread_mutex_lock(&scrape_mutex);
	semel_buffer_clear(&last_text);
	semel_buffer_append(&last_text, body->data, body->length);
	last_text_ms = semel_steady_ms(request->context->env);
	scrape_runs = false;
	scrape_number++;
	pthread_cond_broadcast(&scrape_ended);
	pthread_mutex_unlock(&scrape_mutex);
}

/* Without the store the gauges are left out; the counters of this process are still reported. */
semel_status semel_serve_metrics(struct semel_admin_request *request, semel_error *error)
{
	request->response->content_type = "text/plain; version=0.0.4; charset=utf-8";
	if (share_scrape(request))
		return SEMEL_OK;
	semel_status status = set_gauges(request, error);
	while (request->pooled && semel_status_class(status) == SEMEL_CLASS_OUTAGE) {
		semel_admin_request_close_store(request, false); /* the idle connection was lost */
		status = set_gauges(request, error);
	}
	set(SEMEL_METRIC_UP, "store", NULL, status == SEMEL_OK);
	set_process(request->context);
	if (status != SEMEL_OK)
		semel_admin_request_close_store(request, false);
	semel_metrics_render(semel_admin_request_body(request));
	end_scrape(request);
	return SEMEL_OK;
}
