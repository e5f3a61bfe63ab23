/* SPDX-License-Identifier: Apache-2.0 */
/* When does a failed event run again, and when is it given up? Pure.
 *
 * - An outage costs no attempt: the event did nothing wrong.
 * - An event that the handler rejects is given up at once; any other when its attempts are used up.
 * - The first retries run in this consumer after a short delay; the later ones are delayed at the
 *   broker.
 */
#ifndef SEMEL_CONSUME_RETRY_H
#define SEMEL_CONSUME_RETRY_H

#include "base/backoff.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_retry {
	SEMEL_RETRY_FREE,  /* an outage: run later, not counted */
	SEMEL_RETRY_NOW,   /* here, after delay_ms */
	SEMEL_RETRY_LATER, /* at the broker, after delay_ms */
	SEMEL_RETRY_GIVE_UP
};

struct semel_retry_policy {
	uint32_t attempts_max;  /* runs in total */
	uint32_t immediate_max; /* of these, runs that do not leave the consumer */
	struct semel_backoff immediate, delayed;
};

struct semel_attempt {
	uint32_t number; /* runs so far, this one included */
	semel_status status;
	int64_t retry_after_ms; /* requested by the handler; 0: none */
};

/* Longer delays that a handler requests are reduced to this. */
#define SEMEL_RETRY_AFTER_MAX_MS (INT64_C(3600) * 1000)

enum semel_retry semel_retry_next(const struct semel_retry_policy *policy,
				  const struct semel_attempt *attempt, uint64_t chance,
				  int64_t *delay_ms_out);

/* ---- time-outs ---- */
/* Is a time-out the fault of the event, or of a dependency that is down? Pure.
 *
 * - While no other call is answered, the dependency is down: a time-out costs no attempt.
 * - If a call that began later was answered first, or any call was answered since the event's first
 *   time-out, the dependency was up: the event is at fault.
 * - A program on this machine is presumed to be up: even its first time-out costs an attempt.
 * - In all cases: if several other events have timed out since the last answer, the dependency is
 *   down (again).
 *
 * The last events that timed out are remembered; one that was forgotten is judged as a new one.
 */
#define SEMEL_TIMEOUTS_REMEMBERED 64
#define SEMEL_TIMEOUTS_SEVERAL    3

struct semel_timeouts {
	uint64_t begun, answers; /* calls so far */
	uint64_t last_answered;  /* of the answered calls, the one that began last */
	struct {
		uint64_t event;       /* hash of its id; 0: none */
		uint64_t first, last; /* answers at the first and the last time-out */
		bool overtaken;       /* by an answered call that began later */
	} events[SEMEL_TIMEOUTS_REMEMBERED];
	uint32_t next; /* index of the entry to be overwritten next */
};

/* A call begins; returns its number. */
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
