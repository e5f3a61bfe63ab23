/* SPDX-License-Identifier: Apache-2.0 */
/* The hash for everything that is spread by aggregate: lanes, partitions, workers. It is part of
 * the file format (a topic's partitions), so it never changes. */
#ifndef SEMEL_EVENT_HASH_H
#define SEMEL_EVENT_HASH_H

#include "base/text.h"

#include <stdint.h>

/* FNV-1a over "type", a NUL byte, "id", finished by a multiply-xorshift mix. */
uint64_t semel_hash_aggregate(struct semel_text type, struct semel_text id);

#endif
