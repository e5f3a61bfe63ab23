/* SPDX-License-Identifier: Apache-2.0 */
/* When does a failed event come back, and when is it given up? Pure.
 *
 * - An outage costs no attempt: the event did nothing wrong.
 * - What the handler rejects is given up at once; the rest when the budget is spent.
 * - The first runs follow at once, after a moment; the later ones are delayed at the broker.
 */
#ifndef SEMEL_CONSUME_RETRY_H
#define SEMEL_CONSUME_RETRY_H

#include "base/backoff.h"

#include <semel/status.h>

enum semel_retry {
	SEMEL_RETRY_FREE,  /* an outage: later, and it did not count */
	SEMEL_RETRY_NOW,   /* here, after delay_ms */
	SEMEL_RETRY_LATER, /* at the broker, after delay_ms */
	SEMEL_RETRY_GIVE_UP
};

struct semel_retry_policy {
	uint32_t attempts_max;  /* runs in all */
	uint32_t immediate_max; /* of them without leaving the consumer */
	struct semel_backoff immediate, delayed;
};

struct semel_attempt {
	uint32_t number; /* runs so far, this one included */
	semel_status status;
	int64_t retry_after_ms; /* requested by the handler; 0: not */
};

/* Longer delays that a handler asks for are cut to this. */
#define SEMEL_RETRY_AFTER_MAX_MS (INT64_C(3600) * 1000)

enum semel_retry semel_retry_next(const struct semel_retry_policy *policy,
				  const struct semel_attempt *attempt, uint64_t chance,
				  int64_t *delay_ms_out);

#endif
