/* SPDX-License-Identifier: Apache-2.0 */
/* `semel run`: every service that the config file names, in one process, under one supervisor. */
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/admin_options.h"
#include "cli/arguments/adopt.h"
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

#define SERVICES_MAX    256
#define FINISH_LIMIT_MS 4000 /* after the grace period: for the services to end, then exit */
#define IDLE_MS         (INT64_C(3600) * 1000)
#define SAMPLE_WIDTH    78
#define WAIT_MS         100 /* for a service to end, between two checks for a signal */

struct supervisor {
	const char *config_path, *store, *broker;
	char grace[32]; /* of the services; empty: their own default */
	struct semel_wake *wake;
	struct semel_admin *admin; /* NULL: the file has none */
	int hangup;                /* an eventfd that SIGHUP writes to */
	int64_t watchdog_ms;       /* how often systemd expects a keep-alive; 0: never */
	int64_t fed_ms;            /* when the last one was sent */
	pthread_mutex_t mutex;     /* protects the list below, which the admin server reads too */
	struct semel_service *services[SERVICES_MAX];
	size_t count;
};

/* ---- what the file asks for ------------------------------------------------------------------ */

/* A service that the file asks for: its name, and the command line that it runs. */
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

/* The section must be complete: unlike on a command line, no more options can follow. */
static semel_status check_subscriptions(const struct semel_config *config, semel_error *error)
{
	for (size_t i = 0; i < config->subscription_count; i++) {
		const struct semel_section *subscription = &config->subscriptions[i];
		const char *scope = semel_section_text(subscription, "scope");
		if (semel_string_is_blank(scope))
			return semel_error_set(
				error, SEMEL_CONFIG,
				"%s:%d: the subscription has no scope (add scope: NAME)",
				config->path, subscription->line);
		if (!has_handler(subscription))
			return semel_error_set(error, SEMEL_CONFIG,
					       "%s:%d: %s has no handler (add one of sql, exec, "
					       "pipe, http)",
					       config->path, subscription->line, scope);
	}
	return SEMEL_OK;
}

/* The plans are in the order in which the services start. */
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

/* ---- the list of services -------------------------------------------------------------------- */

static void add_service(struct supervisor *supervisor, struct semel_service *service)
{
	pthread_mutex_lock(&supervisor->mutex);
	supervisor->services[supervisor->count++] = service;
	pthread_mutex_unlock(&supervisor->mutex);
	semel_log(SEMEL_LOG_INFO, "service started",
		  &(struct semel_log_fields){ .service = semel_service_name(service) });
}

static void remove_service(struct supervisor *supervisor, size_t at)
{
	struct semel_service *service = supervisor->services[at];

	pthread_mutex_lock(&supervisor->mutex);
	supervisor->services[at] = supervisor->services[--supervisor->count];
	pthread_mutex_unlock(&supervisor->mutex);
	semel_log(SEMEL_LOG_INFO, "service stopped",
		  &(struct semel_log_fields){ .service = semel_service_name(service) });
	semel_service_free(service);
}

/* Sends the keep-alive if it is due; returns when to call again. */
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

/* All these services were asked to stop before, so this takes as long as the slowest one. A SIGTERM
 * that arrives meanwhile stops the other services too. */
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

/* An error in a service's settings is an error in the file: prefixes it with the file and the
 * service. */
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

static void report_reasons(semel_reason_callback report, void *report_user, void *user)
{
	struct supervisor *supervisor = user;
	char text[SEMEL_ERROR_TEXT_MAX + 64];

	pthread_mutex_lock(&supervisor->mutex);
	for (size_t i = 0; i < supervisor->count; i++)
		if (semel_service_failure(supervisor->services[i], text, sizeof text))
			report(text, report_user);
	pthread_mutex_unlock(&supervisor->mutex);
}

/* ---- reading the file again ------------------------------------------------------------------ */

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

/* Does the service run with the settings of the plan? */
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
			semel_log(SEMEL_LOG_ERROR, "service not started",
				  &(struct semel_log_fields){ .service = plans[i].name,
							      .error = error.text });
}

static semel_status read_and_apply(struct supervisor *supervisor, struct service_plan *plans,
				   semel_error *error)
{
	struct semel_config *config = NULL;
	semel_status status = semel_config_read(supervisor->config_path, &config, error);
	if (status != SEMEL_OK)
		return status;
	status = check_subscriptions(config, error);
	if (status != SEMEL_OK)
		goto free_config;
	apply(supervisor, plans, plans_of(supervisor, config, plans));

free_config:
	semel_config_free(config);
	return status;
}

/* An invalid file changes nothing. */
static void reload(struct supervisor *supervisor)
{
	semel_error error = { .status = SEMEL_OK };
	struct service_plan *plans = calloc(SERVICES_MAX, sizeof *plans);

	semel_notify("RELOADING=1");
	semel_admin_reload_tokens(supervisor->admin);
	if (!plans)
		(void)semel_error_set(&error, SEMEL_INTERNAL, "out of memory");
	if (plans && read_and_apply(supervisor, plans, &error) == SEMEL_OK)
		semel_log(SEMEL_LOG_INFO, "config file reloaded", NULL);
	else
		semel_log(SEMEL_LOG_ERROR, "config file not reloaded",
			  &(struct semel_log_fields){ .error = error.text });
	free(plans);
	semel_notify("READY=1");
}

/* ---- the run --------------------------------------------------------------------------------- */

static void stop(void *user)
{
	struct supervisor *supervisor = user;

	semel_wake_notify(supervisor->wake);
}

static semel_status start_services(struct supervisor *supervisor, const struct semel_config *config,
				   struct service_plan *plans, semel_error *error)
{
	semel_status status = check_subscriptions(config, error);
	if (status != SEMEL_OK)
		return status;
	size_t count = plans_of(supervisor, config, plans);
	if (count == 0 && !config->has_admin)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s defines no service (add relay, subscriptions, admin "
				       "or retention)",
				       config->path);
	for (size_t i = 0; i < count; i++) {
		status = start_service(supervisor, &plans[i], false, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status start_all(struct supervisor *supervisor, const struct semel_config *config,
			      semel_error *error)
{
	struct service_plan *plans = calloc(SERVICES_MAX, sizeof *plans);
	if (!plans)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	semel_status status = start_services(supervisor, config, plans, error);
	free(plans);
	return status;
}

static semel_status start_admin(struct supervisor *supervisor, semel_error *error)
{
	const char *words[] = { "semel",           "--config", supervisor->config_path, "--store",
				supervisor->store, "--broker", supervisor->broker,      "serve" };
	struct semel_args *args = NULL;
	struct semel_settings settings = { 0 };
	semel_status status =
		semel_args_parse(sizeof words / sizeof *words, (char **)(uintptr_t)words,
				 semel_commands, &args, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_settings_resolve(args, &settings, error);
	if (status != SEMEL_OK)
		goto free_settings;
	struct semel_invocation serve = { .args = args,
					  .store = settings.store,
					  .broker = settings.broker,
					  .config = settings.config };
	struct semel_admin_options options = semel_admin_options_read(&serve);
	options.reasons = report_reasons;
	options.reasons_user = supervisor;
	status = semel_admin_start(&options, &supervisor->admin, error);
	if (status != SEMEL_OK)
		goto free_settings;
	printf("listening on %s\n", semel_admin_url(supervisor->admin));
	fflush(stdout);

free_settings:
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

static semel_status supervise(struct supervisor *supervisor, const struct semel_config *config,
			      int64_t stop_ms, semel_error *error)
{
	semel_wake_watch_fd(supervisor->wake, supervisor->hangup);
	semel_signals_watch(stop, supervisor, stop_ms);
	semel_signals_watch_hangup(supervisor->hangup);
	semel_status status = start_all(supervisor, config, error);
	if (status != SEMEL_OK)
		return status;
	if (config->has_admin)
		status = start_admin(supervisor, error);
	if (status != SEMEL_OK)
		return status;
	wait_for_end(supervisor);
	return SEMEL_OK;
}

static semel_status run_services(struct semel_invocation *invocation)
{
	const struct semel_config *config = invocation->config;
	struct supervisor supervisor = { .config_path = config->path,
					 .store = invocation->store,
					 .broker = invocation->broker };
	int64_t grace_ms = semel_args_duration_ms(invocation->args, "grace");
	if (semel_args_has(invocation->args, "grace"))
		snprintf(supervisor.grace, sizeof supervisor.grace, "%" PRId64 "ms", grace_ms);
	semel_status status = semel_wake_new(&supervisor.wake, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	pthread_mutex_init(&supervisor.mutex, NULL);
	supervisor.hangup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	status = supervise(&supervisor, config, grace_ms + FINISH_LIMIT_MS, &invocation->error);
	stop_all(&supervisor);
	await_stopping(&supervisor);
	semel_admin_stop(supervisor.admin);
	semel_signals_forget();
	semel_wake_free(supervisor.wake);
	close(supervisor.hangup);
	pthread_mutex_destroy(&supervisor.mutex);
	return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Writes a sentence as comment lines, wrapped after "# ". */
static void write_comment(struct semel_buffer *text, const char *indent, const char *sentence)
{
	size_t used = 0;

	while (*sentence) {
		size_t length = strcspn(sentence, " ");
		if (used == 0 || used + 1 + length > SAMPLE_WIDTH) {
			semel_buffer_printf(text, "%s%s#", used ? "\n" : "", indent);
			used = strlen(indent) + 1;
		}
		semel_buffer_printf(text, " %.*s", (int)length, sentence);
		used += 1 + length;
		sentence += length + strspn(sentence + length, " ");
	}
	semel_buffer_string(text, "\n");
}

static const char *example_of(const struct semel_option *option)
{
	if (option->default_value)
		return option->default_value;
	if (option->kind == SEMEL_OPTION_FLAG)
		return "true";
	return option->argument ? option->argument : "…";
}

static void write_choices(struct semel_buffer *text, const char *indent,
			  const struct semel_option *option)
{
	if (option->kind != SEMEL_OPTION_CHOICE)
		return;
	for (const struct semel_choice *choice = option->choices; choice->name; choice++)
		semel_buffer_printf(text, "%s#   %s: %s\n", indent, choice->name, choice->meaning);
}

/* Writes the keys commented out, with their defaults as values. */
static void write_keys(struct semel_buffer *text, const char *indent,
		       const struct semel_option *options)
{
	for (; options->name; options++) {
		if (options->command_line_only)
			continue;
		write_comment(text, indent, options->help ? options->help : options->name);
		write_choices(text, indent, options);
		semel_buffer_printf(text,
				    options->kind == SEMEL_OPTION_MULTI ? "%s# %s: [\"%s\"]\n"
									: "%s# %s: \"%s\"\n",
				    indent, options->name, example_of(options));
	}
}

/* Writes a config file with every key, explained and commented out. It is generated from the tables
 * by which config files are parsed, so it has no other key. */
static void write_sample(struct semel_buffer *text)
{
	semel_buffer_string(text,
			    "# Config file of semel with every key. A key that is commented out "
			    "shows its default,\n# or an example. Durations: 500ms, 30s, 5m, "
			    "24h, 14d.\n\n"
			    "store: sqlite:semel.db          # or postgres://app@db/shop\n"
			    "broker: local:semel-broker.db   # or amqp://user@mq/\n\n"
			    "# If present: run a relay.\nrelay:\n");
	write_keys(text, "  ", semel_relay_rows);
	semel_buffer_string(text, "\n# One entry for each subscription.\nsubscriptions:\n"
				  "  - scope: audit\n    topics: [order.events]\n"
				  "    exec: \"cat >>audit.log; echo >>audit.log\"\n");
	write_keys(text, "    ", semel_consume_rows);
	semel_buffer_string(text, "\n# If present: run the admin server.\nadmin:\n");
	write_keys(text, "  ", semel_admin_rows);
	semel_buffer_string(text,
			    "\n# If present: rows of this table, in Debezium's layout, become "
			    "events (postgres:// only).\n# adopt:\n");
	write_keys(text, "  ", semel_adopt_rows);
	semel_buffer_string(text, "\n# If present: old rows are pruned every hour.\nretention:\n");
	write_keys(text, "  ", semel_retention_rows);
}

static semel_status run(struct semel_invocation *invocation)
{
	if (semel_args_flag(invocation->args, "sample")) {
		struct semel_buffer sample = { 0 };
		write_sample(&sample);
		fputs(sample.failed ? "" : sample.data, stdout);
		semel_buffer_free(&sample);
		return SEMEL_OK;
	}
	if (!invocation->config->path)
		return semel_error_set(&invocation->error, SEMEL_CONFIG,
				       "run needs a config file (give --config FILE or set "
				       "SEMEL_CONFIG; to create one, run: semel run --sample)");
	return run_services(invocation);
}

static const struct semel_option options[] = {
	{ .name = "sample",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "print a config file with every key, and exit" },
	SEMEL_OPTION_GRACE,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel run --sample >semel.yaml", "create a config file" },
	{ "semel --config semel.yaml run", "run every service that it names, until SIGTERM" },
	{ 0 },
};

const struct semel_command semel_command_run = {
	.name = "run",
	.run = run,
	.group = SEMEL_GROUP_DELIVER,
	.summary = "run relay, subscriptions, admin server and retention of a config file",
	.options = options,
	.details =
		"Each service has a thread of its own. A service that fails is restarted, with "
		"growing delays, and /readyz reports the reason; the others continue. Invalid "
		"settings end the program. The admin server starts when all services have "
		"started.\n\n"
		"On SIGHUP the file is read again: services whose settings changed are restarted, "
		"new ones started, others stopped; an invalid file changes nothing. In the section "
		"admin, only the token file is reloaded. On SIGTERM or SIGINT all services finish "
		"what is in flight. Under systemd it reports readiness and sends the watchdog's "
		"keep-alive.",
	.examples = examples,
};
