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

/* ---- what comes and goes --------------------------------------------------------------------- */

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
	bool offset_in_store; /* the caller writes it with the effect: the broker does not */
	uint64_t tag;         /* the driver's own */
};

/* A copy of a dead letter, for those who monitor the broker. */
struct semel_dead_letter_copy {
	const char *scope;
	const struct semel_delivery *delivery;
	const char *reason;
	uint32_t attempts;
	int64_t failed_at_ms;
};

/* ---- the offset store ------------------------------------------------------------------------ */

/* How far a scope has read a log, where the offsets are stored with the effects. Its functions are
 * called on the broker's thread, inside the broker's functions, and never in a transaction of the
 * caller's. */
struct semel_offset_store {
	void *user;
	/* May this consumer read the partition, and from where? next_out -1: it was never read.
	 * granted: the broker itself has assigned it to us, so an earlier reader is fenced off.
	 * LEASE_LOST: another consumer reads it; ask again later. */
	semel_status (*acquire)(void *user, const char *topic, int32_t partition, bool granted,
				int64_t *next_out, semel_error *error);
	/* Of an acquired partition: the last event processed before its offset, by which the broker
	 * can check that the log is still the same. */
	struct semel_anchor (*anchor)(void *user, const char *topic, int32_t partition);
	/* Of an acquired partition: its log was replaced, and is read on from next; what was
	 * fetched of the old log is forgotten. Durable when it returns OK. */
	semel_status (*reset)(void *user, const char *topic, int32_t partition, int64_t next,
			      semel_error *error);
	/* The partition is no longer read. */
	void (*release)(void *user, const char *topic, int32_t partition);
	/* For readers of positions, which acquire nothing: the scope's next offset. */
	semel_status (*get)(void *user, const char *scope, const char *topic, int32_t partition,
			    int64_t *next_out, semel_error *error);
};

/* ---- opening --------------------------------------------------------------------------------- */

/* window: unconfirmed events at most. CONFIG when the URL cannot be right, OUTAGE when the broker
 * cannot be reached. */
typedef semel_status semel_broker_open_fn(const struct semel_url *url, const struct semel_env *env,
					  uint32_t window, struct semel_broker **broker_out,
					  semel_error *error);
typedef void semel_broker_close_fn(struct semel_broker *broker);
/* Adds to wake what wakes a sleeper when a delivery may have arrived; as watch_outcomes, when
 * outcomes may have arrived, so that poll need not wait for them. close removes what does not
 * outlive the connection. The wake outlives the broker. */
typedef void semel_broker_watch_fn(struct semel_broker *broker, struct semel_wake *wake);
/* Before subscribe, backlog and find_event; the offset store outlives the broker. Without one, a
 * log whose offsets the broker does not store cannot be read (CONFIG). */
typedef void semel_broker_set_offset_store_fn(struct semel_broker *broker,
					      const struct semel_offset_store *offset_store);

/* ---- publishing ------------------------------------------------------------------------------ */

/* Declares the topic when it is not known yet. FULL: poll first. Another status of class RETRY or
 * REJECT is this event's outcome, reported at once. */
typedef semel_status semel_broker_publish_fn(struct semel_broker *broker,
					     const struct semel_event *event,
					     const struct semel_publish_metadata *metadata,
					     void *token, semel_error *error);
/* Waits at most wait_ms for outcomes (0: takes what is there) and reports them; keeps the
 * connection alive. A driver that confirms in groups closes the group here. */
typedef semel_status semel_broker_poll_fn(struct semel_broker *broker, int64_t wait_ms,
					  semel_outcome_callback callback, void *user,
					  semel_error *error);
/* From now on the events of one transaction (metadata) become visible together or not at all.
 * Before the first publish. An earlier publisher with this name is fenced off. FULL: not done yet;
 * call it again after renewing the leases. When one event of a transaction is refused, all of it
 * is. */
typedef semel_status semel_broker_init_transactions_fn(struct semel_broker *broker,
						       const char *name, semel_error *error);
/* All that was published so far is complete; until then nothing of the last transaction becomes
 * visible or has an outcome. whole false: the caller takes no more of it; the answer
 * false then means: not now, other events will have their outcomes first. */
typedef bool semel_broker_complete_transaction_fn(struct semel_broker *broker, bool whole);
/* Why the broker accepts nothing for now (an alarm), or NULL. While it does so, poll reports no
 * outcome, and none is late. The text lives until the next call. */
typedef const char *semel_broker_blocked_fn(struct semel_broker *broker);

/* ---- consuming ------------------------------------------------------------------------------- */

#define SEMEL_PREFETCH_BYTES ((int64_t)64 * 1024 * 1024)

struct semel_subscribe_options {
	const char *scope;
	const char *const *topics; /* NULL-ended */
	uint32_t prefetch;         /* unacked deliveries at most */
	int64_t prefetch_bytes; /* their bytes at most, but always one; 0: SEMEL_PREFETCH_BYTES */
	int64_t lease_ms;
	bool from_latest; /* only for a new subscription */
	/* Those of the topics that the scope has read before, NULL-ended: where their offsets are
	 * lost, they are read from the beginning. NULL: none. */
	const char *const *previously_read;
	bool total_order;     /* CONFIG when the topic has several partitions */
	int64_t delay_max_ms; /* the longest delay that requeue will get; 0: a minute */
	uint32_t partitions;  /* queues by aggregate; 0: as the broker has it */
	bool accept_existing; /* compare: partitions and delays are as the broker has them */
	bool declare_only;    /* declares what is needed; this connection fetches nothing */
	int64_t inbox_ms;     /* the inbox's retention; 0: unknown */
	const char *bind;     /* only events with such routing keys; NULL: all */
};

/* Declares what the subscription needs, and joins it; once per broker. */
typedef semel_status semel_broker_subscribe_fn(struct semel_broker *broker,
					       const struct semel_subscribe_options *options,
					       semel_error *error);
/* At most max deliveries that are available now; does not wait. Keeps the assignments (leases,
 * heartbeats) alive, so it is called at least every lease_ms / 3, also with max 0. */
typedef semel_status semel_broker_fetch_fn(struct semel_broker *broker, uint32_t max,
					   struct semel_arena *arena,
					   struct semel_delivery *deliveries_out,
					   uint32_t *count_out, semel_error *error);
/* They are never delivered to this scope again. LEASE_LOST: another consumer has the assignment
 * now, and they are redelivered to it. */
typedef semel_status semel_broker_ack_fn(struct semel_broker *broker,
					 const struct semel_delivery *deliveries, size_t count,
					 semel_error *error);
/* For brokers that do not report what other consumers have in flight (in_flight_unknown): what this
 * connection was sent and has not acked, fetched or not. */
typedef uint64_t semel_broker_count_in_flight_fn(struct semel_broker *broker);
/* Everything fetched and not acked is delivered again, in order. At a broker that counts deliveries
 * and gives up after some, this costs none. */
typedef semel_status semel_broker_rewind_fn(struct semel_broker *broker, semel_error *error);

/* ---- to one subscription --------------------------------------------------------------------- */

/* A delayed retry or a replay: the event is delivered to scope on event->topic after delay_ms, and
 * to no other scope. Durable when it returns OK. BUSY while blocked() has a reason: it was not put
 * back, or will be later all the same; fetching and acking go on. */
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

/* Of the subscription's scope. */
typedef semel_status semel_broker_backlog_fn(struct semel_broker *broker, const char *scope,
					     const char *const *topics,
					     struct semel_backlog *backlog_out, semel_error *error);
/* When the scope's first delayed event is due (0: none), for a consumer that is idle and asks again
 * and again. */
typedef semel_status semel_broker_next_due_fn(struct semel_broker *broker, const char *scope,
					      const char *const *topics, int64_t *due_ms_out,
					      semel_error *error);
/* Does this event wait for the scope (in a queue, or in a retry tier)? For verify and trace; may be
 * slow. A broker that cannot read its queues answers yes as long as anything is in them. */
typedef semel_status semel_broker_find_event_fn(struct semel_broker *broker, const char *scope,
						const char *const *topics, const char *event_id,
						bool *waiting_out, semel_error *error);

/* An object at the broker that is missing, or differs from what the subscription needs. */
typedef void (*semel_difference_callback)(const char *difference, void *user);

/* Reports what the subscription needs and the broker lacks, or has otherwise; changes nothing. (To
 * change it: subscribe.) */
typedef semel_status semel_broker_compare_fn(struct semel_broker *broker,
					     const struct semel_subscribe_options *options,
					     semel_difference_callback callback, void *user,
					     semel_error *error);
/* Reports, as findings, all that can be checked of the broker itself (compare: of a subscription);
 * changes nothing. Another answer than OK: it cannot be opened, which is a finding too; NOT_FOUND:
 * it is still to be created. */
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
/* Removes the topic and what was created for these subscriptions of it (NULL-ended), with all
 * events in them: for drills under names of their own. What is missing is no error. */
typedef semel_status semel_broker_remove_fn(struct semel_broker *broker, const char *topic,
					    const char *const *scopes, semel_error *error);

/* ---- the table ------------------------------------------------------------------------------- */

struct semel_broker_driver {
	const char *scheme;       /* "local", "amqp" */
	bool works_in_background; /* publishing goes on between calls of poll: outcomes may wait */
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
	semel_broker_next_due_fn *next_due; /* optional: backlog has it */
	semel_broker_find_event_fn *find_event;
	semel_broker_compare_fn *compare;
	semel_broker_examine_fn *examine;
	semel_broker_examine_bindings_fn *examine_bindings; /* optional: brokers with bindings */

	semel_broker_prune_fn *prune;   /* optional: others remove acked events by themselves */
	semel_broker_remove_fn *remove; /* optional: not where the broker is one file */
};

/* ---- the registry ---------------------------------------------------------------------------- */

/* A broker's answer that is about one event, so that the event is retried or given up for it. An
 * answer about a setting, a permission, a file or the remaining time is about no event: CONFIG ends
 * the relay, and costs no attempt. Pure. */
bool semel_outcome_is_about_event(semel_status status);

/* Opens nothing. */
semel_status semel_broker_driver_find(const char *url,
				      const struct semel_broker_driver **driver_out,
				      semel_error *error);
semel_status semel_broker_open(const char *url, const struct semel_env *env, uint32_t window,
			       struct semel_broker **broker_out, semel_error *error);
/* The driver's examine. CONFIG when the URL names no driver, which is a finding too. */
semel_status semel_broker_examine(const char *url, const struct semel_examination *examination);
/* No effect on a broker that stores the offsets itself. */
void semel_broker_set_offset_store(struct semel_broker *broker,
				   const struct semel_offset_store *offset_store);
/* broker may be NULL. */
void semel_broker_close(struct semel_broker *broker);

#endif
