/* SPDX-License-Identifier: Apache-2.0 */
/* Sending retained events again, with the ids they have: to all subscriptions, which skip by the id
 * what they have processed already, or to one scope. */
#ifndef SEMEL_DEADLETTER_REPLAY_H
#define SEMEL_DEADLETTER_REPLAY_H

#include "broker/broker.h"
#include "store/store.h"

#define SEMEL_REPLAY_WINDOW 500 /* events sent between two checks of the clock and of a stop */

struct semel_replay_counts {
	uint64_t matching; /* what the selection finds */
	uint64_t chosen;   /* of them, at most max */
	uint64_t too_old; /* of the chosen: the inbox may have forgotten that they were processed */
	uint64_t held;    /* of the chosen, reprocess only: their aggregate is held */
	uint64_t sent;    /* confirmed by the broker */
	int64_t oldest_ms; /* time of the oldest chosen event; 0: none */
};

typedef void (*semel_replay_progress)(const struct semel_replay_counts *counts, void *user);

struct semel_replay_plan {
	semel_store *producer;         /* whose outbox is read */
	semel_store *const *consumers; /* where the subscriptions keep their inboxes */
	size_t consumer_count;
	struct semel_broker *broker; /* NULL: dry run only */
	const struct semel_env *env;
	struct semel_wake *wake; /* what the rate sleeps on; notified: stop */
	struct semel_outbox_filter filter;
	const char *scope;          /* NULL: all subscriptions */
	uint64_t max;               /* 0: no cap */
	uint32_t rate;              /* events per second; 0: as fast as it goes */
	int64_t inbox_retention_ms; /* as configured */
	bool reprocess;             /* forgets the claims of the scope, which must be given */
	bool force;                 /* also what is too old, or held */
	bool dry_run;
	semel_replay_progress progress; /* may be NULL */
	void *user;
};

/* Counts first, refuses before anything is sent, then sends in the order of the outbox.
 * INVALID: something is too old or held (without force), or no store knows the scope. STOPPED: the
 * wake was notified; what counts_out says was sent is sent. */
semel_status semel_replay_run(const struct semel_replay_plan *plan,
			      struct semel_replay_counts *counts_out, semel_error *error);

/* Pure: when, after the start, the event after `sent` others may go. */
int64_t semel_replay_due_ms(uint64_t sent, uint32_t rate);

#endif
