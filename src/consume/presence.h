/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's row in the store, from which verify, trace and doctor read what it has in flight
 * and what it waits for. Written at the start, when something changed (at most once a second), and
 * every five seconds; never inside a transaction, never per event. */
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
	bool begun;       /* rows of consumers that died long ago were removed */
	bool failed;      /* the store has refused the row, which was logged */
	int64_t since_ms; /* since when it waits (since 1970); 0: it does not */
};

/* Call between two steps, with the store connected. outage: what is unreachable; NULL: nothing. A
 * failure is not reported: the row is written again later. */
void semel_presence_write(struct semel_consumer *consumer, const char *outage);
/* The consumer ends: removes its row. */
void semel_presence_end(struct semel_consumer *consumer);

#endif
