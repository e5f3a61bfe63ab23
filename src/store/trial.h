/* SPDX-License-Identifier: Apache-2.0 */
/* A separate namespace in the user's database for a trial (`semel drill`; PostgreSQL: a schema):
 * tables beside the user's own, under a name that only a trial has.
 *
 * A trial is identified by its id, from which the driver makes the name. It is locked as long as
 * the session that has locked it is open; a trial that another session can lock was left behind.
 * Only objects under such a name are ever removed.
 *
 * Optional: a store whose database is a file needs none, since a trial creates its own file.
 * Threads: a session belongs to one thread. Errors: those of store.h.
 *
 * To change here: nothing but what creates, finds and removes such a namespace; what runs in it
 * belongs to src/cli/plays/drill. */
#ifndef SEMEL_STORE_TRIAL_H
#define SEMEL_STORE_TRIAL_H

#include "base/arena.h"
#include "base/url.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

/* A connection to the user's database. */
struct semel_trial_session;

typedef semel_status semel_trial_open_fn(const char *url, struct semel_trial_session **session_out,
					 semel_error *error);
/* session may be NULL. */
typedef void semel_trial_close_fn(struct semel_trial_session *session);
/* Locks the id, whether or not there is a trial of it. *locked_out false: another session has it.
 */
typedef semel_status semel_trial_lock_fn(struct semel_trial_session *session, uint64_t id,
					 bool *locked_out, semel_error *error);
/* CONFIG when this user lacks the permission. */
typedef semel_status semel_trial_create_fn(struct semel_trial_session *session, uint64_t id,
					   semel_error *error);
/* Removes the trial with everything in it; a missing trial is not an error. */
typedef semel_status semel_trial_remove_fn(struct semel_trial_session *session, uint64_t id,
					   semel_error *error);
/* The lowest id above `after` for which there is a trial; 0: none. */
typedef semel_status semel_trial_next_fn(struct semel_trial_session *session, uint64_t after,
					 uint64_t *id_out, semel_error *error);
/* The URL by which the store finds its tables in the trial. In the arena; NULL: out of memory. */
typedef const char *semel_trial_url_fn(const struct semel_url *url, uint64_t id,
				       struct semel_arena *arena);

struct semel_trial_functions {
	semel_trial_open_fn *open;
	semel_trial_close_fn *close;
	semel_trial_lock_fn *lock;
	semel_trial_create_fn *create;
	semel_trial_remove_fn *remove;
	semel_trial_next_fn *next;
	semel_trial_url_fn *url;
};

#endif
