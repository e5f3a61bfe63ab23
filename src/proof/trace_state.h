/* SPDX-License-Identifier: Apache-2.0 */
/* How an event stands at one subscription, in a sentence, for the end of its trace. */
#ifndef SEMEL_PROOF_TRACE_STATE_H
#define SEMEL_PROOF_TRACE_STATE_H

#include "broker/broker.h"
#include "proof/trace.h"
#include "store/store.h"

/* One look: the event, as far as it is known, and what was found of it. */
struct semel_trace_state_query {
	const char *event_id;
	const struct semel_event *event; /* as the outbox has it; NULL: it is not published */
	const struct semel_trace *trace;
	struct semel_broker *broker; /* NULL: it cannot be asked */
	const struct semel_env *env;
	struct semel_arena *arena;
	bool hides_text; /* why a breaker is open is not told */
};

/* Of this subscription of the store. *state_out: text NULL: the event is not its own. */
semel_status semel_trace_state_read(const struct semel_trace_state_query *of, semel_store *store,
				    const struct semel_subscription_row *row,
				    struct semel_trace_state *state_out, semel_error *error);

#endif
