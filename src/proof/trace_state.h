/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an event at one subscription, in a sentence, for the end of its trace. */
#ifndef SEMEL_PROOF_TRACE_STATE_H
#define SEMEL_PROOF_TRACE_STATE_H

#include "broker/broker.h"
#include "proof/trace.h"
#include "store/store.h"

/* The event, and what was found about it. */
struct semel_trace_state_query {
	const char *event_id;
	const struct semel_event *event; /* from the outbox; NULL: not published */
	const struct semel_trace *trace;
	struct semel_broker *broker; /* NULL: not reachable */
	const struct semel_env *env;
	struct semel_arena *arena;
	bool hides_text; /* hides the reason of an open breaker */
};

/* At this subscription of the store. text NULL: the event is not for it. */
semel_status semel_trace_state_read(const struct semel_trace_state_query *query, semel_store *store,
				    const struct semel_subscription_row *row,
				    struct semel_trace_state *state_out, semel_error *error);

#endif
