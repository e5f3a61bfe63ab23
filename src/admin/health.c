/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/health.h"

#include "admin/routes.h"
#include "base/error.h"
#include "base/owner.h"
#include "base/wake.h"
#include "observe/metrics.h"
#include "proof/onlooker.h"
#include "store/subscription.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct semel_watch {
	struct semel_desk *desk;
	struct semel_wake *wake;
	pthread_t thread;
	bool runs;
	pthread_mutex_t lock; /* of what follows */
	struct semel_sight last;
	int64_t moved_at_ms; /* steady */
	bool reached;        /* the store answered the last look */
	char trouble[SEMEL_ERROR_TEXT_MAX];
};

bool semel_sight_moved(const struct semel_sight *before, const struct semel_sight *now)
{
	return now->waiting == 0 || now->oldest_ms != before->oldest_ms ||
	       now->waiting < before->waiting;
}

/* ---- looking --------------------------------------------------------------------------------- */

static void remember(struct semel_watch *watch, semel_status status, const semel_error *error,
		     const struct semel_sight *now)
{
	int64_t steady_ms = semel_steady_ms(watch->desk->env);

	pthread_mutex_lock(&watch->lock);
	watch->reached = status == SEMEL_OK;
	if (status != SEMEL_OK)
		snprintf(watch->trouble, sizeof watch->trouble, "%s", error->text);
	else if (semel_sight_moved(&watch->last, now))
		watch->moved_at_ms = steady_ms;
	if (status == SEMEL_OK)
		watch->last = *now;
	pthread_mutex_unlock(&watch->lock);
}

static void look(struct semel_watch *watch)
{
	struct semel_visit visit = { .desk = watch->desk };
	struct semel_outbox_counts counts = { 0 };
	semel_error error = { .status = SEMEL_OK };
	semel_status status = semel_visit_store(&visit, &error);

	if (status == SEMEL_OK)
		status = visit.store->driver->outbox_counts(
			visit.store, semel_now_ms(watch->desk->env), &counts, &error);
	semel_visit_end(&visit, status == SEMEL_OK);
	struct semel_sight now = { counts.waiting + counts.retrying, counts.oldest_ms };
	remember(watch, status, &error, &now);
}

static void *keep_looking(void *user)
{
	struct semel_watch *watch = user;
	int64_t stall_ms = watch->desk->options.ready_stall_ms;
	int64_t every_ms = stall_ms / 4 < 1000 ? stall_ms / 4 + 1 : 1000;

	while (!semel_wake_rung(watch->wake)) {
		look(watch);
		semel_wake_sleep(watch->wake, every_ms);
	}
	return NULL;
}

semel_status semel_watch_start(struct semel_desk *desk, struct semel_watch **watch_out,
			       semel_error *error)
{
	struct semel_watch *watch = calloc(1, sizeof *watch);

	*watch_out = NULL;
	if (!watch)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the health check");
	watch->desk = desk;
	watch->moved_at_ms = semel_steady_ms(desk->env);
	pthread_mutex_init(&watch->lock, NULL);
	semel_status status = semel_wake_new(&watch->wake, error);
	if (status == SEMEL_OK && pthread_create(&watch->thread, NULL, keep_looking, watch) != 0)
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the health check");
	watch->runs = status == SEMEL_OK;
	if (status != SEMEL_OK) {
		semel_watch_stop(watch);
		return status;
	}
	*watch_out = watch;
	return SEMEL_OK;
}

void semel_watch_stop(struct semel_watch *watch)
{
	if (!watch)
		return;
	if (watch->runs) {
		semel_wake_ring(watch->wake);
		pthread_join(watch->thread, NULL);
	}
	semel_wake_free(watch->wake);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

/* ---- answering ------------------------------------------------------------------------------- */

semel_status semel_serve_livez(struct semel_visit *visit, semel_error *error)
{
	(void)error;
	semel_buffer_string(semel_visit_body(visit), "{\"alive\":true}\n");
	return SEMEL_OK;
}

struct reasons {
	struct semel_buffer *body;
	uint32_t count;
};

static void add_reason(const char *reason, void *user)
{
	struct reasons *reasons = user;

	semel_buffer_string(reasons->body, reasons->count++ ? "," : "");
	semel_buffer_json(reasons->body, semel_text_of(reason));
}

static void explain_stall(struct semel_watch *watch, const struct semel_desk *desk,
			  struct reasons *reasons)
{
	int64_t stall_ms = desk->options.ready_stall_ms;
	int64_t still_ms = semel_steady_ms(desk->env) - watch->moved_at_ms;
	int64_t age_ms = semel_now_ms(desk->env) - watch->last.oldest_ms;
	char reason[200];

	if (watch->last.waiting == 0 || age_ms <= stall_ms || still_ms <= stall_ms)
		return;
	snprintf(
		reason, sizeof reason,
		"%llu events wait, the oldest for %lld s, and nothing has moved for %lld s: does a "
		"relay run, and does it reach the broker?",
		(unsigned long long)watch->last.waiting, (long long)(age_ms / 1000),
		(long long)(still_ms / 1000));
	add_reason(reason, reasons);
}

uint32_t semel_reasons_tell(struct semel_desk *desk, struct semel_buffer *text)
{
	struct semel_watch *watch = desk->watch;
	struct reasons reasons = { .body = text };

	pthread_mutex_lock(&watch->lock);
	if (!watch->reached)
		add_reason(watch->trouble, &reasons);
	else
		explain_stall(watch, desk, &reasons);
	pthread_mutex_unlock(&watch->lock);
	if (desk->options.reasons)
		desk->options.reasons(add_reason, &reasons, desk->options.reasons_user);
	return reasons.count;
}

semel_status semel_serve_readyz(struct semel_visit *visit, semel_error *error)
{
	(void)error;
	look(visit->desk->watch);
	semel_buffer_string(semel_visit_body(visit), "{\"reasons\":[");
	uint32_t count = semel_reasons_tell(visit->desk, semel_visit_body(visit));
	semel_buffer_string(semel_visit_body(visit), "]}\n");
	visit->answer->status = count > 0 ? 503 : 200;
	return SEMEL_OK;
}

/* ---- metrics: the gauges are the store's ------------------------------------------------------
 */

static semel_status set_outbox(struct semel_visit *visit, semel_error *error)
{
	struct semel_outbox_counts counts = { 0 };
	int64_t now_ms = semel_now_ms(visit->desk->env);
	uint64_t dead = 0;
	semel_status status =
		visit->store->driver->outbox_counts(visit->store, now_ms, &counts, error);

	if (status == SEMEL_OK)
		status = visit->store->driver->dead_count(visit->store, NULL, &dead, error);
	if (status != SEMEL_OK)
		return status;
	uint64_t unpublished = counts.waiting + counts.retrying + counts.parked + counts.blocked;
	semel_series_set(semel_series(SEMEL_METRIC_OUTBOX_UNPUBLISHED, NULL, NULL),
			 (int64_t)unpublished);
	semel_series_set(semel_series(SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE, NULL, NULL),
			 counts.oldest_ms > 0 ? (now_ms - counts.oldest_ms) / 1000 : 0);
	semel_series_set(semel_series(SEMEL_METRIC_DLQ_PENDING, NULL, NULL), (int64_t)dead);
	return SEMEL_OK;
}

static semel_status set_leases(struct semel_visit *visit, semel_error *error)
{
	int32_t count = visit->store->driver->lane_count(visit->store);
	struct semel_lease *leases =
		semel_arena_alloc(visit->arena, (size_t)count * sizeof *leases);

	if (!leases)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the leases");
	semel_status status = visit->store->driver->lease_list(visit->store, leases, error);
	for (int32_t i = 0; i < count && status == SEMEL_OK; i++) {
		char lane[16];
		bool held = leases[i].owner[0] &&
			    leases[i].expires_at_ms > semel_now_ms(visit->desk->env);
		snprintf(lane, sizeof lane, "%d", (int)leases[i].lane);
		semel_series_set(semel_series(SEMEL_METRIC_LEASE_HELD, lane, NULL), held);
	}
	return status;
}

static void set_lag(struct semel_visit *visit, struct semel_broker *broker,
		    const struct semel_subscription_row *row)
{
	struct semel_topics topics = { 0 };

	if (semel_subscription_topics(row, visit->arena, &topics, NULL) != SEMEL_OK)
		return;
	for (size_t i = 0; i < topics.count; i++) {
		const char *one[] = { topics.names[i], NULL };
		struct semel_backlog backlog = { 0 };
		if (broker->driver->backlog(broker, row->scope.data, one, &backlog, NULL) ==
		    SEMEL_OK)
			semel_series_set(semel_series(SEMEL_METRIC_CONSUMER_LAG, row->scope.data,
						      topics.names[i]),
					 (int64_t)backlog.waiting);
	}
}

/* A broker that is away has no lag to show. */
static semel_status set_lags(struct semel_visit *visit, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	struct semel_broker *broker = NULL;
	struct semel_onlooker onlooker;
	uint32_t count = 0;
	semel_status status =
		semel_subscription_read(visit->store, visit->arena, &rows, &count, error);

	semel_metric_clear(SEMEL_METRIC_CONSUMER_LAG);
	if (status != SEMEL_OK || count == 0 ||
	    semel_broker_open(visit->desk->options.broker, visit->desk->env, 1, &broker, NULL) !=
		    SEMEL_OK)
		return status;
	semel_onlooker_attend(&onlooker, broker, visit->store);
	for (uint32_t i = 0; i < count; i++)
		set_lag(visit, broker, &rows[i]);
	semel_broker_close(broker);
	return SEMEL_OK;
}

semel_status semel_serve_metrics(struct semel_visit *visit, semel_error *error)
{
	semel_status status = semel_visit_store(visit, error);

	if (status == SEMEL_OK)
		status = set_outbox(visit, error);
	if (status == SEMEL_OK)
		status = set_leases(visit, error);
	if (status == SEMEL_OK)
		status = set_lags(visit, error);
	/* Without the store the gauges are gone; what this process counted is still worth seeing.
	 */
	if (status != SEMEL_OK) {
		semel_metric_clear(SEMEL_METRIC_OUTBOX_UNPUBLISHED);
		semel_metric_clear(SEMEL_METRIC_OUTBOX_UNPUBLISHED_AGE);
		semel_metric_clear(SEMEL_METRIC_DLQ_PENDING);
		semel_metric_clear(SEMEL_METRIC_LEASE_HELD);
		semel_visit_end(visit, false);
	}
	visit->answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
	semel_metrics_render(semel_visit_body(visit));
	return SEMEL_OK;
}
