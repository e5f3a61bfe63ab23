/* SPDX-License-Identifier: Apache-2.0 */
/* The life of one event, from every store that knows something of it. */
#ifndef SEMEL_PROOF_TRACE_H
#define SEMEL_PROOF_TRACE_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "store/store.h"

struct semel_trace_plan {
	semel_store *const *stores; /* the producer's and the consumers' */
	size_t store_count;
	const char
		*broker_url; /* asked what is still on its way; NULL, or out of reach: it is not */
	const struct semel_env *env;
	bool hides_text; /* what handlers, brokers and people said of it is not told */
};

/* How it stands at one subscription. */
struct semel_trace_state {
	const char *scope;   /* NULL: it has not been published yet */
	const char *state;   /* "done", "waiting", "stuck", … */
	const char *text;    /* a clause */
	const char *command; /* what helps; NULL: nothing needs to be done, or it is in the text */
};

struct semel_trace {
	struct semel_trace_entry *facts; /* in the order of time */
	size_t count;
	struct semel_trace_state *states; /* one for each subscription whose event it is */
	size_t state_count;
};

/* In the arena. NOT_FOUND when nobody knows the event. */
semel_status semel_trace_run(const struct semel_trace_plan *plan, const char *event_id,
			     struct semel_arena *arena, struct semel_trace *trace_out,
			     semel_error *error);

/* The detail with what was said, for people; text is appended. */
void semel_trace_entry_describe(const struct semel_trace_entry *fact, struct semel_buffer *buffer);
/* As other programs read it; text is appended. */
void semel_trace_to_json(const struct semel_trace *trace, const char *event_id,
			 struct semel_buffer *buffer);

#endif
