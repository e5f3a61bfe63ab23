/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/health.h"

#include "admin/routes.h"
#include "base/error.h"
#include "base/wake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_LOOK_MS 1000  /* the server waits so long for the first look before it listens */
#define LOOK_OLD_MS   15000 /* a look that takes longer is an outage */

struct semel_health_monitor {
	struct semel_admin_context *context;
	struct semel_wake *wake;
	pthread_t thread;
	bool runs;
	pthread_mutex_t mutex; /* of what follows */
	pthread_cond_t looked; /* the first look is done */
	int64_t looked_at_ms;  /* steady: when the last look ended; 0: none did */
	int64_t started_at_ms; /* steady */
	struct semel_health_sample last;
	int64_t moved_at_ms; /* steady */
	int64_t held_at_ms;  /* steady: every lane had a relay, or nothing waited */
	bool reached;        /* the store answered the last look */
	char trouble[SEMEL_ERROR_TEXT_MAX];
};

bool semel_health_has_progress(const struct semel_health_sample *before,
			       const struct semel_health_sample *now)
{
	return now->waiting == 0 || now->oldest_ms != before->oldest_ms ||
	       now->waiting < before->waiting || now->lanes.low_sum != before->lanes.low_sum;
}

/* ---- looking --------------------------------------------------------------------------------- */

static void remember(struct semel_health_monitor *watch, semel_status status,
		     const semel_error *error, const struct semel_health_sample *now)
{
	int64_t steady_ms = semel_steady_ms(watch->context->env);

	pthread_mutex_lock(&watch->mutex);
	watch->looked_at_ms = steady_ms;
	pthread_cond_broadcast(&watch->looked);
	watch->reached = status == SEMEL_OK;
	if (status != SEMEL_OK)
		snprintf(watch->trouble, sizeof watch->trouble, "%s", error->text);
	else if (semel_health_has_progress(&watch->last, now))
		watch->moved_at_ms = steady_ms;
	if (status == SEMEL_OK && (now->lanes.unheld == 0 || now->waiting == 0))
		watch->held_at_ms = steady_ms;
	if (status == SEMEL_OK)
		watch->last = *now;
	pthread_mutex_unlock(&watch->mutex);
}

static semel_status see(struct semel_admin_request *request, struct semel_health_sample *sight,
			semel_error *error)
{
	struct semel_admin_context *context = request->context;
	struct semel_outbox_counts counts = { 0 };
	int64_t now_ms = semel_now_ms(context->env);
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	const struct semel_store_driver *driver = request->store->driver;
	status = driver->check_schema(request->store, error);
	if (status == SEMEL_OK)
		status = driver->outbox->count(request->store, now_ms, &counts, error);
	sight->waiting = counts.waiting + counts.retrying;
	sight->oldest_ms = counts.oldest_ms;
	if (status == SEMEL_OK)
		status = semel_store_lanes(request->store, now_ms, &sight->lanes, error);
	if (status == SEMEL_OK && driver->upkeep->slot_read)
		status = driver->upkeep->slot_read(request->store, context->options.slot,
						   &sight->slot, error);
	return status;
}

void semel_health_monitor_check(struct semel_health_monitor *watch)
{
	struct semel_admin_request request = { .context = watch->context };
	struct semel_health_sample now = { 0 };
	semel_error error = { .status = SEMEL_OK };
	semel_status status = see(&request, &now, &error);

	while (request.pooled && semel_status_class(status) == SEMEL_CLASS_OUTAGE) {
		semel_admin_request_close_store(&request,
						false); /* it was cut since it was used last */
		status = see(&request, &now, &error);
	}
	semel_admin_request_close_store(&request, status == SEMEL_OK);
	remember(watch, status, &error, &now);
}

static void *keep_looking(void *user)
{
	struct semel_health_monitor *watch = user;
	int64_t stall_ms = watch->context->options.ready_stall_ms;
	int64_t every_ms = stall_ms / 4 < 1000 ? stall_ms / 4 + 1 : 1000;

	while (!semel_wake_is_notified(watch->wake)) {
		semel_health_monitor_check(watch);
		semel_wake_sleep(watch->wake, every_ms);
	}
	return NULL;
}

static void init_looked(pthread_cond_t *looked)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(looked, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* So that the first who ask hear of the store, not that nobody has looked yet. */
static void await_first_look(struct semel_health_monitor *watch)
{
	int64_t until_ms = watch->started_at_ms + FIRST_LOOK_MS;
	struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
	int waited = 0;

	pthread_mutex_lock(&watch->mutex);
	while (watch->looked_at_ms == 0 && waited == 0)
		waited = pthread_cond_timedwait(&watch->looked, &watch->mutex, &until);
	pthread_mutex_unlock(&watch->mutex);
}

semel_status semel_health_monitor_start(struct semel_admin_context *context,
					struct semel_health_monitor **watch_out, semel_error *error)
{
	struct semel_health_monitor *watch = calloc(1, sizeof *watch);

	*watch_out = NULL;
	if (!watch)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the health check");
	watch->context = context;
	watch->started_at_ms = semel_steady_ms(context->env);
	watch->moved_at_ms = watch->held_at_ms = watch->started_at_ms;
	pthread_mutex_init(&watch->mutex, NULL);
	init_looked(&watch->looked);
	semel_status status = semel_wake_new(&watch->wake, error);
	if (status == SEMEL_OK && pthread_create(&watch->thread, NULL, keep_looking, watch) != 0)
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the health check");
	watch->runs = status == SEMEL_OK;
	if (status != SEMEL_OK) {
		semel_health_monitor_stop(watch);
		return status;
	}
	await_first_look(watch);
	*watch_out = watch;
	return SEMEL_OK;
}

void semel_health_monitor_stop(struct semel_health_monitor *watch)
{
	if (!watch)
		return;
	if (watch->runs) {
		semel_wake_notify(watch->wake);
		pthread_join(watch->thread, NULL);
	}
	semel_wake_free(watch->wake);
	pthread_cond_destroy(&watch->looked);
	pthread_mutex_destroy(&watch->mutex);
	free(watch);
}

/* ---- answering ------------------------------------------------------------------------------- */

semel_status semel_serve_livez(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	semel_buffer_string(semel_admin_request_body(request), "{\"alive\":true}\n");
	return SEMEL_OK;
}

struct reasons {
	struct semel_buffer *body;
	bool in_full;
	uint32_t count;
};

/* The code is for everybody; the sentence may name hosts, users and what a server said. */
static void add_reason(struct reasons *reasons, const char *code, const char *sentence)
{
	semel_buffer_string(reasons->body, reasons->count++ ? "," : "");
	semel_buffer_json(reasons->body, semel_text_of(reasons->in_full ? sentence : code));
}

static void add_part(const char *reason, void *user)
{
	add_reason(user, "part", reason);
}

/* Things wait, and the oldest of them for longer than they should. */
static bool waits_long(const struct semel_health_monitor *watch,
		       const struct semel_admin_context *context)
{
	int64_t age_ms = semel_now_ms(context->env) - watch->last.oldest_ms;

	return watch->last.waiting > 0 && age_ms > context->options.ready_stall_ms;
}

/* Nothing moves; or the rest does, and what a lane without a relay has does not. */
static void explain_stall(struct semel_health_monitor *watch,
			  const struct semel_admin_context *context, struct reasons *reasons)
{
	int64_t stall_ms = context->options.ready_stall_ms;
	int64_t still_ms = semel_steady_ms(context->env) - watch->moved_at_ms;
	int64_t unheld_ms = semel_steady_ms(context->env) - watch->held_at_ms;
	int64_t age_ms = semel_now_ms(context->env) - watch->last.oldest_ms;
	const struct semel_lanes_state *lanes = &watch->last.lanes;
	char reason[320], still[80] = "", lost[120] = "";

	if (!waits_long(watch, context) || (still_ms <= stall_ms && unheld_ms <= stall_ms))
		return;
	if (still_ms > stall_ms)
		snprintf(still, sizeof still, ", and nothing has moved for %lld s",
			 (long long)(still_ms / 1000));
	if (unheld_ms > stall_ms)
		snprintf(lost, sizeof lost, "; no relay holds the lease of %d of %d lanes",
			 (int)lanes->unheld, (int)lanes->count);
	snprintf(reason, sizeof reason,
		 "%llu event%s, the oldest for %lld s%s%s: does a relay run, and does it reach the "
		 "broker?",
		 (unsigned long long)watch->last.waiting,
		 watch->last.waiting == 1 ? " waits" : "s wait", (long long)(age_ms / 1000), still,
		 lost);
	add_reason(reasons, "stalled", reason);
}

static void explain_slot(const struct semel_health_monitor *watch,
			 const struct semel_admin_context *context, struct reasons *reasons)
{
	const struct semel_slot_status *slot = &watch->last.slot;
	char reason[320];

	if (slot->exists && slot->lost)
		snprintf(reason, sizeof reason,
			 "the replication slot %.64s is lost: the server "
			 "has removed log that it needs",
			 context->options.slot);
	else if (slot->exists && slot->retained > context->options.slot_budget)
		snprintf(reason, sizeof reason,
			 "the replication slot %.64s keeps %llu MB of the log, more than its "
			 "budget of %llu MB: does a relay read it?",
			 context->options.slot, (unsigned long long)(slot->retained >> 20),
			 (unsigned long long)(context->options.slot_budget >> 20));
	else
		return;
	add_reason(reasons, "slot", reason);
}

/* Nobody knows more than what the last look has seen; an old one says nothing. */
static bool explain_silence(const struct semel_health_monitor *watch,
			    const struct semel_admin_context *context, struct reasons *reasons)
{
	bool looked = watch->looked_at_ms != 0;
	int64_t since_ms = looked ? watch->looked_at_ms : watch->started_at_ms;
	int64_t silent_ms = semel_steady_ms(context->env) - since_ms;
	char reason[120];

	if (looked && silent_ms <= LOOK_OLD_MS)
		return false;
	snprintf(reason, sizeof reason, "the store has not answered for %lld s",
		 (long long)(silent_ms / 1000));
	add_reason(reasons, "store", reason);
	return true;
}

uint32_t semel_health_write_reasons(struct semel_admin_context *context, bool in_full,
				    struct semel_buffer *text)
{
	struct semel_health_monitor *watch = context->health;
	struct reasons reasons = { .body = text, .in_full = in_full };

	pthread_mutex_lock(&watch->mutex);
	if (explain_silence(watch, context, &reasons)) {
		/* and of the rest nothing is known */
	} else if (!watch->reached) {
		add_reason(&reasons, "store", watch->trouble);
	} else {
		explain_stall(watch, context, &reasons);
		explain_slot(watch, context, &reasons);
	}
	pthread_mutex_unlock(&watch->mutex);
	if (context->options.reasons)
		context->options.reasons(add_part, &reasons, context->options.reasons_user);
	return reasons.count;
}

/* From what the watch has seen: a question costs the store nothing. */
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
