/* SPDX-License-Identifier: Apache-2.0 */
/* Fault injection. Failpoints: every window in which a crash matters has a name, in the shipped
 * program too.
 *
 *   SEMEL_FAILPOINT=relay.after-confirm:kill@3,consume.after-commit:pause=50
 *
 * If the variable is not set, a failpoint costs one test of a flag. The table in failpoint.c is the
 * failure matrix: the list that `semel failpoints` prints, the tests run row by row, and the docs
 * are made from.
 *
 * To change here: this room uses base only. A new window is a row of the table and one call
 * where it is; nothing here changes what the program does unless the environment asks for it.
 */
#ifndef SEMEL_FAULT_FAILPOINT_H
#define SEMEL_FAULT_FAILPOINT_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_failpoint {
	SEMEL_FP_PUBLISH_BEFORE_COMMIT,
	SEMEL_FP_PUBLISH_AFTER_COMMIT,
	SEMEL_FP_RELAY_AFTER_CLAIM,
	SEMEL_FP_RELAY_BEFORE_PUBLISH,
	SEMEL_FP_RELAY_AFTER_PUBLISH,
	SEMEL_FP_RELAY_AFTER_CONFIRM,
	SEMEL_FP_RELAY_AFTER_MARK,
	SEMEL_FP_CONSUME_AFTER_RECEIVE,
	SEMEL_FP_CONSUME_AFTER_CLAIM,
	SEMEL_FP_CONSUME_AFTER_EFFECT,
	SEMEL_FP_CONSUME_AFTER_COMMIT,
	SEMEL_FP_CONSUME_AFTER_ACK,
	SEMEL_FP_CONSUME_AFTER_REQUEUE,
	SEMEL_FP_DLQ_AFTER_PUBLISH,
	SEMEL_FP_DLQ_AFTER_MARK,
	SEMEL_FP_REPLAY_AFTER_PUBLISH,
	SEMEL_FP_COUNT
};

struct semel_failpoint_row {
	const char *name;    /* "relay.after-confirm" */
	const char *process; /* which one dies: producer, relay, consumer, operator */
	const char *window;  /* what has happened, and what has not */
	const char *outcome; /* what is true after recovery */
};

const struct semel_failpoint_row *semel_failpoint_rows(void); /* SEMEL_FP_COUNT of them */

extern bool semel_failpoints_armed;

/* Reads SEMEL_FAILPOINT. CONFIG, naming what is wrong and the nearest right name. Called once by
 * the program, before any thread starts; an unset variable arms nothing. */
semel_status semel_failpoints_arm(const char *specification, semel_error *error);

/* For tests in one process: called at every hit before any rule; it may leave by longjmp, which
 * acts like a kill. NULL: none. */
typedef void (*semel_failpoint_fn)(enum semel_failpoint point, void *user);
void semel_failpoints_watch(semel_failpoint_fn seen, void *user);

/* Counts the hit and acts: kill does not return, pause sleeps, error returns SEMEL_OUTAGE. */
semel_status semel_failpoint_hit(enum semel_failpoint point, semel_error *error);

static inline semel_status semel_failpoint(enum semel_failpoint point, semel_error *error)
{
	return semel_failpoints_armed ? semel_failpoint_hit(point, error) : SEMEL_OK;
}

#endif
