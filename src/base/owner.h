/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of leases. The name of an owner contains the machine, the process and its start time, so
 * that another process on the same machine sees at once that the owner is dead, and need not wait
 * for its lease to expire. For owners on other machines, only the lease shows that. */
#ifndef SEMEL_BASE_OWNER_H
#define SEMEL_BASE_OWNER_H

#include "base/env.h"

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_OWNER_SIZE 96

/* "boot-pidnamespace:pid:starttime:random"; differs for each call, so that two relays in one
 * process are two owners. */
void semel_owner_make(const struct semel_env *env, char owner_out[SEMEL_OWNER_SIZE]);
/* True only if it is certain that the owner is dead; false for malformed names. */
bool semel_owner_is_dead(const char *owner);
/* May another owner take over: is this one certainly dead, or its lease over? */
bool semel_owner_is_gone(const char *owner, int64_t expires_at_ms, int64_t now_ms);

#endif
