/* SPDX-License-Identifier: Apache-2.0 */
/* Care after a crash: a handler inside the transaction may end the whole process, and then nothing
 * tells at which event. So when a consumer finds that another one of its scope died, events run one
 * by one for a while, each written down before it runs. One at which consumers died as often as it
 * may be tried is given up. While nobody dies, none of this costs anything. */
#ifndef SEMEL_CONSUME_CARE_H
#define SEMEL_CONSUME_CARE_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_item;

struct semel_crash_recovery {
	bool on;
	uint32_t left;    /* so many events yet */
	int64_t until_ms; /* steady */
};

/* Looks whether one died. */
semel_status semel_crash_recovery_begin(struct semel_consumer *consumer, semel_error *error);
/* Before it runs, outside of a transaction. It is refused if it was begun too often. */
semel_status semel_crash_recovery_before_run(struct semel_consumer *consumer,
					     struct semel_item *item, semel_error *error);
/* In the transaction of its effect, whatever became of it. */
semel_status semel_crash_recovery_after_run(struct semel_consumer *consumer,
					    const struct semel_item *item, semel_error *error);
/* What was in the hands of the dead has been processed. */
void semel_crash_recovery_end(struct semel_consumer *consumer);

#endif
