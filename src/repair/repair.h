/* SPDX-License-Identifier: Apache-2.0 */
/* src/repair: repairs what is stuck, if that is provably safe: releases events that wait behind no
 * hold, or behind one whose head is settled, and sends lost copies again. The state is read again
 * in the transaction that changes it, with its hold or dead letter locked; each step has an audit
 * row.
 *
 * To change here: a new step needs its proof in proof/stuck.h first. */
#ifndef SEMEL_REPAIR_REPAIR_H
#define SEMEL_REPAIR_REPAIR_H

#include "broker/broker.h"
#include "store/store.h"

enum semel_repair_result {
	SEMEL_REPAIR_PLANNED, /* dry run */
	SEMEL_REPAIR_DONE,
	SEMEL_REPAIR_UNNECESSARY, /* it had been processed when the state was read again */
	SEMEL_REPAIR_IMPOSSIBLE   /* the text says why */
};

/* The texts live until the call returns. */
struct semel_repair_step {
	const char *scope;
	const char *what;   /* "release", "send" */
	const char *target; /* an ordering key, or an event id */
	const char *text;
	enum semel_repair_result result;
};

typedef void (*semel_repair_step_callback)(const struct semel_repair_step *step, void *user);

struct semel_repair_plan {
	semel_store *const *stores; /* the producer's first; any of them may have subscriptions */
	size_t store_count;
	const char *broker_url;
	const char *const *scopes; /* NULL-terminated; empty: all */
	const struct semel_env *env;
	const char *who; /* for the audit */
	bool dry_run;
	semel_repair_step_callback callback;
	void *user;
};

struct semel_repair_counts {
	uint32_t done; /* or planned */
	uint32_t impossible;
};

/* OUTAGE if the store or the broker is not reachable: without the broker nothing can be proven. */
semel_status semel_repair_run(const struct semel_repair_plan *plan,
			      struct semel_repair_counts *counts_out, semel_error *error);

#endif
