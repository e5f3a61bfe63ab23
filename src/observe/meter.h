/* SPDX-License-Identifier: Apache-2.0 */
/* Where is the time spent? Each step of an event's way is timed as a whole batch passes it, and
 * summed up in semel_step_seconds_total. Any thread; two looks at a clock and one addition. */
#ifndef SEMEL_OBSERVE_METER_H
#define SEMEL_OBSERVE_METER_H

#include <stdint.h>

enum semel_work {
	SEMEL_WORK_READ,    /* relay: rows from the outbox or the change stream */
	SEMEL_WORK_PUBLISH, /* relay: handing them to the broker, and waiting for room */
	SEMEL_WORK_CONFIRM, /* relay: hearing its answers */
	SEMEL_WORK_MARK,    /* relay: marking what was confirmed */
	SEMEL_WORK_RECEIVE, /* consumer: taking deliveries */
	SEMEL_WORK_CLAIM,   /* consumer: claims in the inbox */
	SEMEL_WORK_EFFECT,  /* consumer: handlers, of all workers together */
	SEMEL_WORK_COMMIT,  /* consumer: commits */
	SEMEL_WORK_ACK,     /* consumer: telling the broker */
	SEMEL_WORK_COUNT
};

int64_t semel_meter_begin(void);
void semel_meter_end(enum semel_work work, int64_t began_us);

#endif
