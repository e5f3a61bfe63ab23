/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/timeouts.h"

#include <stddef.h>

/* A hash of 0 stands for none. */
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

/* Since the last answer. */
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
