/* SPDX-License-Identifier: Apache-2.0 */
/* From outcomes to marks: decides what is done with each event of a batch, and writes it.
 *
 * Invariants:
 * - A row is marked PUBLISHED only after the broker confirmed that very event.
 * - A batch is marked as a whole, in one transaction that checks the lane's fence. Batches without
 *   a refusal are marked by one statement, where the store can do that.
 * - A refusal is marked as soon as it is known, with the events held behind it, before the rest of
 *   its batch. So the next owner of a lane finds it.
 * - Answered events are marked before the connections are closed or the lanes released.
 * - A batch that was read under an older lease is never marked: another relay has owned the rows
 *   since, and publishes them again under the same ids.
 * - A batch of all lanes is marked by its source, later and together with many others, unless an
 *   event in it was refused.
 *
 * What is done with a refused event is decided by a pure function:
 * - Only an outcome about this very event costs an attempt; outages are handled elsewhere.
 * - An event that can never be published (too large) fails at once, any other when its attempts are
 *   used up.
 * - STALLED (its partition accepts nothing at the moment) costs no attempt and never fails.
 * - HELD (an earlier event of its aggregate was refused) parks the event.
 */
#ifndef SEMEL_RELAY_MARKING_H
#define SEMEL_RELAY_MARKING_H

#include "base/backoff.h"
#include "relay/window.h"

#include <semel/relay.h>

#define SEMEL_MARKING_BATCHES_MAX 16 /* one statement takes */

struct semel_series;

/* What a relay counts for the metrics. Per event it is a plain addition; the series are updated
 * once per step. */
struct semel_relay_counters {
	uint64_t offered, published, nacked, returned, failed; /* since the last report */
	struct semel_series *attempts, *done, *refused, *unroutable, *letters, *outstanding;
	struct semel_series *confirm;
};

struct semel_refusal_policy {
	uint32_t attempts_max;
	struct semel_backoff backoff;
	semel_poison poison;
};

struct semel_marking {
	const struct semel_env *env;
	const struct semel_refusal_policy *policy;
	struct semel_lanes *lanes;
	struct semel_source *source;
	semel_store *store;
	struct semel_window *window;
	struct semel_relay_counters counters;
	uint64_t published;
};

/* What the calls of a step have done. */
struct semel_marking_result {
	bool marked;   /* at least one batch is finished */
	bool deferred; /* a refused row is not visible yet: repeat the call soon */
};

/* Marks every batch whose events are all answered. */
semel_status semel_marking_mark_batches(struct semel_marking *marking,
					struct semel_marking_result *result, semel_error *error);
/* Marks the refusals in batches that are not fully answered. */
semel_status semel_marking_mark_refusals(struct semel_marking *marking,
					 struct semel_marking_result *result, semel_error *error);
/* Marks every answered event, before the connections are closed; the others are read again. No
 * outcome is polled after this. */
semel_status semel_marking_mark_answered(struct semel_marking *marking, semel_error *error);
/* Called only by a planted bug: marks events that the broker has not confirmed, so a crash loses
 * them. */
void semel_marking_mark_unconfirmed(struct semel_marking *marking, semel_error *error);

/* Fills kind, attempts, due_ms, holds and blocks of the mark; row is set by the caller. */
void semel_refusal_decide(const struct semel_refusal_policy *policy, semel_status outcome,
			  int64_t now_ms, uint64_t chance, struct semel_mark *mark);

void semel_relay_counters_open(struct semel_relay_counters *counters);
/* The broker reported the outcome of one event, took_us after it was offered. */
void semel_relay_counters_add_outcome(struct semel_relay_counters *counters, semel_status outcome,
				      int64_t took_us);
void semel_relay_counters_report(struct semel_relay_counters *counters, uint32_t outstanding);

#endif
