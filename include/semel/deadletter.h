/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters: events that were given up, stored whole, to be explained, replayed or discarded. */
#ifndef SEMEL_DEADLETTER_H
#define SEMEL_DEADLETTER_H

#include <semel/event.h>
#include <semel/store.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SEMEL_REPLAYS_MAX 3

typedef enum semel_dead_status {
	SEMEL_DEAD_ANY,
	SEMEL_DEAD_PENDING,
	SEMEL_DEAD_REPLAYED,
	SEMEL_DEAD_DISCARDED
} semel_dead_status;

/* A read-only view, valid during the callback. Unknown texts are NULL. */
typedef struct semel_dead_letter {
	const char *entry_id;
	const char *event_id;
	const char *event_type;
	const char *topic;
	const semel_event *event;
	const char *failure_reason;
	int64_t failed_at_ms;
	const char *scope; /* "relay" for events that the broker refused */
	const char *saga_id;
	const char *correlation_id;
	uint32_t attempts;
	uint32_t replay_count;
	semel_dead_status status;
	const char *discard_reason;
	uint64_t parked;       /* later events of its aggregate that are parked behind it */
	uint64_t payload_size; /* bytes of the event's payload, also where it was not read */
} semel_dead_letter;

typedef void (*semel_dead_letter_visitor)(const semel_dead_letter *entry, void *user);

typedef struct semel_dead_letter_filter {
	uint32_t limit; /* 0: 20 */
	semel_dead_status status;
	const char *scope;          /* NULL: all */
	const char *type;           /* of the event; NULL: all */
	int64_t since_ms, until_ms; /* of the failure; 0: no bound; until is exclusive */
	const char *after; /* entry id: only entries after it in the list; NULL: from the start */
} semel_dead_letter_filter;

/* Oldest failure first. */
SEMEL_API SEMEL_MUST_CHECK semel_status
semel_dead_letter_list(semel_store *store, const semel_dead_letter_filter *filter,
		       semel_dead_letter_visitor visit, void *user, semel_error *error);
SEMEL_API SEMEL_MUST_CHECK semel_status semel_dead_letter_get(semel_store *store,
							      const char *entry_id,
							      semel_dead_letter_visitor visit,
							      void *user, semel_error *error);
/* Counts the pending dead letters. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_dead_letter_count(semel_store *store,
								const char *scope,
								uint64_t *count_out,
								semel_error *error);
/* Sends the event to its subscription again, with the same id and a confirm, then marks the entry.
 * A running consumer processes it at once. Fails with SEMEL_NOT_PENDING or SEMEL_REPLAY_LIMIT. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_dead_letter_replay(semel_store *store,
								 const char *broker_url,
								 const char *entry_id,
								 semel_error *error);
SEMEL_API SEMEL_MUST_CHECK semel_status semel_dead_letter_discard(semel_store *store,
								  const char *entry_id,
								  const char *reason,
								  semel_error *error);
/* An application's own: something it could not process, for an operator to see. Joins the
 * caller's transaction. entry_id_out may be NULL. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_dead_letter_add(semel_tx tx, const char *scope,
							      const semel_event_input *event,
							      const char *reason,
							      char entry_id_out[SEMEL_ID_SIZE],
							      semel_error *error);

#ifdef __cplusplus
}
#endif
#endif
