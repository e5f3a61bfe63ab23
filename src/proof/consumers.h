/* SPDX-License-Identifier: Apache-2.0 */
/* The live consumers of a scope, summed up from what each reports in the store. */
#ifndef SEMEL_PROOF_CONSUMERS_H
#define SEMEL_PROOF_CONSUMERS_H

#include "base/buffer.h"
#include "store/store.h"

struct semel_consumers {
	uint32_t alive;
	uint64_t in_flight;
	uint32_t waiting; /* of these: those that consume nothing at the moment */
	uint32_t breaker; /* the highest state: 0 closed, 1 half-open, 2 open */
	bool paused;
	char reason[256];    /* of one that waits; empty: none reports one */
	int64_t since_ms;    /* the longest wait; 0: none */
	int64_t next_try_ms; /* the earliest; 0: unknown */
};

/* Leaves out rows whose lease has expired or whose process is known to be dead. */
semel_status semel_consumers_read(semel_store *store, struct semel_text scope, int64_t now_ms,
				  struct semel_consumers *consumers_out, semel_error *error);
/* Hides the reason of an open breaker, which is a handler's text about some event. Reasons about
 * the store and the broker are our own texts, and stay. */
void semel_consumers_hide_reason(struct semel_consumers *consumers);
/* Appends why nothing is consumed, as a clause: "the subscription is paused", "http://… refuses
 * connections since 09:53, next try in 10 s", "no consumer is running". False: they are consuming,
 * and nothing was appended. */
bool semel_consumers_explain(const struct semel_consumers *consumers, int64_t now_ms,
			     struct semel_buffer *text);

#endif
