/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer: receive, validate, begin, claim, effect, commit, acknowledge. */
#ifndef SEMEL_CONSUMER_H
#define SEMEL_CONSUMER_H

#include <semel/event.h>
#include <semel/outbox.h>
#include <semel/relay.h>
#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum semel_verdict { SEMEL_DONE, SEMEL_RETRY, SEMEL_REJECT } semel_verdict;

typedef enum semel_guarantee {
	SEMEL_EFFECTIVELY_ONCE,
	SEMEL_AT_LEAST_ONCE,
	SEMEL_AT_MOST_ONCE
} semel_guarantee;

typedef enum semel_claim_mode { SEMEL_CLAIM_SAME_TX, SEMEL_CLAIM_SEPARATE } semel_claim_mode;

typedef enum semel_order {
	SEMEL_ORDER_AGGREGATE, /* within an aggregate */
	SEMEL_ORDER_STRICT, /* also wait, for at most strict_wait_ms, for an unseen predecessor */
	SEMEL_ORDER_TOTAL   /* the whole topic; it must have one partition */
} semel_order;

/* What a handler is given besides the event. */
typedef struct semel_context semel_context;

/* The transaction in which the claim was made: effects written through its native handle commit
 * with the claim, or not at all. Do not commit or roll it back. */
SEMEL_API semel_tx semel_context_tx(const semel_context *context);
/* 1 for the first run. */
SEMEL_API uint32_t semel_context_attempt(const semel_context *context);
/* Why the verdict is not SEMEL_DONE; shown with the dead letter. */
SEMEL_API void semel_context_explain(semel_context *context, const char *format, ...)
	SEMEL_PRINTF(2, 3);
/* Publishes an event in the same transaction. It inherits the correlation and trace headers; its
 * causation id is the id of this event. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_context_publish(semel_context *context,
							      const semel_event_input *input,
							      char id_out[SEMEL_ID_SIZE],
							      semel_error *error);

/* Runs on the consumer's thread, inside the open transaction. */
typedef semel_verdict (*semel_handler)(const semel_event *event, semel_context *context,
				       void *user);

/* Converts the payload to the next version of the type: passes the new payload to
 * semel_upcast_payload, or leaves it as it is, and returns SEMEL_DONE; or returns SEMEL_RETRY or
 * SEMEL_REJECT. Runs on the consumer's thread. */
typedef struct semel_upcast semel_upcast;
typedef semel_verdict (*semel_upcaster)(const semel_event *event, semel_upcast *upcast, void *user);
SEMEL_API SEMEL_MUST_CHECK semel_status semel_upcast_payload(semel_upcast *upcast,
							     const void *payload, size_t size);

/* A plain input: zero means the default. The struct and its NULL-terminated lists are copied. */
typedef struct semel_consumer_options {
	const char *store;
	const char *broker;
	const char *scope;         /* required; must differ for each subscription */
	const char *const *topics; /* required */
	const char *handler_version;
	const char *dedup_header; /* NULL: by event id; else the header with the business key */
	const char *id_header;    /* header with the id of foreign messages; NULL: none */
	semel_guarantee guarantee;
	semel_claim_mode claim;
	semel_poison poison;
	semel_order order;
	uint32_t attempts;      /* runs of the handler per event before it is given up; default 5 */
	uint32_t immediate;     /* how many of these run before delayed ones begin; default 2 */
	int64_t first_delay_ms; /* of the first delayed run, then doubling; default 1 s */
	int64_t delay_max_ms;   /* default 1 min */
	uint32_t batch;         /* maximum number of deliveries in one transaction; default 500 */
	uint32_t concurrency;   /* handlers outside the transaction that run at once; default 1 */
	int64_t timeout_ms;     /* limit for one run of such a handler; default 30 s */
	int64_t lease_ms;       /* partitions of a silent consumer are taken over after this; 5 s */
	int64_t strict_wait_ms; /* how long SEMEL_ORDER_STRICT waits for a predecessor; 30 s */
	bool from_latest;       /* a new subscription skips events published before it */
	uint32_t partitions;    /* and so processes that can consume; 0: the broker's default */
	const char *bind;       /* only matching routing keys ("order.*"); NULL: all */
	int64_t prefetch_bytes; /* limit for events in flight, one is always allowed; 64 MiB */
} semel_consumer_options;

typedef struct semel_consumer semel_consumer;

/* One consumer belongs to one thread; only semel_consumer_stop may be called from another one, or
 * from a signal handler. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_consumer_open(const semel_consumer_options *options,
							    semel_consumer **consumer_out,
							    semel_error *error);
SEMEL_API SEMEL_MUST_CHECK semel_status semel_consumer_handle(semel_consumer *consumer,
							      semel_handler handler, void *user,
							      semel_error *error);
/* Registers a step from one version of a type to the next; steps are chained. Call it before the
 * consumer runs. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_consumer_upcast(semel_consumer *consumer,
							      const char *from_type,
							      const char *to_type,
							      semel_upcaster upcaster, void *user,
							      semel_error *error);
/* Runs until semel_consumer_stop, or until max deliveries were settled (0: no limit). */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_consumer_run(semel_consumer *consumer, uint64_t max,
							   semel_error *error);
/* Runs until no event waits in the queue, for a retry or behind a hold; SEMEL_NOT_FINISHED after
 * timeout_ms. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_consumer_drain(semel_consumer *consumer,
							     int64_t timeout_ms, uint64_t max,
							     semel_error *error);
SEMEL_API void semel_consumer_stop(semel_consumer *consumer);
SEMEL_API void semel_consumer_close(semel_consumer *consumer);

/* What this consumer did since it was opened. */
typedef struct semel_consumer_counts {
	uint64_t done, duplicate, retried, dead, parked, redelivered;
} semel_consumer_counts;
SEMEL_API semel_consumer_counts semel_consumer_count(const semel_consumer *consumer);

#ifdef __cplusplus
}
#endif
#endif
