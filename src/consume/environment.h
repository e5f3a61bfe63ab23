/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a program: that of this process, and variables of the event (SEMEL_EVENT_ID
 * and others). */
#ifndef SEMEL_CONSUME_ENVIRONMENT_H
#define SEMEL_CONSUME_ENVIRONMENT_H

#include "event/event.h"

#include <semel/status.h>

#include <stdint.h>

struct semel_environment;

/* A copy of this process's environment, taken now, without the variables that are meant for Semel
 * alone (SEMEL_STORE, PGPASSWORD, NOTIFY_SOCKET and others), except those named in passed, a
 * NULL-terminated list. Both arguments may be NULL. NULL: out of memory. */
struct semel_environment *semel_environment_new(const char *scope, const char *const *passed);
/* Describes this event instead of the last one. attempt 0: left out. HANDLER_REJECT, naming the
 * value: a value has a NUL byte; truncated there, it would describe another event. */
semel_status semel_environment_describe(struct semel_environment *environment,
					const struct semel_event *event, uint32_t attempt,
					semel_error *error);
/* For exec: NULL-terminated. */
char *const *semel_environment_list(const struct semel_environment *environment);
void semel_environment_free(struct semel_environment *environment);

#endif
