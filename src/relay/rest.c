/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/rest.h"

#define HEAR_MS 5 /* answers that nobody waits for are heard with the next row, or after this */
#define OWES_MS 1

int64_t semel_rest_mark_at_ms(const struct semel_mark_facts *facts)
{
	if (facts->loads == 0)
		return INT64_MAX;
	if (facts->refused || facts->urgent || facts->rows >= facts->rows_min ||
	    facts->loads >= facts->loads_max)
		return 0;
	return facts->answered_at_ms + facts->delay_ms;
}

/* Single rows: whoever sleeps is woken by the next one, and hears the answers then. To be woken by
 * each answer as well would double the work. While many come, waiting for answers lets them gather.
 */
static bool may_hear_later(const struct semel_answer_facts *facts)
{
	return facts->broker_works_in_background && facts->seldom && !facts->transactional &&
	       facts->source_listens && facts->has_room;
}

enum semel_answers semel_rest_answers(const struct semel_answer_facts *facts)
{
	if (may_hear_later(facts))
		return SEMEL_ANSWERS_LATER;
	return facts->broker_wakes && facts->source_knows_dry ? SEMEL_ANSWERS_WAKE
							      : SEMEL_ANSWERS_AWAITED;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t semel_rest_ms(const struct semel_rest_facts *facts)
{
	int64_t rest_ms = facts->owes ? OWES_MS : facts->most_ms;

	if (facts->unanswered > 0 && facts->answers == SEMEL_ANSWERS_AWAITED)
		return 0; /* the next step waits */
	if (facts->progressed && facts->may_read)
		return 0;
	if (facts->unanswered > 0 && facts->answers == SEMEL_ANSWERS_LATER)
		rest_ms = least(rest_ms, HEAR_MS);
	if (facts->mark_at_ms == INT64_MAX)
		return rest_ms;
	if (facts->mark_at_ms <= facts->now_ms)
		return 0;
	return least(rest_ms, facts->mark_at_ms - facts->now_ms);
}
