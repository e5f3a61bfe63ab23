/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks that a store runs once per row, on the caller's thread, inside the call. Their
 * arguments live until they return. A status other than OK ends the reading and is returned. */
#ifndef SEMEL_STORE_VISITORS_H
#define SEMEL_STORE_VISITORS_H

#include "base/text.h"

#include <semel/status.h>

#include <stdint.h>

/* Ids in ascending byte order. status: the row's, as text. time_ms: the event's own; of the inbox,
 * which does not keep it, the start of its week. */
typedef semel_status (*semel_id_visitor)(struct semel_text id, const char *status,
					 struct semel_text topic, int64_t time_ms, void *user);

typedef void (*semel_text_visitor)(struct semel_text text, void *user);

#endif
