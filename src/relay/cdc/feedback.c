/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of open batches, by ticket. */
#include "relay/cdc/feedback.h"

#include <assert.h>

static uint64_t entry_of(uint64_t ticket)
{
	return ticket % SEMEL_FEEDBACK_MAX;
}

void semel_feedback_reset(struct semel_feedback *feedback)
{
	feedback->first = feedback->next;
	feedback->position = 0;
}

bool semel_feedback_is_full(const struct semel_feedback *feedback)
{
	return feedback->next - feedback->first >= SEMEL_FEEDBACK_MAX;
}

bool semel_feedback_is_idle(const struct semel_feedback *feedback)
{
	return feedback->next == feedback->first;
}

static void reach(struct semel_feedback *feedback, uint64_t position)
{
	if (position > feedback->position)
		feedback->position = position;
}

uint64_t semel_feedback_open(struct semel_feedback *feedback, uint64_t position)
{
	assert(!semel_feedback_is_full(feedback));
	uint64_t ticket = feedback->next++;
	feedback->batches[entry_of(ticket)].position = position;
	feedback->batches[entry_of(ticket)].complete = false;
	return ticket;
}

void semel_feedback_pass(struct semel_feedback *feedback, uint64_t position)
{
	if (semel_feedback_is_idle(feedback)) {
		reach(feedback, position);
		return;
	}
	uint64_t last = entry_of(feedback->next - 1);
	if (position > feedback->batches[last].position)
		feedback->batches[last].position = position;
}

void semel_feedback_complete(struct semel_feedback *feedback, uint64_t ticket)
{
	if (ticket < feedback->first || ticket >= feedback->next)
		return; /* of a stream that has ended since */
	feedback->batches[entry_of(ticket)].complete = true;
	while (feedback->first < feedback->next &&
	       feedback->batches[entry_of(feedback->first)].complete)
		reach(feedback, feedback->batches[entry_of(feedback->first++)].position);
}
