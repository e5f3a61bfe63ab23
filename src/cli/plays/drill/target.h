/* SPDX-License-Identifier: Apache-2.0 */
/* Where a drill runs: beside the user's own data, under names that only a drill has.
 *
 * - A store in a file: a folder semel-drill-… beside that file. On a server: a separate place in
 *   the database (store/trial.h; on PostgreSQL a schema semel_drill_…).
 * - A broker in a file: a file in that folder. On a server: a topic and subscriptions semel-drill-…
 * - The folder, or the place in the database, is created first and removed last, and the names at
 *   the broker follow from its name: a process that finds it can derive what else may exist.
 * - It is locked while its drill, or the drill's watcher, is alive. An unlocked one was left
 *   behind, and the next drill removes it. Only objects with such a name are ever deleted.
 */
#ifndef SEMEL_CLI_PLAYS_DRILL_TARGET_H
#define SEMEL_CLI_PLAYS_DRILL_TARGET_H

#include "base/arena.h"
#include "cli/plays/sandbox.h"
#include "cli/plays/shop/shop.h"
#include "store/trial.h"

#include <stdbool.h>
#include <stdint.h>

/* All names are derived from the id. */
struct semel_drill_names {
	uint64_t id;    /* the upper half is random, the lower one a hash of the broker */
	char name[32];  /* of the folder */
	char topic[48]; /* at the broker */
	char scopes[SEMEL_SHOP_SUBSCRIPTIONS][48];
};

struct semel_drill_target {
	struct semel_drill_names names;
	const char *store, *broker;         /* the user's; URLs */
	const char *own_store, *own_broker; /* URLs at servers; NULL: files in the folder */
	const char
		*parent_folder; /* where the folder is created; NULL: where temporary files are */
	const struct semel_trial_functions *trials; /* of the store; NULL: it is a file */
	struct semel_trial_session *lock_session; /* holds the lock of the place in the database */
	int lock_fd;                              /* holds the lock of the folder; -1: not yet */
};

/* Chooses the names, and the URLs, which are in the arena. CONFIG if no drill can run there. */
semel_status semel_drill_target_choose(struct semel_drill_target *target, struct semel_arena *arena,
				       semel_error *error);
/* Locks the folder, which exists. */
semel_status semel_drill_target_lock(struct semel_drill_target *target, const char *folder,
				     semel_error *error);
/* Connects to the broker, and creates the place in the database where the store is a server. */
semel_status semel_drill_target_create(struct semel_drill_target *target, semel_error *error);
/* Removes everything but the folder. Repeatable. */
semel_status semel_drill_target_clear(struct semel_drill_target *target, semel_error *error);
void semel_drill_target_unlock(struct semel_drill_target *target);

/* Removes what earlier drills have left in the store and in the parent folder, and reports each of
 * them. removed false: it belongs to another broker. */
typedef void (*semel_drill_leftover_visitor)(const char *name, bool removed, void *user);
semel_status semel_drill_remove_leftovers(struct semel_drill_target *target, const char *parent,
					  semel_drill_leftover_visitor visit, void *user,
					  semel_error *error);

struct semel_drill_watcher {
	int pid; /* 0: none */
	int pipe_fd;
};
/* Starts a process that clears the target when this one dies. Call it before the first thread and
 * the first connection. */
semel_status semel_drill_watcher_start(const struct semel_drill_target *target, const char *folder,
				       struct semel_drill_watcher *watcher_out, semel_error *error);
/* Ends the watcher without clearing. */
void semel_drill_watcher_stop(struct semel_drill_watcher *watcher);

#endif
