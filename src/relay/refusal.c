/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/refusal.h"

#include "fault/plant.h"

#define STALLED_STEP 4 /* of the backoff: the delay of a fourth attempt, each time */

static void give_up(const struct semel_refusal_policy *policy, struct semel_mark *mark)
{
	mark->kind = SEMEL_MARK_FAILED;
	mark->holds = policy->poison != SEMEL_POISON_SKIP;
	mark->blocks = policy->poison == SEMEL_POISON_BLOCK;
}

void semel_refusal_decide(const struct semel_refusal_policy *policy, semel_status outcome,
			  int64_t now_ms, uint64_t chance, struct semel_mark *mark)
{
	if (outcome == SEMEL_OK ||
	    (SEMEL_PLANTED("refused-is-published") && outcome == SEMEL_TOO_LARGE)) {
		mark->kind = SEMEL_MARK_PUBLISHED;
		return;
	}
	if (outcome == SEMEL_HELD) {
		mark->kind = SEMEL_MARK_PARKED;
		return;
	}
	if (outcome == SEMEL_STALLED) {
		mark->kind = SEMEL_MARK_RETRY;
		mark->attempts = mark->row->attempts;
		mark->due_ms = now_ms + semel_backoff_ms(policy->backoff, STALLED_STEP, chance);
		return;
	}
	mark->attempts = mark->row->attempts + 1;
	if (semel_status_class(outcome) != SEMEL_CLASS_RETRY ||
	    mark->attempts >= policy->attempts_max) {
		give_up(policy, mark);
		return;
	}
	mark->kind = SEMEL_MARK_RETRY;
	mark->due_ms = now_ms + semel_backoff_ms(policy->backoff, mark->attempts, chance);
}
