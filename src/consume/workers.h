/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded crew of threads that run an outside handler. Jobs of one aggregate that are in the crew
 * at the same time go to one worker, in the order they were submitted, so order holds whatever the
 * number of workers; otherwise a job goes to whoever has least to do.
 *
 * Threads: all calls come from the consumer's thread. A job belongs to the crew between submit and
 * take, and its event must stay unchanged meanwhile.
 */
#ifndef SEMEL_CONSUME_WORKERS_H
#define SEMEL_CONSUME_WORKERS_H

#include "consume/handler.h"

struct semel_job {
	const struct semel_event *event;
	uint32_t attempt;
	void *user;
	struct semel_outcome outcome; /* filled by the worker */
	struct semel_job *next;       /* the crew's own */
};

struct semel_workers;

/* Opens the handler once per worker. */
semel_status semel_workers_start(const struct semel_outside_kind *kind,
				 const struct semel_outside_options *options, uint32_t count,
				 struct semel_workers **workers_out, semel_error *error);
void semel_workers_submit(struct semel_workers *workers, struct semel_job *job);
/* A finished job, or NULL. Does not wait. */
struct semel_job *semel_workers_take(struct semel_workers *workers);
/* Readable while a finished job may be there. */
int semel_workers_fd(const struct semel_workers *workers);
/* Ends what is under way soon, and all that is submitted from now on. */
void semel_workers_interrupt(struct semel_workers *workers);
/* Interrupts what is under way and waits for the threads; jobs not taken are dropped. May be NULL.
 */
void semel_workers_stop(struct semel_workers *workers);

#endif
