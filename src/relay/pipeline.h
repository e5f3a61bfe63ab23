/* SPDX-License-Identifier: Apache-2.0 */
/* Source → broker → mark, in batches that overlap: the next one is read while the last is
 * confirmed.
 *
 * Invariants, besides those of window.h and marking.h:
 * - After a refusal nothing more is read until it is marked, so that later events of its aggregate
 *   are read as held.
 * - After an outage everything that is not marked is read again: the same ids once more, never
 *   fewer.
 * - While the pipeline waits for the broker, refusals are marked and leases renewed.
 *
 * Events that were committed together are published together, or not at all, where the broker has
 * transactions:
 * - The broker commits only between two transactions of the source, or when one alone fills the
 *   window: then it is published in parts, and the log says so.
 * - Once an event of a transaction is rejected for good, the rest of that transaction is refused.
 * - The transactional session begins only when the first batch is offered: the lanes are ours then,
 *   and an earlier producer of the same name is fenced off.
 */
#ifndef SEMEL_RELAY_PIPELINE_H
#define SEMEL_RELAY_PIPELINE_H

#include "broker/broker.h"
#include "relay/marking.h"

struct semel_pipeline_options {
	uint32_t window;
	uint64_t window_bytes;
	int64_t confirm_timeout_ms;
	int64_t mark_delay_ms; /* 0: mark at once */
	struct semel_refusal_policy refusal;
	bool transactions; /* what was committed together is published together, or not at all */
};

enum semel_step {
	SEMEL_STEP_READ,   /* read rows, poll outcomes, mark */
	SEMEL_STEP_POLL,   /* poll outcomes, mark */
	SEMEL_STEP_FINISH, /* the same, and mark at once */
};

struct semel_pipeline;

/* lanes and source outlive it. */
semel_status semel_pipeline_open(const struct semel_pipeline_options *options,
				 const struct semel_env *env, struct semel_lanes *lanes,
				 struct semel_source *source, struct semel_pipeline **pipeline_out,
				 semel_error *error);
/* The connections to work with from now on. What was in flight on earlier ones is discarded, and
 * will be read again. */
void semel_pipeline_connect(struct semel_pipeline *pipeline, semel_store *store,
			    struct semel_broker *broker);
/* Reads, offers, polls outcomes, marks; waits a little for outcomes unless they wake the relay.
 * busy_out: something was read or is in flight. OUTAGE: reconnect. */
semel_status semel_pipeline_step(struct semel_pipeline *pipeline, enum semel_step kind,
				 bool *busy_out, semel_error *error);
/* After a step: the time until the next step is due unless a wakeup or an outcome comes first; at
 * most most_ms. 0: step again at once. */
int64_t semel_pipeline_sleep_ms(const struct semel_pipeline *pipeline, int64_t most_ms);
/* Something is in flight. */
bool semel_pipeline_has_in_flight(const struct semel_pipeline *pipeline);
/* There may be rows that the next step should read without a wakeup. */
bool semel_pipeline_has_more(const struct semel_pipeline *pipeline);
/* The window has enough free places to read more. */
bool semel_pipeline_can_read(const struct semel_pipeline *pipeline);
/* Before the connections are closed: marks the answered events of batches that are not answered as
 * a whole, so that they are not published again. The next call connects or closes. */
void semel_pipeline_mark_answered(struct semel_pipeline *pipeline);
/* The last step failed at the broker. */
bool semel_pipeline_has_lost_broker(const struct semel_pipeline *pipeline);
uint64_t semel_pipeline_published(const struct semel_pipeline *pipeline);
/* pipeline may be NULL. */
void semel_pipeline_close(struct semel_pipeline *pipeline);

#endif
