/* SPDX-License-Identifier: Apache-2.0 */
/* An item is one delivery, or one parked follower, on its way through the consumer. Its state says
 * what becomes of this copy of the event; semel_item_move is the only function that changes it. */
#ifndef SEMEL_CONSUME_ITEM_H
#define SEMEL_CONSUME_ITEM_H

#include "base/uuid.h"
#include "broker/broker.h"
#include "state/state.h"
#include "store/store.h"

struct semel_consumer;

/* Each corresponds to a state of the event at the subscription (state/state.h). From DONE on the
 * item is settled: once that is durable, the copy is acknowledged. */
enum semel_item_state {
	SEMEL_ITEM_UNDECIDED,
	SEMEL_ITEM_ADMITTED, /* claimed as well: run the handler */
	SEMEL_ITEM_DEFERRED, /* not now, and not acknowledged: the broker delivers it again */
	SEMEL_ITEM_DONE,
	SEMEL_ITEM_DUPLICATE,  /* its claim proves that it was processed */
	SEMEL_ITEM_SUPERSEDED, /* its dead letter accounts for the event: nothing runs */
	SEMEL_ITEM_RETRYING,   /* a delayed copy goes to the broker */
	SEMEL_ITEM_DEAD,       /* it became a dead letter */
	SEMEL_ITEM_PARKED      /* in the store, behind an earlier event */
};

struct semel_item {
	const struct semel_delivery *delivery; /* as it was delivered */
	struct semel_event event;              /* as the handler sees it */
	struct semel_hold_key key;      /* order is kept within it: the aggregate or the topic */
	struct semel_text entry_id;     /* data set: a parked follower, read from the store */
	struct semel_text business_key; /* must be new, too; data NULL: only the id must */
	struct semel_inbox_claim claim;
	enum semel_item_state state;
	bool illegal;           /* made a transition that is not listed: must not be committed */
	bool head;              /* its key's hold waits for this event */
	bool has_letter;        /* its dead letter is settled when the item is done */
	uint32_t replay;        /* which replay of its dead letter this run is; 0: none */
	bool may_overtake;      /* deferred items of its key wait for this copy */
	bool stored;            /* RETRYING: it is parked in the store, and no copy is sent */
	bool detached;          /* its connection is closed: it is redelivered, not acked */
	bool in_doubt;          /* its claim belongs to a consumer that died */
	semel_status broken;    /* how it breaks the contract; OK: it does not */
	bool timed_out;         /* its last run timed out */
	bool ended_transaction; /* its handler ended the transaction: it never runs again */
	bool skip_run;          /* its run counts as failed, with status and reason */
	uint32_t runs;          /* of the handler, so far */
	int64_t delay_ms;       /* RETRYING: of the copy; UNDECIDED again: before the next run */
	semel_status status;    /* of the last run */
	const char *reason;
	int64_t received_ms;                    /* steady */
	int64_t claim_began_ms, claim_ended_ms; /* since 1970; only for spans */
};

/* Items in the arena, one per delivery. NULL: out of memory. */
struct semel_item *semel_items_new(const struct semel_consumer *consumer,
				   struct semel_delivery *deliveries, uint32_t count,
				   struct semel_arena *arena);
bool semel_item_has_same_key(const struct semel_item *left, const struct semel_item *right);
bool semel_item_is_settled(const struct semel_item *item);
/* Can later events be held behind the item? Not if it has no id or no ordering key. */
bool semel_item_can_hold(const struct semel_item *item);
bool semel_items_have_deferred(const struct semel_item *items, uint32_t count);
/* An earlier item in the list has the same ordering key and was deferred. */
bool semel_item_is_behind_deferred(const struct semel_item *items, uint32_t at);

void semel_item_move(struct semel_item *item, enum semel_item_state to);
/* The item's transaction was rolled back, or its claim released: the item is as it was
 * delivered. */
void semel_item_reset(struct semel_item *item);
/* Call before a commit. INTERNAL: an item made a transition that docs/states.md does not list. */
semel_status semel_items_check(const struct semel_item *items, uint32_t count, semel_error *error);

/* What is stored of an item that is parked or given up, without the reason. The row's id is made in
 * the caller's buffer, which must outlive the row. */
struct semel_dead_letter_row semel_item_entry(const struct semel_consumer *consumer,
					      const struct semel_item *item,
					      char entry_id_out[SEMEL_UUID_SIZE]);
/* Parks the item behind the event with this id. In the open transaction. */
semel_status semel_item_park(struct semel_consumer *consumer, struct semel_item *item,
			     struct semel_text behind, semel_error *error);

#endif
