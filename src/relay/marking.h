/* SPDX-License-Identifier: Apache-2.0 */
/* From answers to marks: what becomes of each event of a load, and that it is written down.
 *
 * Invariants:
 * - A row is marked PUBLISHED only after the broker confirmed that very event.
 * - A load is marked as a whole, in one transaction that checks the lane's fence. Loads without a
 *   refusal share a statement, where the store can do that.
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

/* Marks every load whose events are all answered. any_out: there was one. */
semel_status semel_marking_settle(struct semel_marking *marking, bool *any_out, semel_error *error);
/* Only a planted bug calls it: marked, and a crash before the broker has it loses it. */
void semel_marking_pretend(struct semel_marking *marking, semel_error *error);

#endif
