/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a store that are the same whatever the database. */
#include "store/rules.h"

#include "base/error.h"
#include "base/uuid.h"

#include <string.h>

/* ---- words of the tables ------------------------------------------------------------------------
 */

static const char *const dead_names[] = { [SEMEL_DEAD_ANY] = "ANY",
					  [SEMEL_DEAD_PENDING] = "PENDING",
					  [SEMEL_DEAD_REPLAYED] = "REPLAYED",
					  [SEMEL_DEAD_DISCARDED] = "DISCARDED" };
static const char *const hold_names[] = { [SEMEL_HOLD_RETRY] = "retry",
					  [SEMEL_HOLD_DEAD] = "dead",
					  [SEMEL_HOLD_GAP] = "gap",
					  [SEMEL_HOLD_RELEASED] = "released" };
static const char *const inbox_names[] = { [SEMEL_INBOX_CLAIMED] = "CLAIMED",
					   [SEMEL_INBOX_PROCESSED] = "PROCESSED",
					   [SEMEL_INBOX_FAILED] = "FAILED" };

const char *semel_dead_status_name(enum semel_dead_status status)
{
	return dead_names[status];
}

enum semel_dead_status semel_dead_status_of(const char *name)
{
	for (int i = SEMEL_DEAD_PENDING; i <= SEMEL_DEAD_DISCARDED; i++)
		if (strcmp(name, dead_names[i]) == 0)
			return (enum semel_dead_status)i;
	return SEMEL_DEAD_ANY;
}

const char *semel_hold_state_name(enum semel_hold_state state)
{
	return hold_names[state];
}

enum semel_hold_state semel_hold_state_of(const char *name)
{
	for (int i = SEMEL_HOLD_RETRY; i <= SEMEL_HOLD_RELEASED; i++)
		if (strcmp(name, hold_names[i]) == 0)
			return (enum semel_hold_state)i;
	return SEMEL_HOLD_NONE;
}

const char *semel_inbox_status_name(enum semel_inbox_status status)
{
	return inbox_names[status];
}

enum semel_claim_found semel_claim_found_of(const char *name)
{
	if (strcmp(name, inbox_names[SEMEL_INBOX_CLAIMED]) == 0)
		return SEMEL_FOUND_CLAIMED;
	return strcmp(name, inbox_names[SEMEL_INBOX_FAILED]) == 0 ? SEMEL_FOUND_FAILED
								  : SEMEL_FOUND_PROCESSED;
}

/* ---- dead letters -------------------------------------------------------------------------------
 */

semel_status semel_dead_check_move(const struct semel_dead_letter_row *entry,
				   enum semel_dead_status now, enum semel_dead_status status,
				   uint32_t count, semel_error *error)
{
	if (now != SEMEL_DEAD_PENDING)
		return semel_error_set(error, SEMEL_NOT_PENDING, "dead letter %s is already %s",
				       semel_text_shown(entry->entry_id), dead_names[now]);
	if (status == SEMEL_DEAD_REPLAYED && count != entry->replay_count)
		return semel_error_set(
			error, SEMEL_NOT_PENDING,
			"dead letter %s was replayed in the meantime and failed again "
			"(read it again: semel dlq show %s)",
			semel_text_shown(entry->entry_id), semel_text_shown(entry->entry_id));
	if (status == SEMEL_DEAD_REPLAYED && count >= SEMEL_REPLAYS_MAX)
		return semel_error_set(error, SEMEL_REPLAY_LIMIT,
				       "dead letter %s was replayed %u times, which is the limit "
				       "(fix the cause and publish the event again, or discard it)",
				       semel_text_shown(entry->entry_id), (unsigned)count);
	return SEMEL_OK;
}

semel_status semel_dead_not_found(const char *entry_id, semel_error *error)
{
	return semel_error_set(error, SEMEL_NOT_FOUND,
			       "dead letter %s not found (run: semel dlq list)", entry_id);
}

semel_status semel_dead_add_refused(semel_tx tx, const struct semel_mark *mark, int64_t now_ms,
				    semel_error *error)
{
	char entry_id[SEMEL_UUID_SIZE];
	struct semel_arena *arena = semel_arena_new(4096);
	if (arena == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a dead letter");
	semel_uuid_make(semel_tx_env(tx), entry_id);
	struct semel_dead_letter_row entry = {
		.entry_id = semel_text_of(entry_id),
		.event = mark->row->event,
		.scope = SEMEL_TEXT(SEMEL_SCOPE_RELAY),
		.reason = semel_text_of(mark->reason),
		.saga_id = semel_event_header(&mark->row->event, "sagaId", arena),
		.correlation_id = semel_event_header(&mark->row->event, "correlationId", arena),
		.failed_at_ms = now_ms,
		.attempts = mark->attempts,
		.replay_count = mark->row->replay,
	};
	semel_status status = tx.driver->dead_letters->add(tx, &entry, arena, error);
	semel_arena_free(arena);
	return status;
}

/* ---- counts -------------------------------------------------------------------------------------
 */

static void keep_earliest(int64_t *earliest, int64_t time_ms)
{
	if (time_ms != 0 && (*earliest == 0 || time_ms < *earliest))
		*earliest = time_ms;
}

void semel_outbox_counts_add_oldest(struct semel_outbox_counts *counts, int64_t time_ms)
{
	keep_earliest(&counts->oldest_ms, time_ms);
}

void semel_outbox_counts_add(struct semel_outbox_counts *counts, struct semel_outbox_group group)
{
	bool behind_failed = strcmp(group.head, "failed") == 0;
	if (group.state != NULL && strcmp(group.state, "failed") == 0)
		return; /* counted with the dead letters */
	if (behind_failed) {
		*(group.blocks ? &counts->blocked : &counts->parked) += group.count;
		return;
	}
	bool due = group.state != NULL && strcmp(group.state, "due") == 0;
	*(due ? &counts->waiting : &counts->retrying) += group.count;
	if (group.state == NULL)
		return; /* age and due time are those of the exception before them */
	keep_earliest(&counts->oldest_ms, group.oldest_ms);
	if (!due)
		keep_earliest(&counts->next_due_ms, group.due_ms);
}

void semel_hold_counts_add(struct semel_hold_counts *counts, struct semel_hold_summary hold)
{
	bool gap = hold.state == SEMEL_HOLD_GAP;
	if (hold.state == SEMEL_HOLD_DEAD)
		*(hold.blocks ? &counts->blocked : &counts->parked) += hold.behind;
	else
		counts->waiting += gap && hold.behind == 0 ? 1 : hold.behind;
	if (gap || hold.state == SEMEL_HOLD_RELEASED)
		keep_earliest(&counts->next_due_ms, hold.due_ms);
}

/* ---- positions ----------------------------------------------------------------------------------
 */

semel_status semel_position_lease_lost(const struct semel_position *position, semel_error *error)
{
	return semel_error_set(
		error, SEMEL_LEASE_LOST,
		"another reader of scope %.*s took partition %d of %.*s after epoch %lld",
		(int)position->scope.length, semel_text_shown(position->scope),
		(int)position->partition, (int)position->topic.length,
		semel_text_shown(position->topic), (long long)position->epoch);
}
