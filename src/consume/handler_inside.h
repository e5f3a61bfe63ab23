/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers inside the transaction: C functions and SQL statements, on the consumer's thread. */
#ifndef SEMEL_CONSUME_HANDLER_INSIDE_H
#define SEMEL_CONSUME_HANDLER_INSIDE_H

#include <semel/status.h>

struct semel_consumer;
struct semel_item;

/* Runs the handler once, in the open transaction, on the event's newest version. item->status has
 * the result too. */
semel_status semel_handler_run(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error);

#endif
