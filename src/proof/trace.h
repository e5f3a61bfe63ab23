/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of one event: everything that the stores and the broker know about it. */
#ifndef SEMEL_PROOF_TRACE_H
#define SEMEL_PROOF_TRACE_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "store/store.h"

struct semel_trace_plan {
	semel_store *const *stores; /* the producer's and the consumers' */
	size_t store_count;
	const char *broker_url; /* queried for copies in transit, if it is set and reachable */
	const struct semel_env *env;
	bool hides_text; /* hides the texts of handlers, brokers and operators */
};

/* The state of the event at one subscription. */
struct semel_trace_state {
	const char *scope;   /* NULL: it has not been published yet */
	const char *state;   /* "done", "waiting", "stuck", … */
	const char *text;    /* a clause */
	const char *command; /* what to do; NULL: nothing, or the text says it */
};

struct semel_trace {
	struct semel_trace_entry *entries; /* ordered by time */
	size_t count;
	struct semel_trace_state *states; /* one for each subscription that the event is for */
	size_t state_count;
};

/* The trace is in the arena. NOT_FOUND: no store has the event. */
semel_status semel_trace_run(const struct semel_trace_plan *plan, const char *event_id,
			     struct semel_arena *arena, struct semel_trace *trace_out,
			     semel_error *error);

/* Appends the detail with the quoted text. */
void semel_trace_entry_describe(const struct semel_trace_entry *entry, struct semel_buffer *buffer);
/* Appends the JSON form. */
void semel_trace_to_json(const struct semel_trace *trace, const char *event_id,
			 struct semel_buffer *buffer);

#endif
