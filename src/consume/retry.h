/* SPDX-License-Identifier: Apache-2.0 */
/* When does a failed event come back, and when is it given up? Pure.
 *
 * - An outage costs no attempt: the event did nothing wrong.
 * - What the handler rejects is given up at once; the rest when the budget is spent.
 * - The first runs follow at once, after a moment; the later ones are delayed at the broker.
 */
#ifndef SEMEL_CONSUME_RETRY_H
#define SEMEL_CONSUME_RETRY_H

#include "base/backoff.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_retry {
	SEMEL_RETRY_FREE,  /* an outage: later, and it did not count */
	SEMEL_RETRY_NOW,   /* here, after delay_ms */
	SEMEL_RETRY_LATER, /* at the broker, after delay_ms */
	SEMEL_RETRY_GIVE_UP
};

struct semel_retry_policy {
	uint32_t attempts_max;  /* runs in all */
	uint32_t immediate_max; /* of them without leaving the consumer */
	struct semel_backoff immediate, delayed;
};

struct semel_attempt {
	uint32_t number; /* runs so far, this one included */
	semel_status status;
	int64_t retry_after_ms; /* requested by the handler; 0: not */
};

/* Longer delays that a handler asks for are cut to this. */
#define SEMEL_RETRY_AFTER_MAX_MS (INT64_C(3600) * 1000)

enum semel_retry semel_retry_next(const struct semel_retry_policy *policy,
				  const struct semel_attempt *attempt, uint64_t chance,
				  int64_t *delay_ms_out);

/* ---- time-outs ---- */
/* Is a time-out the event's own fault, or that of a dependency that is down? Pure.
 *
 * - While nothing else is answered, the dependency is down: a time-out costs no attempt.
 * - If a call that began later was answered earlier, or another one since the event's first
 *   time-out, the dependency was up, and it is the event.
 * - But if several others timed out too and nothing was answered since then, it is down (again).
 * - A program on this machine is presumed to be up: already its first time-out costs an attempt.
 *
 * The last events that timed out are remembered; one that was forgotten is judged as a new one.
 */
#define SEMEL_TIMEOUTS_REMEMBERED 64
#define SEMEL_TIMEOUTS_SEVERAL    3

struct semel_timeouts {
	uint64_t begun, answers; /* calls so far */
	uint64_t last_answered;  /* of those answered the one that began last */
	struct {
		uint64_t event;       /* hash of its id; 0: none */
		uint64_t first, last; /* answers, when it timed out for the first and last time */
		bool overtaken;       /* by a call that was answered */
	} events[SEMEL_TIMEOUTS_REMEMBERED];
	uint32_t next; /* to be overwritten */
};

/* A call begins; gives back its number. */
uint64_t semel_timeouts_begin(struct semel_timeouts *timeouts);
/* The call of this number was answered: it succeeded, or was rejected. */
void semel_timeouts_answered(struct semel_timeouts *timeouts, uint64_t call);
/* The event's call of this number timed out. True: it costs an attempt. presumed_up: see above. */
bool semel_timeouts_count(struct semel_timeouts *timeouts, uint64_t event, uint64_t call,
			  bool presumed_up);
/* Did its last call time out, as far as is remembered? */
bool semel_timeouts_has(const struct semel_timeouts *timeouts, uint64_t event);
/* The event is settled. */
void semel_timeouts_forget(struct semel_timeouts *timeouts, uint64_t event);

#endif
