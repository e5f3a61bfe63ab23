/* SPDX-License-Identifier: Apache-2.0 */
/* The promise; see reference.h. */
#include "model/reference.h"

#include <stddef.h>

/* ---- 2 and 3: what may run ------------------------------------------------------------------- */

static bool asked_again(const struct asked *asked, const struct seen *seen)
{
	return asked->again > 0 && seen->effects <= asked->again;
}

const char *reference_run(struct reference *reference, int scope, int event,
			  const struct terms *terms, const struct seen *seen)
{
	struct asked *asked = &reference->asked[scope][event];

	asked->runs++;
	if (terms->once_at_most &&
	    asked->runs > 1 + asked->times + asked->again + asked->interrupted)
		return "it was run a second time without a request";
	if (asked_again(asked, seen))
		return NULL;
	/* With at-most-once an event is claimed as done before it is run. */
	if (seen->claim == CLAIM_DONE && !terms->once_at_most && !terms->may_lose && terms->tracked)
		return "it was run although it was done";
	if (seen->letter == LETTER_PENDING && asked->replays <= seen->replays)
		return "it was run although its dead letter is pending";
	if (seen->letter == LETTER_DISCARDED)
		return "it was run although it was discarded";
	if (seen->letter == LETTER_REPLAYED && seen->settled && terms->tracked)
		return "it was run although its replay was processed";
	if (seen->letter == LETTER_NONE && seen->claim == CLAIM_FAILED && terms->tracked &&
	    asked->replays <= asked->answered)
		return "it was run although it was given up";
	return NULL;
}

/* ---- 1 and 4: effects ------------------------------------------------------------------------ */

static bool same_key(const struct reference *reference, const struct terms *terms, int left,
		     int right)
{
	const struct event *one = &reference->events[left], *other = &reference->events[right];

	return terms->whole_topic ? one->topic == other->topic : one->aggregate == other->aggregate;
}

/* Was the later event applied before the earlier one, or without it? */
static bool is_overtaken(const struct reference *reference, int scope, const struct seen *seen,
			 int earlier, int later)
{
	const struct asked *asked = reference->asked[scope];

	/* An event that was given up holds no other event, even if it is run later on request. */
	if (seen[later].effects == 0 || asked[earlier].excused || asked[later].excused ||
	    asked[earlier].given_up)
		return false;
	return seen[earlier].effects == 0 || seen[earlier].first > seen[later].first;
}

static bool is_given_up(const struct terms *terms, const struct seen *seen)
{
	if (terms->may_lose && seen->claim == CLAIM_DONE)
		return true;
	return seen->letter == LETTER_DISCARDED ||
	       (seen->letter == LETTER_NONE && seen->claim == CLAIM_FAILED) ||
	       (seen->row == ROW_FAILED && seen->refused != LETTER_PENDING);
}

const char *reference_effects(struct reference *reference, int scope, const struct terms *terms,
			      const struct seen *seen)
{
	struct asked *asked = reference->asked[scope];

	for (int i = 0; i < reference->count; i++) {
		if (seen[i].replays > asked[i].answered)
			asked[i].answered = seen[i].replays;
		asked[i].given_up = asked[i].given_up || is_given_up(terms, &seen[i]);
		if (terms->tracked && seen[i].effects > 1 + asked[i].again)
			return "its effect was applied a second time without a request";
		if (seen[i].claim == CLAIM_DONE && seen[i].effects == 0 && !terms->may_lose)
			return "it is claimed to be done, and its effect is not there";
	}
	for (int later = 1; terms->in_order && later < reference->count; later++)
		for (int i = 0; i < later; i++)
			if (reference->events[i].committed && reference->events[later].committed &&
			    same_key(reference, terms, i, later) &&
			    is_overtaken(reference, scope, seen, i, later))
				return "an event was overtaken by a later one of its key";
	return NULL;
}

/* ---- 5: accounted for ------------------------------------------------------------------------ */

struct terms terms_weaker(const struct terms *some, const struct terms *others)
{
	return (struct terms){ .once_at_most = some->once_at_most && others->once_at_most,
			       .may_lose = some->may_lose || others->may_lose,
			       .tracked = some->tracked && others->tracked,
			       .in_order = some->in_order && others->in_order,
			       .whole_topic = some->whole_topic && others->whole_topic };
}

bool reference_accounted(const struct terms *terms, const struct seen *seen)
{
	if (seen->claim == CLAIM_DONE || (!terms->tracked && seen->effects > 0))
		return true;
	if (seen->row == ROW_FAILED || seen->behind_refused)
		return true;
	if (seen->letter == LETTER_PENDING || seen->letter == LETTER_DISCARDED)
		return true;
	if (seen->parked)
		return seen->behind_pending;
	return seen->letter == LETTER_NONE && seen->claim == CLAIM_FAILED;
}
