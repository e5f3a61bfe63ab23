/* SPDX-License-Identifier: Apache-2.0 */
/* A source hands committed rows to a relay: by polling, or from the database's change stream.
 *
 * It only reads. What is done with a row (published, retried, failed, parked) is decided by the
 * pipeline, in the same way for every source; the source learns of it in batch_marked().
 *
 * Threads: one source belongs to its relay's thread.
 * Ownership: batches are acquired from the pipeline's pool, and belong to the pipeline once read()
 * has returned them.
 * Order: rows of one aggregate are returned in the order in which they were committed.
 */
#ifndef SEMEL_RELAY_SOURCE_H
#define SEMEL_RELAY_SOURCE_H

#include "relay/batch.h"

struct semel_source {
	const struct semel_source_driver *driver;
};

/* How much more may be in flight. */
struct semel_read_limits {
	uint32_t rows;
	uint64_t bytes;
};

#define SEMEL_SOURCE_LABEL_SIZE 160

struct semel_source_driver {
	const char *name; /* "poll", "cdc" */
	int64_t wait_ms;  /* for the broker's outcomes, before the source is read again */

	/* Functions are required unless they say otherwise. connect: the store to read from, and
	 * the pool of batches to use, from now on. What was read before and not marked is read
	 * again. */
	void (*connect)(struct semel_source *source, semel_store *store,
			struct semel_relay_batches *batches);
	/* Checks for rows, once before the reads of a step. */
	semel_status (*probe)(struct semel_source *source, semel_error *error);
	/* The next batch of at least one row, within the limits; NULL: nothing more now. With
	 * limits of 0 only rows that the source has already fetched are returned. */
	semel_status (*read)(struct semel_source *source, const struct semel_read_limits *limits,
			     struct semel_relay_batch **batch_out, semel_error *error);
	/* Once this batch is marked, no row at or below the result waits in its lane. */
	int64_t (*low_seq)(struct semel_source *source, const struct semel_relay_batch *batch);
	/* arm_wakeup: the relay is about to sleep; true: probe once more first. only_if_armed: the
	 * relay sleeps only until the next outcome, which is not worth arming the wakeup.
	 * check_wakeup: it is awake again; false: a wakeup was armed, and there is nothing new. */
	bool (*arm_wakeup)(struct semel_source *source, bool only_if_armed);
	bool (*check_wakeup)(struct semel_source *source);
	/* Optional. After a probe and its reads: there is nothing more before the next wakeup.
	 * NULL: only a probe that finds nothing shows that. */
	bool (*is_exhausted)(const struct semel_source *source);
	/* Optional, for sources whose rows wake a sleeper until they are read. After a step: the
	 * source has read everything, so only the next row wakes. */
	bool (*is_listening)(const struct semel_source *source);
	void (*close)(struct semel_source *source);

	/* Optional. At the beginning of every step: work other than reading. unfinished_out: more
	 * is left, and the relay should neither end nor sleep. */
	semel_status (*maintain)(struct semel_source *source, bool finishing, bool *unfinished_out,
				 semel_error *error);
	/* Optional. All events of the batch are marked. A batch without a lane and without a
	 * refusal is marked by the source. */
	void (*batch_marked)(struct semel_source *source, const struct semel_relay_batch *batch);
	/* Optional. Called often while the relay waits for the broker: signals the database that
	 * the reader is alive. */
	void (*keepalive)(struct semel_source *source);
	/* Optional. Called often while store or broker are disconnected. */
	void (*monitor)(struct semel_source *source);
	/* Optional, both: for sources that know what was committed together. in_transaction: the
	 * last row returned is followed by others of its transaction. label: a name that no other
	 * outbox has. */
	bool (*in_transaction)(const struct semel_source *source);
	semel_status (*label)(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			      semel_error *error);
	/* Optional. The longest time to sleep when nothing wakes the relay. */
	int64_t (*sleep_ms)(struct semel_source *source);
};

/* Reads lanes of the outbox that this relay owns. The lanes outlive the source. */
semel_status semel_source_open_poll(const struct semel_env *env, struct semel_lanes *lanes,
				    struct semel_source **source_out, semel_error *error);
/* What the change stream needs in addition; plain inputs, copied. */
struct semel_cdc_options {
	const char *store_url, *slot;
	uint64_t budget;         /* bytes of the database's log that the slot may retain */
	uint32_t window;         /* rows that may be unmarked */
	int64_t poll_ms;         /* how often exceptions and slot are checked */
	bool marks;              /* rows are marked one by one; else only the low marks move */
	bool transactions;       /* a transaction is never left in the middle */
	struct semel_wake *wake; /* outlives the source */
};
/* Reads the database's change stream, and polls while it cannot. The relay owns all lanes or none.
 * CONFIG: the store has no change stream. */
semel_status semel_source_open_cdc(const struct semel_cdc_options *options,
				   const struct semel_env *env, struct semel_lanes *lanes,
				   struct semel_source **source_out, semel_error *error);
/* source may be NULL. */
void semel_source_close(struct semel_source *source);

#endif
