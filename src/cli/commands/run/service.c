/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/run/service.h"

#include "base/backoff.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/config.h"
#include "cli/arguments/settings.h"
#include "cli/commands/from_arguments.h"
#include "observe/log.h"
#include "proof/retention.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAILURES_RESET_MS 60000 /* after a run this long, failures are counted from zero again */
#define PRUNE_EVERY_MS    (INT64_C(3600) * 1000)

/* The commands that run as services. */
struct kind {
	const char *command;
	semel_status (*open)(struct semel_invocation *invocation, void **handle_out);
	semel_status (*run)(void *handle, semel_error *error);
	void (*stop)(void *handle);
	void (*close)(void *handle);
};

struct semel_service {
	char *name;
	const struct kind *kind;
	char *words[SEMEL_SERVICE_WORDS_MAX + 2]; /* program name first; NULL-terminated */
	struct semel_args *args;
	struct semel_settings settings;
	struct semel_invocation invocation;
	struct semel_buffer fingerprint;
	struct semel_wake *wake;
	pthread_t thread;
	bool runs;
	uint32_t failures;     /* consecutive */
	pthread_mutex_t mutex; /* protects the members below */
	pthread_cond_t ended_condition;
	void *handle;
	bool stopping, ended;
	char failure[SEMEL_ERROR_TEXT_MAX]; /* empty: none */
};

/* ---- kinds ----------------------------------------------------------------------------------- */

static semel_status relay_open(struct semel_invocation *invocation, void **handle_out)
{
	semel_relay *relay = NULL;
	semel_status status = semel_relay_from_arguments(invocation, &relay);

	*handle_out = relay;
	return status;
}

static semel_status relay_run(void *handle, semel_error *error)
{
	return semel_relay_run(handle, error);
}

static void relay_stop(void *handle)
{
	semel_relay_stop(handle);
}

static void relay_close(void *handle)
{
	semel_relay_close(handle);
}

static semel_status consumer_open(struct semel_invocation *invocation, void **handle_out)
{
	semel_consumer *consumer = NULL;
	semel_status status = semel_consumer_from_arguments(invocation, &consumer);

	*handle_out = consumer;
	return status;
}

static semel_status consumer_run(void *handle, semel_error *error)
{
	return semel_consumer_run(handle, 0, error);
}

static void consumer_stop(void *handle)
{
	semel_consumer_stop(handle);
}

static void consumer_close(void *handle)
{
	semel_consumer_close(handle);
}

/* Does what `semel prune` does, every hour. */
struct pruner {
	const char *store, *broker; /* URLs, the invocation's */
	struct semel_retention_plan plan;
};

static void pruner_close(void *handle)
{
	struct pruner *pruner = handle;

	semel_wake_free(pruner->plan.wake);
	free(pruner);
}

static semel_status pruner_open(struct semel_invocation *invocation, void **handle_out)
{
	const struct semel_retention *retention = &invocation->config->retention;
	struct pruner *pruner = calloc(1, sizeof *pruner);

	*handle_out = NULL;
	if (!pruner)
		return semel_error_set(&invocation->error, SEMEL_INTERNAL,
				       "out of memory for pruning");
	pruner->store = invocation->store;
	pruner->broker = invocation->broker;
	pruner->plan = (struct semel_retention_plan){
		.env = semel_env_system(),
		.ages = { .outbox_ms = retention->outbox_ms,
			  .inbox_ms = retention->inbox_ms,
			  .dead_ms = retention->dead_ms },
	};
	semel_status status = semel_retention_check(&pruner->plan.ages, &invocation->error);
	if (status != SEMEL_OK)
		goto close_pruner;
	status = semel_wake_new(&pruner->plan.wake, &invocation->error);
	if (status != SEMEL_OK)
		goto close_pruner;
	*handle_out = pruner;
	return SEMEL_OK;

close_pruner:
	pruner_close(pruner);
	return status;
}

static void log_counts(const struct semel_retention_counts *counts)
{
	char text[160];
	snprintf(text, sizeof text,
		 "outbox %" PRIu64 ", inbox %" PRIu64 ", dead letters %" PRIu64
		 ", log of the broker %" PRIu64,
		 counts->rows.outbox, counts->rows.inbox, counts->rows.dead, counts->broker);
	semel_log(SEMEL_LOG_INFO, "old rows pruned", &(struct semel_log_fields){ .detail = text });
}

static semel_status prune(struct pruner *pruner, semel_error *error)
{
	struct semel_retention_counts counts = { 0 };
	struct semel_retention_plan *plan = &pruner->plan;
	semel_status status = semel_store_open(pruner->store, &plan->store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_broker_open(pruner->broker, plan->env, 1, &plan->broker, error);
	if (status != SEMEL_OK)
		goto close_store;
	status = semel_retention_run(plan, &counts, error);
	semel_broker_close(plan->broker);
	plan->broker = NULL;
	if (status != SEMEL_OK)
		goto close_store;
	log_counts(&counts);

close_store:
	semel_store_close(plan->store);
	plan->store = NULL;
	return status;
}

static semel_status pruner_run(void *handle, semel_error *error)
{
	struct pruner *pruner = handle;
	const struct semel_env *env = pruner->plan.env;

	while (!semel_wake_is_notified(pruner->plan.wake)) {
		semel_status status = prune(pruner, error);
		if (status != SEMEL_OK)
			return status;
		int64_t until_ms = semel_steady_ms(env) + PRUNE_EVERY_MS;
		while (!semel_wake_is_notified(pruner->plan.wake) &&
		       semel_steady_ms(env) < until_ms)
			semel_wake_sleep(pruner->plan.wake, until_ms - semel_steady_ms(env));
	}
	return SEMEL_OK;
}

static void pruner_stop(void *handle)
{
	struct pruner *pruner = handle;

	semel_wake_notify(pruner->plan.wake);
}

static const struct kind kinds[] = {
	{ "relay", relay_open, relay_run, relay_stop, relay_close },
	{ "consume", consumer_open, consumer_run, consumer_stop, consumer_close },
	{ "prune", pruner_open, pruner_run, pruner_stop, pruner_close },
};

/* ---- the thread ------------------------------------------------------------------------------ */

/* False: a stop was requested while the service was being opened. */
static bool publish_handle(struct semel_service *service, void *handle)
{
	pthread_mutex_lock(&service->mutex);
	service->handle = handle;
	bool proceed = !service->stopping;
	if (proceed && handle)
		service->failure[0] = '\0';
	pthread_mutex_unlock(&service->mutex);
	return proceed;
}

static void *withdraw_handle(struct semel_service *service)
{
	pthread_mutex_lock(&service->mutex);
	void *handle = service->handle;
	service->handle = NULL;
	pthread_mutex_unlock(&service->mutex);
	return handle;
}

static void record_failure(struct semel_service *service, const semel_error *error)
{
	pthread_mutex_lock(&service->mutex);
	snprintf(service->failure, sizeof service->failure, "%s", error->text);
	pthread_mutex_unlock(&service->mutex);
}

static void pause_before_next(struct semel_service *service, const semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	struct semel_backoff backoff = { .first_ms = 500, .cap_ms = 30000 };
	int64_t wait_ms = semel_backoff_ms(backoff, ++service->failures, semel_random(env));
	int64_t until_ms = semel_steady_ms(env) + wait_ms;
	char text[SEMEL_ERROR_TEXT_MAX + 64];

	record_failure(service, error);
	snprintf(text, sizeof text, "%s; retrying in %lld ms", error->text, (long long)wait_ms);
	semel_log(SEMEL_LOG_ERROR, "service failed",
		  &(struct semel_log_fields){ .service = service->name, .error = text });
	while (!semel_wake_is_notified(service->wake) && semel_steady_ms(env) < until_ms)
		semel_wake_sleep(service->wake, until_ms - semel_steady_ms(env));
}

/* *handle is not NULL if the service is already open, at the first run. */
static semel_status open_and_run(struct semel_service *service, void **handle, semel_error *error)
{
	if (!*handle) {
		service->invocation.error = (semel_error){ .status = SEMEL_OK };
		semel_status status = service->kind->open(&service->invocation, handle);
		*error = service->invocation.error;
		if (status != SEMEL_OK)
			return status;
	}
	return publish_handle(service, *handle) ? service->kind->run(*handle, error) : SEMEL_OK;
}

/* Opens the service, runs it until it ends for any reason, and closes it. */
static semel_status run_once(struct semel_service *service, semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	int64_t began_ms = semel_steady_ms(env);
	void *handle = withdraw_handle(service);
	semel_status status = open_and_run(service, &handle, error);

	(void)withdraw_handle(service);
	if (handle)
		service->kind->close(handle);
	if (semel_steady_ms(env) - began_ms > FAILURES_RESET_MS)
		service->failures = 0;
	return status;
}

static void *run_thread(void *user)
{
	struct semel_service *service = user;

	while (!semel_wake_is_notified(service->wake)) {
		semel_error error = { .status = SEMEL_OK };
		semel_status status = run_once(service, &error);
		if (status == SEMEL_OK || status == SEMEL_STOPPED ||
		    semel_wake_is_notified(service->wake))
			continue;
		pause_before_next(service, &error);
	}
	pthread_mutex_lock(&service->mutex);
	service->ended = true;
	pthread_cond_broadcast(&service->ended_condition);
	pthread_mutex_unlock(&service->mutex);
	return NULL;
}

/* ---- starting -------------------------------------------------------------------------------- */

static semel_status copy_words(struct semel_service *service, const char *name,
			       const char *const *words, semel_error *error)
{
	bool failed = !(service->name = strdup(name)) || !(service->words[0] = strdup("semel"));

	for (size_t i = 0; words[i] && !failed; i++)
		failed =
			i >= SEMEL_SERVICE_WORDS_MAX || !(service->words[i + 1] = strdup(words[i]));
	return failed ? semel_error_set(error, SEMEL_INTERNAL, "out of memory for %s", name)
		      : SEMEL_OK;
}

static void take_fingerprint(struct semel_service *service, const struct semel_section *section)
{
	struct semel_buffer *text = &service->fingerprint;
	const struct semel_retention *retention = &service->settings.config->retention;

	semel_buffer_printf(text, "%s\n%s\n%s\n", service->name, service->settings.store,
			    service->settings.broker);
	if (strcmp(service->kind->command, "prune") == 0)
		semel_buffer_printf(text, "%lld %lld %lld\n", (long long)retention->outbox_ms,
				    (long long)retention->inbox_ms, (long long)retention->dead_ms);
	for (size_t i = 0; section && i < section->count; i++)
		for (size_t j = 0; j < section->settings[i].count; j++)
			semel_buffer_printf(text, "%s=%s\n", section->settings[i].name,
					    section->settings[i].values[j]);
}

static const struct semel_section *section_of(const struct semel_service *service)
{
	const struct semel_config *config = service->settings.config;

	if (strcmp(service->kind->command, "relay") == 0)
		return &config->relay;
	if (strcmp(service->kind->command, "consume") == 0)
		return semel_config_subscription(config, semel_args_text(service->args, "scope"));
	return NULL;
}

static const struct kind *kind_of(const char *command)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].command, command) == 0)
			return &kinds[i];
	return NULL;
}

static semel_status read_settings(struct semel_service *service, semel_error *error)
{
	int count = 0;

	while (service->words[count])
		count++;
	semel_status status =
		semel_args_parse(count, service->words, semel_commands, &service->args, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_settings_resolve(service->args, &service->settings, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_args_check(service->args, error);
	if (status != SEMEL_OK)
		return status;
	service->kind = kind_of(semel_args_command(service->args)->name);
	take_fingerprint(service, section_of(service));
	service->invocation = (struct semel_invocation){ .args = service->args,
							 .store = service->settings.store,
							 .broker = service->settings.broker,
							 .config = service->settings.config };
	return SEMEL_OK;
}

/* An outage is not an error here, because the thread tries again. Any other failure is an error in
 * the settings. */
static semel_status open_now(struct semel_service *service, semel_error *error)
{
	semel_status status = service->kind->open(&service->invocation, &service->handle);

	if (status == SEMEL_OK)
		return SEMEL_OK;
	*error = service->invocation.error;
	if (semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	record_failure(service, error);
	return SEMEL_OK;
}

/* Free it also after a failure. */
static semel_status prepare(const char *name, const char *const *words,
			    struct semel_service **service_out, semel_error *error)
{
	struct semel_service *service = calloc(1, sizeof *service);

	*service_out = service;
	if (!service)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for %s", name);
	pthread_mutex_init(&service->mutex, NULL);
	semel_cond_init(&service->ended_condition);
	semel_status status = copy_words(service, name, words, error);
	if (status != SEMEL_OK)
		return status;
	return read_settings(service, error);
}

static semel_status start(struct semel_service *service, bool later, semel_error *error)
{
	semel_status status = semel_wake_new(&service->wake, error);
	if (status != SEMEL_OK)
		return status;
	if (!later)
		status = open_now(service, error);
	if (status != SEMEL_OK)
		return status;
	if (pthread_create(&service->thread, NULL, run_thread, service) != 0)
		return semel_error_set(error, SEMEL_INTERNAL, "cannot start a thread for %s",
				       service->name);
	service->runs = true;
	return SEMEL_OK;
}

semel_status semel_service_start(const char *name, const char *const *words, bool later,
				 struct semel_service **service_out, semel_error *error)
{
	struct semel_service *service = NULL;
	*service_out = NULL;
	semel_status status = prepare(name, words, &service, error);
	if (status != SEMEL_OK)
		goto free_service;
	status = start(service, later, error);
	if (status != SEMEL_OK)
		goto free_service;
	*service_out = service;
	return SEMEL_OK;

free_service:
	semel_service_free(service);
	return status;
}

char *semel_service_fingerprint_of(const char *name, const char *const *words)
{
	struct semel_service *service = NULL;
	char *copy = NULL;

	if (prepare(name, words, &service, NULL) == SEMEL_OK)
		copy = strdup(semel_service_fingerprint(service));
	semel_service_free(service);
	return copy;
}

const char *semel_service_name(const struct semel_service *service)
{
	return service->name;
}

const char *semel_service_fingerprint(const struct semel_service *service)
{
	return service->fingerprint.data ? service->fingerprint.data : "";
}

bool semel_service_failure(struct semel_service *service, char *text_out, size_t size)
{
	pthread_mutex_lock(&service->mutex);
	bool in_trouble = service->failure[0] != '\0';
	snprintf(text_out, size, "%s: %s", service->name, service->failure);
	pthread_mutex_unlock(&service->mutex);
	return in_trouble;
}

void semel_service_stop(struct semel_service *service)
{
	pthread_mutex_lock(&service->mutex);
	service->stopping = true;
	if (service->handle)
		service->kind->stop(service->handle);
	semel_wake_notify(service->wake);
	pthread_mutex_unlock(&service->mutex);
}

bool semel_service_is_stopping(struct semel_service *service)
{
	pthread_mutex_lock(&service->mutex);
	bool stopping = service->stopping;
	pthread_mutex_unlock(&service->mutex);
	return stopping;
}

bool semel_service_wait(struct semel_service *service, int64_t wait_ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t nanos = until.tv_nsec + wait_ms % 1000 * 1000000;
	until.tv_sec += (time_t)(wait_ms / 1000 + nanos / 1000000000);
	until.tv_nsec = (long)(nanos % 1000000000);
	pthread_mutex_lock(&service->mutex);
	while (!service->ended &&
	       pthread_cond_timedwait(&service->ended_condition, &service->mutex, &until) == 0)
		;
	bool ended = service->ended;
	pthread_mutex_unlock(&service->mutex);
	return ended;
}

void semel_service_free(struct semel_service *service)
{
	if (!service)
		return;
	if (service->runs) {
		semel_service_stop(service);
		pthread_join(service->thread, NULL);
	}
	if (service->handle)
		service->kind->close(service->handle);
	semel_wake_free(service->wake);
	semel_args_free(service->args);
	semel_settings_free(&service->settings);
	semel_buffer_free(&service->fingerprint);
	for (size_t i = 0; service->words[i]; i++)
		free(service->words[i]);
	pthread_cond_destroy(&service->ended_condition);
	pthread_mutex_destroy(&service->mutex);
	free(service->name);
	free(service);
}
