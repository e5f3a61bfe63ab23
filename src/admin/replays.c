/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/replays.h"

#include "admin/redact.h"
#include "admin/routes.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)4 * 1024)

struct job {
	uint64_t number; /* 0: the place is free */
	struct semel_admin_context *context;
	struct semel_replays *replays;
	struct semel_arena *arena; /* of the plan's texts */
	struct semel_replay_plan plan;
	struct semel_wake *wake;
	pthread_t thread;
	bool joined;
	/* Under the lock: */
	bool running, cancelled;
	struct semel_replay_counts counts;
	semel_status status;
	char trouble[SEMEL_ERROR_TEXT_MAX];
	int64_t started_at_ms, ended_at_ms;
	int64_t audit_number; /* 0: nothing was written down */
};

struct semel_replays {
	pthread_mutex_t mutex;
	uint64_t last;
	struct job all[SEMEL_REPLAY_RUNS_MAX];
};

struct semel_replays *semel_replays_new(void)
{
	struct semel_replays *replays = calloc(1, sizeof *replays);

	if (replays)
		pthread_mutex_init(&replays->mutex, NULL);
	return replays;
}

static void clear_job(struct job *job)
{
	if (job->number != 0 && !job->joined)
		pthread_join(job->thread, NULL);
	semel_wake_free(job->wake);
	semel_arena_free(job->arena);
	*job = (struct job){ 0 };
}

void semel_replays_free(struct semel_replays *replays)
{
	if (!replays)
		return;
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		if (replays->all[i].wake)
			semel_wake_notify(replays->all[i].wake);
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		clear_job(&replays->all[i]);
	pthread_mutex_destroy(&replays->mutex);
	free(replays);
}

/* ---- running --------------------------------------------------------------------------------- */

static void note_progress(const struct semel_replay_counts *counts, void *user)
{
	struct job *job = user;

	pthread_mutex_lock(&job->replays->mutex);
	job->counts = *counts;
	pthread_mutex_unlock(&job->replays->mutex);
}

/* What the audit says of it from now on. */
static void note_end(const struct job *job, semel_store *store, semel_status status, uint64_t sent)
{
	char outcome[64];

	if (!store || job->audit_number == 0)
		return;
	semel_audit_outcome(status, outcome, sizeof outcome);
	if (status == SEMEL_OK || status == SEMEL_STOPPED)
		snprintf(outcome, sizeof outcome, "%s: %" PRIu64 " sent",
			 status == SEMEL_OK ? "done" : "cancelled", sent);
	(void)store->driver->upkeep->audit_finish(store, job->audit_number, outcome, NULL);
}

static void *run_job(void *user)
{
	struct job *job = user;
	semel_store *store = NULL;
	struct semel_broker *broker = NULL;
	semel_error error = { .status = SEMEL_OK };
	struct semel_replay_counts counts = { 0 };
	semel_status status = semel_store_open(job->context->options.store, &store, &error);

	if (status == SEMEL_OK && !job->plan.dry_run)
		status = semel_broker_open(job->context->options.broker, job->context->env,
					   SEMEL_REPLAY_WINDOW, &broker, &error);
	job->plan.producer = store;
	job->plan.consumers = &store;
	job->plan.consumer_count = 1;
	job->plan.broker = broker;
	if (status == SEMEL_OK)
		status = semel_replay_run(&job->plan, &counts, &error);
	semel_broker_close(broker);
	note_end(job, store, status, counts.sent);
	semel_store_close(store);
	pthread_mutex_lock(&job->replays->mutex);
	job->counts = counts;
	job->status = status;
	snprintf(job->trouble, sizeof job->trouble, "%s", status == SEMEL_OK ? "" : error.text);
	job->ended_at_ms = semel_now_ms(job->context->env);
	job->running = false;
	pthread_mutex_unlock(&job->replays->mutex);
	return NULL;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Under the lock. A free place, else that of the oldest that has ended; NULL: all are at work. */
static struct job *find_place(struct semel_replays *replays)
{
	struct job *best = NULL;
	uint32_t running = 0;

	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++) {
		struct job *job = &replays->all[i];
		running += job->running;
		if (!job->running && (!best || job->number < best->number))
			best = job;
	}
	return running < SEMEL_REPLAY_RUNS_AT_ONCE ? best : NULL;
}

static struct job *find_job(struct semel_replays *replays, const char *id)
{
	long long number = 0;

	if (!semel_text_to_int64(id, 1, INT64_MAX, &number))
		return NULL;
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		if (replays->all[i].number == (uint64_t)number)
			return &replays->all[i];
	return NULL;
}

static const char *state_of(const struct job *job)
{
	if (job->running)
		return job->cancelled ? "cancelling" : "running";
	if (job->status == SEMEL_STOPPED)
		return "cancelled";
	return job->status == SEMEL_OK ? "done" : "failed";
}

static void job_json(const struct job *job, struct semel_buffer *body)
{
	semel_buffer_printf(body, "{\"id\":\"%" PRIu64 "\",\"state\":\"%s\",\"dryRun\":%s,",
			    job->number, state_of(job), job->plan.dry_run ? "true" : "false");
	semel_buffer_string(body, "\"scope\":");
	semel_buffer_json_or_null(body, semel_text_of(job->plan.scope));
	semel_buffer_printf(body,
			    ",\"matching\":%" PRIu64 ",\"chosen\":%" PRIu64 ",\"replayed\":%" PRIu64
			    ",\"tooOld\":%" PRIu64 ",\"held\":%" PRIu64 ",\"started\":",
			    job->counts.matching, job->counts.chosen, job->counts.sent,
			    job->counts.too_old, job->counts.held);
	semel_buffer_time(body, job->started_at_ms);
	semel_buffer_string(body, ",\"ended\":");
	semel_buffer_time(body, job->ended_at_ms);
	semel_buffer_string(body, ",\"error\":");
	const char *trouble = job->trouble[0] ? job->trouble : NULL;
	semel_buffer_json_or_null(body, semel_text_of(semel_redaction_error(job->context->redaction,
									    job->status, trouble)));
	semel_buffer_string(body, "}");
}

static semel_status prepare(struct job *job, struct semel_admin_context *context,
			    struct semel_text body, semel_error *error)
{
	job->context = context;
	job->replays = context->replays;
	job->arena = semel_arena_new(ARENA_BLOCK);
	if (!job->arena)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a replay");
	job->plan = (struct semel_replay_plan){ .env = context->env,
						.inbox_retention_ms =
							context->options.inbox_retention_ms,
						.progress = note_progress,
						.user = job };
	semel_status status = semel_replay_request_read(body, job->arena, &job->plan, error);
	if (status == SEMEL_OK)
		status = semel_wake_new(&job->wake, error);
	job->plan.wake = job->wake;
	return status;
}

static semel_status launch(struct job *job, struct semel_admin_request *request, semel_error *error)
{
	job->running = true;
	job->started_at_ms = semel_now_ms(request->context->env);
	job->number = ++job->replays->last;
	if (pthread_create(&job->thread, NULL, run_job, job) != 0) {
		job->joined = true;
		return semel_error_set(error, SEMEL_INTERNAL, "no thread for a replay");
	}
	snprintf(request->response->location, sizeof request->response->location,
		 "/api/admin/replays/%" PRIu64, job->number);
	request->response->status = 202;
	job_json(job, semel_admin_request_body(request));
	semel_buffer_string(semel_admin_request_body(request), "\n");
	return SEMEL_OK;
}

semel_status semel_serve_replay_start(struct semel_admin_request *request, semel_error *error)
{
	struct semel_replays *replays = request->context->replays;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&replays->mutex);
	struct job *job = find_place(replays);
	if (!job) {
		status = semel_error_set(error, SEMEL_BUSY,
					 "%d replays run already; wait for one, or cancel it",
					 SEMEL_REPLAY_RUNS_AT_ONCE);
	} else {
		clear_job(job);
		status = prepare(job, request->context, request->http->body, error);
		if (status == SEMEL_OK && !job->plan.dry_run)
			status = semel_admin_request_audit(request, "start replay", NULL,
							   semel_text_string(request->http->body),
							   error);
		job->audit_number = request->audit_number;
		if (status == SEMEL_OK)
			status = launch(job, request, error);
		if (status == SEMEL_OK)
			request->audit_number = 0; /* the job says how it ends */
		else
			clear_job(job);
	}
	pthread_mutex_unlock(&replays->mutex);
	return status;
}

semel_status semel_serve_replay_list(struct semel_admin_request *request, semel_error *error)
{
	struct semel_replays *replays = request->context->replays;
	struct semel_buffer *body = semel_admin_request_body(request);
	const char *comma = "";

	(void)error;
	semel_buffer_string(body, "[");
	pthread_mutex_lock(&replays->mutex);
	uint64_t first =
		replays->last > SEMEL_REPLAY_RUNS_MAX ? replays->last - SEMEL_REPLAY_RUNS_MAX : 0;
	for (uint64_t number = replays->last; number > first; number--) {
		char id[24];
		snprintf(id, sizeof id, "%" PRIu64, number);
		struct job *job = find_job(replays, id);
		if (!job)
			continue;
		semel_buffer_string(body, comma);
		job_json(job, body);
		comma = ",\n ";
	}
	pthread_mutex_unlock(&replays->mutex);
	semel_buffer_string(body, "]\n");
	return SEMEL_OK;
}

static semel_status show_one(struct semel_admin_request *request, bool cancel, semel_error *error)
{
	struct semel_replays *replays = request->context->replays;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&replays->mutex);
	struct job *job = find_job(replays, request->id);
	if (job && cancel && job->running) {
		job->cancelled = true;
		semel_wake_notify(job->wake);
	}
	if (job)
		job_json(job, semel_admin_request_body(request));
	else
		status = semel_error_set(error, SEMEL_NOT_FOUND, "no replay has this id");
	pthread_mutex_unlock(&replays->mutex);
	semel_buffer_string(semel_admin_request_body(request), "\n");
	return status;
}

semel_status semel_serve_replay_one(struct semel_admin_request *request, semel_error *error)
{
	return show_one(request, false, error);
}

static bool is_running(struct semel_replays *replays, const char *id)
{
	pthread_mutex_lock(&replays->mutex);
	struct job *job = find_job(replays, id);
	bool running = job && job->running;
	pthread_mutex_unlock(&replays->mutex);
	return running;
}

semel_status semel_serve_replay_cancel(struct semel_admin_request *request, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (is_running(request->context->replays, request->id))
		status = semel_admin_request_audit(request, "cancel replay", request->id, NULL,
						   error);
	return status == SEMEL_OK ? show_one(request, true, error) : status;
}
