/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of an event's delivery, for OpenTelemetry collectors (OTLP over HTTP).
 *
 * - Off unless OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT) is set; the check is one test of
 *   a flag.
 * - A finished span goes into a bounded queue, and a thread sends what is there. No caller waits
 *   for it: a span that does not fit is dropped and counted.
 * - The event's traceparent joins its spans into one trace. For an event without one (inserted by
 *   plain SQL) the trace id is its event id. A traceparent with the flag "not sampled" produces no
 *   spans.
 * Any thread may call these functions.
 */
#ifndef SEMEL_OBSERVE_SPAN_H
#define SEMEL_OBSERVE_SPAN_H

#include "base/buffer.h"
#include "base/env.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_TRACEPARENT_SIZE    56 /* with the NUL */
#define SEMEL_SPAN_ATTRIBUTES_MAX 8
#define SEMEL_SPAN_TEXT_SIZE      128

enum semel_span_kind { SEMEL_SPAN_INTERNAL = 1, SEMEL_SPAN_PRODUCER = 4, SEMEL_SPAN_CONSUMER = 5 };

/* The trace and the parent of a span. */
struct semel_span_context {
	uint8_t trace[16];
	uint8_t span[8]; /* the parent of later spans; all zero: none */
	bool sampled;
};

struct semel_span_attribute {
	const char *name; /* a constant */
	char text[SEMEL_SPAN_TEXT_SIZE];
	int64_t number;
	bool is_number;
};

struct semel_span {
	const char *name; /* a constant */
	enum semel_span_kind kind;
	struct semel_span_context parent;
	uint8_t id[8];
	int64_t began_ms, ended_ms; /* since 1970 */
	const char *failure;        /* a constant; NULL: no failure */
	struct semel_span_attribute attributes[SEMEL_SPAN_ATTRIBUTES_MAX];
	uint32_t attribute_count;
};

/* Is an endpoint configured? */
bool semel_spans_are_enabled(void);

/* Parses "00-…-…-01". False: it is not a traceparent. */
bool semel_traceparent_parse(struct semel_text text, struct semel_span_context *context_out);
void semel_traceparent_format(const struct semel_span_context *context,
			      char out[SEMEL_TRACEPARENT_SIZE]);
/* Begins a new trace, which is sampled as OTEL_TRACES_SAMPLER says. */
struct semel_span_context semel_trace_begin(const struct semel_env *env);
/* The context of an event: its traceparent, otherwise the trace whose id is the event id. */
struct semel_span_context semel_span_context_of(struct semel_text traceparent,
						struct semel_text event_id);

struct semel_span semel_span_make(const char *name, enum semel_span_kind kind,
				  const struct semel_span_context *parent,
				  const struct semel_env *env);
/* The context with this span as the parent of other spans. */
struct semel_span_context semel_span_as_parent(const struct semel_span *span);
void semel_span_text(struct semel_span *span, const char *name, struct semel_text value);
void semel_span_number(struct semel_span *span, const char *name, int64_t value);
/* Puts the span into the queue. A span that is not sampled is not exported. */
void semel_span_end(const struct semel_span *span);

/* Appends the body of one request, as OTLP JSON. */
void semel_spans_to_json(const struct semel_span *spans, size_t count, const char *service,
			 struct semel_buffer *text);
/* Waits at most wait_ms until the queue is sent. Call this before the process ends. */
void semel_spans_flush(int64_t wait_ms);
/* Spans that were dropped since the process began. */
uint64_t semel_spans_dropped(void);

#endif
