/* SPDX-License-Identifier: Apache-2.0 */
/* src/consume: from a delivery to its ack.
 *
 * The path of an item, and the file for each part:
 *   loop.c        one step after another, outages, drain
 *   intake.c      fetch from the broker
 *   admit.c       may it run, and is it ours? (claims.c: its claim)
 *   batch.c       run it inside the transaction (separate_claim.c: with the claim committed first)
 *   dispatch.c    run it outside, several at a time (task_table.c, calls.c)
 *   settle.c      record its outcome, in the open transaction
 *   acknowledge.c after the commit: delayed copies, acks, logs
 *   followers.c   run the events that were parked behind it
 *
 * To change here: this room decides; it calls no SQL and no socket, only the seams of store, broker
 * and guard, and takes time and chance from consumer->env. Policies (retry.c, breaker.c) are pure.
 * The states of an event and the moves between them belong to src/state; a new way for an item to
 * end needs a row there first. An ack before the commit, or a commit without semel_items_check,
 * breaks the promise.
 *
 * Threads: everything runs on the consumer's thread, except handlers outside the transaction
 * (handler.h), which run on workers and use neither store nor broker.
 */
#ifndef SEMEL_CONSUME_CONSUMER_H
#define SEMEL_CONSUME_CONSUMER_H

#include "base/owner.h"
#include "broker/broker.h"
#include "consume/breaker.h"
#include "consume/counters.h"
#include "consume/crash_recovery.h"
#include "consume/dispatch.h"
#include "consume/followers.h"
#include "consume/handler.h"
#include "consume/intake.h"
#include "consume/item.h"
#include "consume/positions.h"
#include "consume/presence.h"
#include "consume/retry.h"
#include "consume/settle.h"
#include "consume/upcast.h"
#include "guard/guard.h"
#include "state/state.h"
#include "store/store.h"

#include <semel/consumer.h>

struct semel_unfinished_claim;

/* The options that the consumer was opened with, completed and copied. They never change
 * afterwards. */
struct semel_consumer_config {
	semel_consumer_options
		options; /* with defaults; its texts are the caller's: do not read them */
	char *store_url, *broker_url;
	char **topics; /* NULL-terminated */
	struct semel_text scope, handler_version;
	char *dedup_header, *id_header, *bind;
};

enum semel_handler_kind {
	SEMEL_HANDLER_NONE,
	SEMEL_HANDLER_FUNCTION,
	SEMEL_HANDLER_SQL,
	SEMEL_HANDLER_OUTSIDE
};

/* The handler, and what it needs to run. */
struct semel_consumer_handler {
	enum semel_handler_kind kind;
	semel_handler function;
	void *user;
	char **statements;
	size_t statement_count;
	const struct semel_outside_kind *outside;
	char *target;
	char **passed; /* variables for programs; NULL-terminated, or NULL */
	struct semel_upcasters *upcasters;
};

/* The state of the loop (loop.c). */
struct semel_consumer_loop {
	int64_t step_began_ms; /* since 1970 */
	int64_t grace_ms;      /* for calls still running when the consumer ends */
	uint32_t outages;      /* in a row */
	bool ending;           /* nothing new is started */
	char last_error[SEMEL_ERROR_TEXT_MAX];
};

struct semel_consumer {
	struct semel_consumer_config config;
	struct semel_consumer_handler handler;
	const struct semel_env *env;
	struct semel_wake *wake;
	char owner[SEMEL_OWNER_SIZE];
	struct semel_arena *arena; /* of one step */

	/* Connections; NULL while they are closed. */
	semel_store *store;
	struct semel_guard *guard;
	struct semel_broker *broker;
	bool connected;   /* all of them are open, and the scope is subscribed */
	bool guard_joins; /* as last connected: its claims are part of the store's transaction */

	/* State, each part with the file that owns it. */
	struct semel_intake intake;
	struct semel_dispatch *dispatch; /* NULL: the handler is inside */
	struct semel_positions *positions;
	struct semel_follower_runs followers;
	struct semel_crash_recovery recovery;
	struct semel_unfinished_claim *unfinished; /* separate_claim.c; NULL: none */
	struct semel_retry_policy retry;
	struct semel_breaker breaker;
	struct semel_presence_state presence;
	struct semel_consumer_loop loop;
	semel_consumer_counts counts;
	struct semel_consumer_counters counters;
};

/* ---- consumer.c ---- */
/* As semel_consumer_open; env outlives the consumer. */
semel_status semel_consumer_open_in(const struct semel_env *env,
				    const semel_consumer_options *options,
				    semel_consumer **consumer_out, semel_error *error);
/* How long a run that ends waits for running calls; 10 s unless set. */
void semel_consumer_set_grace(semel_consumer *consumer, int64_t grace_ms);

/* For the command-line program: handlers that are not C functions. Arguments are copied. */
semel_status semel_consumer_use_sql(semel_consumer *consumer, const char *const *statements,
				    size_t count, semel_error *error);
semel_status semel_consumer_use_outside(semel_consumer *consumer,
					const struct semel_outside_kind *kind, const char *target,
					semel_error *error);
/* Call before the handler is chosen. Names environment variables that programs (handlers and
 * upcasters) get although they are otherwise withheld. */
semel_status semel_consumer_pass_env(semel_consumer *consumer, const char *const *names,
				     size_t count, semel_error *error);
struct semel_upcasters *semel_consumer_upcasters(semel_consumer *consumer);

/* Is anything claimed at all? */
bool semel_consumer_has_claims(const struct semel_consumer *consumer);
/* Are claims made as PROCESSED, in the transaction of the effect? Otherwise they are made as
 * CLAIMED first: the handler is outside, the claim is separate, or the guard is not part of the
 * store's transaction. */
bool semel_consumer_is_same_tx(const struct semel_consumer *consumer);
/* At most one run: whatever goes wrong, only an operator can repeat it. */
bool semel_consumer_is_at_most_once(const struct semel_consumer *consumer);

/* Opens the connections that are not open (store, guard, broker), and subscribes. */
semel_status semel_consumer_connect(struct semel_consumer *consumer, semel_error *error);
/* Closes them. Running calls continue. */
void semel_consumer_disconnect(struct semel_consumer *consumer);
semel_status semel_consumer_begin(struct semel_consumer *consumer, semel_error *error);
semel_status semel_consumer_commit_metered(struct semel_consumer *consumer, semel_error *error);
/* With the failpoint after it; every transaction that settles items is committed so. */
semel_status semel_consumer_commit(struct semel_consumer *consumer, semel_error *error);
void semel_consumer_rollback(struct semel_consumer *consumer);

/* ---- subscription.c ---- */
semel_status semel_consumer_subscribe(struct semel_consumer *consumer, semel_error *error);
/* Records the subscription in the store, for operators and for verify. */
semel_status semel_consumer_register(struct semel_consumer *consumer, semel_error *error);

/* ---- loop.c: step by step, so that one thread can run many consumers on its own clock ---- */
/* Before the first step: connects, and records the subscription. max as in semel_consumer_run. */
semel_status semel_consumer_prepare(semel_consumer *consumer, uint64_t max, semel_error *error);
/* One step; semel_consumer_run and semel_consumer_drain repeat it. It sleeps only between two
 * immediate runs of a handler. *busy_out: something was done. *pause_ms_out: 0, or after an outage,
 * which has closed the connections, how long to wait before the next step. */
semel_status semel_consumer_step(semel_consumer *consumer, bool *busy_out, int64_t *pause_ms_out,
				 semel_error *error);

/* ---- admit.c, in the open transaction ---- */
/* Every UNDECIDED item becomes ADMITTED, or gets the state that it has without a run. Items after a
 * deferred item of their key are deferred. */
semel_status semel_admit(struct semel_consumer *consumer, struct semel_item *items, uint32_t count,
			 struct semel_arena *arena, semel_error *error);
/* CONFIG: the scope has holds of another order than the one that this consumer keeps. */
semel_status semel_order_check_mode(struct semel_consumer *consumer, semel_error *error);

/* ---- handler_inside.c ---- */
/* Runs the handler once, in the open transaction, on the event's newest version. item->status has
 * the result too. */
semel_status semel_handler_run(struct semel_consumer *consumer, struct semel_item *item,
			       semel_error *error);

#endif
