/* SPDX-License-Identifier: Apache-2.0 */
/* What is in flight: offered to the broker, and not marked.
 *
 * Invariants:
 * - It is bounded by rows and bytes, and a row counts until it is marked: a crash repeats no more.
 * - A window that is nearly full is not topped up row by row: a statement for a few rows costs
 *   nearly as much as one for many.
 * - After a refusal there is no room until its batch is marked, so that its siblings are found
 * held.
 * - An event has one outcome. One that does not come within the confirm time-out is an outage; a
 *   broker that has told us to wait is not late.
 */
#ifndef SEMEL_RELAY_WINDOW_H
#define SEMEL_RELAY_WINDOW_H

#include "relay/pacing.h"
#include "relay/source.h"

struct semel_window {
	const struct semel_env *env;
	struct semel_relay_batches batches;
	struct {
		uint32_t rows_max;
		uint64_t bytes_max;
		uint32_t room_min; /* so much of it is free before more is read */
		int64_t confirm_timeout_ms;
	} limits;
	uint32_t rows;
	uint32_t unanswered;
	uint64_t bytes;
	uint32_t unmarked_refusals; /* refused, and not marked; without those that are HELD */
	bool refused;               /* an event in it was, and its batch is not marked as a whole */
	int64_t offered_at_ms;      /* steady: the last batch, */
	bool sparse;                /* which came a while after the one before */
};

/* Everything in flight is forgotten. */
void semel_window_reset(struct semel_window *window);
/* The batch is in flight, and unanswered. */
void semel_window_add(struct semel_window *window, struct semel_relay_batch *batch);
/* The outcome to one event; reason need not outlive the call. */
void semel_window_record_outcome(struct semel_window *window, struct semel_relay_inflight *inflight,
				 semel_status outcome, const char *reason);
/* Its refusals are marked. */
void semel_window_refusals_marked(struct semel_window *window, struct semel_relay_batch *batch);
/* The batch is marked, or another relay's; it is spare again. */
void semel_window_remove(struct semel_window *window, struct semel_relay_batch *batch);
/* How much may be read. transaction_open: in the middle of a transaction, for whose end a refusal
 * waits. */
struct semel_room semel_window_room(const struct semel_window *window, bool transaction_open);
/* An earlier event of the aggregate of this row was refused, and is not marked. */
bool semel_window_is_behind_refused(const struct semel_window *window,
				    const struct semel_relay_batch *mine, uint32_t at);
bool semel_window_has_answered_batch(const struct semel_window *window);
/* Fills what the window knows: batches, rows, answered_at_ms, urgent, refused. */
void semel_window_mark_facts(const struct semel_window *window, struct semel_mark_facts *facts);
/* OUTAGE: the broker is late. blocked: it has told us to wait, and has all its time again. */
semel_status semel_window_check_timeout(struct semel_window *window, bool blocked,
					semel_error *error);

#endif
