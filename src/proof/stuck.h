/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the rows that wait in a scope will never be processed? The tables say what each row
 * waits for; if that is a copy of an event, the broker is queried for it. Only what is proven is
 * stuck: a copy that cannot be queried, or that a consumer may have in flight, counts as in
 * transit.
 *
 * A copy stays at the broker until its outcome is committed. So a copy that the broker does not
 * have is lost if the tables say, both before and after the query, that a row waits for it. */
#ifndef SEMEL_PROOF_STUCK_H
#define SEMEL_PROOF_STUCK_H

#include "broker/broker.h"
#include "store/store.h"

#define SEMEL_STUCK_QUERIES_MAX 100 /* copies that the broker is queried for, per check */

/* What a waiting row needs in order to be processed. */
enum semel_fix {
	SEMEL_FIX_NONE,    /* nothing: a consumer processes it, now or when it is due */
	SEMEL_FIX_RELEASE, /* a release: it has no hold, or one whose head is settled */
	SEMEL_FIX_RESEND   /* a copy of the awaited event, which is sent again if it is lost */
};

struct semel_wait_fix {
	enum semel_fix kind;
	struct semel_text awaited_id; /* RESEND: the event whose copy it waits for */
};

/* Pure, except that it checks whether an owner on this machine is dead. */
struct semel_wait_fix semel_wait_find_fix(const struct semel_wait *wait, int64_t now_ms);

/* One check of one scope. */
struct semel_stuck_check {
	semel_store *store;
	struct semel_broker *broker; /* NULL: not reachable, and no copy counts as lost */
	const char *scope;
	const char *const *topics; /* all that the scope has ever read; NULL-terminated */
	uint64_t in_flight;        /* deliveries that live consumers have */
	int64_t now_ms;
	int64_t overdue_ms; /* only rows overdue by this are queried; 0: all */
	struct semel_arena *arena;
	struct semel_text queried[SEMEL_STUCK_QUERIES_MAX];
	bool gone[SEMEL_STUCK_QUERIES_MAX];
	uint32_t count;
};

/* Queries the broker for every copy that a row waits for. Read the waits again afterwards. */
semel_status semel_stuck_check_run(struct semel_stuck_check *stuck, semel_error *error);
/* Is this wait stuck? It must have been read after the run. */
bool semel_stuck_check_is_confirmed(const struct semel_stuck_check *stuck,
				    const struct semel_wait *wait);
/* Queries for one event: is no copy of it in transit? */
semel_status semel_stuck_check_is_gone(const struct semel_stuck_check *stuck, struct semel_text id,
				       bool *gone_out, semel_error *error);
/* Runs the check and counts what is stuck. */
semel_status semel_stuck_count(struct semel_stuck_check *stuck, uint64_t *count_out,
			       semel_error *error);

#endif
