/* SPDX-License-Identifier: Apache-2.0 */
/* The order of an event within its ordering key: what a hold, or a predecessor that is missing,
 * means for it. All in the open transaction. */
#ifndef SEMEL_CONSUME_ORDER_H
#define SEMEL_CONSUME_ORDER_H

#include "store/store.h"

struct semel_consumer;
struct semel_item;

/* The item at that index stays UNDECIDED (it may run), or is deferred, parked or sent back. hold:
 * of its key, as just read. */
semel_status semel_order_apply(struct semel_consumer *consumer, struct semel_item *items,
			       uint32_t at, const struct semel_hold *hold, semel_error *error);
/* CONFIG: the scope holds events of another kind of order than this consumer keeps. */
semel_status semel_order_check_mode(struct semel_consumer *consumer, semel_error *error);

#endif
