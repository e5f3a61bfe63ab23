/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of finished spans, and the thread that sends them; used by span.c only. */
#ifndef SEMEL_OBSERVE_EXPORT_H
#define SEMEL_OBSERVE_EXPORT_H

#include "base/buffer.h"
#include "observe/span.h"

/* Never waits. */
void semel_export_add(const struct semel_span *span);
/* The body of one request, OTLP's JSON. */
void semel_export_json(const struct semel_span *spans, size_t count, const char *service,
		       struct semel_buffer *text);

#endif
