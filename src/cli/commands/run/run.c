/* SPDX-License-Identifier: Apache-2.0 */
/* `semel run`: everything that the config file names, in one process. */
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/admin_options.h"
#include "cli/arguments/delivery_options.h"
#include "cli/arguments/settings.h"
#include "cli/commands/run/service.h"
#include "cli/process/notify.h"
#include "cli/process/signals.h"
#include "observe/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SERVICES_MAX 256
#define CONCLUDE_MS  4000 /* more than the grace: a service concludes what it broke off */
#define IDLE_MS      (INT64_C(3600) * 1000)
#define WAIT_MS      100 /* for the end of a service, before the signals are looked at again */

struct supervisor {
	const char *config_path, *store, *broker;
	char grace[32]; /* as a service is told; empty: nothing was said */
	struct semel_wake *wake;
	struct semel_admin *admin; /* NULL: the file names none */
	int hangup;                /* an eventfd that SIGHUP writes to */
	int64_t watchdog_ms;       /* how often systemd wants a sign of life; 0: never */
	int64_t fed_ms;            /* when it had the last one */
	pthread_mutex_t mutex;     /* of the list: the admin server reads it */
	struct semel_service *services[SERVICES_MAX];
	size_t count;
};

/* ---- what the file asks for -------------------------------------------------------------------
 */

/* One service that is wanted: its name, and the command line that it is. */
struct service_plan {
	char name[320];
	const char *words[SEMEL_SERVICE_WORDS_MAX + 1];
};

static struct service_plan plan_for(const struct supervisor *supervisor, const char *command,
				    const char *scope)
{
	struct service_plan service_plan = { .words = { "--config", supervisor->config_path,
							"--store", supervisor->store, "--broker",
							supervisor->broker, command } };

	snprintf(service_plan.name, sizeof service_plan.name, scope ? "subscription %s" : "%s",
		 scope ? scope : command);
	if (scope) {
		service_plan.words[7] = "--scope";
		service_plan.words[8] = scope;
		service_plan.words[9] = supervisor->grace[0] ? "--grace" : NULL;
		service_plan.words[10] = supervisor->grace;
	}
	return service_plan;
}

static bool has_handler(const struct semel_section *subscription)
{
	const struct semel_option *option = semel_consume_rows;

	for (; option->name; option++)
		if (option->excludes && semel_section_text(subscription, option->name))
			return true;
	return false;
}

/* A command line may still add what a subscription lacks; here is none. */
static semel_status check_subscriptions(const struct semel_config *config, semel_error *error)
{
	for (size_t i = 0; i < config->subscription_count; i++) {
		const struct semel_section *subscription = &config->subscriptions[i];
		const char *scope = semel_section_text(subscription, "scope");
		if (semel_string_is_blank(scope))
			return semel_error_set(error, SEMEL_CONFIG,
					       "%s:%d: this subscription has no scope",
					       config->path, subscription->line);
		if (!has_handler(subscription))
			return semel_error_set(error, SEMEL_CONFIG,
					       "%s:%d: %s has no handler (add one of sql, exec, "
					       "pipe, http)",
					       config->path, subscription->line, scope);
	}
	return SEMEL_OK;
}

/* In the order in which they start. */
static size_t plans_of(const struct supervisor *supervisor, const struct semel_config *config,
		       struct service_plan *plans_out)
{
	size_t count = 0;

	for (size_t i = 0; i < config->subscription_count && count < SERVICES_MAX - 2; i++)
		plans_out[count++] =
			plan_for(supervisor, "consume",
				 semel_section_text(&config->subscriptions[i], "scope"));
	if (config->has_relay)
		plans_out[count++] = plan_for(supervisor, "relay", NULL);
	if (config->has_retention)
		plans_out[count++] = plan_for(supervisor, "prune", NULL);
	return count;
}

/* ---- the list of services
 * ------------------------------------------------------------------------
 */

static void add_service(struct supervisor *supervisor, struct semel_service *service)
{
	pthread_mutex_lock(&supervisor->mutex);
	supervisor->services[supervisor->count++] = service;
	pthread_mutex_unlock(&supervisor->mutex);
	semel_logf(SEMEL_LOG_INFO, "%s is started", semel_service_name(service));
}

static void remove_service(struct supervisor *supervisor, size_t at)
{
	struct semel_service *service = supervisor->services[at];

	pthread_mutex_lock(&supervisor->mutex);
	supervisor->services[at] = supervisor->services[--supervisor->count];
	pthread_mutex_unlock(&supervisor->mutex);
	semel_logf(SEMEL_LOG_INFO, "%s is stopped", semel_service_name(service));
	semel_service_free(service);
}

/* Feeds the watchdog when it is time. Gives back for how long it need not be called again. */
static int64_t feed_watchdog(struct supervisor *supervisor)
{
	int64_t now_ms = semel_steady_ms(semel_env_system());

	if (supervisor->watchdog_ms <= 0)
		return IDLE_MS;
	if (now_ms >= supervisor->fed_ms + supervisor->watchdog_ms) {
		semel_notify("WATCHDOG=1");
		supervisor->fed_ms = now_ms;
	}
	return supervisor->fed_ms + supervisor->watchdog_ms - now_ms;
}

static void stop_all(struct supervisor *supervisor)
{
	for (size_t i = 0; i < supervisor->count; i++)
		semel_service_stop(supervisor->services[i]);
}

/* All have been asked already, so that it takes as long as the slowest. A SIGTERM that comes
 * meanwhile is the others' too. */
static void await_stopping(struct supervisor *supervisor)
{
	for (size_t i = supervisor->count; i-- > 0;) {
		if (!semel_service_is_stopping(supervisor->services[i]))
			continue;
		int64_t due_ms = feed_watchdog(supervisor);
		while (!semel_service_wait(supervisor->services[i],
					   due_ms < WAIT_MS ? due_ms : WAIT_MS)) {
			due_ms = feed_watchdog(supervisor);
			if (semel_wake_is_notified(supervisor->wake))
				stop_all(supervisor);
		}
		remove_service(supervisor, i);
	}
}

/* What the service says of its settings is said of the file: which one, and of whom. */
static semel_status name_config_file(const struct supervisor *supervisor,
				     const struct service_plan *service_plan, semel_status status,
				     semel_error *error)
{
	semel_error cause = *error;

	if (status != SEMEL_INVALID && status != SEMEL_CONFIG)
		return status;
	return semel_error_set(error, SEMEL_CONFIG, "%s: %s: %s", supervisor->config_path,
			       service_plan->name, cause.text);
}

static semel_status start_service(struct supervisor *supervisor,
				  const struct service_plan *service_plan, bool later,
				  semel_error *error)
{
	struct semel_service *service = NULL;
	semel_status status = semel_service_start(service_plan->name, service_plan->words, later,
						  &service, error);

	if (status != SEMEL_OK)
		return name_config_file(supervisor, service_plan, status, error);
	add_service(supervisor, service);
	return SEMEL_OK;
}

static void report_reasons(semel_reason_callback seen, void *seen_user, void *user)
{
	struct supervisor *supervisor = user;
	char text[SEMEL_ERROR_TEXT_MAX + 64];

	pthread_mutex_lock(&supervisor->mutex);
	for (size_t i = 0; i < supervisor->count; i++)
		if (semel_service_failure(supervisor->services[i], text, sizeof text))
			seen(text, seen_user);
	pthread_mutex_unlock(&supervisor->mutex);
}

/* ---- reading the file again -------------------------------------------------------------------
 */

static const struct service_plan *find_plan(const struct service_plan *plans, size_t count,
					    const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(plans[i].name, name) == 0)
			return &plans[i];
	return NULL;
}

static bool has_service(const struct supervisor *supervisor, const char *name)
{
	for (size_t i = 0; i < supervisor->count; i++)
		if (strcmp(semel_service_name(supervisor->services[i]), name) == 0)
			return true;
	return false;
}

/* Is what runs still what is wanted? */
static bool is_current(const struct semel_service *service, const struct service_plan *service_plan)
{
	char *fingerprint =
		service_plan ? semel_service_fingerprint_of(service_plan->name, service_plan->words)
			     : NULL;
	bool current = fingerprint && strcmp(fingerprint, semel_service_fingerprint(service)) == 0;

	free(fingerprint);
	return current;
}

static void apply(struct supervisor *supervisor, const struct service_plan *plans, size_t count)
{
	semel_error error = { .status = SEMEL_OK };

	for (size_t i = 0; i < supervisor->count; i++)
		if (!is_current(
			    supervisor->services[i],
			    find_plan(plans, count, semel_service_name(supervisor->services[i]))))
			semel_service_stop(supervisor->services[i]);
	await_stopping(supervisor);
	for (size_t i = 0; i < count && !semel_wake_is_notified(supervisor->wake); i++)
		if (!has_service(supervisor, plans[i].name) &&
		    start_service(supervisor, &plans[i], true, &error) != SEMEL_OK)
			semel_logf(SEMEL_LOG_ERROR, "%s does not start: %s", plans[i].name,
				   error.text);
}

/* A file that cannot be right changes nothing. */
static void reload(struct supervisor *supervisor)
{
	struct semel_config *config = NULL;
	semel_error error = { .status = SEMEL_OK };
	struct service_plan *plans = calloc(SERVICES_MAX, sizeof *plans);

	semel_notify("RELOADING=1");
	semel_admin_reload_tokens(supervisor->admin);
	semel_status status = semel_config_read(supervisor->config_path, &config, &error);
	if (status == SEMEL_OK)
		status = check_subscriptions(config, &error);
	if (status == SEMEL_OK && plans)
		apply(supervisor, plans, plans_of(supervisor, config, plans));
	semel_logf(status == SEMEL_OK ? SEMEL_LOG_INFO : SEMEL_LOG_ERROR,
		   status == SEMEL_OK ? "the config file was read again%s%s"
				      : "the config file was not taken%s%s",
		   status == SEMEL_OK ? "" : ": ", status == SEMEL_OK ? "" : error.text);
	semel_config_free(config);
	free(plans);
	semel_notify("READY=1");
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static void stop(void *user)
{
	struct supervisor *supervisor = user;

	semel_wake_notify(supervisor->wake);
}

static semel_status start_all(struct supervisor *supervisor, const struct semel_config *config,
			      semel_error *error)
{
	struct service_plan *plans = calloc(SERVICES_MAX, sizeof *plans);
	size_t count = plans ? plans_of(supervisor, config, plans) : 0;
	semel_status status = plans ? check_subscriptions(config, error)
				    : semel_error_set(error, SEMEL_INTERNAL, "no memory");

	if (status == SEMEL_OK && count == 0 && !config->has_admin)
		status = semel_error_set(error, SEMEL_CONFIG,
					 "%s names nothing to run: add relay, subscriptions, admin "
					 "or retention",
					 config->path);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = start_service(supervisor, &plans[i], false, error);
	free(plans);
	return status;
}

static semel_status start_admin(struct supervisor *supervisor, struct semel_invocation *invocation,
				struct semel_admin **admin_out)
{
	const char *words[] = { "semel",           "--config", supervisor->config_path, "--store",
				supervisor->store, "--broker", supervisor->broker,      "serve" };
	struct semel_args *args = NULL;
	struct semel_settings settings = { 0 };
	semel_error *error = &invocation->error;
	semel_status status =
		semel_args_parse(sizeof words / sizeof *words, (char **)(uintptr_t)words,
				 semel_commands, &args, error);

	*admin_out = NULL;
	if (status == SEMEL_OK)
		status = semel_settings_resolve(args, &settings, error);
	if (status == SEMEL_OK) {
		struct semel_invocation serve = { .args = args,
						  .store = settings.store,
						  .broker = settings.broker,
						  .config = settings.config };
		struct semel_admin_options options = semel_admin_options_read(&serve);
		options.reasons = report_reasons;
		options.reasons_user = supervisor;
		status = semel_admin_start(&options, admin_out, error);
	}
	if (status == SEMEL_OK) {
		printf("listening on %s\n", semel_admin_url(*admin_out));
		fflush(stdout);
	}
	semel_settings_free(&settings);
	semel_args_free(args);
	return status;
}

static void wait_for_end(struct supervisor *supervisor)
{
	supervisor->watchdog_ms = semel_notify_watchdog_ms();
	semel_notify("READY=1\nSTATUS=delivering");
	while (!semel_wake_is_notified(supervisor->wake)) {
		uint64_t hangups = 0;
		if (read(supervisor->hangup, &hangups, sizeof hangups) > 0)
			reload(supervisor);
		semel_wake_sleep(supervisor->wake, feed_watchdog(supervisor));
	}
	semel_notify("STOPPING=1");
}

static semel_status deliver(struct semel_invocation *invocation)
{
	const struct semel_config *config = invocation->config;
	semel_error *error = &invocation->error;
	struct supervisor supervisor = { .config_path = config->path,
					 .store = invocation->store,
					 .broker = invocation->broker };

	int64_t grace_ms = semel_args_duration_ms(invocation->args, "grace");
	if (semel_args_given(invocation->args, "grace"))
		snprintf(supervisor.grace, sizeof supervisor.grace, "%" PRId64 "ms", grace_ms);
	pthread_mutex_init(&supervisor.mutex, NULL);
	semel_status status = semel_wake_new(&supervisor.wake, error);
	supervisor.hangup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (status == SEMEL_OK) {
		semel_wake_watch_fd(supervisor.wake, supervisor.hangup);
		semel_signals_watch(stop, &supervisor, grace_ms + CONCLUDE_MS);
		semel_signals_watch_hangup(supervisor.hangup);
		status = start_all(&supervisor, config, error);
	}
	if (status == SEMEL_OK && config->has_admin)
		status = start_admin(&supervisor, invocation, &supervisor.admin);
	if (status == SEMEL_OK)
		wait_for_end(&supervisor);
	stop_all(&supervisor);
	await_stopping(&supervisor);
	semel_admin_stop(supervisor.admin);
	semel_signals_forget();
	semel_wake_free(supervisor.wake);
	close(supervisor.hangup);
	pthread_mutex_destroy(&supervisor.mutex);
	return status;
}

static semel_status run(struct semel_invocation *invocation)
{
	if (semel_args_flag(invocation->args, "sample")) {
		struct semel_buffer sample = { 0 };
		semel_config_sample(&sample);
		fputs(sample.failed ? "" : sample.data, stdout);
		semel_buffer_free(&sample);
		return SEMEL_OK;
	}
	if (!invocation->config->path)
		return semel_error_set(&invocation->error, SEMEL_CONFIG,
				       "run needs a config file: give --config FILE, or set "
				       "SEMEL_CONFIG (semel run --sample prints one)");
	return deliver(invocation);
}

static const struct semel_option options[] = {
	{ .name = "sample",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "print a config file with every key, and end" },
	SEMEL_OPTION_GRACE,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel run --sample >semel.yaml", "a config file to begin with" },
	{ "semel --config semel.yaml run", "everything that it names, until SIGTERM" },
	{ 0 },
};

const struct semel_command semel_command_run = {
	.name = "run",
	.run = run,
	.group = SEMEL_GROUP_DELIVER,
	.summary = "deliver as the config file says: relay, subscriptions, admin server, retention",
	.options = options,
	.details =
		"Each service has a thread of its own. One that fails is started again, with "
		"longer "
		"and "
		"longer pauses, and /readyz says why; the others go on. Settings that cannot be "
		"right end the program before anything runs.\n\n"
		"On SIGHUP the file is read again: services whose settings changed are restarted, "
		"new "
		"ones started, others stopped; a file with a mistake changes nothing. Of the "
		"section admin only the token file is read again. On SIGTERM or SIGINT all "
		"services "
		"finish what is in flight. Under systemd it tells when it is ready and feeds the "
		"watchdog.",
	.examples = examples,
};
