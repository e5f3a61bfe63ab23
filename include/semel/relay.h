/* SPDX-License-Identifier: Apache-2.0 */
/* The relay: publishes the events of the outbox to the broker. */
#ifndef SEMEL_RELAY_H
#define SEMEL_RELAY_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum semel_poison {
	SEMEL_POISON_PARK_KEY, /* later events of the aggregate are parked, and released in order */
	SEMEL_POISON_BLOCK,    /* parked too, and a drain waits for them */
	SEMEL_POISON_SKIP      /* later events go on */
} semel_poison;

/* How the relay finds new rows. */
typedef enum semel_source_kind {
	SEMEL_SOURCE_POLL, /* it polls the table, and commits wake it */
	SEMEL_SOURCE_CDC   /* it reads the database's change stream (PostgreSQL), and polls while
			    * it cannot */
} semel_source_kind;

/* What is written to a row that came through the change stream, once it is published. */
typedef enum semel_marks {
	SEMEL_MARKS_LAZY, /* it is marked, a little later, with many others */
	SEMEL_MARKS_OFF   /* nothing: only the lanes' low marks move */
} semel_marks;

/* A plain input: zero means the default. Copied. */
typedef struct semel_relay_options {
	const char *store;          /* "sqlite:semel.db" */
	const char *broker;         /* "local:semel-broker.db" */
	uint32_t window;            /* maximum of unconfirmed events; 1: one by one; default 1000,
				     * 2400 with cdc, 3200 with transactions */
	uint64_t window_bytes;      /* maximum payload of unconfirmed events; default 16 MiB */
	int64_t confirm_timeout_ms; /* without an answer within this: an outage; default 30 s */
	uint32_t attempts;          /* refusals of one event before it is given up; default 10 */
	int64_t first_delay_ms;     /* of its backoff; default 1 s, doubling */
	int64_t delay_max_ms;       /* default 5 min */
	int64_t poll_ms;            /* polls at least this often, besides wakeups; default 1 s */
	int64_t lease_ms; /* another relay takes over a silent one's lanes after this; 5 s */
	semel_poison poison;
	semel_source_kind source;
	const char *slot;     /* cdc: the replication slot; default "semel" */
	uint64_t slot_budget; /* cdc: bytes of WAL that the slot may retain; default 4 GiB */
	semel_marks marks;    /* cdc */
	bool transactions;    /* cdc, Kafka: one transaction's events become visible together */
} semel_relay_options;

typedef struct semel_relay semel_relay;

/* One relay belongs to one thread; only semel_relay_stop may be called from another one, or from a
 * signal handler. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_relay_open(const semel_relay_options *options,
							 semel_relay **relay_out,
							 semel_error *error);
/* Runs until semel_relay_stop; reconnects after outages. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_relay_run(semel_relay *relay, semel_error *error);
/* Runs until no event waits. After timeout_ms: SEMEL_NOT_FINISHED, and the error says what still
 * waits and why. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_relay_drain(semel_relay *relay, int64_t timeout_ms,
							  semel_error *error);
SEMEL_API void semel_relay_stop(semel_relay *relay);
SEMEL_API uint64_t semel_relay_published(const semel_relay *relay);
SEMEL_API void semel_relay_close(semel_relay *relay);

#ifdef __cplusplus
}
#endif
#endif
