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

#define PARTS_MAX 256
#define PARTS_MS  4000 /* more than the grace: a part concludes what it broke off */
#define IDLE_MS   (INT64_C(3600) * 1000)
#define WAIT_MS   100 /* for the end of a part, before the signals are looked at again */

struct crew {
	const char *config_path, *store, *broker;
	char grace[32]; /* as a part is told; empty: nothing was said */
	struct semel_wake *wake;
	struct semel_admin *admin; /* NULL: the file names none */
	int hangup;                /* an eventfd that SIGHUP writes to */
	int64_t watchdog_ms;       /* how often systemd wants a sign of life; 0: never */
	int64_t fed_ms;            /* when it had the last one */
	pthread_mutex_t lock;      /* of the list: the admin server reads it */
	struct semel_part *parts[PARTS_MAX];
	size_t count;
};

/* ---- what the file asks for -------------------------------------------------------------------
 */

/* One part that is wanted: its name, and the command line that it is. */
struct wish {
	char name[320];
	const char *words[SEMEL_PART_WORDS_MAX + 1];
};

static struct wish wish_for(const struct crew *crew, const char *command, const char *scope)
{
	struct wish wish = { .words = { "--config", crew->config_path, "--store", crew->store,
					"--broker", crew->broker, command } };

	snprintf(wish.name, sizeof wish.name, scope ? "subscription %s" : "%s",
		 scope ? scope : command);
	if (scope) {
		wish.words[7] = "--scope";
		wish.words[8] = scope;
		wish.words[9] = crew->grace[0] ? "--grace" : NULL;
		wish.words[10] = crew->grace;
	}
	return wish;
}

static bool has_handler(const struct semel_section *subscription)
{
	const struct semel_option *option = semel_consume_rows;

	for (; option->name; option++)
		if (option->one_of && semel_section_text(subscription, option->name))
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
static size_t wishes_of(const struct crew *crew, const struct semel_config *config,
			struct wish *wishes_out)
{
	size_t count = 0;

	for (size_t i = 0; i < config->subscription_count && count < PARTS_MAX - 2; i++)
		wishes_out[count++] = wish_for(
			crew, "consume", semel_section_text(&config->subscriptions[i], "scope"));
	if (config->has_relay)
		wishes_out[count++] = wish_for(crew, "relay", NULL);
	if (config->has_retention)
		wishes_out[count++] = wish_for(crew, "prune", NULL);
	return count;
}

/* ---- the list of parts ------------------------------------------------------------------------
 */

static void add_part(struct crew *crew, struct semel_part *part)
{
	pthread_mutex_lock(&crew->lock);
	crew->parts[crew->count++] = part;
	pthread_mutex_unlock(&crew->lock);
	semel_logf(SEMEL_LOG_INFO, "%s is started", semel_part_name(part));
}

static void remove_part(struct crew *crew, size_t at)
{
	struct semel_part *part = crew->parts[at];

	pthread_mutex_lock(&crew->lock);
	crew->parts[at] = crew->parts[--crew->count];
	pthread_mutex_unlock(&crew->lock);
	semel_logf(SEMEL_LOG_INFO, "%s is stopped", semel_part_name(part));
	semel_part_free(part);
}

/* Feeds the watchdog when it is time. Gives back for how long it need not be called again. */
static int64_t feed_watchdog(struct crew *crew)
{
	int64_t now_ms = semel_steady_ms(semel_env_system());

	if (crew->watchdog_ms <= 0)
		return IDLE_MS;
	if (now_ms >= crew->fed_ms + crew->watchdog_ms) {
		semel_notify("WATCHDOG=1");
		crew->fed_ms = now_ms;
	}
	return crew->fed_ms + crew->watchdog_ms - now_ms;
}

static void stop_all(struct crew *crew)
{
	for (size_t i = 0; i < crew->count; i++)
		semel_part_stop(crew->parts[i]);
}

/* All have been asked already, so that it takes as long as the slowest. A SIGTERM that comes
 * meanwhile is the others' too. */
static void await_stopping(struct crew *crew)
{
	for (size_t i = crew->count; i-- > 0;) {
		if (!semel_part_stopping(crew->parts[i]))
			continue;
		int64_t due_ms = feed_watchdog(crew);
		while (!semel_part_wait(crew->parts[i], due_ms < WAIT_MS ? due_ms : WAIT_MS)) {
			due_ms = feed_watchdog(crew);
			if (semel_wake_is_notified(crew->wake))
				stop_all(crew);
		}
		remove_part(crew, i);
	}
}

/* What the part says of its settings is said of the file: which one, and of whom. */
static semel_status blame_file(const struct crew *crew, const struct wish *wish,
			       semel_status status, semel_error *error)
{
	semel_error cause = *error;

	if (status != SEMEL_INVALID && status != SEMEL_CONFIG)
		return status;
	return semel_error_set(error, SEMEL_CONFIG, "%s: %s: %s", crew->config_path, wish->name,
			       cause.text);
}

static semel_status start_wish(struct crew *crew, const struct wish *wish, bool patient,
			       semel_error *error)
{
	struct semel_part *part = NULL;
	semel_status status = semel_part_start(wish->name, wish->words, patient, &part, error);

	if (status != SEMEL_OK)
		return blame_file(crew, wish, status, error);
	add_part(crew, part);
	return SEMEL_OK;
}

static void tell_reasons(semel_reason_callback seen, void *seen_user, void *user)
{
	struct crew *crew = user;
	char text[SEMEL_ERROR_TEXT_MAX + 64];

	pthread_mutex_lock(&crew->lock);
	for (size_t i = 0; i < crew->count; i++)
		if (semel_part_trouble(crew->parts[i], text, sizeof text))
			seen(text, seen_user);
	pthread_mutex_unlock(&crew->lock);
}

/* ---- reading the file again -------------------------------------------------------------------
 */

static const struct wish *wish_of(const struct wish *wishes, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(wishes[i].name, name) == 0)
			return &wishes[i];
	return NULL;
}

static bool has_part(const struct crew *crew, const char *name)
{
	for (size_t i = 0; i < crew->count; i++)
		if (strcmp(semel_part_name(crew->parts[i]), name) == 0)
			return true;
	return false;
}

/* Is what runs still what is wanted? */
static bool is_current(const struct semel_part *part, const struct wish *wish)
{
	char *fingerprint = wish ? semel_part_fingerprint_of(wish->name, wish->words) : NULL;
	bool current = fingerprint && strcmp(fingerprint, semel_part_fingerprint(part)) == 0;

	free(fingerprint);
	return current;
}

static void apply(struct crew *crew, const struct wish *wishes, size_t count)
{
	semel_error error = { .status = SEMEL_OK };

	for (size_t i = 0; i < crew->count; i++)
		if (!is_current(crew->parts[i],
				wish_of(wishes, count, semel_part_name(crew->parts[i]))))
			semel_part_stop(crew->parts[i]);
	await_stopping(crew);
	for (size_t i = 0; i < count && !semel_wake_is_notified(crew->wake); i++)
		if (!has_part(crew, wishes[i].name) &&
		    start_wish(crew, &wishes[i], true, &error) != SEMEL_OK)
			semel_logf(SEMEL_LOG_ERROR, "%s does not start: %s", wishes[i].name,
				   error.text);
}

/* A file that cannot be right changes nothing. */
static void reload(struct crew *crew)
{
	struct semel_config *config = NULL;
	semel_error error = { .status = SEMEL_OK };
	struct wish *wishes = calloc(PARTS_MAX, sizeof *wishes);

	semel_notify("RELOADING=1");
	semel_admin_reload_tokens(crew->admin);
	semel_status status = semel_config_read(crew->config_path, &config, &error);
	if (status == SEMEL_OK)
		status = check_subscriptions(config, &error);
	if (status == SEMEL_OK && wishes)
		apply(crew, wishes, wishes_of(crew, config, wishes));
	semel_logf(status == SEMEL_OK ? SEMEL_LOG_INFO : SEMEL_LOG_ERROR,
		   status == SEMEL_OK ? "the config file was read again%s%s"
				      : "the config file was not taken%s%s",
		   status == SEMEL_OK ? "" : ": ", status == SEMEL_OK ? "" : error.text);
	semel_config_free(config);
	free(wishes);
	semel_notify("READY=1");
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static void stop(void *user)
{
	struct crew *crew = user;

	semel_wake_notify(crew->wake);
}

static semel_status start_all(struct crew *crew, const struct semel_config *config,
			      semel_error *error)
{
	struct wish *wishes = calloc(PARTS_MAX, sizeof *wishes);
	size_t count = wishes ? wishes_of(crew, config, wishes) : 0;
	semel_status status = wishes ? check_subscriptions(config, error)
				     : semel_error_set(error, SEMEL_INTERNAL, "no memory");

	if (status == SEMEL_OK && count == 0 && !config->has_admin)
		status = semel_error_set(error, SEMEL_CONFIG,
					 "%s names nothing to run: add relay, subscriptions, admin "
					 "or retention",
					 config->path);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = start_wish(crew, &wishes[i], false, error);
	free(wishes);
	return status;
}

static semel_status start_admin(struct crew *crew, struct semel_invocation *invocation,
				struct semel_admin **admin_out)
{
	const char *words[] = { "semel",     "--config", crew->config_path, "--store",
				crew->store, "--broker", crew->broker,      "serve" };
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
		options.reasons = tell_reasons;
		options.reasons_user = crew;
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

static void wait_for_end(struct crew *crew)
{
	crew->watchdog_ms = semel_notify_watchdog_ms();
	semel_notify("READY=1\nSTATUS=delivering");
	while (!semel_wake_is_notified(crew->wake)) {
		uint64_t hangups = 0;
		if (read(crew->hangup, &hangups, sizeof hangups) > 0)
			reload(crew);
		semel_wake_sleep(crew->wake, feed_watchdog(crew));
	}
	semel_notify("STOPPING=1");
}

static semel_status deliver(struct semel_invocation *invocation)
{
	const struct semel_config *config = invocation->config;
	semel_error *error = &invocation->error;
	struct crew crew = { .config_path = config->path,
			     .store = invocation->store,
			     .broker = invocation->broker };

	int64_t grace_ms = semel_args_duration_ms(invocation->args, "grace");
	if (semel_args_given(invocation->args, "grace"))
		snprintf(crew.grace, sizeof crew.grace, "%" PRId64 "ms", grace_ms);
	pthread_mutex_init(&crew.lock, NULL);
	semel_status status = semel_wake_new(&crew.wake, error);
	crew.hangup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (status == SEMEL_OK) {
		semel_wake_watch_fd(crew.wake, crew.hangup);
		semel_signals_watch(stop, &crew, grace_ms + PARTS_MS);
		semel_signals_hear_hangup(crew.hangup);
		status = start_all(&crew, config, error);
	}
	if (status == SEMEL_OK && config->has_admin)
		status = start_admin(&crew, invocation, &crew.admin);
	if (status == SEMEL_OK)
		wait_for_end(&crew);
	stop_all(&crew);
	await_stopping(&crew);
	semel_admin_stop(crew.admin);
	semel_signals_forget();
	semel_wake_free(crew.wake);
	close(crew.hangup);
	pthread_mutex_destroy(&crew.lock);
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
		"Each part has a thread of its own. One that fails is started again, with longer "
		"and "
		"longer pauses, and /readyz says why; the others go on. Settings that cannot be "
		"right end the program before anything runs.\n\n"
		"On SIGHUP the file is read again: parts whose settings changed are restarted, new "
		"ones started, others stopped; a file with a mistake changes nothing. Of the "
		"section admin only the token file is read again. On SIGTERM or SIGINT all parts "
		"finish what is in flight. Under systemd it tells when it is ready and feeds the "
		"watchdog.",
	.examples = examples,
};
