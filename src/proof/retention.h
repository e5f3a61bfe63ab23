/* SPDX-License-Identifier: Apache-2.0 */
/* Retention: deletes rows that are older than their retention, in short transactions. */
#ifndef SEMEL_PROOF_RETENTION_H
#define SEMEL_PROOF_RETENTION_H

#include "broker/broker.h"
#include "store/store.h"

/* How long rows are kept. */
struct semel_retention_ages {
	int64_t outbox_ms, inbox_ms, dead_ms;
};

struct semel_retention_counts {
	struct semel_prune_counts rows;
	uint64_t broker;
};

struct semel_retention_plan {
	semel_store *store;
	struct semel_broker *broker; /* NULL: its log is not pruned */
	const struct semel_env *env;
	struct semel_wake *wake; /* when notified: stop between two steps; may be NULL */
	struct semel_retention_ages ages;
	bool dry_run;
	/* Called after each step; may be NULL. */
	void (*progress)(const struct semel_retention_counts *counts, void *user);
	void *user;
};

/* Pure. CONFIG if the inbox forgets before the outbox does: replayed events would be processed
 * twice. */
semel_status semel_retention_check(const struct semel_retention_ages *ages, semel_error *error);
/* Checks the ages, then prunes until nothing is left to prune. STOPPED: the wake was notified; what
 * was pruned stays pruned. */
semel_status semel_retention_run(const struct semel_retention_plan *plan,
				 struct semel_retention_counts *counts_out, semel_error *error);

#endif
