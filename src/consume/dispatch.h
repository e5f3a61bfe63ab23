/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers outside the transaction, several at a time. */
#ifndef SEMEL_CONSUME_DISPATCH_H
#define SEMEL_CONSUME_DISPATCH_H

#include "base/text.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_dispatch;

semel_status semel_dispatch_open(struct semel_consumer *consumer, semel_error *error);
/* One step: settles the calls that ended, admits and starts what is next. *busy_out: call it again
 * at once. */
semel_status semel_dispatch_step(struct semel_consumer *consumer, bool *busy_out,
				 semel_error *error);
/* The connections are closed: waiting tasks are dropped and will be redelivered; running calls
 * continue. */
void semel_dispatch_detach(struct semel_consumer *consumer);
/* Ends the running calls soon; they are settled as interrupted. */
void semel_dispatch_interrupt(const struct semel_consumer *consumer);
void semel_dispatch_close(struct semel_consumer *consumer);

/* Deliveries in flight: waiting, running, or not settled. */
uint32_t semel_dispatch_task_count(const struct semel_consumer *consumer);
/* Running calls, and ended calls that are not settled. */
uint32_t semel_dispatch_call_count(const struct semel_consumer *consumer);
/* Does one of these calls belong to this event? */
bool semel_dispatch_has_call(const struct semel_consumer *consumer, struct semel_text event_id);
/* When the first task with a start time in the future may start (steady); 0: there is none. */
int64_t semel_dispatch_next_ms(const struct semel_consumer *consumer);
/* Waits for a call to end, even when the consumer is stopping. */
void semel_dispatch_wait(const struct semel_consumer *consumer, int64_t wait_ms);

#endif
