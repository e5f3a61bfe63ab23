/* SPDX-License-Identifier: Apache-2.0 */
/* Source → broker → mark, in loads that overlap: the next one is read while the last is confirmed.
 *
 * Invariants:
 * - A row is marked PUBLISHED only after the broker confirmed that very event.
 * - The window is bounded by count and bytes, and holds what was offered until it is marked: a
 *   crash repeats no more than that. An answer that does not come within the confirm time-out is an
 *   outage.
 * - A load is marked as a whole, in one transaction that checks the lane's fence.
 * - After a refusal nothing more is read until it is marked, so that its siblings are found held.
 * - After an outage everything not marked is read again: the same ids once more, never fewer.
 */
#ifndef SEMEL_RELAY_PIPELINE_H
#define SEMEL_RELAY_PIPELINE_H

#include "broker/broker.h"
#include "relay/refusal.h"
#include "relay/source.h"

struct semel_pipeline_options {
	uint32_t window;
	uint64_t window_bytes;
	int64_t confirm_timeout_ms;
	struct semel_refusal_policy refusal;
};

struct semel_pipeline;

/* lanes and source outlive it. */
semel_status semel_pipeline_open(const struct semel_pipeline_options *options,
				 const struct semel_env *env, struct semel_lanes *lanes,
				 struct semel_source *source, struct semel_pipeline **pipeline_out,
				 semel_error *error);
/* The connections to work with from now on. Everything in flight on earlier ones is forgotten, and
 * will be read again. */
void semel_pipeline_connect(struct semel_pipeline *pipeline, semel_store *store,
			    struct semel_broker *broker);
/* Reads (unless finishing), offers, hears, marks; waits at most wait_ms for answers. busy_out:
 * something was done or is in flight. OUTAGE: connect anew. */
semel_status semel_pipeline_step(struct semel_pipeline *pipeline, bool finishing, bool *busy_out,
				 semel_error *error);
uint64_t semel_pipeline_published(const struct semel_pipeline *pipeline);
/* pipeline may be NULL. */
void semel_pipeline_close(struct semel_pipeline *pipeline);

#endif
