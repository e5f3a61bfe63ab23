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

/* What became of one run. status: OK, HANDLER_RETRY, HANDLER_REJECT, or OUTAGE (it could not be
 * reached; costs no attempt). */
struct semel_outcome {
	semel_status status;
	int64_t retry_after_ms; /* requested by the handler; 0: not */
	bool timed_out;         /* it was asked, and did not answer in time */
	bool interrupted;       /* by interrupt(); it is unknown what it has done */
	bool is_over;           /* it will take no other event: the consumer may end */
	char reason[SEMEL_REASON_MAX];
};

struct semel_outside_options {
	const char *target;        /* command line for sh -c, or URL */
	int64_t timeout_ms;        /* of one run */
	const char *scope;         /* for messages, and SEMEL_SCOPE */
	const char *const *passed; /* variables that a program gets all the same; NULL: none */
};

struct semel_outside {
	const struct semel_outside_kind *kind;
};

/* One instance belongs to one worker thread. */
struct semel_outside_kind {
	const char *name; /* "exec", "pipe", "http", "print" */

	/* CONFIG when the target cannot be right. */
	semel_status (*open)(const struct semel_outside_options *options,
			     struct semel_outside **outside_out, semel_error *error);
	/* Never longer than timeout_ms plus a moment. */
	void (*run)(struct semel_outside *outside, const struct semel_event *event,
		    uint32_t attempt, struct semel_outcome *outcome_out);
	/* From another thread: ends the current run soon (kills the program). May be NULL. */
	void (*interrupt)(struct semel_outside *outside);
	void (*close)(struct semel_outside *outside);

	bool is_program; /* a time-out is attributed to the event, not to an outage */
};

extern const struct semel_outside_kind semel_outside_exec, semel_outside_pipe, semel_outside_http,
	semel_outside_print;

#endif
