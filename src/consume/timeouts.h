/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef SEMEL_CONSUME_TIMEOUTS_H
#define SEMEL_CONSUME_TIMEOUTS_H

#include <stdbool.h>
#include <stdint.h>

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
