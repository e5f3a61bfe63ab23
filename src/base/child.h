/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program: feeds it from memory, reads its output, and ends it in time.
 *
 * The command goes to /bin/sh -c in a process group of its own, with default signal handling and
 * none of our descriptors except stdin, stdout and stderr. The last 4 KiB of its stderr are kept.
 * It is killed when the thread that started it ends.
 *
 * Threads: a child belongs to the thread that started it. Another thread interrupts a communication
 * through a descriptor that the communication polls.
 */
#ifndef SEMEL_BASE_CHILD_H
#define SEMEL_BASE_CHILD_H

#include "base/text.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SEMEL_CHILD_STDERR_MAX 4096

struct semel_child;

struct semel_child_options {
	const char *command;
	char *const *environment; /* NULL-terminated; nothing else is inherited */
	bool capture;             /* read its stdout; otherwise it inherits ours */
	/* If set: its whole input, complete before it starts. With a pipe, the child would take a
	 * part for the whole if we died while writing. */
	const struct semel_text *input;
};

/* OUTAGE: it cannot be started now. TOO_LARGE: the environment is larger than the system allows. */
semel_status semel_child_start(const struct semel_child_options *plan,
			       struct semel_child **child_out, semel_error *error);

struct semel_child_communication {
	struct semel_text input; /* the child need not read it */
	bool until_exit;         /* close its stdin after the input and wait for its exit; otherwise
				  * wait for a line */
	int64_t timeout_ms;      /* 0: no limit */
	int interrupt_fd;        /* readable: stop waiting; -1: none */
	size_t output_limit;     /* for the line, or for all its output */
};

enum semel_child_result {
	SEMEL_CHILD_LINE, /* the input was written, and a line has arrived */
	SEMEL_CHILD_EXITED,
	SEMEL_CHILD_TIMED_OUT,
	SEMEL_CHILD_INTERRUPTED,
	SEMEL_CHILD_TOO_MUCH, /* it wrote more than the limit */
	SEMEL_CHILD_NO_MEMORY
};

/* Writes the input and reads the output. After TIMED_OUT or a result listed below it, only
 * semel_child_end may be called. */
enum semel_child_result semel_child_communicate(struct semel_child *child,
						const struct semel_child_communication *options);

/* The output of the last communication: the line without its line end, or everything. Valid until
 * the next call. */
struct semel_text semel_child_output(const struct semel_child *child);
/* The end of its stderr, without trailing white space, with blanks for NUL bytes, cut to size;
 * empty when it wrote nothing. */
void semel_child_stderr(const struct semel_child *child, char *text_out, size_t size);
/* Drops what it has written to stderr so far. */
void semel_child_clear_stderr(struct semel_child *child);
/* The process id of the shell, and of the program that it may become by exec. */
pid_t semel_child_pid(const struct semel_child *child);
/* Does not wait. True also when its exit was reported before. */
bool semel_child_has_exited(struct semel_child *child);
/* Its exit status, or 128 + the signal's number, as a shell reports it; -1: unknown, since another
 * waiter has taken it. */
int semel_child_exit_code(const struct semel_child *child);
/* "exited with status 3", "was killed by signal 9 (Killed)". */
void semel_child_describe_exit(const struct semel_child *child, char *text_out, size_t size);

/* Closes its stdin and waits patience_ms for its exit; then SIGTERM and, a second later, SIGKILL to
 * the whole group. Frees. child may be NULL. */
void semel_child_end(struct semel_child *child, int64_t patience_ms);

/* SIGKILL to every group (of the first 256 children) that has not ended, for a program that is
 * about to exit without cleaning up. May be called from a signal handler. */
void semel_child_kill_all(void);

#endif
