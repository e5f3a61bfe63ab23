/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/health.h"

#include "admin/routes.h"
#include "base/error.h"
#include "base/wake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_CHECK_MS 1000  /* longest wait for the first sample before listening */
#define CHECK_OLD_MS   15000 /* a store without a new sample for this long counts as unreachable */

struct semel_health_monitor {
	struct semel_admin_context *context;
	struct semel_wake *wake;
	pthread_t thread;
	bool runs;
	pthread_mutex_t mutex;  /* protects what follows */
	pthread_cond_t checked; /* the first sample was taken */
	int64_t checked_at_ms;  /* steady, of the last sample; 0: none */
	int64_t started_at_ms;  /* steady */
	struct semel_health_sample last;
	int64_t moved_at_ms; /* steady */
	int64_t held_at_ms;  /* steady: when every lane last had a relay, or no event waited */
	bool reached;        /* the store was reachable at the last sample */
	char error_text[SEMEL_ERROR_TEXT_MAX];
};

bool semel_health_has_progress(const struct semel_health_sample *before,
			       const struct semel_health_sample *now)
{
	return now->waiting == 0 || now->oldest_ms != before->oldest_ms ||
	       now->waiting < before->waiting || now->lanes.low_sum != before->lanes.low_sum;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static void record_sample(struct semel_health_monitor *monitor,
			  const struct semel_health_sample *now, int64_t steady_ms)
{
	if (semel_health_has_progress(&monitor->last, now))
		monitor->moved_at_ms = steady_ms;
	if (now->lanes.unheld == 0 || now->waiting == 0)
		monitor->held_at_ms = steady_ms;
	monitor->last = *now;
}

static void record(struct semel_health_monitor *monitor, semel_status status,
		   const semel_error *error, const struct semel_health_sample *now)
{
	int64_t steady_ms = semel_steady_ms(monitor->context->env);

	pthread_mutex_lock(&monitor->mutex);
	monitor->checked_at_ms = steady_ms;
	pthread_cond_broadcast(&monitor->checked);
	monitor->reached = status == SEMEL_OK;
	if (status != SEMEL_OK)
		snprintf(monitor->error_text, sizeof monitor->error_text, "%s", error->text);
	else
		record_sample(monitor, now, steady_ms);
	pthread_mutex_unlock(&monitor->mutex);
}

static semel_status read_sample(struct semel_admin_request *request,
				struct semel_health_sample *sample, semel_error *error)
{
	struct semel_admin_context *context = request->context;
	struct semel_outbox_counts counts = { 0 };
	int64_t now_ms = semel_now_ms(context->env);
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	semel_store *store = request->store;
	status = store->driver->check_schema(store, error);
	if (status != SEMEL_OK)
		return status;
	status = store->driver->outbox->count(store, &counts, error);
	if (status != SEMEL_OK)
		return status;
	sample->waiting = counts.waiting + counts.retrying;
	sample->oldest_ms = counts.oldest_ms;
	status = semel_store_lanes(store, now_ms, &sample->lanes, error);
	if (status != SEMEL_OK || !store->driver->upkeep->slot_read)
		return status;
	return store->driver->upkeep->slot_read(store, context->options.slot, &sample->slot, error);
}

void semel_health_monitor_check(struct semel_health_monitor *monitor)
{
	struct semel_admin_request request = { .context = monitor->context };
	struct semel_health_sample now = { 0 };
	semel_error error = { .status = SEMEL_OK };
	semel_status status = read_sample(&request, &now, &error);

	while (request.pooled && semel_status_class(status) == SEMEL_CLASS_OUTAGE) {
		semel_admin_request_close_store(&request, false); /* the idle connection was lost */
		status = read_sample(&request, &now, &error);
	}
	semel_admin_request_close_store(&request, status == SEMEL_OK);
	record(monitor, status, &error, &now);
}

static void *check_periodically(void *user)
{
	struct semel_health_monitor *monitor = user;
	int64_t stall_ms = monitor->context->options.ready_stall_ms;
	int64_t every_ms = stall_ms / 4 < 1000 ? stall_ms / 4 + 1 : 1000;

	while (!semel_wake_is_notified(monitor->wake)) {
		semel_health_monitor_check(monitor);
		semel_wake_sleep(monitor->wake, every_ms);
	}
	return NULL;
}

/* Waits for the first sample, so that the first probe gets the state of the store, not the lack of
 * a sample. */
static void await_first_check(struct semel_health_monitor *monitor)
{
	int64_t until_ms = monitor->started_at_ms + FIRST_CHECK_MS;
	struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
	int waited = 0;

	pthread_mutex_lock(&monitor->mutex);
	while (monitor->checked_at_ms == 0 && waited == 0)
		waited = pthread_cond_timedwait(&monitor->checked, &monitor->mutex, &until);
	pthread_mutex_unlock(&monitor->mutex);
}

semel_status semel_health_monitor_start(struct semel_admin_context *context,
					struct semel_health_monitor **monitor_out,
					semel_error *error)
{
	struct semel_health_monitor *monitor = calloc(1, sizeof *monitor);

	*monitor_out = NULL;
	if (!monitor)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the health check");
	monitor->context = context;
	monitor->started_at_ms = semel_steady_ms(context->env);
	monitor->moved_at_ms = monitor->held_at_ms = monitor->started_at_ms;
	pthread_mutex_init(&monitor->mutex, NULL);
	semel_cond_init(&monitor->checked);
	semel_status status = semel_wake_new(&monitor->wake, error);
	if (status != SEMEL_OK)
		goto stop;
	if (pthread_create(&monitor->thread, NULL, check_periodically, monitor) != 0) {
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the health check");
		goto stop;
	}
	monitor->runs = true;
	await_first_check(monitor);
	*monitor_out = monitor;
	return SEMEL_OK;

stop:
	semel_health_monitor_stop(monitor);
	return status;
}

void semel_health_monitor_stop(struct semel_health_monitor *monitor)
{
	if (!monitor)
		return;
	if (monitor->runs) {
		semel_wake_notify(monitor->wake);
		pthread_join(monitor->thread, NULL);
	}
	semel_wake_free(monitor->wake);
	pthread_cond_destroy(&monitor->checked);
	pthread_mutex_destroy(&monitor->mutex);
	free(monitor);
}

/* ---- reasons --------------------------------------------------------------------------------- */

semel_status semel_serve_livez(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	semel_buffer_string(semel_admin_request_body(request), "{\"alive\":true}\n");
	return SEMEL_OK;
}

struct reasons {
	struct semel_buffer *body;
	bool detailed;
	uint32_t count;
};

/* The code may be shown to everyone; the sentence may contain hosts, users and texts of servers. */
static void add_reason(struct reasons *reasons, const char *code, const char *sentence)
{
	semel_buffer_string(reasons->body, reasons->count++ ? "," : "");
	semel_buffer_json(reasons->body, semel_text_of(reasons->detailed ? sentence : code));
}

static void add_part(const char *reason, void *user)
{
	add_reason(user, "part", reason);
}

/* Is the oldest waiting event older than ready-stall? */
static bool is_backlog_old(const struct semel_health_monitor *monitor,
			   const struct semel_admin_context *context)
{
	int64_t age_ms = semel_now_ms(context->env) - monitor->last.oldest_ms;

	return monitor->last.waiting > 0 && age_ms > context->options.ready_stall_ms;
}

/* Reports that no event is published, or that some lanes have had no relay for too long. */
static void explain_stall(struct semel_health_monitor *monitor,
			  const struct semel_admin_context *context, struct reasons *reasons)
{
	int64_t stall_ms = context->options.ready_stall_ms;
	int64_t still_ms = semel_steady_ms(context->env) - monitor->moved_at_ms;
	int64_t unheld_ms = semel_steady_ms(context->env) - monitor->held_at_ms;
	int64_t age_ms = semel_now_ms(context->env) - monitor->last.oldest_ms;
	const struct semel_lanes_state *lanes = &monitor->last.lanes;
	char reason[320], still[80] = "", lost[120] = "";

	if (!is_backlog_old(monitor, context) || (still_ms <= stall_ms && unheld_ms <= stall_ms))
		return;
	if (still_ms > stall_ms)
		snprintf(still, sizeof still, ", none published for %lld s",
			 (long long)(still_ms / 1000));
	if (unheld_ms > stall_ms)
		snprintf(lost, sizeof lost, "; %d of %d lanes have no relay", (int)lanes->unheld,
			 (int)lanes->count);
	snprintf(reason, sizeof reason,
		 "%llu event%s waiting, the oldest for %lld s%s%s (start a relay, or run: "
		 "semel doctor)",
		 (unsigned long long)monitor->last.waiting, monitor->last.waiting == 1 ? "" : "s",
		 (long long)(age_ms / 1000), still, lost);
	add_reason(reasons, "stalled", reason);
}

static void explain_slot(const struct semel_health_monitor *monitor,
			 const struct semel_admin_context *context, struct reasons *reasons)
{
	const struct semel_slot_status *slot = &monitor->last.slot;
	char reason[320];

	if (slot->exists && slot->lost)
		snprintf(reason, sizeof reason,
			 "replication slot %.64s is lost: the server has removed WAL that it needs "
			 "(the relay drops it and creates a new one)",
			 context->options.slot);
	else if (slot->exists && slot->retained > context->options.slot_budget)
		snprintf(
			reason, sizeof reason,
			"replication slot %.64s retains %llu MB of WAL, more than its "
			"budget of %llu MB (start a relay with --source cdc, or run: semel doctor)",
			context->options.slot, (unsigned long long)(slot->retained >> 20),
			(unsigned long long)(context->options.slot_budget >> 20));
	else
		return;
	add_reason(reasons, "slot", reason);
}

/* Reports a sample that is too old: it says nothing about the present. */
static bool explain_silence(const struct semel_health_monitor *monitor,
			    const struct semel_admin_context *context, struct reasons *reasons)
{
	bool checked = monitor->checked_at_ms != 0;
	int64_t since_ms = checked ? monitor->checked_at_ms : monitor->started_at_ms;
	int64_t silent_ms = semel_steady_ms(context->env) - since_ms;
	char reason[120];

	if (checked && silent_ms <= CHECK_OLD_MS)
		return false;
	snprintf(reason, sizeof reason, "the store has not responded for %lld s",
		 (long long)(silent_ms / 1000));
	add_reason(reasons, "store", reason);
	return true;
}

uint32_t semel_health_write_reasons(struct semel_admin_context *context, bool detailed,
				    struct semel_buffer *text)
{
	struct semel_health_monitor *monitor = context->health;
	struct reasons reasons = { .body = text, .detailed = detailed };

	pthread_mutex_lock(&monitor->mutex);
	if (explain_silence(monitor, context, &reasons)) {
		/* the rest is unknown */
	} else if (!monitor->reached) {
		add_reason(&reasons, "store", monitor->error_text);
	} else {
		explain_stall(monitor, context, &reasons);
		explain_slot(monitor, context, &reasons);
	}
	pthread_mutex_unlock(&monitor->mutex);
	if (context->options.reasons)
		context->options.reasons(add_part, &reasons, context->options.reasons_user);
	return reasons.count;
}

/* The reasons come from the last sample: a probe does not read the store. */
semel_status semel_serve_readyz(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	semel_buffer_string(semel_admin_request_body(request), "{\"reasons\":[");
	uint32_t count = semel_health_write_reasons(request->context, request->may_read,
						    semel_admin_request_body(request));
	semel_buffer_string(semel_admin_request_body(request), "]}\n");
	request->response->status = count > 0 ? 503 : 200;
	return SEMEL_OK;
}
