/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of an event. The process's own environment is copied once, so that a worker never
 * reads it while the application changes it. */
#include "consume/environment.h"

#include "base/error.h"
#include "base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum variable {
	EVENT_ID,
	EVENT_TYPE,
	EVENT_TIME,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	TOPIC,
	HEADERS,
	ATTEMPT,
	SCOPE,
	VARIABLE_COUNT
};

static const char *const names[VARIABLE_COUNT] = {
	[EVENT_ID] = "SEMEL_EVENT_ID",
	[EVENT_TYPE] = "SEMEL_EVENT_TYPE",
	[EVENT_TIME] = "SEMEL_EVENT_TIME",
	[AGGREGATE_TYPE] = "SEMEL_AGGREGATE_TYPE",
	[AGGREGATE_ID] = "SEMEL_AGGREGATE_ID",
	[TOPIC] = "SEMEL_TOPIC",
	[HEADERS] = "SEMEL_HEADERS",
	[ATTEMPT] = "SEMEL_ATTEMPT",
	[SCOPE] = "SEMEL_SCOPE",
};

/* Variables that the operator has set for Semel and not for the programs that handle events: URLs
 * of store and broker with their passwords, tokens, sockets of the service manager. A name that
 * ends in _ is a prefix. */
static const char *const withheld[] = {
	"SEMEL_",
	"PGPASSWORD",
	"PGPASSFILE",
	"PGSSLPASSWORD",
	"OTEL_EXPORTER_OTLP_HEADERS",
	"OTEL_EXPORTER_OTLP_TRACES_HEADERS",
	"OTEL_EXPORTER_OTLP_METRICS_HEADERS",
	"OTEL_EXPORTER_OTLP_LOGS_HEADERS",
	"NOTIFY_SOCKET",
	"WATCHDOG_PID",
	"WATCHDOG_USEC",
	"LISTEN_FDS",
	"LISTEN_PID",
	"LISTEN_FDNAMES",
	"CREDENTIALS_DIRECTORY",
	"MAINPID",
};

/* Without these variables a program that calls semel would use the default store instead of the
 * intended one. So SEMEL_WITHHELD names the withheld variable, and semel then refuses to use the
 * default (cli/arguments/settings.c). */
static const char *const stores[] = { "SEMEL_STORE", "SEMEL_STORE_FILE", "SEMEL_CONFIG" };

struct semel_environment {
	struct semel_arena *own;   /* the process's own, and the scope */
	struct semel_arena *event; /* reset for each event */
	char **list;
	size_t own_count; /* the variables of the event begin here */
};

static bool has_name(const char *entry, const char *name)
{
	size_t length = strlen(name);
	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static bool is_event_variable(const char *entry)
{
	for (int i = 0; i < VARIABLE_COUNT; i++)
		if (has_name(entry, names[i]))
			return true;
	return false;
}

static bool is_withheld(const char *entry, const char *const *passed)
{
	for (; passed != NULL && *passed != NULL; passed++)
		if (has_name(entry, *passed))
			return false;
	for (size_t i = 0; i < sizeof withheld / sizeof *withheld; i++) {
		size_t length = strlen(withheld[i]);
		bool begins = withheld[i][length - 1] == '_';
		if (begins ? strncmp(entry, withheld[i], length) == 0
			   : has_name(entry, withheld[i]))
			return true;
	}
	return false;
}

static bool add_entry(struct semel_environment *environment, const char *entry)
{
	char *copy = semel_arena_printf(environment->own, "%s", entry);
	environment->list[environment->own_count++] = copy;
	return copy != NULL;
}

/* Adds a notice for the first variable that names a store, if it is set and not passed on. */
static bool add_withheld_notice(struct semel_environment *environment, const char *const *passed)
{
	for (size_t i = 0; i < sizeof stores / sizeof *stores; i++)
		for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
			if (!has_name(*entry, stores[i]) || !is_withheld(*entry, passed))
				continue;
			char *notice = semel_arena_printf(environment->event, "SEMEL_WITHHELD=%s",
							  stores[i]);
			return notice != NULL && add_entry(environment, notice);
		}
	return true;
}

static bool add_own(struct semel_environment *environment, const char *scope,
		    const char *const *passed)
{
	size_t count = 0;
	while (environ != NULL && environ[count] != NULL)
		count++;
	/* Two more than those of the event: SEMEL_WITHHELD, and the terminating NULL. */
	environment->list = calloc(count + VARIABLE_COUNT + 2, sizeof *environment->list);
	if (environment->list == NULL)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!is_event_variable(environ[i]) && !is_withheld(environ[i], passed) &&
		    !add_entry(environment, environ[i]))
			return false;
	if (!add_withheld_notice(environment, passed))
		return false;
	if (scope == NULL)
		return true;
	char *entry = semel_arena_printf(environment->event, "%s=%s", names[SCOPE], scope);
	return entry != NULL && add_entry(environment, entry);
}

struct semel_environment *semel_environment_new(const char *scope, const char *const *passed)
{
	struct semel_environment *environment = calloc(1, sizeof *environment);
	if (environment == NULL)
		return NULL;
	environment->own = semel_arena_new(4096);
	environment->event = semel_arena_new(4096);
	if (environment->own != NULL && environment->event != NULL &&
	    add_own(environment, scope, passed))
		return environment;
	semel_environment_free(environment);
	return NULL;
}

struct description {
	struct semel_environment *environment;
	size_t count;
	semel_error *error;
};

static semel_status add_variable(struct description *description, enum variable variable,
				 struct semel_text value)
{
	if (value.data == NULL)
		return SEMEL_OK;
	if (memchr(value.data, '\0', value.length) != NULL)
		return semel_error_set(description->error, SEMEL_HANDLER_REJECT,
				       "%s cannot be passed to a program: the value has a NUL byte",
				       names[variable]);
	char *entry = semel_arena_printf(description->environment->event, "%s=%s", names[variable],
					 semel_text_string(value));
	if (entry == NULL)
		return semel_error_set(description->error, SEMEL_OUTAGE, "out of memory");
	description->environment->list[description->count++] = entry;
	return SEMEL_OK;
}

semel_status semel_environment_describe(struct semel_environment *environment,
					const struct semel_event *event, uint32_t attempt,
					semel_error *error)
{
	char time[SEMEL_TIME_SIZE], number[16];
	semel_time_format(event->time_ms, time);
	snprintf(number, sizeof number, "%u", attempt);
	const struct {
		enum variable variable;
		struct semel_text value;
	} values[] = {
		{ EVENT_ID, event->id },
		{ EVENT_TYPE, event->type },
		{ EVENT_TIME, semel_text_of(time) },
		{ AGGREGATE_TYPE, event->aggregate_type },
		{ AGGREGATE_ID, event->aggregate_id },
		{ TOPIC, event->topic },
		{ HEADERS, event->headers },
		{ ATTEMPT, semel_text_of(attempt > 0 ? number : NULL) },
	};
	semel_arena_reset(environment->event);
	struct description description = { environment, environment->own_count, error };
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		semel_status status =
			add_variable(&description, values[i].variable, values[i].value);
		if (status != SEMEL_OK)
			return status;
	}
	environment->list[description.count] = NULL;
	return SEMEL_OK;
}

char *const *semel_environment_list(const struct semel_environment *environment)
{
	return environment->list;
}

void semel_environment_free(struct semel_environment *environment)
{
	if (environment == NULL)
		return;
	semel_arena_free(environment->own);
	semel_arena_free(environment->event);
	free(environment->list);
	free(environment);
}
