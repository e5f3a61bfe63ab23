/* SPDX-License-Identifier: Apache-2.0 */
/* Where is the time spent? Each step of an event's way is timed as a whole batch passes it, and
 * summed up in semel_step_seconds_total. Any thread; two looks at a clock and one addition. */
#ifndef SEMEL_OBSERVE_STEP_TIMER_H
#define SEMEL_OBSERVE_STEP_TIMER_H

#include <stdint.h>

enum semel_timed_step {
	SEMEL_TIMED_READ,    /* relay: rows from the outbox or the change stream */
	SEMEL_TIMED_PUBLISH, /* relay: handing them to the broker, and waiting for room */
	SEMEL_TIMED_CONFIRM, /* relay: hearing its answers */
	SEMEL_TIMED_MARK,    /* relay: marking what was confirmed */
	SEMEL_TIMED_RECEIVE, /* consumer: taking deliveries */
	SEMEL_TIMED_CLAIM,   /* consumer: claims in the inbox */
	SEMEL_TIMED_EFFECT,  /* consumer: handlers, of all workers together */
	SEMEL_TIMED_COMMIT,  /* consumer: commits */
	SEMEL_TIMED_ACK,     /* consumer: telling the broker */
	SEMEL_TIMED_COUNT
};

int64_t semel_step_timer_begin(void);
void semel_step_timer_end(enum semel_timed_step work, int64_t began_us);

#endif
