/* SPDX-License-Identifier: Apache-2.0 */
/* Crash recovery: a handler inside the transaction can end the whole process, and then nothing
 * shows which event was running. So when a consumer finds that another consumer of its scope has
 * died, events run one by one for a while, each recorded before it runs. An event at which
 * consumers died as often as it may be attempted becomes a dead letter. While no consumer dies,
 * none of this costs anything. */
#ifndef SEMEL_CONSUME_CRASH_RECOVERY_H
#define SEMEL_CONSUME_CRASH_RECOVERY_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_item;

struct semel_crash_recovery {
	bool active;
	uint32_t remaining; /* events */
	int64_t until_ms;   /* steady */
};

/* Becomes active if, according to the store, a consumer of this scope has died. */
semel_status semel_crash_recovery_begin(struct semel_consumer *consumer, semel_error *error);
/* Call before the item runs, outside a transaction. An item that was begun too often does not run,
 * and its run counts as failed. */
semel_status semel_crash_recovery_before_run(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error);
/* Call in the transaction of the item's effect, whatever its outcome. */
semel_status semel_crash_recovery_after_run(struct semel_consumer *consumer,
					    const struct semel_item *item, semel_error *error);
/* Call when everything that the dead consumers had in flight has been processed. */
void semel_crash_recovery_end(struct semel_consumer *consumer);

#endif
