/* SPDX-License-Identifier: Apache-2.0 */
/* Sends retained events again, with their own ids: to all subscriptions, which recognise by the id
 * what they have already processed and skip it, or to one scope. */
#ifndef SEMEL_DEADLETTER_REPLAY_H
#define SEMEL_DEADLETTER_REPLAY_H

#include "broker/broker.h"
#include "store/store.h"

#define SEMEL_REPLAY_WINDOW 500 /* events sent between two checks of the clock and of a stop */

struct semel_replay_counts {
	uint64_t matching; /* events that the selection finds */
	uint64_t chosen;   /* of these, at most max */
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
	struct semel_wake *wake; /* ends the sleeps between bursts; notified: stop */
	struct semel_outbox_filter filter;
	const char *scope;          /* NULL: all subscriptions */
	uint64_t max;               /* 0: no cap */
	uint32_t rate;              /* events per second; 0: no limit */
	int64_t inbox_retention_ms; /* as configured */
	bool reprocess;             /* deletes the claims of the scope, which must be given */
	bool force;                 /* also sends what is too old or held */
	bool dry_run;
	semel_replay_progress progress; /* may be NULL */
	void *user;
};

/* Counts first, refuses before anything is sent, then sends in the order of the outbox. INVALID:
 * something is too old or held (without force), or no store knows the scope. STOPPED: the wake was
 * notified; counts_out counts what was sent until then. */
semel_status semel_replay_run(const struct semel_replay_plan *plan,
			      struct semel_replay_counts *counts_out, semel_error *error);

/* Pure: how long after the start the next event may be sent, if `sent` events were sent before
 * it. */
int64_t semel_replay_due_ms(uint64_t sent, uint32_t rate);

#endif
