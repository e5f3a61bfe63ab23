/* SPDX-License-Identifier: Apache-2.0 */
/* The consumers of a scope that are alive, as they say themselves, taken together. */
#ifndef SEMEL_PROOF_CONSUMERS_H
#define SEMEL_PROOF_CONSUMERS_H

#include "base/buffer.h"
#include "store/store.h"

struct semel_consumers {
	uint32_t alive;
	uint64_t in_flight;
	uint32_t waiting; /* of them, so many take nothing for now */
	uint32_t breaker; /* the highest: 0 closed, 1 half-open, 2 open */
	bool paused;
	char reason[256];    /* of one that waits; empty: none says why */
	int64_t since_ms;    /* the longest wait; 0: none */
	int64_t next_try_ms; /* the earliest; 0: not known */
};

/* Rows whose lease is over, or whose process is known to be dead, do not count. */
semel_status semel_consumers_read(semel_store *store, struct semel_text scope, int64_t now_ms,
				  struct semel_consumers *consumers_out, semel_error *error);
/* Why a breaker is open is what a handler said of some event: it is not told. Why store or broker
 * are waited for is ours to tell. */
void semel_consumers_hide_reason(struct semel_consumers *consumers);
/* Why they take nothing, as a clause: "paused", "http://… refuses connections since 09:53, next try
 * in 10 s", "no consumer is running". Nothing is written when they work. Says whether it wrote. */
bool semel_consumers_explain(const struct semel_consumers *consumers, int64_t now_ms,
			     struct semel_buffer *text);

#endif
