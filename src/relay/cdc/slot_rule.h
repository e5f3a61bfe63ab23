/* SPDX-License-Identifier: Apache-2.0 */
/* The slot monitor's decision: may the relay read the change stream, or does it poll, and what is
 * done with the slot? Pure.
 *
 * - The database's disk never fills because of us: a slot that retains more of the log than the
 *   budget is dropped, whatever waits. The rows are in the table.
 * - The stream is read only when it cannot have skipped a row. A slot that is further than we
 *   recorded, a database with another history, or a publication that is not the recorded one means
 *   polling first. A slot whose publication was changed is dropped: the server decodes the log with
 *   the publication as it was at that time, and may find none.
 * - A slot is created again only when polling has nearly caught up, so that it does not retain the
 *   log for an outage that still lasts.
 */
#ifndef SEMEL_RELAY_CDC_SLOT_RULE_H
#define SEMEL_RELAY_CDC_SLOT_RULE_H

#include "store/changes.h"

enum semel_slot_action {
	SEMEL_SLOT_STREAM,     /* read it */
	SEMEL_SLOT_POLL,       /* no stream is possible: poll */
	SEMEL_SLOT_POLL_FIRST, /* poll up to poll_to_seq, then read it */
	SEMEL_SLOT_RESYNC,     /* it is not as we left it: record that everything is polled first */
	SEMEL_SLOT_CREATE,     /* poll, and create it */
	SEMEL_SLOT_WAIT,       /* poll, and create it later */
	SEMEL_SLOT_DROP        /* drop it, and poll */
};

struct semel_slot_verdict {
	enum semel_slot_action action;
	char reason[320]; /* for the log */
};

struct semel_slot_view {
	const struct semel_slot_state *state;
	uint64_t budget; /* bytes */
	bool caught_up;  /* polling has almost nothing left to read */
};

void semel_slot_decide(const struct semel_slot_view *view, struct semel_slot_verdict *verdict_out);

#endif
