/* SPDX-License-Identifier: Apache-2.0 */
/* A store's change stream: the committed inserts of the outbox, as the database itself delivers
 * them, in the order of their commits. An optional part of the store seam.
 *
 * The database retains its WAL for a reader in a *slot*. Positions in the WAL are numbers that only
 * grow. What the reader has confirmed is never delivered again; the rest is, after every start. A
 * confirmed position is also *recorded* in our own table, with the identity of the database that it
 * was read from, and the publication that the rows came through: a slot that is ahead of the
 * recorded position, a database with another history, or another publication shows that rows may
 * have been skipped.
 *
 * Threads: a change stream belongs to one thread. It has its own connections. Errors: as for a
 * store. OUTAGE from the stream alone does not concern the store's connection.
 */
#ifndef SEMEL_STORE_CHANGES_H
#define SEMEL_STORE_CHANGES_H

#include "store/store.h"

#define SEMEL_SLOT_DEFAULT        "semel"
#define SEMEL_SLOT_BUDGET_DEFAULT (UINT64_C(4) << 30) /* bytes */

struct semel_changes {
	const struct semel_changes_driver *driver;
	const struct semel_env *env; /* set by semel_changes_open; outlives it */
};

/* The slot at one moment. */
struct semel_slot_state {
	char problem[256]; /* why no stream is possible, and what to do; empty: none */
	bool known;        /* the fields below are filled in */
	bool exists;
	bool foreign;         /* the slot of this name is not ours */
	bool lost;            /* the database has removed WAL that it needs */
	bool active;          /* it has a reader */
	uint64_t position;    /* confirmed */
	uint64_t current;     /* the end of the WAL: every visible commit lies below it */
	uint64_t retained;    /* bytes of WAL that it retains */
	int64_t drawn_seq;    /* no commit below `current` has a row with a higher number */
	char identity[64];    /* of the database and its history */
	char publication[96]; /* changes with any change of the publication */
	bool recorded;
	uint64_t recorded_position;
	char recorded_identity[64];
	char recorded_publication[96]; /* empty: not known */
	uint64_t complete_position;    /* a reader of any slot is complete up to here */
	int64_t poll_to_seq;           /* rows up to here are polled before the stream; 0: none */
};

/* Rows that the broker has confirmed, and the position that is complete once they are marked. */
struct semel_flush {
	const struct semel_lease *leases; /* all lanes, of one owner */
	size_t lease_count;
	const int64_t *low_seqs; /* of all lanes */
	const int32_t *lanes;    /* of the rows */
	const int64_t *seqs;
	const uint32_t *xids;
	size_t count;
	bool again;        /* it was sent before, and not all rows could be marked */
	bool marks;        /* rows are marked one by one; else only the low marks move */
	uint64_t position; /* complete once these rows are marked */
	int64_t now_ms, expires_at_ms;
};

struct semel_changes_driver {
	/* All functions are required. url: the store's. The slot's name is copied. */
	semel_status (*open)(const char *url, const char *slot, struct semel_changes **changes_out,
			     semel_error *error);
	void (*close)(struct semel_changes *changes);

	/* -- the slot. inspect: its state; changes nothing. */
	semel_status (*inspect)(struct semel_changes *changes, struct semel_slot_state *state_out,
				semel_error *error);
	/* Creates what a stream needs beside the slot (a publication), and repairs what exists. */
	semel_status (*prepare)(struct semel_changes *changes, semel_error *error);
	/* Starts to create the slot, which has to wait for open transactions; *made_out: it exists.
	 * Call it again until then. Afterwards it is recorded, with a poll_to_seq so that rows
	 * committed before it are polled. */
	semel_status (*create)(struct semel_changes *changes, bool *made_out, semel_error *error);
	/* Terminates its reader, and drops it. BUSY: call again. */
	semel_status (*drop)(struct semel_changes *changes, semel_error *error);
	/* Records this position with the current identity, and up to which number rows are polled
	 * first. publication: as inspected. */
	semel_status (*record)(struct semel_changes *changes, uint64_t position,
			       int64_t poll_to_seq, const char *publication, semel_error *error);

	/* -- the stream. start: from this position on, or from the confirmed one if that is lower:
	 * after a crash the database may have lost the last confirmed ones. Rows that arrive notify
	 * wake. ends: the end of a transaction notifies as well; else, while in_transaction, read
	 * again after some milliseconds. BUSY: another reader is active; it is terminated where
	 * that is permitted. */
	semel_status (*start)(struct semel_changes *changes, uint64_t position,
			      struct semel_wake *wake, bool ends, semel_error *error);
	/* Reads rows that have arrived, until the batch is full (cut): there may be more then, for
	 * which there is no notification. Does not wait for more. *position_out: may be confirmed
	 * once every row returned so far is marked; 0: nothing new. */
	semel_status (*read)(struct semel_changes *changes, struct semel_outbox_batch *batch,
			     uint64_t *position_out, semel_error *error);
	/* True if the last row read is followed by other rows of its transaction. */
	bool (*in_transaction)(const struct semel_changes *changes);
	/* Confirms, and is a keepalive. ask: requests the database's current position. */
	semel_status (*confirm)(struct semel_changes *changes, uint64_t position, bool ask,
				semel_error *error);
	/* The next rows are committed, but not visible to other sessions yet: they wait for a
	 * synchronous standby, and must not be returned before they are visible. Nothing notifies
	 * when they become visible: read again after this many milliseconds. Below 0: no row
	 * waits. */
	int64_t (*visibility_wait_ms)(const struct semel_changes *changes);
	/* How long the database waits for a keepalive; 0: forever. */
	int64_t (*keepalive_timeout_ms)(struct semel_changes *changes);
	void (*stop)(struct semel_changes *changes);

	/* -- marks, which the caller need not wait for. send: one flush at a time; its arrays are
	 * not kept. poll: waits at most wait_ms (below 0: without limit); *done_out: it is durable,
	 * and so is everything that our other connections committed before it. Rows that were
	 * deleted count as marked. NOT_FINISHED: some are not visible yet; send it again.
	 * LEASE_LOST: another relay owns the lanes. */
	semel_status (*flush_send)(struct semel_changes *changes, const struct semel_flush *flush,
				   semel_error *error);
	semel_status (*flush_poll)(struct semel_changes *changes, int64_t wait_ms, bool *done_out,
				   semel_error *error);
};

/* Opens nothing. CONFIG when the store has none. */
semel_status semel_changes_find(const char *store_url,
				const struct semel_changes_driver **driver_out, semel_error *error);
semel_status semel_changes_open(const char *store_url, const char *slot,
				const struct semel_env *env, struct semel_changes **changes_out,
				semel_error *error);

#endif
