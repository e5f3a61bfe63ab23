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
	SEMEL_INVALID,        /* an argument or a piece of data is not acceptable as it is */
	SEMEL_TOO_LARGE,      /* the event exceeds a limit */
	SEMEL_DUPLICATE_ID,   /* an event with this id is in the outbox already */
	SEMEL_CONTRACT,       /* a delivery breaks the contract: no id, unreadable */
	SEMEL_NO_TRANSACTION, /* a transaction of the caller's was demanded, none is open */
	SEMEL_NOT_FOUND,
	SEMEL_NOT_PENDING,    /* the dead letter was replayed or discarded already */
	SEMEL_REPLAY_LIMIT,   /* the dead letter was replayed as often as allowed */
	SEMEL_HANDLER_RETRY,  /* the handler asked to be called again later */
	SEMEL_HANDLER_REJECT, /* the handler will never accept this event */
	SEMEL_NACKED,         /* the broker refused the event */
	SEMEL_UNROUTABLE,     /* the broker has no route for this event */
	SEMEL_FULL,           /* the window is full: poll, then offer again */
	SEMEL_HELD,       /* an earlier event of its aggregate was refused: not this one's fault */
	SEMEL_BUSY,       /* another process held the lock for too long */
	SEMEL_LEASE_LOST, /* another owner has taken over */
	SEMEL_OUTAGE,     /* store, broker or dependency cannot be reached or used now */
	SEMEL_STORAGE_FULL,   /* no space left */
	SEMEL_NOT_A_DATABASE, /* the file is something else */
	SEMEL_NO_SCHEMA,      /* the tables are missing: run semel init */
	SEMEL_SCHEMA_NEWER,   /* the tables were made by a newer semel */
	SEMEL_CONFIG,         /* a setting is not valid */
	SEMEL_USAGE,          /* the command line is not valid */
	SEMEL_NOT_FINISHED,   /* time ran out before the work did */
	SEMEL_PROBLEM_FOUND,  /* the check found a problem */
	SEMEL_STOPPED,        /* stopped on request */
	SEMEL_INTERNAL,       /* a bug of ours, or no memory */
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
