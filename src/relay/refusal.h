/* SPDX-License-Identifier: Apache-2.0 */
/* What is done with an event that the broker refused. Pure.
 *
 * - Only an outcome about this very event costs an attempt; outages are handled elsewhere.
 * - An event that can never be published (too large) fails at once, any other when its attempts are
 *   used up.
 * - STALLED (its partition accepts nothing at the moment) costs no attempt and never fails.
 * - HELD (an earlier event of its aggregate was refused) parks the event.
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
