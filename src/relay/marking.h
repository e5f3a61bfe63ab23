/* SPDX-License-Identifier: Apache-2.0 */
/* From outcomes to marks: what becomes of each event of a batch, and that it is written down.
 *
 * Invariants:
 * - A row is marked PUBLISHED only after the broker confirmed that very event.
 * - A batch is marked as a whole, in one transaction that checks the lane's fence. Batches without
 * a refusal share a statement, where the store can do that.
 * - A refusal waits for nobody: it is marked as soon as it is heard, with what is held behind it,
 * and the rest of its batch later. So a lane that changes hands takes it along.
 * - What was answered is marked before the connections are let go of, or the lanes released.
 * - What was read under an older lease is never marked: another relay has had the rows meanwhile,
 *   and sends them again under the same ids.
 * - A batch of all lanes is marked by its source, later and with many others, unless an event in it
 *   was refused.
 */
#ifndef SEMEL_RELAY_MARKING_H
#define SEMEL_RELAY_MARKING_H

#include "relay/counters.h"
#include "relay/refusal.h"
#include "relay/window.h"

#define SEMEL_MARKING_BATCHES_MAX 16 /* one statement takes */

struct semel_marking {
	const struct semel_env *env;
	const struct semel_refusal_policy *policy;
	struct semel_lanes *lanes;
	struct semel_source *source;
	semel_store *store;
	struct semel_window *window;
	struct semel_relay_counters *counters;
	uint64_t published;
};

/* What a call has done. */
struct semel_marking_result {
	bool marked;   /* a batch */
	bool deferred; /* a refused row cannot be seen yet: the same again, soon */
};

/* Marks every batch whose events are all answered. */
semel_status semel_marking_mark_batches(struct semel_marking *marking,
					struct semel_marking_result *result, semel_error *error);
/* Marks the refusals in batches of which other events are not answered. */
semel_status semel_marking_mark_refusals(struct semel_marking *marking,
					 struct semel_marking_result *result, semel_error *error);
/* Marks every event that is answered; the rest will be read again. Nothing is heard after this. */
semel_status semel_marking_mark_answered(struct semel_marking *marking, semel_error *error);
/* Only a planted bug calls it: marked, and a crash before the broker has it loses it. */
void semel_marking_mark_unconfirmed(struct semel_marking *marking, semel_error *error);

#endif
