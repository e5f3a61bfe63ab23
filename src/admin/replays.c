/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/replays.h"

#include "admin/routes.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "deadletter/replay.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)4 * 1024)

struct job {
	uint64_t number; /* 0: the place is free */
	struct semel_desk *desk;
	struct semel_jobs *jobs;
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
};

struct semel_jobs {
	pthread_mutex_t lock;
	uint64_t last;
	struct job all[SEMEL_JOBS_MAX];
};

struct semel_jobs *semel_jobs_new(void)
{
	struct semel_jobs *jobs = calloc(1, sizeof *jobs);

	if (jobs)
		pthread_mutex_init(&jobs->lock, NULL);
	return jobs;
}

static void clear_job(struct job *job)
{
	if (job->number != 0 && !job->joined)
		pthread_join(job->thread, NULL);
	semel_wake_free(job->wake);
	semel_arena_free(job->arena);
	*job = (struct job){ 0 };
}

void semel_jobs_free(struct semel_jobs *jobs)
{
	if (!jobs)
		return;
	for (size_t i = 0; i < SEMEL_JOBS_MAX; i++)
		if (jobs->all[i].wake)
			semel_wake_ring(jobs->all[i].wake);
	for (size_t i = 0; i < SEMEL_JOBS_MAX; i++)
		clear_job(&jobs->all[i]);
	pthread_mutex_destroy(&jobs->lock);
	free(jobs);
}

/* ---- running --------------------------------------------------------------------------------- */

static void note_progress(const struct semel_replay_counts *counts, void *user)
{
	struct job *job = user;

	pthread_mutex_lock(&job->jobs->lock);
	job->counts = *counts;
	pthread_mutex_unlock(&job->jobs->lock);
}

static void *run_job(void *user)
{
	struct job *job = user;
	semel_store *store = NULL;
	struct semel_broker *broker = NULL;
	semel_error error = { .status = SEMEL_OK };
	struct semel_replay_counts counts = { 0 };
	semel_status status = semel_store_open(job->desk->options.store, &store, &error);

	if (status == SEMEL_OK && !job->plan.dry_run)
		status = semel_broker_open(job->desk->options.broker, job->desk->env,
					   SEMEL_REPLAY_WINDOW, &broker, &error);
	job->plan.producer = store;
	job->plan.consumers = &store;
	job->plan.consumer_count = 1;
	job->plan.broker = broker;
	if (status == SEMEL_OK)
		status = semel_replay_run(&job->plan, &counts, &error);
	semel_broker_close(broker);
	semel_store_close(store);
	pthread_mutex_lock(&job->jobs->lock);
	job->counts = counts;
	job->status = status;
	snprintf(job->trouble, sizeof job->trouble, "%s", status == SEMEL_OK ? "" : error.text);
	job->ended_at_ms = semel_now_ms(job->desk->env);
	job->running = false;
	pthread_mutex_unlock(&job->jobs->lock);
	return NULL;
}

/* ---- the request ----------------------------------------------------------------------------- */

static semel_status wrong(semel_error *error, struct semel_text name, const char *what)
{
	return semel_error_set(error, SEMEL_USAGE, "%.*s has to be %s", (int)name.length, name.data,
			       what);
}

static semel_status read_text(struct job *job, struct semel_text name, struct semel_text value,
			      const char **text_out, semel_error *error)
{
	if (value.length == 0 || value.data[0] != '"')
		return wrong(error, name, "a text");
	*text_out = semel_json_unquote(value, job->arena).data;
	return *text_out ? SEMEL_OK : wrong(error, name, "a text");
}

static semel_status read_number(struct job *job, struct semel_text name, struct semel_text value,
				long long max, semel_error *error)
{
	char text[32];
	long long number = 0;

	snprintf(text, sizeof text, "%.*s", (int)(value.length < 31 ? value.length : 31),
		 value.data);
	if (!semel_text_to_int64(text, 0, max, &number))
		return wrong(error, name, "a whole number, not below 0");
	if (semel_text_equal(name, SEMEL_TEXT("max")))
		job->plan.max = (uint64_t)number;
	else
		job->plan.rate = (uint32_t)number;
	return SEMEL_OK;
}

static semel_status read_moment(struct job *job, struct semel_text name, struct semel_text value,
				int64_t *time_ms_out, semel_error *error)
{
	const char *text = NULL;
	semel_status status = read_text(job, name, value, &text, error);

	if (status == SEMEL_OK && !semel_time_parse(text, time_ms_out))
		return wrong(error, name, "a time such as 2026-01-31T12:00:00Z");
	return status;
}

static semel_status read_flag(struct semel_text name, struct semel_text value, bool *flag_out,
			      semel_error *error)
{
	*flag_out = semel_text_equal(value, SEMEL_TEXT("true"));
	return *flag_out || semel_text_equal(value, SEMEL_TEXT("false"))
		       ? SEMEL_OK
		       : wrong(error, name, "true or false");
}

static semel_status read_aggregate(struct job *job, struct semel_text name, struct semel_text value,
				   semel_error *error)
{
	const char *text = NULL;
	semel_status status = read_text(job, name, value, &text, error);
	const char *colon = status == SEMEL_OK ? strchr(text, ':') : NULL;

	if (status != SEMEL_OK)
		return status;
	if (!colon || colon == text || !colon[1])
		return wrong(error, name, "of the form TYPE:ID");
	job->plan.filter.aggregate_type =
		semel_arena_text(job->arena, text, (size_t)(colon - text)).data;
	job->plan.filter.aggregate_id = colon + 1;
	return SEMEL_OK;
}

static semel_status read_member(struct job *job, struct semel_text name, struct semel_text value,
				semel_error *error)
{
	struct semel_replay_plan *plan = &job->plan;

	if (semel_text_equal(name, SEMEL_TEXT("type")))
		return read_text(job, name, value, &plan->filter.type, error);
	if (semel_text_equal(name, SEMEL_TEXT("scope")))
		return read_text(job, name, value, &plan->scope, error);
	if (semel_text_equal(name, SEMEL_TEXT("aggregate")))
		return read_aggregate(job, name, value, error);
	if (semel_text_equal(name, SEMEL_TEXT("since")))
		return read_moment(job, name, value, &plan->filter.since_ms, error);
	if (semel_text_equal(name, SEMEL_TEXT("until")))
		return read_moment(job, name, value, &plan->filter.until_ms, error);
	if (semel_text_equal(name, SEMEL_TEXT("max")))
		return read_number(job, name, value, INT64_MAX, error);
	if (semel_text_equal(name, SEMEL_TEXT("rate")))
		return read_number(job, name, value, 1000000, error);
	if (semel_text_equal(name, SEMEL_TEXT("reprocess")))
		return read_flag(name, value, &plan->reprocess, error);
	if (semel_text_equal(name, SEMEL_TEXT("force")))
		return read_flag(name, value, &plan->force, error);
	if (semel_text_equal(name, SEMEL_TEXT("dryRun")))
		return read_flag(name, value, &plan->dry_run, error);
	return semel_error_set(error, SEMEL_USAGE,
			       "%.*s is not known; there are type, scope, aggregate, since, until, "
			       "max, rate, reprocess, force and dryRun",
			       (int)(name.length < 40 ? name.length : 40), name.data);
}

static semel_status read_plan(struct job *job, struct semel_text body, semel_error *error)
{
	struct semel_text name, value;
	semel_status status = SEMEL_OK;

	if (body.length == 0)
		body = SEMEL_TEXT("{}");
	if (!semel_json_is_valid(body) || body.data[strspn(body.data, " \t\r\n")] != '{')
		return semel_error_set(error, SEMEL_USAGE, "the body has to be a JSON object");
	struct semel_json_walk walk = semel_json_walk(body);
	while (status == SEMEL_OK && semel_json_next(&walk, &name, &value))
		status = read_member(job, semel_json_unquote(name, job->arena), value, error);
	if (status == SEMEL_OK && job->plan.reprocess && !job->plan.scope)
		return semel_error_set(error, SEMEL_USAGE,
				       "reprocess needs scope: say whose claims are freed");
	return status;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Under the lock. A free place, else that of the oldest that has ended; NULL: all are at work. */
static struct job *find_place(struct semel_jobs *jobs)
{
	struct job *best = NULL;
	uint32_t running = 0;

	for (size_t i = 0; i < SEMEL_JOBS_MAX; i++) {
		struct job *job = &jobs->all[i];
		running += job->running;
		if (!job->running && (!best || job->number < best->number))
			best = job;
	}
	return running < SEMEL_JOBS_RUNNING ? best : NULL;
}

static struct job *find_job(struct semel_jobs *jobs, const char *id)
{
	long long number = 0;

	if (!semel_text_to_int64(id, 1, INT64_MAX, &number))
		return NULL;
	for (size_t i = 0; i < SEMEL_JOBS_MAX; i++)
		if (jobs->all[i].number == (uint64_t)number)
			return &jobs->all[i];
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
	semel_buffer_json_or_null(body, semel_text_of(job->trouble[0] ? job->trouble : NULL));
	semel_buffer_string(body, "}");
}

static semel_status prepare(struct job *job, struct semel_desk *desk, struct semel_text body,
			    semel_error *error)
{
	job->desk = desk;
	job->jobs = desk->jobs;
	job->arena = semel_arena_new(ARENA_BLOCK);
	if (!job->arena)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a replay");
	job->plan =
		(struct semel_replay_plan){ .env = desk->env,
					    .inbox_retention_ms = desk->options.inbox_retention_ms,
					    .progress = note_progress,
					    .user = job };
	semel_status status = read_plan(job, body, error);
	if (status == SEMEL_OK)
		status = semel_wake_new(&job->wake, error);
	job->plan.wake = job->wake;
	return status;
}

static semel_status launch(struct job *job, struct semel_visit *visit, semel_error *error)
{
	job->running = true;
	job->started_at_ms = semel_now_ms(visit->desk->env);
	job->number = ++job->jobs->last;
	if (pthread_create(&job->thread, NULL, run_job, job) != 0) {
		job->joined = true;
		return semel_error_set(error, SEMEL_INTERNAL, "no thread for a replay");
	}
	snprintf(visit->answer->location, sizeof visit->answer->location,
		 "/api/admin/replays/%" PRIu64, job->number);
	visit->answer->status = 202;
	job_json(job, semel_visit_body(visit));
	semel_buffer_string(semel_visit_body(visit), "\n");
	return SEMEL_OK;
}

semel_status semel_serve_replay_start(struct semel_visit *visit, semel_error *error)
{
	struct semel_jobs *jobs = visit->desk->jobs;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&jobs->lock);
	struct job *job = find_place(jobs);
	if (!job) {
		status = semel_error_set(error, SEMEL_BUSY,
					 "%d replays run already; wait for one, or cancel it",
					 SEMEL_JOBS_RUNNING);
	} else {
		clear_job(job);
		status = prepare(job, visit->desk, visit->request->body, error);
		if (status == SEMEL_OK && !job->plan.dry_run)
			status = semel_visit_audit(visit, "start replay", NULL,
						   visit->request->body.data, error);
		if (status == SEMEL_OK)
			status = launch(job, visit, error);
		if (status != SEMEL_OK)
			clear_job(job);
	}
	pthread_mutex_unlock(&jobs->lock);
	return status;
}

semel_status semel_serve_replay_list(struct semel_visit *visit, semel_error *error)
{
	struct semel_jobs *jobs = visit->desk->jobs;
	struct semel_buffer *body = semel_visit_body(visit);
	const char *comma = "";

	(void)error;
	semel_buffer_string(body, "[");
	pthread_mutex_lock(&jobs->lock);
	uint64_t first = jobs->last > SEMEL_JOBS_MAX ? jobs->last - SEMEL_JOBS_MAX : 0;
	for (uint64_t number = jobs->last; number > first; number--) {
		char id[24];
		snprintf(id, sizeof id, "%" PRIu64, number);
		struct job *job = find_job(jobs, id);
		if (!job)
			continue;
		semel_buffer_string(body, comma);
		job_json(job, body);
		comma = ",\n ";
	}
	pthread_mutex_unlock(&jobs->lock);
	semel_buffer_string(body, "]\n");
	return SEMEL_OK;
}

static semel_status show_one(struct semel_visit *visit, bool cancel, semel_error *error)
{
	struct semel_jobs *jobs = visit->desk->jobs;
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&jobs->lock);
	struct job *job = find_job(jobs, visit->id);
	if (job && cancel && job->running) {
		job->cancelled = true;
		semel_wake_ring(job->wake);
	}
	if (job)
		job_json(job, semel_visit_body(visit));
	else
		status = semel_error_set(error, SEMEL_NOT_FOUND, "no replay has this id");
	pthread_mutex_unlock(&jobs->lock);
	semel_buffer_string(semel_visit_body(visit), "\n");
	return status;
}

semel_status semel_serve_replay_one(struct semel_visit *visit, semel_error *error)
{
	return show_one(visit, false, error);
}

semel_status semel_serve_replay_cancel(struct semel_visit *visit, semel_error *error)
{
	return show_one(visit, true, error);
}
