/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/run/service.h"

#include "base/backoff.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/settings.h"
#include "cli/commands/delivery.h"
#include "cli/commands/run/pruner.h"
#include "observe/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STEADY_MS 60000 /* whoever ran for so long starts over without a history */

/* What can stand in a thread. */
struct kind {
	const char *command;
	semel_status (*open)(struct semel_invocation *invocation, void **handle_out);
	semel_status (*run)(void *handle, semel_error *error);
	void (*stop)(void *handle);
	void (*close)(void *handle);
};

struct semel_part {
	char *name;
	const struct kind *kind;
	char *words[SEMEL_PART_WORDS_MAX + 2]; /* with the program's name; NULL-ended */
	struct semel_args *args;
	struct semel_settings settings;
	struct semel_invocation invocation;
	struct semel_buffer fingerprint;
	struct semel_wake *wake;
	pthread_t thread;
	bool runs;
	uint32_t failures;    /* in a row */
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t over;
	void *handle;
	bool stopping, ended;
	char trouble[SEMEL_ERROR_TEXT_MAX]; /* empty: none */
};

/* ---- kinds ----------------------------------------------------------------------------------- */

static semel_status relay_open(struct semel_invocation *invocation, void **handle_out)
{
	semel_relay *relay = NULL;
	semel_status status = semel_delivery_relay(invocation, &relay);

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
	semel_status status = semel_delivery_consumer(invocation, &consumer);

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

static semel_status pruner_open(struct semel_invocation *invocation, void **handle_out)
{
	struct semel_pruner *pruner = NULL;
	semel_status status = semel_pruner_open(invocation, &pruner);

	*handle_out = pruner;
	return status;
}

static semel_status pruner_run(void *handle, semel_error *error)
{
	return semel_pruner_run(handle, error);
}

static void pruner_stop(void *handle)
{
	semel_pruner_stop(handle);
}

static void pruner_close(void *handle)
{
	semel_pruner_close(handle);
}

static const struct kind kinds[] = {
	{ "relay", relay_open, relay_run, relay_stop, relay_close },
	{ "consume", consumer_open, consumer_run, consumer_stop, consumer_close },
	{ "prune", pruner_open, pruner_run, pruner_stop, pruner_close },
};

/* ---- the thread ------------------------------------------------------------------------------ */

/* True: it may go on. A stop that came while it was being opened is heard here. */
static bool take_handle(struct semel_part *part, void *handle)
{
	pthread_mutex_lock(&part->lock);
	part->handle = handle;
	bool go_on = !part->stopping;
	if (go_on && handle)
		part->trouble[0] = '\0';
	pthread_mutex_unlock(&part->lock);
	return go_on;
}

static void *give_up_handle(struct semel_part *part)
{
	pthread_mutex_lock(&part->lock);
	void *handle = part->handle;
	part->handle = NULL;
	pthread_mutex_unlock(&part->lock);
	return handle;
}

static void note_trouble(struct semel_part *part, const semel_error *error)
{
	pthread_mutex_lock(&part->lock);
	snprintf(part->trouble, sizeof part->trouble, "%s", error->text);
	pthread_mutex_unlock(&part->lock);
}

static void pause_before_next(struct semel_part *part, const semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	struct semel_backoff backoff = { .first_ms = 500, .cap_ms = 30000 };
	int64_t wait_ms = semel_backoff_ms(backoff, ++part->failures, semel_random(env));
	int64_t until_ms = semel_steady_ms(env) + wait_ms;

	note_trouble(part, error);
	semel_logf(SEMEL_LOG_ERROR, "%s failed and starts again in %lld ms: %s", part->name,
		   (long long)wait_ms, error->text);
	while (!semel_wake_is_notified(part->wake) && semel_steady_ms(env) < until_ms)
		semel_wake_sleep(part->wake, until_ms - semel_steady_ms(env));
}

/* One life: from opening to the end, whatever ends it. */
static semel_status live(struct semel_part *part, semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	int64_t began_ms = semel_steady_ms(env);
	void *handle = give_up_handle(part); /* the first one was opened by whoever started us */
	semel_status status = SEMEL_OK;

	if (!handle) {
		part->invocation.error = (semel_error){ .status = SEMEL_OK };
		status = part->kind->open(&part->invocation, &handle);
		*error = part->invocation.error;
	}
	if (status == SEMEL_OK && take_handle(part, handle))
		status = part->kind->run(handle, error);
	(void)give_up_handle(part);
	if (handle)
		part->kind->close(handle);
	if (semel_steady_ms(env) - began_ms > STEADY_MS)
		part->failures = 0;
	return status;
}

static void *keep_alive(void *user)
{
	struct semel_part *part = user;

	while (!semel_wake_is_notified(part->wake)) {
		semel_error error = { .status = SEMEL_OK };
		semel_status status = live(part, &error);
		if (status == SEMEL_OK || status == SEMEL_STOPPED ||
		    semel_wake_is_notified(part->wake))
			continue;
		pause_before_next(part, &error);
	}
	pthread_mutex_lock(&part->lock);
	part->ended = true;
	pthread_cond_broadcast(&part->over);
	pthread_mutex_unlock(&part->lock);
	return NULL;
}

/* ---- starting -------------------------------------------------------------------------------- */

static semel_status copy_words(struct semel_part *part, const char *name, const char *const *words,
			       semel_error *error)
{
	bool failed = !(part->name = strdup(name)) || !(part->words[0] = strdup("semel"));

	for (size_t i = 0; words[i] && !failed; i++)
		failed = i >= SEMEL_PART_WORDS_MAX || !(part->words[i + 1] = strdup(words[i]));
	return failed ? semel_error_set(error, SEMEL_INTERNAL, "no memory for %s", name) : SEMEL_OK;
}

static void take_fingerprint(struct semel_part *part, const struct semel_section *section)
{
	struct semel_buffer *text = &part->fingerprint;

	const struct semel_retention *retention = &part->settings.config->retention;

	semel_buffer_printf(text, "%s\n%s\n%s\n", part->name, part->settings.store,
			    part->settings.broker);
	if (strcmp(part->kind->command, "prune") == 0)
		semel_buffer_printf(text, "%lld %lld %lld %lld\n", (long long)retention->outbox_ms,
				    (long long)retention->inbox_ms, (long long)retention->dead_ms,
				    (long long)retention->requests_ms);
	for (size_t i = 0; section && i < section->count; i++)
		for (size_t j = 0; j < section->settings[i].count; j++)
			semel_buffer_printf(text, "%s=%s\n", section->settings[i].name,
					    section->settings[i].values[j]);
}

static const struct semel_section *section_of(const struct semel_part *part)
{
	const struct semel_config *config = part->settings.config;

	if (strcmp(part->kind->command, "relay") == 0)
		return &config->relay;
	if (strcmp(part->kind->command, "consume") == 0)
		return semel_config_subscription(config, semel_args_text(part->args, "scope"));
	return NULL;
}

static semel_status read_settings(struct semel_part *part, semel_error *error)
{
	int count = 0;

	while (part->words[count])
		count++;
	semel_status status =
		semel_args_parse(count, part->words, semel_commands, &part->args, error);
	if (status == SEMEL_OK)
		status = semel_settings_resolve(part->args, &part->settings, error);
	if (status == SEMEL_OK)
		status = semel_args_check(part->args, error);
	if (status != SEMEL_OK)
		return status;
	const char *command = semel_args_command(part->args)->name;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].command, command) == 0)
			part->kind = &kinds[i];
	take_fingerprint(part, section_of(part));
	part->invocation = (struct semel_invocation){ .args = part->args,
						      .store = part->settings.store,
						      .broker = part->settings.broker,
						      .config = part->settings.config };
	return SEMEL_OK;
}

/* An outage passes; the thread waits for that. Anything else has to be mended first. */
static semel_status try_once(struct semel_part *part, semel_error *error)
{
	semel_status status = part->kind->open(&part->invocation, &part->handle);

	if (status == SEMEL_OK)
		return SEMEL_OK;
	*error = part->invocation.error;
	if (semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	note_trouble(part, error);
	return SEMEL_OK;
}

static void init_locks(struct semel_part *part)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&part->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&part->over, &attributes);
	pthread_condattr_destroy(&attributes);
}

/* Free it also after a failure. */
static semel_status prepare(const char *name, const char *const *words,
			    struct semel_part **part_out, semel_error *error)
{
	struct semel_part *part = calloc(1, sizeof *part);

	*part_out = part;
	if (!part)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for %s", name);
	init_locks(part);
	semel_status status = copy_words(part, name, words, error);
	return status == SEMEL_OK ? read_settings(part, error) : status;
}

semel_status semel_part_start(const char *name, const char *const *words, bool patient,
			      struct semel_part **part_out, semel_error *error)
{
	struct semel_part *part = NULL;
	semel_status status = prepare(name, words, &part, error);

	if (status == SEMEL_OK)
		status = semel_wake_new(&part->wake, error);
	if (status == SEMEL_OK && !patient)
		status = try_once(part, error);
	if (status == SEMEL_OK && pthread_create(&part->thread, NULL, keep_alive, part) != 0)
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for %s", name);
	if (status == SEMEL_OK)
		part->runs = true;
	else
		semel_part_free(part);
	*part_out = status == SEMEL_OK ? part : NULL;
	return status;
}

char *semel_part_fingerprint_of(const char *name, const char *const *words)
{
	struct semel_part *part = NULL;
	char *copy = NULL;

	if (prepare(name, words, &part, NULL) == SEMEL_OK)
		copy = strdup(semel_part_fingerprint(part));
	semel_part_free(part);
	return copy;
}

const char *semel_part_name(const struct semel_part *part)
{
	return part->name;
}

const char *semel_part_fingerprint(const struct semel_part *part)
{
	return part->fingerprint.data ? part->fingerprint.data : "";
}

bool semel_part_trouble(struct semel_part *part, char *text_out, size_t size)
{
	pthread_mutex_lock(&part->lock);
	bool in_trouble = part->trouble[0] != '\0';
	snprintf(text_out, size, "%s: %s", part->name, part->trouble);
	pthread_mutex_unlock(&part->lock);
	return in_trouble;
}

void semel_part_stop(struct semel_part *part)
{
	pthread_mutex_lock(&part->lock);
	part->stopping = true;
	if (part->handle)
		part->kind->stop(part->handle);
	semel_wake_notify(part->wake);
	pthread_mutex_unlock(&part->lock);
}

bool semel_part_stopping(struct semel_part *part)
{
	pthread_mutex_lock(&part->lock);
	bool stopping = part->stopping;
	pthread_mutex_unlock(&part->lock);
	return stopping;
}

bool semel_part_wait(struct semel_part *part, int64_t wait_ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t nanos = until.tv_nsec + wait_ms % 1000 * 1000000;
	until.tv_sec += (time_t)(wait_ms / 1000 + nanos / 1000000000);
	until.tv_nsec = (long)(nanos % 1000000000);
	pthread_mutex_lock(&part->lock);
	while (!part->ended && pthread_cond_timedwait(&part->over, &part->lock, &until) == 0)
		;
	bool ended = part->ended;
	pthread_mutex_unlock(&part->lock);
	return ended;
}

void semel_part_free(struct semel_part *part)
{
	if (!part)
		return;
	if (part->runs) {
		semel_part_stop(part);
		pthread_join(part->thread, NULL);
	}
	if (part->handle)
		part->kind->close(part->handle);
	semel_wake_free(part->wake);
	semel_args_free(part->args);
	semel_settings_free(&part->settings);
	semel_buffer_free(&part->fingerprint);
	for (size_t i = 0; part->words[i]; i++)
		free(part->words[i]);
	pthread_cond_destroy(&part->over);
	pthread_mutex_destroy(&part->lock);
	free(part->name);
	free(part);
}
