/* SPDX-License-Identifier: Apache-2.0 */
/* What a call returns, and how to handle it.
 *
 * Every fallible call returns a semel_status. Policy reads the class of a status, never its text;
 * the text in semel_error is for an operator and says what to do next.
 */
#ifndef SEMEL_STATUS_H
#define SEMEL_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SEMEL_API                        __attribute__((visibility("default")))
#define SEMEL_MUST_CHECK                 __attribute__((warn_unused_result))
#define SEMEL_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define SEMEL_API
#define SEMEL_MUST_CHECK
#define SEMEL_PRINTF(format_at, args_at)
#endif

typedef enum semel_status {
	SEMEL_OK = 0,
	SEMEL_INVALID,        /* invalid argument or value */
	SEMEL_TOO_LARGE,      /* the event exceeds a limit */
	SEMEL_DUPLICATE_ID,   /* an event with this id is in the outbox already */
	SEMEL_CONTRACT,       /* a delivery is not a valid event: no id, or it cannot be parsed */
	SEMEL_NO_TRANSACTION, /* the call requires an open transaction on the caller's connection */
	SEMEL_NOT_FOUND,
	SEMEL_NOT_PENDING,    /* the dead letter was replayed or discarded already */
	SEMEL_REPLAY_LIMIT,   /* the dead letter was replayed as often as allowed */
	SEMEL_HANDLER_RETRY,  /* the handler requested a retry */
	SEMEL_HANDLER_REJECT, /* the handler rejected the event */
	SEMEL_NACKED,         /* the broker refused the event */
	SEMEL_UNROUTABLE,     /* the broker has no route for this event */
	SEMEL_FULL,           /* the window is full: poll, then offer again */
	SEMEL_HELD,       /* an earlier event of its aggregate was refused: not this one's fault */
	SEMEL_BUSY,       /* another process held the lock for too long */
	SEMEL_LEASE_LOST, /* the lease was lost to another owner */
	SEMEL_OUTAGE,     /* the store, the broker or a dependency is unavailable */
	SEMEL_STORAGE_FULL,   /* no space left on device */
	SEMEL_NOT_A_DATABASE, /* the file is not a database */
	SEMEL_NO_SCHEMA,      /* the tables are missing: run semel init */
	SEMEL_SCHEMA_NEWER,   /* the tables were created by a newer version of Semel */
	SEMEL_CONFIG,         /* a setting is not valid */
	SEMEL_USAGE,          /* the command line is not valid */
	SEMEL_NOT_FINISHED,   /* the time limit was reached before the work was finished */
	SEMEL_PROBLEM_FOUND,  /* the check found a problem */
	SEMEL_STOPPED,        /* stopped on request */
	SEMEL_INTERNAL,       /* internal error, or out of memory */
	SEMEL_STALLED,        /* a partition accepts no events now; the event is not the cause */
	SEMEL_STATUS_COUNT
} semel_status;

typedef enum semel_class {
	SEMEL_CLASS_OK,
	SEMEL_CLASS_RETRY,  /* the same call may succeed later; costs an attempt */
	SEMEL_CLASS_REJECT, /* the same call will fail again */
	SEMEL_CLASS_OUTAGE, /* no event is the cause; costs no attempt */
	SEMEL_CLASS_BUG     /* the caller, or we, made a mistake */
} semel_class;

#define SEMEL_ERROR_TEXT_MAX 1024

/* Owned by the caller; may be NULL wherever it is a parameter. */
typedef struct semel_error {
	semel_status status;
	char text[SEMEL_ERROR_TEXT_MAX];
} semel_error;

/* Never fails; the strings are static. */
SEMEL_API const char *semel_status_name(semel_status status);
SEMEL_API const char *semel_status_sentence(semel_status status);
SEMEL_API semel_class semel_status_class(semel_status status);
/* The sysexits code that the program ends with. */
SEMEL_API int semel_status_exit_code(semel_status status);

#ifdef __cplusplus
}
#endif
#endif
