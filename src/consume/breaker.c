/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/breaker.h"

#include "observe/log.h"

#include <stdio.h>

#define FAILURES_MAX 20

static const struct semel_backoff pause = { .first_ms = 250, .cap_ms = 30000 };

/* The one place where the state changes. */
static void move(struct semel_breaker *breaker, enum semel_breaker_state state, const char *reason)
{
	static const char *const messages[] = {
		[SEMEL_BREAKER_CLOSED] = "breaker closed, fetching again",
		[SEMEL_BREAKER_HALF_OPEN] = "breaker half-open, trying one delivery",
		[SEMEL_BREAKER_OPEN] = "breaker open, fetching paused",
	};

	if (breaker->state == state)
		return;
	breaker->state = state;
	if (state == SEMEL_BREAKER_CLOSED)
		breaker->reason[0] = '\0';
	else if (reason)
		snprintf(breaker->reason, sizeof breaker->reason, "%s", reason);
	semel_log(state == SEMEL_BREAKER_OPEN ? SEMEL_LOG_WARN : SEMEL_LOG_INFO, messages[state],
		  &(struct semel_log_fields){ .consumer = breaker->consumer, .error = reason });
}

uint32_t semel_breaker_allow(struct semel_breaker *breaker, uint32_t wanted, int64_t now_ms)
{
	if (breaker->state == SEMEL_BREAKER_OPEN && now_ms >= breaker->open_until_ms)
		move(breaker, SEMEL_BREAKER_HALF_OPEN, NULL);
	if (breaker->state == SEMEL_BREAKER_OPEN)
		return 0;
	if (breaker->state == SEMEL_BREAKER_HALF_OPEN)
		return wanted > 0 ? 1 : 0;
	return wanted;
}

static void open_for_a_while(struct semel_breaker *breaker, const char *reason, int64_t now_ms,
			     uint64_t chance)
{
	breaker->openings++;
	breaker->open_until_ms = now_ms + semel_backoff_ms(pause, breaker->openings, chance);
	move(breaker, SEMEL_BREAKER_OPEN, reason);
}

void semel_breaker_report(struct semel_breaker *breaker, semel_status status, const char *reason,
			  int64_t now_ms, uint64_t chance)
{
	semel_class class = semel_status_class(status);

	if (class == SEMEL_CLASS_OUTAGE) {
		if (breaker->state != SEMEL_BREAKER_OPEN)
			open_for_a_while(breaker, reason, now_ms, chance);
		return;
	}
	if (class == SEMEL_CLASS_RETRY) {
		breaker->failures++;
		if (breaker->state == SEMEL_BREAKER_HALF_OPEN ||
		    (breaker->state == SEMEL_BREAKER_CLOSED && breaker->failures >= FAILURES_MAX))
			open_for_a_while(breaker, reason, now_ms, chance);
		return;
	}
	breaker->failures = 0;
	breaker->openings = 0;
	move(breaker, SEMEL_BREAKER_CLOSED, NULL);
}
