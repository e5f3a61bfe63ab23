/* SPDX-License-Identifier: Apache-2.0 */
/* The slot guard's judgement: may the relay read the change stream, or does it poll, and what
 * becomes of the slot? Pure.
 *
 * - The database's disk never fills because of us: a slot that keeps more of the log than the
 *   budget is removed, whatever waits. The rows are in the table.
 * - The stream is read only when nothing can have passed it by. A slot that is further than we
 *   remember, a database with another history, or a publication that is not as it was means polling
 *   first. A slot whose publication was changed is removed: the server reads the log with the
 *   publication as it was at that time, and may find none.
 * - A slot is made anew only when polling has nearly caught up, so that it does not keep the log
 *   for an outage that still lasts.
 */
#ifndef SEMEL_RELAY_CDC_SLOT_RULE_H
#define SEMEL_RELAY_CDC_SLOT_RULE_H

#include "store/changes.h"

enum semel_slot_action {
	SEMEL_SLOT_STREAM,     /* read it */
	SEMEL_SLOT_POLL,       /* there can be no stream: poll */
	SEMEL_SLOT_POLL_FIRST, /* poll up to poll_to_seq, then read it */
	SEMEL_SLOT_RESYNC, /* it is not as we left it: remember that all is to be polled first */
	SEMEL_SLOT_CREATE, /* poll, and make it */
	SEMEL_SLOT_WAIT,   /* poll, and make it later */
	SEMEL_SLOT_DROP    /* remove it, and poll */
};

struct semel_slot_verdict {
	enum semel_slot_action action;
	char reason[320]; /* for people */
};

struct semel_slot_view {
	const struct semel_slot_state *state;
	uint64_t budget; /* bytes */
	bool caught_up;  /* polling has nearly nothing left to do */
};

void semel_slot_decide(const struct semel_slot_view *view, struct semel_slot_verdict *verdict_out);

#endif
