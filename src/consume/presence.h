/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer tells others of itself: one row in the store, so that verify, trace and doctor
 * know what is in its hands and what it waits for. Written at the start, when something changed (at
 * most once a second), and every five seconds; never inside a transaction, never per event. */
#ifndef SEMEL_CONSUME_PRESENCE_H
#define SEMEL_CONSUME_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_PRESENCE_LEASE_MS 15000

struct semel_consumer;

/* What was written last. */
struct semel_presence_state {
	int64_t written_at_ms; /* steady; 0: never */
	uint64_t in_flight;
	uint32_t breaker;
	bool paused;
	bool begun;       /* rows of those long dead were removed */
	bool refused;     /* the store would not take it, which was logged */
	int64_t since_ms; /* since 1970: it waits; 0: it does not */
};

/* Between two turns, with the store connected. trouble: what is away, NULL: nothing. What goes
 * wrong is not the caller's matter: the row is written again later. */
void semel_presence_write(struct semel_consumer *consumer, const char *trouble);
/* The consumer ends. */
void semel_presence_end(struct semel_consumer *consumer);

#endif
