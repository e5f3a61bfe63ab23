/* SPDX-License-Identifier: Apache-2.0 */
/* Replays started over HTTP. Each runs on a thread of its own, reports its progress and can be
 * cancelled. The newest SEMEL_REPLAY_RUNS_MAX are kept; at most SEMEL_REPLAY_RUNS_AT_ONCE run at
 * the same time. */
#ifndef SEMEL_ADMIN_REPLAYS_H
#define SEMEL_ADMIN_REPLAYS_H

#include "admin/context.h"
#include "deadletter/replay.h"

#define SEMEL_REPLAY_RUNS_MAX     64
#define SEMEL_REPLAY_RUNS_AT_ONCE 4
#define SEMEL_REPLAY_REQUEST_MAX  ((size_t)16 * 1024) /* bytes of the body that starts one */

struct semel_replays *semel_replays_new(void);
/* Sets the members of the plan that the body contains; an empty body selects everything. USAGE if
 * the body is not valid. The texts are in the arena. */
semel_status semel_replay_request_read(struct semel_text body, struct semel_arena *arena,
				       struct semel_replay_plan *plan, semel_error *error);

/* Cancels the running ones and waits for them. replays may be NULL. */
void semel_replays_free(struct semel_replays *replays);

#endif
