/* SPDX-License-Identifier: Apache-2.0 */
/* From answers to marks: what becomes of each event of a load, and that it is written down.
 *
 * Invariants:
 * - A row is marked PUBLISHED only after the broker confirmed that very event.
 * - A load is marked as a whole, in one transaction that checks the lane's fence. Loads without a
 *   refusal share a statement, where the store can do that.
 * - A refusal waits for nobody: it is marked as soon as it is heard, with what is held behind it,
 * and the rest of its load later. So a lane that changes hands takes it along.
 * - What was answered is marked before the connections are let go of, or the lanes released.
 * - What was read under an older lease is never marked: another relay has had the rows meanwhile,
 *   and sends them again under the same ids.
 * - A load of all lanes is marked by its source, later and with many others, unless an event in it
 *   was refused.
 */
#ifndef SEMEL_RELAY_MARKING_H
#define SEMEL_RELAY_MARKING_H

#include "relay/refusal.h"
#include "relay/tally.h"
#include "relay/window.h"

#define SEMEL_MARKING_LOADS_MAX 16 /* one statement takes */

struct semel_marking {
	const struct semel_env *env;
	const struct semel_refusal_policy *policy;
	struct semel_lanes *lanes;
	struct semel_source *source;
	semel_store *store;
	struct semel_window *window;
	struct semel_relay_tally *tally;
	uint64_t published;
};

/* What a call has done. */
struct semel_marking_result {
	bool settled;  /* a load */
	bool deferred; /* a refused row cannot be seen yet: the same again, soon */
};

/* Marks every load whose events are all answered. */
semel_status semel_marking_settle(struct semel_marking *marking,
				  struct semel_marking_result *result, semel_error *error);
/* Marks the refusals in loads of which other events are not answered. */
semel_status semel_marking_note(struct semel_marking *marking, struct semel_marking_result *result,
				semel_error *error);
/* Marks every event that is answered; the rest will be read again. Nothing is heard after this. */
semel_status semel_marking_salvage(struct semel_marking *marking, semel_error *error);
/* Only a planted bug calls it: marked, and a crash before the broker has it loses it. */
void semel_marking_pretend(struct semel_marking *marking, semel_error *error);

#endif
