/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/retry.h"

#include <stddef.h>

static int64_t at_least(int64_t delay_ms, int64_t requested_ms)
{
	if (requested_ms > SEMEL_RETRY_AFTER_MAX_MS)
		requested_ms = SEMEL_RETRY_AFTER_MAX_MS;
	return delay_ms > requested_ms ? delay_ms : requested_ms;
}

enum semel_retry semel_retry_next(const struct semel_retry_policy *policy,
				  const struct semel_attempt *attempt, uint64_t chance,
				  int64_t *delay_ms_out)
{
	*delay_ms_out = 0;
	if (semel_status_class(attempt->status) == SEMEL_CLASS_OUTAGE)
		return SEMEL_RETRY_FREE;
	if (semel_status_class(attempt->status) != SEMEL_CLASS_RETRY ||
	    attempt->number >= policy->attempts_max)
		return SEMEL_RETRY_GIVE_UP;
	if (attempt->number < policy->immediate_max && attempt->retry_after_ms == 0) {
		*delay_ms_out = semel_backoff_ms(policy->immediate, attempt->number, chance);
		return SEMEL_RETRY_NOW;
	}
	uint32_t tier = attempt->number < policy->immediate_max
				? 1
				: attempt->number - policy->immediate_max + 1;
	*delay_ms_out =
		at_least(semel_backoff_ms(policy->delayed, tier, chance), attempt->retry_after_ms);
	return SEMEL_RETRY_LATER;
}

/* ---- time-outs ------------------------------------------------------------------------------- */

/* 0 means no event, so a hash of 0 is stored as 1. */
static uint64_t name_of(uint64_t event)
{
	return event ? event : 1;
}

static size_t find(const struct semel_timeouts *timeouts, uint64_t event)
{
	size_t at = 0;

	while (at < SEMEL_TIMEOUTS_REMEMBERED && timeouts->events[at].event != name_of(event))
		at++;
	return at;
}

/* Have several other events timed out since the last answer? */
static bool several_timed_out(const struct semel_timeouts *timeouts, uint64_t event)
{
	uint32_t others = 0;

	for (size_t i = 0; i < SEMEL_TIMEOUTS_REMEMBERED; i++)
		others += timeouts->events[i].event != 0 &&
			  timeouts->events[i].event != name_of(event) &&
			  timeouts->events[i].last == timeouts->answers;
	return others >= SEMEL_TIMEOUTS_SEVERAL;
}

uint64_t semel_timeouts_begin(struct semel_timeouts *timeouts)
{
	return ++timeouts->begun;
}

void semel_timeouts_answered(struct semel_timeouts *timeouts, uint64_t call)
{
	timeouts->answers++;
	if (call > timeouts->last_answered)
		timeouts->last_answered = call;
}

bool semel_timeouts_count(struct semel_timeouts *timeouts, uint64_t event, uint64_t call,
			  bool presumed_up)
{
	size_t at = find(timeouts, event);

	if (at == SEMEL_TIMEOUTS_REMEMBERED) {
		at = timeouts->next;
		timeouts->next = (timeouts->next + 1) % SEMEL_TIMEOUTS_REMEMBERED;
		timeouts->events[at].event = name_of(event);
		timeouts->events[at].first = timeouts->answers;
		timeouts->events[at].overtaken = false;
	}
	timeouts->events[at].last = timeouts->answers;
	if (timeouts->last_answered > call)
		timeouts->events[at].overtaken = true;
	bool was_up = presumed_up || timeouts->events[at].overtaken ||
		      timeouts->events[at].first < timeouts->answers;
	return was_up && !several_timed_out(timeouts, event);
}

bool semel_timeouts_has(const struct semel_timeouts *timeouts, uint64_t event)
{
	return find(timeouts, event) < SEMEL_TIMEOUTS_REMEMBERED;
}

void semel_timeouts_forget(struct semel_timeouts *timeouts, uint64_t event)
{
	size_t at = find(timeouts, event);

	if (at < SEMEL_TIMEOUTS_REMEMBERED)
		timeouts->events[at].event = 0;
}
