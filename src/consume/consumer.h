/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's inside, shared by the files of this room.
 *
 * An item is one delivery (or one parked follower) on its way to a state. The files follow its way,
 * and each calls only those before it: item.c, verdict.c (what became of it, inside the
 * transaction), admit.c (may it run? is it ours?), settle.c (after the commit), batch.c and
 * dispatch.c (run it, inside or outside the transaction), followers.c (those that were parked),
 * open.c, drain.c, and loop.c around all of them.
 */
#ifndef SEMEL_CONSUME_CONSUMER_H
#define SEMEL_CONSUME_CONSUMER_H

#include "base/uuid.h"
#include "broker/broker.h"
#include "consume/breaker.h"
#include "consume/counters.h"
#include "consume/crash_recovery.h"
#include "consume/handler.h"
#include "consume/positions.h"
#include "consume/presence.h"
#include "consume/retry.h"
#include "consume/upcast.h"
#include "guard/guard.h"
#include "state/state.h"
#include "store/store.h"

#include <semel/consumer.h>

#define SEMEL_CLAIM_LEASE_MS 30000

/* What becomes of a copy of an event. All but OPEN, GO and LATER are acked once they are durable.
 * Each stands for a state of the event at the subscription (state/state.h), and only
 * semel_item_move changes it. */
enum semel_item_state {
	SEMEL_ITEM_UNDECIDED, /* not decided */
	SEMEL_ITEM_ADMITTED,  /* admitted and claimed: run the handler */
	SEMEL_ITEM_DEFERRED,  /* not now, and not acked: it comes again */
	SEMEL_ITEM_DONE,
	SEMEL_ITEM_DUPLICATE,  /* proven processed */
	SEMEL_ITEM_SUPERSEDED, /* its dead letter accounts for the event: nothing runs */
	SEMEL_ITEM_RETRYING,   /* a delayed copy goes to the broker */
	SEMEL_ITEM_DEAD,       /* a dead letter */
	SEMEL_ITEM_PARKED      /* kept in the store behind an earlier one */
};

struct semel_item {
	const struct semel_delivery *delivery; /* as it came */
	struct semel_event event;              /* as the handler sees it */
	struct semel_hold_key key;      /* what order is kept within: its aggregate or topic */
	struct semel_text entry_id;     /* data set: a parked follower, kept in the store */
	struct semel_text business_key; /* that must be new; data NULL: the id alone */
	struct semel_inbox_claim claim;
	enum semel_item_state state;
	bool illegal;           /* a move that no table has: nothing of it may be committed */
	bool head;              /* its aggregate's hold waits for this event */
	bool has_letter;        /* a dead letter of it is settled when it is done */
	uint32_t replay;        /* which replay of its dead letter this run is; 0: none */
	bool may_overtake;      /* for this very copy: whoever was put off waits for it, too */
	bool kept;              /* RETRY: it is parked in the store, no copy is sent */
	bool detached;          /* its connection is gone: it comes again, and is not acked */
	bool in_doubt;          /* its claim is that of a consumer that died */
	semel_status broken;    /* how it breaks the contract; OK: it does not */
	bool timed_out;         /* its last run did not end in time */
	bool ended_transaction; /* its handler ended the transaction: never again */
	bool refused;        /* its run is over, with status and reason: it is not run once more */
	uint32_t runs;       /* of the handler, so far */
	int64_t delay_ms;    /* RETRY: of the copy; OPEN again: before the next run */
	semel_status status; /* of the last run */
	const char *reason;
	int64_t received_ms;                    /* steady */
	int64_t claim_began_ms, claim_ended_ms; /* since 1970; only for spans */
};

enum semel_handler_kind {
	SEMEL_HANDLER_NONE,
	SEMEL_HANDLER_FUNCTION,
	SEMEL_HANDLER_SQL,
	SEMEL_HANDLER_OUTSIDE
};

struct semel_dispatch;
struct semel_unfinished_claim;

struct semel_consumer {
	semel_consumer_options options;
	char *store_url, *broker_url;
	char **topics; /* NULL-ended */
	struct semel_text scope, handler_version;
	char *dedup_header, *id_header, *bind;

	enum semel_handler_kind kind;
	semel_handler function;
	void *user;
	char **statements;
	size_t statement_count;
	const struct semel_outside_kind *outside;
	char *target;
	char **passed; /* variables for programs; NULL-ended, or NULL */
	struct semel_upcasters *upcasters;

	const struct semel_env *env;
	struct semel_wake *wake;
	char owner[SEMEL_OWNER_SIZE];
	semel_store *store;
	struct semel_broker *broker;
	struct semel_guard *guard;
	bool guard_joins;          /* its claims are part of the store's transaction */
	struct semel_arena *arena; /* of one batch */
	struct semel_dispatch *dispatch;
	struct semel_positions *positions;
	struct semel_unfinished_claim *unfinished; /* NULL: nothing is */

	struct semel_retry_policy retry;
	struct semel_breaker breaker;
	struct semel_presence_state presence;
	semel_consumer_counts counts;
	struct semel_consumer_counters counters;
	uint64_t settled, max; /* deliveries; max 0: no limit */
	bool one_round;        /* of followers in a transaction: one of them ended the last */
	struct semel_crash_recovery recovery;
	uint32_t alone;            /* so many followers come next, in transactions of their own */
	bool has_deferred;         /* something came too early: it has to be fetched again … */
	bool paused;               /* by a person */
	bool connected;            /* and subscribed */
	bool ending;               /* nothing new is begun */
	int64_t check_pause_at_ms; /* steady: when it is looked for again */
	int64_t pause_until_ms;    /* … but not before this (steady) */
	int64_t step_began_ms;     /* when the last turn began */
	int64_t grace_ms;          /* for calls in hand, when the run ends */
	uint32_t outages;          /* in a row */
	char trouble[SEMEL_ERROR_TEXT_MAX];
};

/* ---- item.c ---- */
/* Room for the batch's items in the arena, one per delivery. NULL: no memory. */
struct semel_item *semel_items_make(const struct semel_consumer *consumer,
				    struct semel_delivery *deliveries, uint32_t count,
				    struct semel_arena *arena);
bool semel_item_same_key(const struct semel_item *left, const struct semel_item *right);
/* The one way in which its state changes; see semel_items_check. */
void semel_item_move(struct semel_item *item, enum semel_item_state to);
/* Its transaction was rolled back, or its claim given back: it is as it came. */
void semel_item_reset(struct semel_item *item);
/* Before a commit. INTERNAL: one of them was moved as no table says. */
semel_status semel_items_check(const struct semel_item *items, uint32_t count, semel_error *error);
/* One before it in the list has the same ordering key and was put off (LATER). */
bool semel_item_is_behind_deferred(const struct semel_item *items, uint32_t at);
/* What the store keeps of an item that is parked or given up, but for why. Its id is made into the
 * caller's room, which must outlive it. */
struct semel_dead_entry semel_item_entry(const struct semel_consumer *consumer,
					 const struct semel_item *item,
					 char entry_id_out[SEMEL_UUID_SIZE]);
/* Can others wait for it? Not for one without an id or an ordering key. */
bool semel_item_can_hold(const struct semel_item *item);
/* Keeps it in the store, behind the event of that id. In the open transaction. */
semel_status semel_item_park(struct semel_consumer *consumer, struct semel_item *item,
			     struct semel_text behind, semel_error *error);

/* ---- admit.c: in the open transaction. Every OPEN item becomes GO or has its state; those behind
 * an unsettled sibling become LATER, and consumer->has_deferred tells that there are such. ---- */
semel_status semel_admit(struct semel_consumer *consumer, struct semel_item *items, uint32_t count,
			 struct semel_arena *arena, semel_error *error);

/* ---- verdict.c: in the open transaction ---- */
/* Later ones wait while it is tried again. */
bool semel_item_holds_while_retried(const struct semel_consumer *consumer,
				    const struct semel_item *item);
semel_status semel_settle_done(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error);
/* The run ended with item->status. Sets the state, or leaves it OPEN with delay_ms for a run at
 * once. */
semel_status semel_settle_failed(struct semel_consumer *consumer, struct semel_item *item,
				 int64_t retry_after_ms, struct semel_arena *arena,
				 semel_error *error);
/* Nothing runs: it leaves the parked ones, and those behind it go on. */
semel_status semel_settle_superseded(struct semel_consumer *consumer, struct semel_item *item,
				     struct semel_arena *arena, semel_error *error);
/* A dead letter, whatever the retry policy says. */
semel_status semel_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
			       struct semel_arena *arena, semel_error *error);

/* ---- settle.c ---- */
/* After the commit: delayed copies first, then the acks, then counts and logs. Items whose state is
 * OPEN, GO or LATER are left alone. */
semel_status semel_acknowledge(struct semel_consumer *consumer, struct semel_item *const *items,
			       uint32_t count, semel_error *error);

/* ---- fence.c: in the open transaction ---- */
/* Before what was admitted in an earlier transaction is run or concluded. */
semel_status semel_fence_check(struct semel_consumer *consumer, const struct semel_item *item,
			       struct semel_arena *arena, bool *ours_out, semel_error *error);

/* Its handler did not run: a claim of this consumer's goes, whether it was to be finished later or
 * stands as processed already (at most once). */
semel_status semel_claim_release(struct semel_consumer *consumer,
				 const struct semel_inbox_claim *claim, semel_error *error);

/* ---- batch.c: handlers inside the transaction ---- */
semel_status semel_batch_process(struct semel_consumer *consumer, struct semel_item *items,
				 uint32_t count, semel_error *error);
/* In the open transaction, each behind a savepoint. */
semel_status semel_batch_run_each(struct semel_consumer *consumer, struct semel_item *items,
				  uint32_t count, semel_error *error);
/* The store has refused to commit what it did, alone, and nothing of it happened: its run counts as
 * failed. */
void semel_batch_commit_refused(struct semel_consumer *consumer, struct semel_item *item,
				const semel_error *error);
bool semel_batch_is_verdict(semel_status status);
/* With the claim committed first. */
semel_status semel_batch_one_by_one(struct semel_consumer *consumer, struct semel_item *items,
				    uint32_t count, semel_error *error);
/* Its handler ended the transaction: the dead letter gets a new one. */
semel_status semel_batch_settle_dead(struct semel_consumer *consumer, struct semel_item *item,
				     semel_error *error);
semel_status semel_batch_commit(struct semel_consumer *consumer, semel_error *error);
semel_status semel_batch_acknowledge(struct semel_consumer *consumer, struct semel_item *items,
				     uint32_t count, semel_error *error);

/* ---- owed.c: a claim that was committed before the effect, and an outage between both ---- */
/* Its handler did not run to the end, or, doubt: nobody knows whether its effect was committed. */
void semel_unfinished_claim_note(struct semel_consumer *consumer, const struct semel_item *item,
				 bool doubt);
/* Before anything else is taken: the claim is returned, or the event becomes a dead letter in
 * doubt.
 */
semel_status semel_unfinished_claim_resolve(struct semel_consumer *consumer, semel_error *error);
void semel_unfinished_claim_free(struct semel_unfinished_claim *owed);

/* ---- followers.c ---- */
/* Parked followers whose head is settled. ran_out: there were any. */
semel_status semel_followers_run(struct semel_consumer *consumer, bool *ran_out,
				 semel_error *error);
/* Reads the first followers of at most max ready holds into the arena as items. In the open
 * transaction. */
semel_status semel_followers_read(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_item **items_out,
				  uint32_t *count_out, semel_error *error);

/* ---- dispatch.c: handlers outside ---- */
semel_status semel_dispatch_open(struct semel_consumer *consumer, semel_error *error);
/* One turn: conclude what has ended, admit and start what is next. busy_out: go on at once. */
semel_status semel_dispatch_step(struct semel_consumer *consumer, bool *busy_out,
				 semel_error *error);
/* Deliveries that wait or are at work. */
uint32_t semel_dispatch_task_count(const struct semel_consumer *consumer);
/* Calls under way, and those that ended and are not concluded. */
uint32_t semel_dispatch_call_count(const struct semel_consumer *consumer);
/* Of this event? */
bool semel_dispatch_has_call(const struct semel_consumer *consumer, struct semel_text event_id);
/* When the first of those that wait for a moment may start (steady); 0: none does. */
int64_t semel_dispatch_next_ms(const struct semel_consumer *consumer);
/* Waits for a call to end, also when the consumer was told to stop. */
void semel_dispatch_wait(const struct semel_consumer *consumer, int64_t wait_ms);
/* The connections are gone: what waits comes again, calls under way go on. */
void semel_dispatch_detach(struct semel_consumer *consumer);
/* Ends the calls under way soon; they are concluded as interrupted. */
void semel_dispatch_interrupt(const struct semel_consumer *consumer);
void semel_dispatch_close(struct semel_consumer *consumer);

/* ---- context.c ---- */
semel_verdict semel_context_run(struct semel_consumer *consumer, const struct semel_item *item,
				semel_error *error);

/* ---- open.c, subscription.c ---- */
/* Opens what is not open: store, guard, broker; and subscribes. */
semel_status semel_consumer_connect(struct semel_consumer *consumer, semel_error *error);
/* Closes them. Calls under way go on. */
void semel_consumer_disconnect(struct semel_consumer *consumer);
/* Writes the subscription down for people and for verify. */
semel_status semel_consumer_register(struct semel_consumer *consumer, semel_error *error);

/* How claims are made: at once as PROCESSED in the effect's transaction, or first as CLAIMED. */
bool semel_consumer_claims(const struct semel_consumer *consumer);
bool semel_consumer_joins(const struct semel_consumer *consumer);
/* CONFIG: the scope holds events of another kind of order than this consumer keeps. In the open
 * transaction, if there is one. */
semel_status semel_order_check_mode(struct semel_consumer *consumer, semel_error *error);
/* No second run without a person. */
bool semel_consumer_runs_once(const struct semel_consumer *consumer);
/* How many of wanted more deliveries may be taken under --max, with so many at hand. */
uint32_t semel_consumer_cap(const struct semel_consumer *consumer, uint32_t wanted,
			    uint32_t at_hand);
/* At most max deliveries of the broker, and their places noted. count_out is right also after a
 * failure. */
semel_status semel_consumer_fetch(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_delivery **deliveries_out,
				  uint32_t *count_out, semel_error *error);
/* The same as items. */
semel_status semel_consumer_fetch_items(struct semel_consumer *consumer, uint32_t max,
					struct semel_arena *arena, struct semel_item **items_out,
					uint32_t *count_out, semel_error *error);

/* ---- turn by turn, so that one thread can run many on a clock of its own ---- */
/* As semel_consumer_open; env outlives the consumer. */
semel_status semel_consumer_open_in(const struct semel_env *env,
				    const semel_consumer_options *options,
				    semel_consumer **consumer_out, semel_error *error);
/* Before the first step: connects, and tells the store of the subscription. max as in
 * semel_consumer_run. */
semel_status semel_consumer_prepare(semel_consumer *consumer, uint64_t max, semel_error *error);
/* One turn, asleep only between two runs of a handler at once; what semel_consumer_run and
 * semel_consumer_drain are made of. busy_out: something was done. pause_ms_out: 0, or after an
 * outage, which has closed the connections, how long to wait before the next step. */
semel_status semel_consumer_step(semel_consumer *consumer, bool *busy_out, int64_t *pause_ms_out,
				 semel_error *error);

/* ---- for the program: handlers that are no C functions; copied ---- */
semel_status semel_consumer_use_sql(semel_consumer *consumer, const char *const *statements,
				    size_t count, semel_error *error);
semel_status semel_consumer_use_outside(semel_consumer *consumer,
					const struct semel_outside_kind *kind, const char *target,
					semel_error *error);
/* Before the handler is chosen: variables of the environment that its programs get, and upcasters
 * too, although they are withheld from them otherwise. */
semel_status semel_consumer_pass_env(semel_consumer *consumer, const char *const *names,
				     size_t count, semel_error *error);
struct semel_upcasters *semel_consumer_upcasters(semel_consumer *consumer);
/* How long a run that ends waits for calls in hand; 10 s unless told otherwise. */
void semel_consumer_set_grace(semel_consumer *consumer, int64_t grace_ms);

#endif
