/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery from crashes: a handler inside the transaction may end the whole process, and then
 * nothing shows at which event. So when a consumer finds that another one of its scope died, events
 * run one by one for a while, each recorded before it runs. One at which consumers died as often as
 * it may be tried becomes a dead letter. While no consumer dies, none of this costs anything. */
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

/* Active if the store has a consumer of this scope that died. */
semel_status semel_crash_recovery_begin(struct semel_consumer *consumer, semel_error *error);
/* Before the item runs, outside of a transaction. Its run is skipped, and counts as failed, if it
 * was begun too often. */
semel_status semel_crash_recovery_before_run(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error);
/* In the transaction of its effect, whatever became of it. */
semel_status semel_crash_recovery_after_run(struct semel_consumer *consumer,
					    const struct semel_item *item, semel_error *error);
/* What the dead consumers had in flight has been processed. */
void semel_crash_recovery_end(struct semel_consumer *consumer);

#endif
