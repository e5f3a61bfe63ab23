/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log: what operators did, as the store keeps it. */
#ifndef SEMEL_STORE_AUDIT_H
#define SEMEL_STORE_AUDIT_H

#include "base/text.h"

#include <stdint.h>

/* Characters of a target or a detail; what is longer ends in an ellipsis. */
#define SEMEL_AUDIT_TEXT "4096"
/* The outcome while the action runs, and for good when the process ended in between. */
#define SEMEL_AUDIT_BEGUN "begun"

/* What an operator did, or tried to do. */
struct semel_audit_row {
	int64_t at_ms;
	struct semel_text who, what, target, detail; /* of the last two data NULL: none */
	/* "begun", "done", "done: …", "refused: not-pending", "failed: outage"; data NULL: the row
	 * was written before there was a column for it. */
	struct semel_text outcome;
};

#endif
