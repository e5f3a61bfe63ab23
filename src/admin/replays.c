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

struct run {
	uint64_t number; /* 0: unused */
	struct semel_admin_context *context;
	struct semel_replays *replays;
	struct semel_arena *arena; /* of the plan's texts */
	struct semel_replay_plan plan;
	struct semel_wake *wake;
	pthread_t thread;
	bool joined;
	/* Of the mutex: */
	bool running, cancelled;
	struct semel_replay_counts counts;
	semel_status status;
	char error_text[SEMEL_ERROR_TEXT_MAX];
	int64_t started_at_ms, ended_at_ms;
	int64_t audit_number; /* 0: no audit row */
};

struct semel_replays {
	pthread_mutex_t mutex;
	uint64_t last;
	struct run all[SEMEL_REPLAY_RUNS_MAX];
};

struct semel_replays *semel_replays_new(void)
{
	struct semel_replays *replays = calloc(1, sizeof *replays);

	if (replays)
		pthread_mutex_init(&replays->mutex, NULL);
	return replays;
}

static void clear_run(struct run *run)
{
	if (run->number != 0 && !run->joined)
		pthread_join(run->thread, NULL);
	semel_wake_free(run->wake);
	semel_arena_free(run->arena);
	*run = (struct run){ 0 };
}

void semel_replays_free(struct semel_replays *replays)
{
	if (!replays)
		return;
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		if (replays->all[i].wake)
			semel_wake_notify(replays->all[i].wake);
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		clear_run(&replays->all[i]);
	pthread_mutex_destroy(&replays->mutex);
	free(replays);
}

/* ---- running --------------------------------------------------------------------------------- */

static void record_progress(const struct semel_replay_counts *counts, void *user)
{
	struct run *run = user;

	pthread_mutex_lock(&run->replays->mutex);
	run->counts = *counts;
	pthread_mutex_unlock(&run->replays->mutex);
}

/* Writes the outcome to the audit row. */
static void record_outcome(const struct run *run, semel_store *store, semel_status status,
			   uint64_t sent)
{
	char outcome[64];

	if (!store || run->audit_number == 0)
		return;
	semel_audit_outcome(status, outcome, sizeof outcome);
	if (status == SEMEL_OK || status == SEMEL_STOPPED)
		snprintf(outcome, sizeof outcome, "%s: %" PRIu64 " sent",
			 status == SEMEL_OK ? "done" : "cancelled", sent);
	(void)store->driver->upkeep->audit_finish(store, run->audit_number, outcome, NULL);
}

static void *run_replay(void *user)
{
	struct run *run = user;
	semel_store *store = NULL;
	struct semel_broker *broker = NULL;
	semel_error error = { .status = SEMEL_OK };
	struct semel_replay_counts counts = { 0 };
	semel_status status = semel_store_open(run->context->options.store, &store, &error);

	if (status != SEMEL_OK)
		goto finish;
	if (!run->plan.dry_run)
		status = semel_broker_open(run->context->options.broker, run->context->env,
					   SEMEL_REPLAY_WINDOW, &broker, &error);
	if (status != SEMEL_OK)
		goto finish;
	run->plan.producer = store;
	run->plan.consumers = &store;
	run->plan.consumer_count = 1;
	run->plan.broker = broker;
	status = semel_replay_run(&run->plan, &counts, &error);
finish:
	semel_broker_close(broker);
	record_outcome(run, store, status, counts.sent);
	semel_store_close(store);
	pthread_mutex_lock(&run->replays->mutex);
	run->counts = counts;
	run->status = status;
	snprintf(run->error_text, sizeof run->error_text, "%s",
		 status == SEMEL_OK ? "" : error.text);
	run->ended_at_ms = semel_now_ms(run->context->env);
	run->running = false;
	pthread_mutex_unlock(&run->replays->mutex);
	return NULL;
}

/* ---- finding ----------------------------------------------------------------------------------
 */

/* With the mutex held. An unused entry, or that of the oldest run that has ended; NULL: the maximum
 * number of runs is running. */
static struct run *find_entry(struct semel_replays *replays)
{
	struct run *best = NULL;
	uint32_t running = 0;

	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++) {
		struct run *run = &replays->all[i];
		running += run->running;
		if (!run->running && (!best || run->number < best->number))
			best = run;
	}
	return running < SEMEL_REPLAY_RUNS_AT_ONCE ? best : NULL;
}

static struct run *find_run(struct semel_replays *replays, const char *id)
{
	long long number = 0;

	if (!semel_text_to_int64(id, 1, INT64_MAX, &number))
		return NULL;
	for (size_t i = 0; i < SEMEL_REPLAY_RUNS_MAX; i++)
		if (replays->all[i].number == (uint64_t)number)
			return &replays->all[i];
	return NULL;
}

static const char *state_of(const struct run *run)
{
	if (run->running)
		return run->cancelled ? "cancelling" : "running";
	if (run->status == SEMEL_STOPPED)
		return "cancelled";
	return run->status == SEMEL_OK ? "done" : "failed";
}

static void run_to_json(const struct run *run, struct semel_buffer *body)
{
	semel_buffer_printf(body, "{\"id\":\"%" PRIu64 "\",\"state\":\"%s\",\"dryRun\":%s,",
			    run->number, state_of(run), run->plan.dry_run ? "true" : "false");
	semel_buffer_string(body, "\"scope\":");
	semel_buffer_json_or_null(body, semel_text_of(run->plan.scope));
	semel_buffer_printf(body,
			    ",\"matching\":%" PRIu64 ",\"chosen\":%" PRIu64 ",\"replayed\":%" PRIu64
			    ",\"tooOld\":%" PRIu64 ",\"held\":%" PRIu64 ",\"started\":",
			    run->counts.matching, run->counts.chosen, run->counts.sent,
			    run->counts.too_old, run->counts.held);
	semel_buffer_time(body, run->started_at_ms);
	semel_buffer_string(body, ",\"ended\":");
	semel_buffer_time(body, run->ended_at_ms);
	semel_buffer_string(body, ",\"error\":");
	const char *error_text = run->error_text[0] ? run->error_text : NULL;
	semel_buffer_json_or_null(body, semel_text_of(semel_redaction_error(
						run->context->redaction, run->status, error_text)));
	semel_buffer_string(body, "}");
}

static semel_status prepare(struct run *run, struct semel_admin_context *context,
			    struct semel_text body, semel_error *error)
{
	run->context = context;
	run->replays = context->replays;
	run->arena = semel_arena_new(ARENA_BLOCK);
	if (!run->arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a replay");
	run->plan = (struct semel_replay_plan){ .env = context->env,
						.inbox_retention_ms =
							context->options.inbox_retention_ms,
						.progress = record_progress,
						.user = run };
	semel_status status = semel_replay_request_read(body, run->arena, &run->plan, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_wake_new(&run->wake, error);
	run->plan.wake = run->wake;
	return status;
}

static semel_status start_run(struct run *run, struct semel_admin_request *request,
			      semel_error *error)
{
	run->running = true;
	run->started_at_ms = semel_now_ms(request->context->env);
	run->number = ++run->replays->last;
	if (pthread_create(&run->thread, NULL, run_replay, run) != 0) {
		run->joined = true;
		return semel_error_set(error, SEMEL_INTERNAL, "no thread for a replay");
	}
	snprintf(request->response->location, sizeof request->response->location,
		 "/api/admin/replays/%" PRIu64, run->number);
	request->response->status = 202;
	run_to_json(run, semel_admin_request_body(request));
	semel_buffer_string(semel_admin_request_body(request), "\n");
	return SEMEL_OK;
}

/* With the mutex held, for an entry that is not running. */
static semel_status prepare_and_start(struct run *run, struct semel_admin_request *request,
				      semel_error *error)
{
	semel_status status = prepare(run, request->context, request->http->body, error);

	if (status != SEMEL_OK)
		return status;
	if (!run->plan.dry_run)
		status = semel_admin_request_audit(request, "start replay", NULL,
						   semel_text_string(request->http->body), error);
	if (status != SEMEL_OK)
		return status;
	run->audit_number = request->audit_number;
	status = start_run(run, request, error);
	if (status != SEMEL_OK)
		return status;
	request->audit_number = 0; /* the run writes the outcome */
	return SEMEL_OK;
}

semel_status semel_serve_replay_start(struct semel_admin_request *request, semel_error *error)
{
	struct semel_replays *replays = request->context->replays;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&replays->mutex);
	struct run *run = find_entry(replays);
	if (!run) {
		status = semel_error_set(
			error, SEMEL_BUSY,
			"%d replays are already running (wait for one, or cancel one)",
			SEMEL_REPLAY_RUNS_AT_ONCE);
		goto unlock;
	}
	clear_run(run);
	status = prepare_and_start(run, request, error);
	if (status != SEMEL_OK)
		clear_run(run);
unlock:
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
		struct run *run = find_run(replays, id);
		if (!run)
			continue;
		semel_buffer_string(body, comma);
		run_to_json(run, body);
		comma = ",\n ";
	}
	pthread_mutex_unlock(&replays->mutex);
	semel_buffer_string(body, "]\n");
	return SEMEL_OK;
}

static semel_status write_run(struct semel_admin_request *request, bool cancel, semel_error *error)
{
	struct semel_replays *replays = request->context->replays;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&replays->mutex);
	struct run *run = find_run(replays, request->id);
	if (run && cancel && run->running) {
		run->cancelled = true;
		semel_wake_notify(run->wake);
	}
	if (run)
		run_to_json(run, semel_admin_request_body(request));
	else
		status = semel_error_set(error, SEMEL_NOT_FOUND, "replay %.100s not found",
					 request->id);
	pthread_mutex_unlock(&replays->mutex);
	semel_buffer_string(semel_admin_request_body(request), "\n");
	return status;
}

semel_status semel_serve_replay_one(struct semel_admin_request *request, semel_error *error)
{
	return write_run(request, false, error);
}

static bool is_running(struct semel_replays *replays, const char *id)
{
	pthread_mutex_lock(&replays->mutex);
	struct run *run = find_run(replays, id);
	bool running = run && run->running;
	pthread_mutex_unlock(&replays->mutex);
	return running;
}

semel_status semel_serve_replay_cancel(struct semel_admin_request *request, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (is_running(request->context->replays, request->id))
		status = semel_admin_request_audit(request, "cancel replay", request->id, NULL,
						   error);
	if (status != SEMEL_OK)
		return status;
	return write_run(request, true, error);
}
