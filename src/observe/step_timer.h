/* SPDX-License-Identifier: Apache-2.0 */
/* The time that each step of an event's way takes, measured for a whole batch and summed up in
 * semel_step_seconds_total. Any thread; two reads of a clock and one addition. */
#ifndef SEMEL_OBSERVE_STEP_TIMER_H
#define SEMEL_OBSERVE_STEP_TIMER_H

#include <stdint.h>

enum semel_timed_step {
	SEMEL_TIMED_READ,    /* relay: rows from the outbox or the change stream */
	SEMEL_TIMED_PUBLISH, /* relay: sending them, and waiting for room in the window */
	SEMEL_TIMED_CONFIRM, /* relay: receiving outcomes */
	SEMEL_TIMED_MARK,    /* relay: marking what was confirmed */
	SEMEL_TIMED_RECEIVE, /* consumer: taking deliveries */
	SEMEL_TIMED_CLAIM,   /* consumer: claims in the inbox */
	SEMEL_TIMED_EFFECT,  /* consumer: handlers, of all workers together */
	SEMEL_TIMED_COMMIT,  /* consumer: commits */
	SEMEL_TIMED_ACK,     /* consumer: acks */
	SEMEL_TIMED_COUNT
};

int64_t semel_step_timer_begin(void);
void semel_step_timer_end(enum semel_timed_step work, int64_t began_us);

#endif
