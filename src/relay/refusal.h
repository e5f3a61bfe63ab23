/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of an event that the broker would not take. Pure.
 *
 * - Only an outcome about this very event costs an attempt; an outage never comes here.
 * - What can never be taken (too large) is given up at once; the rest when the budget is spent.
 * - STALLED (its partition takes nothing for now) costs no attempt and is never given up.
 * - HELD (an earlier event of its aggregate was refused) is no outcome about this event.
 */
#ifndef SEMEL_RELAY_REFUSAL_H
#define SEMEL_RELAY_REFUSAL_H

#include "base/backoff.h"
#include "store/store.h"

#include <semel/relay.h>

struct semel_refusal_policy {
	uint32_t attempts_max;
	struct semel_backoff backoff;
	semel_poison poison;
};

/* Fills kind, attempts, due_ms, holds and blocks of the mark; row is set by the caller. */
void semel_refusal_decide(const struct semel_refusal_policy *policy, semel_status outcome,
			  int64_t now_ms, uint64_t chance, struct semel_mark *mark);

#endif
