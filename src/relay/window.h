/* SPDX-License-Identifier: Apache-2.0 */
/* What is in flight: offered to the broker, and not marked.
 *
 * Invariants:
 * - It is bounded by rows and bytes, and a row counts until it is marked: a crash repeats no more.
 * - A window that is nearly full is not topped up row by row: a statement for a few rows costs
 *   nearly as much as one for many.
 * - After a refusal there is no room until its load is marked, so that its siblings are found held.
 * - An event has one answer. One that does not come within the confirm time-out is an outage; a
 *   broker that has told us to wait is not late.
 */
#ifndef SEMEL_RELAY_WINDOW_H
#define SEMEL_RELAY_WINDOW_H

#include "relay/rest.h"
#include "relay/source.h"

struct semel_window {
	const struct semel_env *env;
	struct semel_loads loads;
	struct {
		uint32_t rows_max;
		uint64_t bytes_max;
		uint32_t room_min; /* so much of it is free before more is read */
		int64_t confirm_timeout_ms;
	} limits;
	uint32_t rows;
	uint32_t unanswered;
	uint64_t bytes;
	uint32_t unnoted;      /* refused, and not marked; without those that are HELD */
	bool refused;          /* an event in it was, and its load is not marked as a whole */
	int64_t offered_at_ms; /* steady: the last load, */
	bool seldom;           /* which came a while after the one before */
};

/* Everything in flight is forgotten. */
void semel_window_reset(struct semel_window *window);
/* The load is in flight, and unanswered. */
void semel_window_add(struct semel_window *window, struct semel_load *load);
/* The answer to one event; reason need not outlive the call. */
void semel_window_answer(struct semel_window *window, struct semel_flight *flight,
			 semel_status answer, const char *reason);
/* Its refusals are marked. */
void semel_window_note(struct semel_window *window, struct semel_load *load);
/* The load is marked, or another relay's; it is spare again. */
void semel_window_remove(struct semel_window *window, struct semel_load *load);
/* How much may be read. amid: in the middle of a transaction, for whose end a refusal waits. */
struct semel_room semel_window_room(const struct semel_window *window, bool amid);
/* An earlier event of the aggregate of this row was refused, and is not marked. */
bool semel_window_is_behind_refused(const struct semel_window *window,
				    const struct semel_load *mine, uint32_t at);
bool semel_window_has_answered_load(const struct semel_window *window);
/* Fills what the window knows: loads, rows, answered_at_ms, urgent, refused. */
void semel_window_tell_marks(const struct semel_window *window, struct semel_mark_facts *facts);
/* OUTAGE: the broker is late. blocked: it has told us to wait, and has all its time again. */
semel_status semel_window_check_time(struct semel_window *window, bool blocked, semel_error *error);

#endif
