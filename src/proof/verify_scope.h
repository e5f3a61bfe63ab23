/* SPDX-License-Identifier: Apache-2.0 */
/* One scope of a verification; the other half of verify.c. */
#ifndef SEMEL_PROOF_VERIFY_SCOPE_H
#define SEMEL_PROOF_VERIFY_SCOPE_H

#include "proof/ledger.h"
#include "proof/position_reader.h"
#include "proof/verify.h"

/* One call of semel_verify_run. */
struct semel_verification {
	const struct semel_verify_plan *plan;
	struct semel_verify_report *report;
	struct semel_arena *arena; /* of the report */
	struct semel_ledger ledger;
	struct semel_broker *broker; /* NULL: not opened, or not reachable */
	struct semel_position_reader position_reader;
};

/* Counts the id, and keeps it if it is one of the first. */
void semel_verify_finding_add(struct semel_verify_finding *finding, struct semel_text id,
			      struct semel_arena *arena);
/* Flags the events that have a dead letter in this scope of the store. */
semel_status semel_verification_flag_letters(struct semel_verification *verification,
					     semel_store *store, struct semel_text scope,
					     semel_error *error);
/* Flags the events that have a claim in this scope of the store. */
semel_status semel_verification_flag_claims(struct semel_verification *verification,
					    semel_store *store, struct semel_text scope,
					    semel_error *error);
/* Verifies a scope and adds it to the report, which has capacity for it. row NULL: a scope that
 * claims through the library or by SQL, without a subscription. */
semel_status semel_verify_scope_add(struct semel_verification *verification, semel_store *consumer,
				    const struct semel_subscription_row *row,
				    struct semel_text name, semel_error *error);

#endif
