/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads that do what may take long (a store that does not answer, say), so that those who
 * speak with the sockets never wait for it. */
#ifndef SEMEL_ADMIN_CREW_H
#define SEMEL_ADMIN_CREW_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_crew;

/* First member of what is to be done; the caller's until it is handed over, and again in run. */
struct semel_task {
	struct semel_task *next;
	/* On a thread of the crew. given_up: the crew is stopped; say so instead of doing it. */
	void (*run)(struct semel_task *task, bool given_up);
};

semel_status semel_crew_start(uint32_t threads, uint32_t waiting_max, struct semel_crew **crew_out,
			      semel_error *error);
/* Any thread. false: too many wait already, or it is stopped; the task is still the caller's. */
bool semel_crew_hand(struct semel_crew *crew, struct semel_task *task);
/* Returns when nobody is at work any more; what still waited was given up. Later hands are refused.
 */
void semel_crew_stop(struct semel_crew *crew);
/* After it was stopped. crew may be NULL. */
void semel_crew_free(struct semel_crew *crew);

#endif
