/* SPDX-License-Identifier: Apache-2.0 */
/* The committed events of the outbox, packed in memory in the order of their ids, so that a sorted
 * stream of another table can be compared with them in one pass. */
#ifndef SEMEL_PROOF_LEDGER_H
#define SEMEL_PROOF_LEDGER_H

#include "base/buffer.h"
#include "store/store.h"

enum semel_ledger_status { SEMEL_LEDGER_NEW, SEMEL_LEDGER_PUBLISHED, SEMEL_LEDGER_FAILED };

/* Bits: what a scope, or the broker, has of an event. */
enum semel_ledger_flag {
	SEMEL_LEDGER_IS_PROCESSED = 1,
	SEMEL_LEDGER_IS_CLAIMED = 2,
	SEMEL_LEDGER_IS_GIVEN_UP = 4, /* a FAILED claim */
	SEMEL_LEDGER_IS_PENDING = 8,
	SEMEL_LEDGER_IS_DISCARDED = 16,
	SEMEL_LEDGER_IS_REPLAYED = 32,
	SEMEL_LEDGER_IS_PARKED = 64,
	SEMEL_LEDGER_IS_QUERIED = 128,   /* the broker was queried for it */
	SEMEL_LEDGER_IS_AT_BROKER = 256, /* and has it */
	SEMEL_LEDGER_IS_FILTERED = 512,  /* the binding of the subscription leaves it out */
	SEMEL_LEDGER_IS_MOVING =
		1024, /* it waits in the tables of the scope, and will be processed */
	SEMEL_LEDGER_IS_STUCK = 2048 /* it waits there, and will not */
};

struct semel_ledger_entry {
	uint64_t id_at; /* in ids */
	int64_t time_ms;
	uint16_t topic; /* in topics */
	uint16_t flags;
	uint8_t id_length, status;
};

struct semel_ledger {
	struct semel_ledger_entry *entries;
	size_t count, capacity;
	struct semel_buffer ids;
	struct semel_arena *arena; /* of the topics' names */
	struct semel_text *topics;
	size_t topic_count, topic_capacity;
	size_t cursor;                                                  /* of semel_ledger_seek */
	void (*progress)(const char *what, uint64_t count, void *user); /* may be NULL */
	void *user;
};

/* Reads the outbox. Free it also after a failure. */
semel_status semel_ledger_read(struct semel_ledger *ledger, semel_store *producer,
			       semel_error *error);
/* Reads the status of the same events again; later events are left out. */
semel_status semel_ledger_refresh(struct semel_ledger *ledger, semel_store *producer,
				  semel_error *error);
void semel_ledger_free(struct semel_ledger *ledger);

struct semel_text semel_ledger_id(const struct semel_ledger *ledger,
				  const struct semel_ledger_entry *entry);
struct semel_text semel_ledger_topic(const struct semel_ledger *ledger,
				     const struct semel_ledger_entry *entry);
bool semel_ledger_has_topic(const struct semel_ledger *ledger, struct semel_text topic);

/* Call rewind before a new stream, and clear_flags before a new scope; both reset the cursor. */
void semel_ledger_rewind(struct semel_ledger *ledger);
void semel_ledger_clear_flags(struct semel_ledger *ledger);
/* The entry of this id, or NULL. Ids must be passed in ascending byte order. */
struct semel_ledger_entry *semel_ledger_seek(struct semel_ledger *ledger, struct semel_text id);
/* The same without the cursor, for ids in any order. */
struct semel_ledger_entry *semel_ledger_find(const struct semel_ledger *ledger,
					     struct semel_text id);
/* Compares two ids in byte order. */
int semel_ledger_compare(struct semel_text left, struct semel_text right);

#endif
