/* SPDX-License-Identifier: Apache-2.0 */
/* Event ids: UUIDv7, so that they sort by creation time. */
#ifndef SEMEL_BASE_UUID_H
#define SEMEL_BASE_UUID_H

#include "base/env.h"

#include <stdbool.h>

#define SEMEL_UUID_SIZE 37

/* Lower case with hyphens. The ids of one thread increase strictly, even within a millisecond. */
void semel_uuid_make(const struct semel_env *env, char text_out[SEMEL_UUID_SIZE]);
/* 8-4-4-4-12 hexadecimal digits of either case, any version. */
bool semel_uuid_is_valid(const char *text);

#endif
