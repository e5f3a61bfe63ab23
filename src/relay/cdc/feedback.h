/* SPDX-License-Identifier: Apache-2.0 */
/* How far the change stream may be confirmed. Pure.
 *
 * - Batches complete in any order; the stream is confirmed in its own order.
 * - A position is reached only when every batch up to it is complete. A batch that ends within a
 *   transaction has no position of its own: the next batch that has one covers it.
 * - A position that comes without rows (the stream was idle) is reached at once when no batch is
 *   open, and otherwise with the last open batch.
 */
#ifndef SEMEL_RELAY_CDC_FEEDBACK_H
#define SEMEL_RELAY_CDC_FEEDBACK_H

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_FEEDBACK_MAX 4096 /* batches that are open; a power of two */

struct semel_feedback {
	uint64_t first, next; /* tickets: first is the oldest that is open */
	uint64_t position;    /* reached */
	struct {
		uint64_t position; /* 0: none */
		bool complete;
	} batches[SEMEL_FEEDBACK_MAX];
};

/* No batch is open, and no position is reached. */
void semel_feedback_reset(struct semel_feedback *feedback);
bool semel_feedback_is_full(const struct semel_feedback *feedback);
bool semel_feedback_is_idle(const struct semel_feedback *feedback);
/* A batch that ends at this position; 0: within a transaction. Not when it is full. */
uint64_t semel_feedback_open(struct semel_feedback *feedback, uint64_t position);
/* The stream has reached this position without further rows. */
void semel_feedback_pass(struct semel_feedback *feedback, uint64_t position);
void semel_feedback_complete(struct semel_feedback *feedback, uint64_t ticket);

#endif
