/* SPDX-License-Identifier: Apache-2.0 */
/* The sandbox of `demo`, `drill` and `bench`: a temporary folder, and child processes of this
 * program in it. Both are removed at the end, even after an interrupt. */
#ifndef SEMEL_CLI_PLAYS_SANDBOX_H
#define SEMEL_CLI_PLAYS_SANDBOX_H

#include "base/arena.h"

#include <semel/status.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct semel_sandbox {
	char folder[PATH_MAX];
	char *const *environment; /* of the children; in the arena */
	struct semel_arena *arena;
	int interrupt_fd; /* readable after SIGINT, SIGTERM or SIGHUP; -1: not open */
	bool keep;
};

struct semel_sandbox_plan {
	const char *parent;   /* where the folder is created; NULL: fallback */
	const char *fallback; /* used unless the environment has TMPDIR */
	const char *name;     /* of the folder, which must not exist; NULL: semel-XXXXXX */
	bool keep;            /* do not remove the folder */
	/* URLs for the children; NULL: files in the folder. */
	const char *store, *broker;
};

/* Creates the folder under the parent. Close it also after a failure. */
semel_status semel_sandbox_open(struct semel_sandbox *sandbox,
				const struct semel_sandbox_plan *plan, semel_error *error);
/* Removes the folder with all that is in it, unless it is to be kept. */
void semel_sandbox_close(struct semel_sandbox *sandbox);
/* The same for a folder that another process left. */
void semel_sandbox_remove(const char *folder);
/* The path of a file in the folder, after a prefix such as "sqlite:". In the arena; NULL: no
 * memory. */
const char *semel_sandbox_path(struct semel_sandbox *sandbox, const char *prefix, const char *name);
/* OK, or NOT_FINISHED after an interrupt. */
semel_status semel_sandbox_check(const struct semel_sandbox *sandbox, semel_error *error);

struct semel_sandbox_exit {
	int exit_code;            /* 128 + the number of the signal that killed it */
	int64_t peak_kib;         /* its peak of resident memory, sampled every few milliseconds */
	struct semel_text output; /* in the sandbox's arena */
	char error_output[1024];  /* the end of its stderr */
};

/* Runs this program with these words (NULL-terminated) in the folder until it ends, with the
 * failpoint set unless that is NULL. OK however the child ends. */
semel_status semel_sandbox_run(struct semel_sandbox *sandbox, const char *const *words,
			       const char *failpoint, struct semel_sandbox_exit *end_out,
			       semel_error *error);

#endif
