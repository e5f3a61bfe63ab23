/* SPDX-License-Identifier: Apache-2.0 */
/* Does what waits in a scope ever move? The tables say what each thing waits for; where that is a
 * copy of an event, the broker is asked whether there is one. Only what is proven is stuck: a copy
 * that the broker cannot be asked for, or that may be in a consumer's hands, is on its way.
 *
 * A copy is at the broker until what became of it is committed, so one that is nowhere, while the
 * tables say both before and after the question that something waits for it, is gone. */
#ifndef SEMEL_PROOF_STUCK_H
#define SEMEL_PROOF_STUCK_H

#include "broker/broker.h"
#include "store/store.h"

#define SEMEL_STUCK_QUERIES_MAX 100 /* copies that the broker is asked for, per scope and look */

/* What moves something that waits. */
enum semel_fix {
	SEMEL_FIX_NONE,    /* a consumer does, now or when it is due */
	SEMEL_FIX_RELEASE, /* nothing: no hold keeps it, or one whose head is settled */
	SEMEL_FIX_RESEND   /* a copy of an event; if there is none, nothing */
};

struct semel_wait_fix {
	enum semel_fix fix;
	struct semel_text awaited_id; /* SEND: the event whose copy it waits for */
};

/* Pure, but for the question whether an owner on this machine is dead. */
struct semel_wait_fix semel_wait_find_fix(const struct semel_wait *wait, int64_t now_ms);

/* One look at one scope. */
struct semel_stuck_check {
	semel_store *store;
	struct semel_broker *broker; /* NULL: it cannot be asked, and no copy is gone */
	const char *scope;
	const char *const *topics; /* all that the scope has ever read, NULL-ended */
	uint64_t in_flight;        /* deliveries in the hands of living consumers */
	int64_t now_ms;
	int64_t overdue_ms; /* what is due later than so long ago is not asked for; 0: all is */
	struct semel_arena *arena;
	struct semel_text asked[SEMEL_STUCK_QUERIES_MAX];
	bool gone[SEMEL_STUCK_QUERIES_MAX];
	uint32_t count;
};

/* Asks the broker for everything that something waits for. Then: read the waits again. */
semel_status semel_stuck_check_run(struct semel_stuck_check *stuck, semel_error *error);
/* Of a wait that was read after that. */
bool semel_stuck_check_confirms(const struct semel_stuck_check *stuck,
				const struct semel_wait *wait);
/* One question: is no copy of the event on its way? */
semel_status semel_stuck_check_is_gone(const struct semel_stuck_check *stuck, struct semel_text id,
				       bool *gone_out, semel_error *error);
/* Asks, and counts what waits in vain. */
semel_status semel_stuck_count(struct semel_stuck_check *stuck, uint64_t *count_out,
			       semel_error *error);

#endif
