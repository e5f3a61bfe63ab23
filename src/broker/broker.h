/* SPDX-License-Identifier: Apache-2.0 */
/* A broker carries events from the relay to the subscriptions.
 *
 * Publishing is asynchronous: publish() takes an event in hand or says that the window is full;
 * poll() later reports one outcome for each event taken. Nothing is durable before its outcome says
 * SEMEL_OK. When the broker refuses an event, later ones of the same aggregate that were offered
 * before its outcome was reported are refused too, as HELD: so a refusal never breaks the order.
 *
 * Consuming: a subscription is a scope reading topics. Deliveries of one aggregate come in order,
 * and to one consumer at a time. What was fetched and not acked comes again, to this consumer after
 * rewind(), or to another one after this one closed or died.
 *
 * Threads: one broker belongs to one thread. Outcomes are reported inside poll().
 * Ownership: an event offered stays the caller's, unchanged until its outcome was reported.
 * Deliveries are read into the caller's arena.
 * Offsets: a log that keeps no place for its readers (a stream) is read from where the caller's
 * offset store says, and a delivery of it says so (offset_in_store): its offset belongs into the
 * transaction of its effect. Errors: OUTAGE from any slot: the connection is gone; what was not
 * reported may or may not have arrived; the caller closes and opens anew. Every driver passes
 * tests/contract/broker_suite.c.
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

struct semel_publish_outcome {
	void *token;
	semel_status status; /* OK; NACKED, UNROUTABLE, TOO_LARGE, HELD, … */
	int64_t took_us;     /* from the offer to the answer; 0: it has only just come */
	char reason[160];    /* empty when OK */
};

typedef void (*semel_outcome_callback)(const struct semel_publish_outcome *outcome, void *user);

struct semel_delivery {
	struct semel_event event; /* may break the contract; the consumer checks */
	struct semel_publish_metadata metadata;
	int32_t partition;
	int64_t offset;
	bool redelivered;
	bool offset_in_store; /* the offset store is asked where to go on, so the caller writes the
				 offset down */
	uint64_t tag;         /* the driver's own */
};

/* Knows how far a scope has read a log: the store, where the offsets are kept with the effects. Its
 * functions are called on the broker's thread inside the broker's own, and never in a transaction
 * of the caller's. */
struct semel_offset_store {
	void *user;
	/* May this consumer read it, and from where? next_out -1: it was never read. granted: the
	 * broker itself has made us its reader, so whoever was it before is fenced off. LEASE_LOST:
	 * another one reads it; ask again later. */
	semel_status (*acquire)(void *user, const char *topic, int32_t partition, bool granted,
				int64_t *next_out, semel_error *error);
	/* Of one that was taken: the last event settled before its place, by which the broker may
	 * know the log again. */
	struct semel_anchor (*anchor)(void *user, const char *topic, int32_t partition);
	/* Of one that was taken: its log is another one, and is read from next on; what was fetched
	 * of the old one is forgotten. Durable when it returns OK. */
	semel_status (*reset)(void *user, const char *topic, int32_t partition, int64_t next,
			      semel_error *error);
	/* Nothing of it is read any more. */
	void (*release)(void *user, const char *topic, int32_t partition);
	/* For those who only look: where the scope stands. */
	semel_status (*get)(void *user, const char *scope, const char *topic, int32_t partition,
			    int64_t *next_out, semel_error *error);
};

#define SEMEL_PREFETCH_BYTES ((int64_t)64 * 1024 * 1024)

struct semel_subscribe_options {
	const char *scope;
	const char *const *topics; /* NULL-ended */
	uint32_t prefetch;         /* unacked deliveries at most */
	int64_t prefetch_bytes;    /* of them at most, and one always; 0: SEMEL_PREFETCH_BYTES */
	int64_t lease_ms;
	bool from_latest; /* counts when the subscription is new */
	/* Of the topics those that the scope has read before, NULL-ended: where their offsets are
	 * gone, they are read from their beginning. NULL: none. */
	const char *const *previously_read;
	bool total_order;     /* CONFIG when the topic is spread over several partitions */
	int64_t delay_max_ms; /* the longest that requeue will be asked for; 0: a minute */
	uint32_t partitions;  /* spread over so many by aggregate; 0: as the broker has it */
	bool accept_existing; /* compare: partitions and delays were not said; as the broker has it
			       */
	bool declare_only;    /* make what is needed; nothing is fetched over this connection */
	int64_t inbox_ms;     /* so long are ids remembered; 0: not known */
	const char *bind;     /* of the topic's events those with such routing keys; NULL: all */
};

/* An event that a subscription has given up. */
struct semel_dead_letter_copy {
	const char *scope;
	const struct semel_delivery *delivery;
	const char *reason;
	uint32_t attempts;
	int64_t failed_at_ms;
};

/* A thing at the broker that is missing, or is not as the subscription needs it. */
typedef void (*semel_difference_callback)(const char *difference, void *user);

struct semel_backlog {
	uint64_t waiting;       /* published, not yet settled by this scope */
	uint64_t delayed;       /* of them in retry tiers */
	int64_t next_due_ms;    /* of the delayed; 0: none */
	bool in_flight_unknown; /* somebody consumes, and what he has in hand is not counted */
};

struct semel_broker_driver {
	const char *scheme;       /* "local", "amqp" */
	bool works_in_background; /* publishing goes on while nobody polls: outcomes may be heard
				     later */
	bool has_exchanges; /* in logs a topic is an exchange, and a delivery of a queue has a tag
			     * (its offset), not a place */

	/* All slots are required but where it says so. open: CONFIG when the URL cannot be right,
	 * OUTAGE when nobody answers. window: unconfirmed events at most. */
	semel_status (*open)(const struct semel_url *url, const struct semel_env *env,
			     uint32_t window, struct semel_broker **broker_out, semel_error *error);
	void (*close)(struct semel_broker *broker);
	/* Adds what wakes a sleeper when something may have arrived; close takes away again what
	 * does not outlive the connection. The wake outlives the broker. */
	void (*watch)(struct semel_broker *broker, struct semel_wake *wake);
	/* Optional. The same for one who publishes: it wakes when outcomes may have come, so that
	 * poll need not wait for them. NULL: poll waits. */
	void (*watch_outcomes)(struct semel_broker *broker, struct semel_wake *wake);

	/* -- publishing. The topic is declared when it is not known yet. FULL: poll first. Another
	 * status of class RETRY or REJECT is this event's outcome, said at once. */
	semel_status (*publish)(struct semel_broker *broker, const struct semel_event *event,
				const struct semel_publish_metadata *metadata, void *token,
				semel_error *error);
	/* Waits at most wait_ms for outcomes (0: takes what is there) and reports them; keeps the
	 * connection alive. A driver that confirms in groups closes the group here. */
	semel_status (*poll)(struct semel_broker *broker, int64_t wait_ms,
			     semel_outcome_callback seen, void *user, semel_error *error);

	/* Optional, both: of brokers that can show several events at once. transact: from now on
	 * events of one transaction (metadata) are seen together or not at all; before the first
	 * publish. Whoever publishes under this name is shut out. FULL: it takes longer; the same
	 * call again, after the leases were seen to. When one of them is refused, the
	 * others are. complete: all that was offered so far is whole; until then nothing of the
	 * last transaction is shown or answered for. Not whole: the caller has no room for the rest
	 * of it; false: not now, for other events will be answered first. */
	semel_status (*init_transactions)(struct semel_broker *broker, const char *name,
					  semel_error *error);
	bool (*complete_transaction)(struct semel_broker *broker, bool whole);

	/* Why the broker takes nothing for now (an alarm), or NULL. While it does so, poll reports
	 * no outcome, and none is late. The text lives until the next call. */
	const char *(*blocked)(struct semel_broker *broker);

	/* Optional: of drivers that know such logs. Before subscribe, and before looking; the
	 * offset store outlives the broker. Without one such a log cannot be read (CONFIG). */
	void (*set_offset_store)(struct semel_broker *broker,
				 const struct semel_offset_store *offset_store);

	/* -- consuming. Declares what the subscription needs, once per broker. */
	semel_status (*subscribe)(struct semel_broker *broker,
				  const struct semel_subscribe_options *options,
				  semel_error *error);
	/* At most max deliveries that are there now; does not wait. Keeps the shares (leases,
	 * heartbeats) alive, so it is called at least every lease_ms / 3, also with max 0. */
	semel_status (*fetch)(struct semel_broker *broker, uint32_t max, struct semel_arena *arena,
			      struct semel_delivery *deliveries_out, uint32_t *count_out,
			      semel_error *error);
	/* Settles them; they never come again to this scope. LEASE_LOST: the share has moved on,
	 * and they come again elsewhere. */
	semel_status (*ack)(struct semel_broker *broker, const struct semel_delivery *deliveries,
			    size_t count, semel_error *error);
	/* Optional: of brokers that do not tell others what a consumer has in hand
	 * (in_flight_unknown). What this connection was given and has not acked, fetched or not. */
	uint64_t (*count_in_flight)(struct semel_broker *broker);
	/* Everything fetched and not acked comes again, in order; of a broker that counts
	 * deliveries and gives up after some, this costs none. */
	semel_status (*rewind)(struct semel_broker *broker, semel_error *error);

	/* -- to one subscription: delayed retries and replays. Durable when it returns OK. The
	 * event comes to scope on event->topic after delay_ms, and to no other scope. BUSY while
	 * blocked() tells why: it was not put back, or will be later all the same; fetching and
	 * acking go on. */
	semel_status (*requeue)(struct semel_broker *broker, const char *scope,
				const struct semel_event *event,
				const struct semel_publish_metadata *metadata, int64_t delay_ms,
				semel_error *error);

	/* Optional: a copy of what was given up, for those who watch the broker; the dead letter
	 * itself is in the store. Durable when it returns OK. */
	semel_status (*publish_dead_letter)(struct semel_broker *broker,
					    const struct semel_dead_letter_copy *letter,
					    semel_error *error);

	/* -- looking. Of the subscription's scope. */
	semel_status (*backlog)(struct semel_broker *broker, const char *scope,
				const char *const *topics, struct semel_backlog *backlog_out,
				semel_error *error);
	/* Optional: only when the first of its delayed events is due (0: none), for one who
	 * consumes and is idle, again and again; where there is none, backlog tells it. */
	semel_status (*next_due)(struct semel_broker *broker, const char *scope,
				 const char *const *topics, int64_t *due_ms_out,
				 semel_error *error);
	/* Is this event waiting for the scope (in a queue, or in a retry tier)? For verify and
	 * trace; may be slow. A broker that cannot look into its queues says yes as long as there
	 * is anything in them. */
	semel_status (*find_event)(struct semel_broker *broker, const char *scope,
				   const char *const *topics, const char *event_id,
				   bool *waiting_out, semel_error *error);
	/* Tells what the subscription needs and the broker does not have, or has otherwise; changes
	 * nothing. (To make it so: subscribe.) */
	semel_status (*compare)(struct semel_broker *broker,
				const struct semel_subscribe_options *options,
				semel_difference_callback seen, void *user, semel_error *error);
	/* Optional: others forget by themselves (what was acked, or by the age of a topic). Forgets
	 * what every subscription has settled and is older than before_ms; dry run counts. */
	semel_status (*prune)(struct semel_broker *broker, int64_t before_ms, bool dry_run,
			      uint64_t *count_out, semel_error *error);

	/* Tells all that can be seen of the broker itself; compare tells of a subscription. Changes
	 * nothing. What is wrong is a finding; another answer than OK means that it cannot be
	 * opened, which was told too, or (NOT_FOUND) that it is still to be made. */
	semel_status (*examine)(const struct semel_url *url,
				const struct semel_examination *examination);
	/* Optional: of brokers with bindings, where compare cannot see them. Tells, as findings,
	 * which of the subscription's bindings are missing. */
	void (*examine_bindings)(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 const struct semel_examination *examination);

	/* Optional: not where all of it is a file. Takes away the topic and what was made for these
	 * subscriptions of it (NULL-ended), with whatever is in them: for trials under names of
	 * their own. What is not there is no error. */
	semel_status (*remove)(struct semel_broker *broker, const char *topic,
			       const char *const *scopes, semel_error *error);
};

/* The registry: one line per driver in registry.c. find: touches nothing. */
semel_status semel_broker_driver_find(const char *url,
				      const struct semel_broker_driver **driver_out,
				      semel_error *error);
semel_status semel_broker_open(const char *url, const struct semel_env *env, uint32_t window,
			       struct semel_broker **broker_out, semel_error *error);
/* The driver's examine. CONFIG, when the URL names none; told as a finding too. */
semel_status semel_broker_examine(const char *url, const struct semel_examination *examination);
/* Where the broker finds offsets that it does not keep itself; others do not mind. */
void semel_broker_set_offset_store(struct semel_broker *broker,
				   const struct semel_offset_store *offset_store);
/* broker may be NULL. */
void semel_broker_close(struct semel_broker *broker);

#endif
