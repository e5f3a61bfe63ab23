/* SPDX-License-Identifier: Apache-2.0 */
/* Topics to which events are published and that no subscription reads. */
#ifndef SEMEL_PROOF_UNREAD_TOPICS_H
#define SEMEL_PROOF_UNREAD_TOPICS_H

#include "proof/ledger.h"
#include "proof/verify.h"
#include "store/subscription.h"

/* All subscriptions of a store. */
struct semel_store_subscriptions {
	semel_store *store;
	struct semel_subscription_row *rows;
	uint32_t count;
};

/* Fills in report->unread; without any subscription it stays empty. */
semel_status semel_unread_topics_find(const struct semel_verify_plan *plan,
				      const struct semel_ledger *ledger,
				      const struct semel_store_subscriptions *known,
				      struct semel_arena *arena, struct semel_verify_report *report,
				      semel_error *error);

#endif
