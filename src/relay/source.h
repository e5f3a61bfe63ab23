/* SPDX-License-Identifier: Apache-2.0 */
/* A source tells a relay of committed rows: by polling, or from the database's change stream.
 *
 * It only reads. What becomes of a row (published, refused, given up, parked) is the pipeline's
 * business, the same behind every source; the source hears of it in settled().
 *
 * Threads: one source belongs to its relay's thread.
 * Ownership: batches are taken from the pipeline's batches, and are the pipeline's once read() has
 * handed them out.
 * Order: rows of one aggregate are handed out in the order in which they were committed.
 */
#ifndef SEMEL_RELAY_SOURCE_H
#define SEMEL_RELAY_SOURCE_H

#include "relay/batch.h"

struct semel_source {
	const struct semel_source_driver *driver;
};

/* How much more may be in flight. */
struct semel_room {
	uint32_t rows;
	uint64_t bytes;
};

#define SEMEL_SOURCE_LABEL_SIZE 160

struct semel_source_driver {
	const char *name; /* "poll", "cdc" */
	int64_t wait_ms;  /* for the broker's outcomes, before the source is asked again */

	/* Slots are required unless they say otherwise. connect: the store to read from, and the
	 * batches to use, from now on. What was read before and not settled is read again. */
	void (*connect)(struct semel_source *source, semel_store *store,
			struct semel_relay_batches *batches);
	/* Looks for rows, once before the reads of a step. */
	semel_status (*probe)(struct semel_source *source, semel_error *error);
	/* The next batch of at least one row, within the room; NULL: that was all for now. Without
	 * room only what the source has read already is handed out. */
	semel_status (*read)(struct semel_source *source, const struct semel_room *room,
			     struct semel_relay_batch **batch_out, semel_error *error);
	/* When this batch is marked, nothing at or below the result waits in its lane. */
	int64_t (*low_seq)(struct semel_source *source, const struct semel_relay_batch *batch);
	/* The relay is about to sleep; true: look once more first. only_if_armed: only until the
	 * next outcome, which is not worth asking to be woken. check_wakeup: it is awake; false: it
	 * would have been woken if there were anything new. */
	bool (*arm_wakeup)(struct semel_source *source, bool only_if_armed);
	bool (*check_wakeup)(struct semel_source *source);
	/* Optional. After a look and its reads: there is nothing more before somebody rings. NULL:
	 * only a look that finds nothing tells. */
	bool (*is_exhausted)(const struct semel_source *source);
	/* Optional, of sources whose rows wake a sleeper until they are read. After a step: it has
	 * read all there was, so the next row wakes, and nothing else does. */
	bool (*is_listening)(const struct semel_source *source);
	void (*close)(struct semel_source *source);

	/* Optional. At the beginning of every step: what has to be done beside reading.
	 * unfinished_out: it is not finished, and the relay should not end or sleep. */
	semel_status (*maintain)(struct semel_source *source, bool finishing, bool *unfinished_out,
				 semel_error *error);
	/* Optional. All events of the batch are marked; one without a lane that had no refusal is
	 * the source's to mark. */
	void (*batch_marked)(struct semel_source *source, const struct semel_relay_batch *batch);
	/* Optional. Called often while the broker is waited for: signs of life. */
	void (*keepalive)(struct semel_source *source);
	/* Optional. Called often while store or broker are away. */
	void (*monitor)(struct semel_source *source);
	/* Optional, both: of sources that know what was committed together. in_transaction: the
	 * last row handed out has others behind it that were. label: a name that no other outbox
	 * has. */
	bool (*in_transaction)(const struct semel_source *source);
	semel_status (*label)(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			      semel_error *error);
	/* Optional. The longest time to sleep when nothing wakes the relay. */
	int64_t (*sleep_ms)(struct semel_source *source);
};

/* Reads lanes of the outbox that this relay owns. The lanes outlive the source. */
semel_status semel_source_open_poll(const struct semel_env *env, struct semel_lanes *lanes,
				    struct semel_source **source_out, semel_error *error);
/* What the change stream needs beside them; plain inputs, copied. */
struct semel_cdc_options {
	const char *store_url, *slot;
	uint64_t budget;         /* bytes of the database's log that the slot may keep */
	uint32_t window;         /* rows that may be unmarked */
	int64_t poll_ms;         /* how often the exceptions and the slot are looked at */
	bool marks;              /* rows are marked; else only the low marks move */
	bool transactions;       /* none is left in the middle */
	struct semel_wake *wake; /* outlives the source */
};
/* Reads the database's change stream, and polls where it cannot. All lanes or none are this
 * relay's. CONFIG: the store has no change stream. */
semel_status semel_source_open_cdc(const struct semel_cdc_options *options,
				   const struct semel_env *env, struct semel_lanes *lanes,
				   struct semel_source **source_out, semel_error *error);
/* source may be NULL. */
void semel_source_close(struct semel_source *source);

#endif
