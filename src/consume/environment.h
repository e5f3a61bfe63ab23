/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a program: that of this process, and variables of the event (SEMEL_EVENT_ID
 * and the like). */
#ifndef SEMEL_CONSUME_ENVIRONMENT_H
#define SEMEL_CONSUME_ENVIRONMENT_H

#include "event/event.h"

#include <semel/status.h>

#include <stdint.h>

struct semel_environment;

/* A copy of this process's environment, taken now, without what is the operator's for Semel alone
 * (SEMEL_STORE, PGPASSWORD, NOTIFY_SOCKET and their like), but for the names in passed, a
 * NULL-ended list. Both may be NULL. NULL: no memory. */
struct semel_environment *semel_environment_new(const char *scope, const char *const *passed);
/* Describes this event instead of the last one. attempt 0: left out. HANDLER_REJECT, naming the
 * value, when one has a zero byte: cutting it there would describe another event. */
semel_status semel_environment_describe(struct semel_environment *environment,
					const struct semel_event *event, uint32_t attempt,
					semel_error *error);
/* For exec: NULL-ended. */
char *const *semel_environment_list(const struct semel_environment *environment);
void semel_environment_free(struct semel_environment *environment);

#endif
