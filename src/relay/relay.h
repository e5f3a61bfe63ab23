/* SPDX-License-Identifier: Apache-2.0 */
/* The relay beyond the public API: in a given environment, and step by step, so that one thread can
 * run many relays on a clock of its own (tests, the model).
 *
 * The room relay/: only rules. Store, broker and clock are reached through their seams and
 * semel_env; no SQL, no socket and no database's name appears here. Files, outermost first: relay.c
 * (main loop), pipeline.c (one step), poll.c and cdc/ (sources), window.c, batch.c, marking.c,
 * lanes.c.
 *
 * To change here: a mark is written only by marking.c or by the source of its batch, with the
 * fence; nothing is published before it is in the window. What is done with an event is decided
 * once, for all sources, in marking.c. */
#ifndef SEMEL_RELAY_RELAY_H
#define SEMEL_RELAY_RELAY_H

#include "base/env.h"

#include <semel/relay.h>

#include <stdbool.h>
#include <stdint.h>

/* As semel_relay_open; env outlives the relay. */
semel_status semel_relay_open_in(const struct semel_env *env, const semel_relay_options *options,
				 semel_relay **relay_out, semel_error *error);
/* After a stop: the time to await and mark outcomes of what is in flight; 10 s by default. With
 * events unanswered by then semel_relay_run and semel_relay_drain end with NOT_FINISHED. */
void semel_relay_set_grace(semel_relay *relay, int64_t grace_ms);
/* One step, which never sleeps; semel_relay_run and semel_relay_drain repeat it. busy_out:
 * something was read or is in flight. pause_ms_out: 0, or after an outage, which has closed the
 * connections, how long to wait before the next step reopens them. */
semel_status semel_relay_step(semel_relay *relay, bool *busy_out, int64_t *pause_ms_out,
			      semel_error *error);

#endif
