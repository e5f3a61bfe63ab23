/* SPDX-License-Identifier: Apache-2.0 */
/* The seam to the brokers. A broker carries events from the relay to the subscriptions.
 *
 * Publishing is asynchronous: publish() accepts an event or answers that the window is full; poll()
 * later reports one outcome for each event that was accepted. Nothing is durable before its outcome
 * is SEMEL_OK. When the broker refuses an event, later events of the same aggregate that were
 * published before its outcome was reported are refused too, as HELD; so a refusal never breaks the
 * order.
 *
 * Consuming: a subscription is a scope that reads topics. Deliveries of one aggregate come in
 * order, and to one consumer at a time. What was fetched and not acked is redelivered: to this
 * consumer after rewind(), or to another one after this one was closed or died.
 *
 * Threads: one broker belongs to one thread. Outcomes are reported inside poll().
 * Ownership: a published event stays the caller's, unchanged until its outcome was reported.
 * Deliveries are read into the caller's arena.
 * Offsets: a log that does not store its readers' offsets (a stream) is read from where the
 * caller's offset store says. Its deliveries say so (offset_in_store): the caller writes their
 * offset in the transaction of their effect.
 * Errors: OUTAGE from any function: the connection is lost. What was not reported may or may not
 * have arrived; the caller closes the broker and opens it again.
 *
 * To change here: the contract of a function belongs to its typedef, and every driver has to keep
 * it: tests/contract/broker_suite.c runs against all of them. A new function is optional (NULL)
 * unless every broker can do it. Nothing here or in a driver decides about retries, dead letters or
 * holds: that is src/consume's and src/relay's. A driver is a folder and its lines in registry.c;
 * docs/writing-a-driver.md describes how to add one.
 */
#ifndef SEMEL_BROKER_BROKER_H
#define SEMEL_BROKER_BROKER_H

#include "base/arena.h"
#include "base/env.h"
#include "base/url.h"
#include "base/wake.h"
#include "diagnose/finding.h"
#include "event/event.h"
#include "event/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct semel_broker {
	const struct semel_broker_driver *driver;
};

/* ---- outcomes and deliveries ----------------------------------------------------------------- */

struct semel_publish_outcome {
	void *token;
	semel_status status; /* OK; NACKED, UNROUTABLE, TOO_LARGE, HELD, … */
	int64_t took_us;     /* from publish to the broker's answer; 0: unknown */
	char reason[160];    /* empty when OK */
};

typedef void (*semel_outcome_callback)(const struct semel_publish_outcome *outcome, void *user);

struct semel_delivery {
	struct semel_event event; /* may break the contract; the consumer checks it */
	struct semel_publish_metadata metadata;
	int32_t partition;
	int64_t offset;
	bool redelivered;
	bool offset_in_store; /* the caller, not the broker, writes it, with the effect */
	uint64_t tag;         /* the driver's own */
};

/* A copy of a dead letter, for operators who monitor the broker. */
struct semel_dead_letter_copy {
	const char *scope;
	const struct semel_delivery *delivery;
	const char *reason;
	uint32_t attempts;
	int64_t failed_at_ms;
};

/* ---- the offset store ------------------------------------------------------------------------ */

/* How far a scope has read a log, for logs whose offsets are stored with the effects. The broker's
 * functions call these functions on the broker's thread, and never in a transaction of the
 * caller. */
struct semel_offset_store {
	void *user;
	/* May this consumer read the partition, and from where? next_out -1: it was never read.
	 * granted: the broker itself has assigned it to us, so an earlier reader is fenced off.
	 * LEASE_LOST: another consumer reads it; ask again later. */
	semel_status (*acquire)(void *user, const char *topic, int32_t partition, bool granted,
				int64_t *next_out, semel_error *error);
	/* For an acquired partition: the last event processed before its offset, by which the
	 * broker can check that the log is still the same. */
	struct semel_anchor (*anchor)(void *user, const char *topic, int32_t partition);
	/* For an acquired partition whose log was replaced: it is now read from next, and what was
	 * fetched of the old log is forgotten. Durable when it returns OK. */
	semel_status (*reset)(void *user, const char *topic, int32_t partition, int64_t next,
			      semel_error *error);
	/* The partition is no longer read. */
	void (*release)(void *user, const char *topic, int32_t partition);
	/* For position readers, which acquire nothing: the scope's next offset. */
	semel_status (*get)(void *user, const char *scope, const char *topic, int32_t partition,
			    int64_t *next_out, semel_error *error);
};

/* ---- opening --------------------------------------------------------------------------------- */

/* window: the most events that may be unconfirmed. CONFIG: the URL cannot be valid. OUTAGE: the
 * broker cannot be reached. */
typedef semel_status semel_broker_open_fn(const struct semel_url *url, const struct semel_env *env,
					  uint32_t window, struct semel_broker **broker_out,
					  semel_error *error);
typedef void semel_broker_close_fn(struct semel_broker *broker);
/* As watch: adds to wake what ends a sleep when a delivery may have arrived. As watch_outcomes:
 * when outcomes may have arrived, so that poll need not wait for them. close removes what does not
 * outlive the connection. The wake outlives the broker. */
typedef void semel_broker_watch_fn(struct semel_broker *broker, struct semel_wake *wake);
/* Call before subscribe, backlog and find_event; the offset store outlives the broker. Without an
 * offset store, a log whose offsets the broker does not store cannot be read (CONFIG). */
typedef void semel_broker_set_offset_store_fn(struct semel_broker *broker,
					      const struct semel_offset_store *offset_store);

/* ---- publishing ------------------------------------------------------------------------------ */

/* Declares the topic if it is not known yet. FULL: poll first. Another status of class RETRY or
 * REJECT is this event's outcome, reported at once. */
typedef semel_status semel_broker_publish_fn(struct semel_broker *broker,
					     const struct semel_event *event,
					     const struct semel_publish_metadata *metadata,
					     void *token, semel_error *error);
/* Waits at most wait_ms for outcomes (0: does not wait) and reports them; keeps the connection
 * alive. A driver that confirms in groups closes the group here. */
typedef semel_status semel_broker_poll_fn(struct semel_broker *broker, int64_t wait_ms,
					  semel_outcome_callback callback, void *user,
					  semel_error *error);
/* Call before the first publish. From then on the events of one transaction (metadata) become
 * visible together or not at all. An earlier publisher with this name is fenced off. FULL: not done
 * yet; call it again after renewing the leases. When one event of a transaction is refused, all its
 * events are. */
typedef semel_status semel_broker_init_transactions_fn(struct semel_broker *broker,
						       const char *name, semel_error *error);
/* Declares everything published so far complete; until then no event of the last transaction
 * becomes visible or has an outcome. whole false: the last transaction is incomplete, but the
 * caller can take no more of it; the result false then means: not now, other events will have their
 * outcomes first. */
typedef bool semel_broker_complete_transaction_fn(struct semel_broker *broker, bool whole);
/* Why the broker accepts nothing for now (an alarm), or NULL. Meanwhile poll reports no outcomes,
 * and none is late. The text lives until the next call. */
typedef const char *semel_broker_blocked_fn(struct semel_broker *broker);

/* ---- consuming ------------------------------------------------------------------------------- */

#define SEMEL_PREFETCH_BYTES ((int64_t)64 * 1024 * 1024)

struct semel_subscribe_options {
	const char *scope;
	const char *const *topics; /* NULL-terminated */
	uint32_t prefetch;         /* most unacked deliveries */
	int64_t prefetch_bytes; /* byte limit of these; one always fits; 0: SEMEL_PREFETCH_BYTES */
	int64_t lease_ms;
	bool from_latest; /* only for a new subscription */
	/* Topics that the scope has read before, NULL-terminated: if their offsets are lost, they
	 * are read from the beginning. NULL: none. */
	const char *const *previously_read;
	bool total_order;     /* CONFIG when the topic has several partitions */
	int64_t delay_max_ms; /* the longest delay that requeue will get; 0: a minute */
	uint32_t partitions;  /* number of queues, by aggregate; 0: as at the broker */
	bool accept_existing; /* compare: accepts the partitions and delays at the broker */
	bool declare_only;    /* declares what is needed; this connection fetches nothing */
	int64_t inbox_ms;     /* the inbox's retention; 0: unknown */
	const char *bind;     /* only events with such routing keys; NULL: all */
};

/* Declares what the subscription needs, and joins it; once per broker. */
typedef semel_status semel_broker_subscribe_fn(struct semel_broker *broker,
					       const struct semel_subscribe_options *options,
					       semel_error *error);
/* At most max deliveries that are available now; does not wait. Keeps the assignments (leases,
 * heartbeats) alive, so it is called at least every lease_ms / 3, even with max 0. */
typedef semel_status semel_broker_fetch_fn(struct semel_broker *broker, uint32_t max,
					   struct semel_arena *arena,
					   struct semel_delivery *deliveries_out,
					   uint32_t *count_out, semel_error *error);
/* The deliveries are never delivered to this scope again. LEASE_LOST: another consumer has the
 * assignment now, and they are redelivered to it. */
typedef semel_status semel_broker_ack_fn(struct semel_broker *broker,
					 const struct semel_delivery *deliveries, size_t count,
					 semel_error *error);
/* For brokers that do not report what other consumers have in flight (in_flight_unknown): the
 * number of deliveries that this connection has received and not acked, fetched or not. */
typedef uint64_t semel_broker_count_in_flight_fn(struct semel_broker *broker);
/* Everything fetched and not acked is delivered again, in order. At a broker that counts deliveries
 * and drops an event after too many of them, this does not count. */
typedef semel_status semel_broker_rewind_fn(struct semel_broker *broker, semel_error *error);

/* ---- to one subscription --------------------------------------------------------------------- */

/* A delayed retry or a replay: the event is delivered to scope on event->topic after delay_ms, and
 * to no other scope. Durable when it returns OK. BUSY, while blocked() gives a reason: the event
 * was not requeued, or will still be requeued later; fetching and acking continue. */
typedef semel_status semel_broker_requeue_fn(struct semel_broker *broker, const char *scope,
					     const struct semel_event *event,
					     const struct semel_publish_metadata *metadata,
					     int64_t delay_ms, semel_error *error);
/* The dead letter itself is in the store. Durable when it returns OK. */
typedef semel_status semel_broker_publish_dead_letter_fn(
	struct semel_broker *broker, const struct semel_dead_letter_copy *letter,
	semel_error *error);

/* ---- inspecting ------------------------------------------------------------------------------ */

struct semel_backlog {
	uint64_t waiting;       /* published, not yet acked by this scope */
	uint64_t delayed;       /* of these, in retry tiers */
	int64_t next_due_ms;    /* the first of the delayed; 0: none */
	bool in_flight_unknown; /* there are consumers; what they have in flight is not counted */
};

/* Reads the backlog of the subscription's scope. */
typedef semel_status semel_broker_backlog_fn(struct semel_broker *broker, const char *scope,
					     const char *const *topics,
					     struct semel_backlog *backlog_out, semel_error *error);
/* When the scope's first delayed event is due (0: none), for an idle consumer that asks
 * repeatedly. */
typedef semel_status semel_broker_next_due_fn(struct semel_broker *broker, const char *scope,
					      const char *const *topics, int64_t *due_ms_out,
					      semel_error *error);
/* Does this event wait for the scope (in a queue, or in a retry tier)? For verify and trace; may be
 * slow. A broker that cannot read its queues answers true while anything is in them. */
typedef semel_status semel_broker_find_event_fn(struct semel_broker *broker, const char *scope,
						const char *const *topics, const char *event_id,
						bool *waiting_out, semel_error *error);

/* An object at the broker that is missing, or differs from what the subscription needs. */
typedef void (*semel_difference_callback)(const char *difference, void *user);

/* Reports what the subscription needs and is missing or different at the broker; changes nothing
 * (subscribe does). */
typedef semel_status semel_broker_compare_fn(struct semel_broker *broker,
					     const struct semel_subscribe_options *options,
					     semel_difference_callback callback, void *user,
					     semel_error *error);
/* Reports, as findings, everything that can be checked of the broker itself (compare does so for a
 * subscription); changes nothing. A status other than OK: the broker cannot be opened, which is a
 * finding as well; NOT_FOUND: it has not been created yet. */
typedef semel_status semel_broker_examine_fn(const struct semel_url *url,
					     const struct semel_examination *examination);
/* Reports, as findings, which bindings of the subscription are missing, where compare cannot read
 * them. */
typedef void semel_broker_examine_bindings_fn(struct semel_broker *broker,
					      const struct semel_subscribe_options *options,
					      const struct semel_examination *examination);

/* ---- removing -------------------------------------------------------------------------------- */

/* Removes what every subscription has acked and is older than before_ms; dry_run: counts it. */
typedef semel_status semel_broker_prune_fn(struct semel_broker *broker, int64_t before_ms,
					   bool dry_run, uint64_t *count_out, semel_error *error);
/* Removes the topic and everything that was created for these subscriptions of it
 * (NULL-terminated), with all events: for drills with names of their own. It is no error if
 * something is missing. */
typedef semel_status semel_broker_remove_fn(struct semel_broker *broker, const char *topic,
					    const char *const *scopes, semel_error *error);

/* ---- the table ------------------------------------------------------------------------------- */

struct semel_broker_driver {
	const char *scheme;       /* "local", "amqp" */
	const char *form;         /* of its URLs, for messages: "local:PATH"; NULL: not listed */
	bool works_in_background; /* publishes between calls of poll, too: outcomes may wait */
	bool has_exchanges;       /* log messages: a topic is an exchange, and the offset of a
				   * queue's delivery is its delivery tag */

	semel_broker_open_fn *open;
	semel_broker_close_fn *close;
	semel_broker_watch_fn *watch;
	semel_broker_watch_fn *watch_outcomes;              /* optional; NULL: poll waits */
	semel_broker_set_offset_store_fn *set_offset_store; /* optional: for logs without offsets */

	semel_broker_publish_fn *publish;
	semel_broker_poll_fn *poll;
	semel_broker_init_transactions_fn *init_transactions; /* optional, both: brokers with */
	semel_broker_complete_transaction_fn *complete_transaction; /* transactions */
	semel_broker_blocked_fn *blocked;

	semel_broker_subscribe_fn *subscribe;
	semel_broker_fetch_fn *fetch;
	semel_broker_ack_fn *ack;
	semel_broker_count_in_flight_fn *count_in_flight; /* optional */
	semel_broker_rewind_fn *rewind;

	semel_broker_requeue_fn *requeue;
	semel_broker_publish_dead_letter_fn *publish_dead_letter; /* optional */

	semel_broker_backlog_fn *backlog;
	semel_broker_next_due_fn *next_due; /* optional; NULL: backlog reports it */
	semel_broker_find_event_fn *find_event;
	semel_broker_compare_fn *compare;
	semel_broker_examine_fn *examine;
	semel_broker_examine_bindings_fn *examine_bindings; /* optional: brokers with bindings */

	semel_broker_prune_fn *prune;   /* optional: others remove acked events by themselves */
	semel_broker_remove_fn *remove; /* optional: not needed where the broker is one file */
};

/* ---- the registry ---------------------------------------------------------------------------- */

/* Is the broker's answer about one event, so that this event is retried or given up? An answer
 * about a setting, a permission, a file or the remaining time is about no event: CONFIG ends the
 * relay, and costs no attempt. Pure. */
bool semel_outcome_is_about_event(semel_status status);

/* Finds the URL's driver; opens nothing. */
semel_status semel_broker_driver_find(const char *url,
				      const struct semel_broker_driver **driver_out,
				      semel_error *error);
semel_status semel_broker_open(const char *url, const struct semel_env *env, uint32_t window,
			       struct semel_broker **broker_out, semel_error *error);
/* Calls the driver's examine. CONFIG: the URL names no driver, which is a finding as well. */
semel_status semel_broker_examine(const char *url, const struct semel_examination *examination);
/* No effect on a broker that stores the offsets itself. */
void semel_broker_set_offset_store(struct semel_broker *broker,
				   const struct semel_offset_store *offset_store);
/* broker may be NULL. */
void semel_broker_close(struct semel_broker *broker);

#endif
