/* SPDX-License-Identifier: Apache-2.0 */
/* What `publish` for one event and `publish --batch` share: one transaction, and headers that are
 * inherited from the event that is being handled. */
#ifndef SEMEL_CLI_COMMANDS_PUBLISH_H
#define SEMEL_CLI_COMMANDS_PUBLISH_H

#include "base/arena.h"
#include "cli/arguments/command.h"
#include "store/store.h"

struct semel_publishing {
	struct semel_invocation *invocation;
	semel_store *store;
	struct semel_text inherited; /* headers of every event that does not set them itself */
};

/* Begins, and runs the --sql statements. On failure nothing is open. */
semel_status semel_publishing_begin(struct semel_publishing *publishing);
/* Commits, between its failpoints. On failure before the commit it has rolled back. */
semel_status semel_publishing_commit(struct semel_publishing *publishing);

/* Events as JSON lines on stdin, all in one transaction; prints the ids after the commit. */
semel_status semel_publishing_batch(struct semel_publishing *publishing);

/* The headers with those that flow on added where they are missing. given may be NULL; it is
 * returned as it is when it is no JSON object, for the event's own check to complain about.
 * NULL: no memory. */
const char *semel_publishing_headers(struct semel_text inherited, const char *given,
				     struct semel_arena *arena);

#endif
