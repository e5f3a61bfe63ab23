/* SPDX-License-Identifier: Apache-2.0 */
/* A store's change stream: the committed inserts of the outbox, as the database itself tells of
 * them, in the order of their commits. An optional part of the store seam.
 *
 * The database keeps its log for a reader in a *slot*. Positions in the log are numbers that only
 * grow. Whatever the reader has confirmed never comes again; the rest does, after every start.
 * What is confirmed is also *recorded* in a table of ours, with the identity of the database
 * under which it was read, and the publication that the rows came through: a slot that is further
 * than we remember, a database with another history, or another publication tells that something
 * may have passed us by.
 *
 * Threads: one belongs to one thread. It has connections of its own.
 * Errors: as for a store. OUTAGE from the stream alone says nothing about the store.
 */
#ifndef SEMEL_STORE_CHANGES_H
#define SEMEL_STORE_CHANGES_H

#include "store/store.h"

#define SEMEL_SLOT_DEFAULT "semel"

struct semel_changes {
	const struct semel_changes_driver *driver;
};

/* All that is known of the slot at one moment. */
struct semel_slot_state {
	char obstacle[256]; /* why there can be no stream, and what to do; empty: nothing */
	bool known;         /* what follows is known */
	bool exists;
	bool foreign;         /* a slot of this name is somebody else's */
	bool lost;            /* the database has removed parts of the log that it needs */
	bool active;          /* somebody reads from it */
	uint64_t position;    /* confirmed */
	uint64_t current;     /* the end of the log: every commit that is visible lies below it */
	uint64_t retained;    /* bytes of the log that are kept because of it */
	int64_t drawn_seq;    /* no commit below `current` has a row with a higher number */
	char identity[64];    /* of the database and its history */
	char publication[96]; /* what the rows come through; any change of it makes another one */
	bool recorded;
	uint64_t recorded_position;
	char recorded_identity[64];
	char recorded_publication[96]; /* empty: it is not known */
	uint64_t complete_position;    /* up to here a reader of any slot has settled everything */
	int64_t poll_to_seq; /* rows up to here are to be polled before the stream; 0: none */
};

/* Rows that were confirmed by the broker, and what may be forgotten when they are marked. */
struct semel_flush {
	const struct semel_lease *leases; /* all lanes, of one owner */
	size_t lease_count;
	const int64_t *low_seqs; /* of all lanes */
	const int32_t *lanes;    /* of the rows */
	const int64_t *seqs;
	const uint32_t *xids;
	size_t count;
	bool again;        /* it was sent before, and not all of them could be marked */
	bool marks;        /* rows are marked one by one, and not only passed by the low marks */
	uint64_t position; /* settled once this flush is */
	int64_t now_ms, expires_at_ms;
};

struct semel_changes_driver {
	/* All slots are required. url: the store's. The slot's name is copied. */
	semel_status (*open)(const char *url, const char *slot, struct semel_changes **changes_out,
			     semel_error *error);
	void (*close)(struct semel_changes *changes);

	/* -- the slot. look: what is there; makes nothing. */
	semel_status (*inspect)(struct semel_changes *changes, struct semel_slot_state *state_out,
				semel_error *error);
	/* Makes what a stream needs beside the slot (a publication), and mends what is there. */
	semel_status (*prepare)(struct semel_changes *changes, semel_error *error);
	/* Begins to make the slot, which has to wait for transactions that are open; *made_out once
	 * it is there. Called again until then. Afterwards it is recorded, with poll_to_seq so
	 * that what was committed before it is polled. */
	semel_status (*create)(struct semel_changes *changes, bool *made_out, semel_error *error);
	/* Ends whoever reads from it, and removes it. BUSY: not yet. */
	semel_status (*drop)(struct semel_changes *changes, semel_error *error);
	/* Remembers this position under the present identity, and what is to be polled first.
	 * publication: as it was when that was looked up. */
	semel_status (*record)(struct semel_changes *changes, uint64_t position,
			       int64_t poll_to_seq, const char *publication, semel_error *error);

	/* -- the stream. start: from this position on, or from the confirmed one where that lies
	 * behind it: after a crash the database may have forgotten the last ones. wake is rung by
	 * rows that come. The end of a transaction alone rings where it is asked for; else, while
	 * in_transaction, look again after some milliseconds. BUSY: somebody else reads; he is told
	 * to end, where that is permitted. */
	semel_status (*start)(struct semel_changes *changes, uint64_t position,
			      struct semel_wake *wake, bool ends, semel_error *error);
	/* Rows that are here, until the batch is full (cut): there may be more then, which wakes
	 * nobody. Does not wait for more. *position_out: when every row handed out so far is
	 * settled, this may be confirmed; 0: nothing new. */
	semel_status (*read)(struct semel_changes *changes, struct semel_outbox_batch *batch,
			     uint64_t *position_out, semel_error *error);
	/* The last row read has others behind it, of the same transaction. */
	bool (*in_transaction)(const struct semel_changes *changes);
	/* Confirms, and says that we are alive. ask: be told where the database stands. */
	semel_status (*confirm)(struct semel_changes *changes, uint64_t position, bool ask,
				semel_error *error);
	/* The next rows were committed, and are not visible to others yet: they wait for a
	 * synchronous standby, and must not be handed out before. Nothing wakes for them: read
	 * again in so many milliseconds. Below 0: nothing waits. */
	int64_t (*visibility_wait_ms)(const struct semel_changes *changes);
	/* How long the database waits for a sign of life; 0: for ever. */
	int64_t (*keepalive_timeout_ms)(struct semel_changes *changes);
	void (*stop)(struct semel_changes *changes);

	/* -- marks, which need not be waited for. send: one at a time. What it points to is not
	 * kept. heard: waits at most wait_ms (below 0: as long as it takes); *done_out when it is
	 * durable, and everything committed before it over other connections of ours. Rows that
	 * were deleted count as marked. NOT_FINISHED: some are not visible yet; send it again.
	 * LEASE_LOST: another relay has the lanes. */
	semel_status (*flush_send)(struct semel_changes *changes, const struct semel_flush *flush,
				   semel_error *error);
	semel_status (*flush_poll)(struct semel_changes *changes, int64_t wait_ms, bool *done_out,
				   semel_error *error);
};

/* Touches nothing. CONFIG when the store has none. */
semel_status semel_changes_find(const char *store_url,
				const struct semel_changes_driver **driver_out, semel_error *error);
semel_status semel_changes_open(const char *store_url, const char *slot,
				struct semel_changes **changes_out, semel_error *error);

#endif
