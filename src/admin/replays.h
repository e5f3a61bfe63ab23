/* SPDX-License-Identifier: Apache-2.0 */
/* Replays that were asked for over HTTP: each runs on a thread of its own and can be looked at and
 * cancelled. The newest SEMEL_REPLAY_RUNS_MAX are remembered; a few run at a time. */
#ifndef SEMEL_ADMIN_REPLAYS_H
#define SEMEL_ADMIN_REPLAYS_H

#include "admin/context.h"
#include "deadletter/replay.h"

#define SEMEL_REPLAY_RUNS_MAX     64
#define SEMEL_REPLAY_RUNS_AT_ONCE 4
#define SEMEL_REPLAY_REQUEST_MAX  ((size_t)16 * 1024) /* bytes of what a replay is asked for */

struct semel_replays *semel_replays_new(void);
/* What the body of a request asks for, on top of what stands in the plan; empty: everything. USAGE
 * when it cannot be right. The texts are the arena's. */
semel_status semel_replay_request_read(struct semel_text body, struct semel_arena *arena,
				       struct semel_replay_plan *plan, semel_error *error);

/* Cancels what runs and waits for it. replays may be NULL. */
void semel_replays_free(struct semel_replays *replays);

#endif
