/* SPDX-License-Identifier: Apache-2.0 */
/* Where a drill plays: beside the user's own things, under names that only a drill has.
 *
 * - A store in a file: a folder semel-drill-… beside that file. On PostgreSQL: a schema
 * semel_drill_…
 * - A broker in a file: a file in that folder. At a server: a topic and subscriptions semel-drill-…
 * - The folder, or the schema, is made first and taken away last, and the names at the broker
 * follow from its own: so whoever finds it knows what else there may be.
 * - It is locked while its drill, or the watcher of that, is alive. What is not locked was left
 *   behind, and is taken away by the next drill.
 * Nothing is ever deleted but by such a name.
 */
#ifndef SEMEL_CLI_PLAYS_DRILL_TARGET_H
#define SEMEL_CLI_PLAYS_DRILL_TARGET_H

#include "base/arena.h"
#include "cli/plays/sandbox.h"
#include "cli/plays/shop/shop.h"

#include <stdbool.h>
#include <stdint.h>

/* All follow from the id. */
struct semel_drill_names {
	uint64_t id;     /* the upper half by chance, the lower one tells the broker */
	char name[32];   /* of the folder */
	char schema[32]; /* on PostgreSQL */
	char topic[48];  /* at the broker */
	char scopes[SEMEL_SHOP_SUBSCRIPTIONS][48];
};

struct semel_drill_target {
	struct semel_drill_names names;
	const char *store, *broker;         /* the user's; URLs */
	const char *own_store, *own_broker; /* URLs at servers; NULL: files in the folder */
	const char *parent_folder;          /* in it the folder is made; NULL: where files go */
	void *lock_connection;              /* a connection that keeps the schema locked */
	int lock_fd;                        /* keeps the folder locked; -1: not yet */
};

/* Chooses names, and URLs in the arena. CONFIG when a drill cannot be had there. */
semel_status semel_drill_target_choose(struct semel_drill_target *target, struct semel_arena *arena,
				       semel_error *error);
/* Locks the folder, which is there. */
semel_status semel_drill_target_lock(struct semel_drill_target *target, const char *folder,
				     semel_error *error);
/* Looks whether the broker answers, and makes the schema where there is to be one. */
semel_status semel_drill_target_create(struct semel_drill_target *target, semel_error *error);
/* Takes away everything but the folder. Repeatable. */
semel_status semel_drill_target_clear(struct semel_drill_target *target, semel_error *error);
void semel_drill_target_unlock(struct semel_drill_target *target);

/* Takes away what earlier drills have left in the store and in the folder home. seen hears of each;
 * freed: it is gone, else its broker is another one. */
typedef void (*semel_drill_leftover_visitor)(const char *name, bool freed, void *user);
semel_status semel_drill_remove_leftovers(struct semel_drill_target *target, const char *parent,
					  semel_drill_leftover_visitor seen, void *user,
					  semel_error *error);

/* ---- watcher.c ---- */
struct semel_drill_watcher {
	int pid; /* 0: none */
	int pipe_fd;
};
/* Starts a process that clears the place when this one dies. Before any thread and connection. */
semel_status semel_drill_watcher_start(const struct semel_drill_target *target, const char *folder,
				       struct semel_drill_watcher *watcher_out, semel_error *error);
/* It is not needed any more, and ends. */
void semel_drill_watcher_stop(struct semel_drill_watcher *watcher);

#endif
