/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/pacing.h"

#define DEFERRED_POLL_MS 5 /* the longest delay of a deferred poll */
#define UNFINISHED_MS    1

int64_t semel_pacing_mark_at_ms(const struct semel_mark_facts *facts)
{
	if (facts->batches == 0)
		return INT64_MAX;
	if (facts->refused || facts->urgent || facts->rows >= facts->rows_min ||
	    facts->batches >= facts->batches_max)
		return 0;
	return facts->answered_at_ms + facts->delay_ms;
}

/* Single rows: the next row wakes the relay, which polls the outcomes then. A second wakeup for
 * each outcome would double the work. Where rows are frequent, waiting for outcomes lets them
 * collect.
 */
static bool may_defer_outcomes(const struct semel_outcome_facts *facts)
{
	return facts->broker_works_in_background && facts->sparse && !facts->transactional &&
	       facts->source_listens && facts->has_room;
}

enum semel_outcome_mode semel_pacing_outcome_mode(const struct semel_outcome_facts *facts)
{
	if (may_defer_outcomes(facts))
		return SEMEL_OUTCOMES_DEFERRED;
	return facts->broker_wakes && facts->source_reports_exhausted ? SEMEL_OUTCOMES_WAKE
								      : SEMEL_OUTCOMES_POLLED;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t semel_pacing_sleep_ms(const struct semel_pacing_facts *facts)
{
	int64_t sleep_ms = facts->unfinished ? UNFINISHED_MS : facts->most_ms;

	if (facts->unanswered > 0 && facts->outcomes == SEMEL_OUTCOMES_POLLED)
		return 0; /* the next step waits */
	if (facts->progressed && facts->may_read)
		return 0;
	if (facts->unanswered > 0 && facts->outcomes == SEMEL_OUTCOMES_DEFERRED)
		sleep_ms = least(sleep_ms, DEFERRED_POLL_MS);
	if (facts->mark_at_ms == INT64_MAX)
		return sleep_ms;
	if (facts->mark_at_ms <= facts->now_ms)
		return 0;
	return least(sleep_ms, facts->mark_at_ms - facts->now_ms);
}
