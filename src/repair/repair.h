/* SPDX-License-Identifier: Apache-2.0 */
/* Moves what is stuck, where that is provably safe: releases what nothing holds, and sends again
 * what something waits for and is gone. Everything is looked at again inside the transaction that
 * changes it, with its hold or dead letter locked; each step is written into the audit. */
#ifndef SEMEL_REPAIR_REPAIR_H
#define SEMEL_REPAIR_REPAIR_H

#include "broker/broker.h"
#include "store/store.h"

enum semel_repair_result {
	SEMEL_REPAIR_PLANNED, /* dry run */
	SEMEL_REPAIR_DONE,
	SEMEL_REPAIR_UNNECESSARY, /* it had moved by itself when it was looked at again */
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
	semel_store *const *stores; /* the producer's first; subscriptions are in any of them */
	size_t store_count;
	const char *broker_url;
	const char *const *scopes; /* NULL-ended; empty: all */
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

/* OUTAGE when store or broker cannot be reached: without the broker nothing is provable. */
semel_status semel_repair_run(const struct semel_repair_plan *plan,
			      struct semel_repair_counts *counts_out, semel_error *error);

#endif
