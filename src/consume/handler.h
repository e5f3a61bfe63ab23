/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers outside the store's transaction: a program per event, a long-lived program, an HTTP
 * endpoint, or the terminal. They run on worker threads and touch neither store nor broker.
 *
 * The event's id is their idempotency key: a crash between the call and the finished claim repeats
 * the call.
 */
#ifndef SEMEL_CONSUME_HANDLER_H
#define SEMEL_CONSUME_HANDLER_H

#include "event/event.h"

#include <semel/status.h>

#include <stdint.h>

#define SEMEL_REASON_MAX      4097 /* the last 4 KiB of a program's stderr */
#define SEMEL_PROGRAM_REJECTS 65   /* EX_DATAERR: the exit status for "never" */

/* The outcome of one run. status: OK, HANDLER_RETRY, HANDLER_REJECT, or OUTAGE (the handler could
 * not be reached; costs no attempt). */
struct semel_outcome {
	semel_status status;
	int64_t retry_after_ms; /* requested by the handler; 0: none */
	bool timed_out;         /* it was called, and did not answer in time */
	bool interrupted;       /* by interrupt(); what the handler has done is unknown */
	bool is_over;           /* the handler accepts no more events: the consumer may end */
	char reason[SEMEL_REASON_MAX];
};

struct semel_outside_options {
	const char *target;        /* command line for sh -c, or URL */
	int64_t timeout_ms;        /* of one run */
	const char *scope;         /* for messages, and SEMEL_SCOPE */
	const char *const *passed; /* withheld variables that a program gets; NULL: none */
};

struct semel_outside {
	const struct semel_outside_kind *kind;
};

/* One instance belongs to one worker thread. */
struct semel_outside_kind {
	const char *name; /* "exec", "pipe", "http", "print" */

	/* CONFIG: the target cannot be valid. */
	semel_status (*open)(const struct semel_outside_options *options,
			     struct semel_outside **outside_out, semel_error *error);
	/* Returns at most slightly later than timeout_ms. */
	void (*run)(struct semel_outside *outside, const struct semel_event *event,
		    uint32_t attempt, struct semel_outcome *outcome_out);
	/* From another thread: soon ends the current run (kills the program). May be NULL. */
	void (*interrupt)(struct semel_outside *outside);
	void (*close)(struct semel_outside *outside);

	bool is_program; /* a time-out is attributed to the event, not to an outage */
};

extern const struct semel_outside_kind semel_outside_exec, semel_outside_pipe, semel_outside_http,
	semel_outside_print;

#endif
