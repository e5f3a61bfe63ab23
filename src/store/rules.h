/* SPDX-License-Identifier: Apache-2.0 */
/* What is the same in every store: the words in its tables, and the rules that need no database.
 *
 * To change here: a word only together with the schema's checks; a rule holds for all drivers. */
#ifndef SEMEL_STORE_RULES_H
#define SEMEL_STORE_RULES_H

#include "store/store.h"

/* The limits of a list of dead letters: it has no payload, "null" for headers of more bytes than
 * this, and at most this many characters of reasons and of values from headers; a text that is cut
 * ends in an ellipsis. */
#define SEMEL_DEAD_BRIEF "4096"

/* The scope of events that the broker refused for good. */
#define SEMEL_SCOPE_RELAY "relay"

/* The word in the table; "ANY" for the filter. */
const char *semel_dead_status_name(enum semel_dead_status status);
/* ANY when it is not a status. */
enum semel_dead_status semel_dead_status_of(const char *name);
const char *semel_hold_state_name(enum semel_hold_state state);
/* NONE when it is not a state. */
enum semel_hold_state semel_hold_state_of(const char *name);
const char *semel_inbox_status_name(enum semel_inbox_status status);
/* What a claim found, by the status of the existing row. */
enum semel_claim_found semel_claim_found_of(const char *name);

/* May an entry with the status `now` that was replayed `count` times become `status`? NOT_PENDING
 * also when it was replayed and failed again since the caller read it. */
semel_status semel_dead_check_move(const struct semel_dead_letter_row *entry,
				   enum semel_dead_status now, enum semel_dead_status status,
				   uint32_t count, semel_error *error);
semel_status semel_dead_not_found(const char *entry_id, semel_error *error);
/* Adds the dead letter of an event that the broker refused for good. */
semel_status semel_dead_add_refused(semel_tx tx, const struct semel_mark *mark, int64_t now_ms,
				    semel_error *error);

/* Some rows of the outbox that wait for the same reason. */
struct semel_outbox_group {
	const char *state; /* their own, as exceptions; NULL: the relay has not read them yet */
	const char *head;  /* the state of the first exception of their aggregate */
	bool blocks;       /* the first exception blocks */
	uint64_t count;
	int64_t due_ms, oldest_ms; /* 0: none */
};
void semel_outbox_counts_add(struct semel_outbox_counts *counts, struct semel_outbox_group group);
/* Counts an event that has waited since then; 0: there is none. */
void semel_outbox_counts_add_oldest(struct semel_outbox_counts *counts, int64_t time_ms);

/* One hold of a scope. */
struct semel_hold_summary {
	enum semel_hold_state state;
	bool blocks;
	int64_t due_ms;  /* 0: none */
	uint64_t behind; /* events that are parked behind it */
};
void semel_hold_counts_add(struct semel_hold_counts *counts, struct semel_hold_summary hold);

semel_status semel_position_lease_lost(const struct semel_position *position, semel_error *error);

#endif
