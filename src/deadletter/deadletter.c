/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator can do with an event that was given up: list, replay, discard.
 *
 * - A replay changes the entry and sends the copy in one transaction, which locks the entry: of
 *   several concurrent replays one wins. A crash between the send and the commit leaves the entry
 *   PENDING, and a copy with the next replay number at the broker: the consumer runs it, and
 *   settles the entry (store.dead_settle).
 * - A REPLAYED entry that is not settled authorises one more run of the event, by any of its
 *   copies, so a copy that was lost can be sent again (semel repair).
 * - Dead letters of the relay return to the outbox in the transaction that marks them.
 * - Discarding the head of a hold releases its followers in the same transaction. Copies of the
 *   head that arrive later are skipped.
 */
#include "deadletter/deadletter.h"

#include "base/error.h"
#include "base/uuid.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "guard/guard.h"
#include "observe/metrics.h"
#include "state/state.h"

#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)16 * 1024)

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for dead letters");
}

/* For display: the event itself has the texts with their lengths. */
static const char *text_or_null(struct semel_text text)
{
	return semel_text_is_blank(text) ? NULL : semel_text_shown(text);
}

static semel_dead_letter view_of(const struct semel_dead_letter_row *entry)
{
	return (semel_dead_letter){
		.entry_id = semel_text_string(entry->entry_id),
		.event_id = text_or_null(entry->event.id),
		.event_type = text_or_null(entry->event.type),
		.topic = text_or_null(entry->event.topic),
		.event = &entry->event,
		.failure_reason = text_or_null(entry->reason),
		.failed_at_ms = entry->failed_at_ms,
		.scope = text_or_null(entry->scope),
		.saga_id = text_or_null(entry->saga_id),
		.correlation_id = text_or_null(entry->correlation_id),
		.attempts = entry->attempts,
		.replay_count = entry->replay_count,
		.status = entry->status,
		.discard_reason = text_or_null(entry->discard_reason),
		.parked = entry->parked,
		.payload_size = entry->payload_size,
	};
}

/* ---- reading --------------------------------------------------------------------------------- */

semel_status semel_dead_letter_list_brief(semel_store *store,
					  const semel_dead_letter_filter *filter,
					  semel_dead_letter_visitor visit, void *user,
					  semel_error *error)
{
	semel_dead_letter_filter wanted = filter ? *filter : (semel_dead_letter_filter){ 0 };
	if (wanted.limit == 0)
		wanted.limit = SEMEL_DEAD_LIST_DEFAULT;

	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return no_memory(error);

	semel_status status = SEMEL_OK;
	uint32_t count = 0;
	struct semel_dead_letter_row *entries =
		semel_arena_alloc(arena, sizeof(*entries) * wanted.limit);
	if (!entries) {
		status = no_memory(error);
		goto free_arena;
	}
	status = store->driver->dead_letters->list(store, &wanted, arena, entries, &count, error);
	if (status != SEMEL_OK)
		goto free_arena;

	for (uint32_t i = 0; i < count; i++) {
		semel_dead_letter letter = view_of(&entries[i]);
		visit(&letter, user);
	}

free_arena:
	semel_arena_free(arena);
	return status;
}

/* If the entry is not found, the error says how to find the right id. */
static semel_status read_entry(semel_store *store, const char *entry_id, struct semel_arena *arena,
			       struct semel_dead_letter_row *entry_out, semel_error *error)
{
	if (semel_string_is_blank(entry_id))
		return semel_error_set(error, SEMEL_INVALID,
				       "the dead letter's id is blank (run: semel dlq list)");
	semel_status status =
		store->driver->dead_letters->get(store, entry_id, arena, entry_out, error);
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_NOT_FOUND,
				       "dead letter %s not found (run: semel dlq list)", entry_id);
	return status;
}

semel_status semel_dead_letter_get(semel_store *store, const char *entry_id,
				   semel_dead_letter_visitor visit, void *user, semel_error *error)
{
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return no_memory(error);

	struct semel_dead_letter_row entry = { 0 };
	semel_status status = read_entry(store, entry_id, arena, &entry, error);
	if (status != SEMEL_OK)
		goto free_arena;
	semel_dead_letter letter = view_of(&entry);
	visit(&letter, user);

free_arena:
	semel_arena_free(arena);
	return status;
}

/* Each entry is read again with its payload; one that was pruned or changed its status after the
 * list was read is left out. */
struct whole_list {
	semel_store *store;
	semel_dead_status wanted;
	semel_dead_letter_visitor visit;
	void *user;
	semel_status status;
	semel_error *error;
};

static void visit_wanted(const semel_dead_letter *letter, void *user)
{
	struct whole_list *list = user;

	if (list->wanted == SEMEL_DEAD_ANY || letter->status == list->wanted)
		list->visit(letter, list->user);
}

static void read_whole(const semel_dead_letter *letter, void *user)
{
	struct whole_list *list = user;

	if (list->status != SEMEL_OK)
		return;
	list->status = semel_dead_letter_get(list->store, letter->entry_id, visit_wanted, list,
					     list->error);
	if (list->status == SEMEL_NOT_FOUND)
		list->status = SEMEL_OK;
}

/* Only one payload is in memory at a time, however long the list is. */
semel_status semel_dead_letter_list(semel_store *store, const semel_dead_letter_filter *filter,
				    semel_dead_letter_visitor visit, void *user, semel_error *error)
{
	struct whole_list list = { .store = store,
				   .wanted = filter ? filter->status : SEMEL_DEAD_ANY,
				   .visit = visit,
				   .user = user,
				   .error = error };
	semel_status status = semel_dead_letter_list_brief(store, filter, read_whole, &list, error);

	if (status != SEMEL_OK)
		return status;
	return list.status;
}

semel_status semel_dead_letter_count(semel_store *store, const char *scope, uint64_t *count_out,
				     semel_error *error)
{
	return store->driver->dead_letters->count(store, scope, count_out, error);
}

/* ---- replay ---------------------------------------------------------------------------------- */

static bool is_of_relay(const struct semel_dead_letter_row *entry)
{
	return semel_text_equal(entry->scope, SEMEL_TEXT(SEMEL_SCOPE_RELAY));
}

static semel_status check_pending(const struct semel_dead_letter_row *entry, semel_error *error)
{
	if (entry->status != SEMEL_DEAD_PENDING)
		return semel_error_set(
			error, SEMEL_NOT_PENDING,
			"dead letter %s is %s, and only PENDING ones can be "
			"replayed or discarded%s",
			semel_text_shown(entry->entry_id), semel_dead_status_name(entry->status),
			entry->status == SEMEL_DEAD_REPLAYED && entry->settled_at_ms == 0
				? " (its replay has not finished; if its copy is lost, "
				  "semel repair sends it again)"
				: "");
	return SEMEL_OK;
}

static semel_status check_replayable(const struct semel_dead_letter_row *entry, semel_error *error)
{
	semel_status status = check_pending(entry, error);
	if (status != SEMEL_OK)
		return status;
	if (entry->replay_count >= SEMEL_REPLAYS_MAX)
		return semel_error_set(error, SEMEL_REPLAY_LIMIT,
				       "dead letter %s was replayed %u times, which is the limit: "
				       "publish a corrected event, and discard this one (semel dlq "
				       "discard %s)",
				       semel_text_shown(entry->entry_id), entry->replay_count,
				       semel_text_shown(entry->entry_id));
	if (semel_text_is_blank(entry->event.id) || semel_text_is_blank(entry->event.topic))
		return semel_error_set(
			error, SEMEL_INVALID,
			"dead letter %s has no usable event %s and cannot be replayed: "
			"correct its producer, and discard this one (semel dlq discard %s)",
			semel_text_shown(entry->entry_id),
			semel_text_is_blank(entry->event.id) ? "id" : "topic",
			semel_text_shown(entry->entry_id));
	return SEMEL_OK;
}

static semel_status finish_transaction(semel_store *store, semel_status status, semel_error *error)
{
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	return store->driver->commit(store, error);
}

/* Returns the event to the outbox and marks the entry REPLAYED, or does neither. The entry is read
 * again in the transaction, so that two concurrent replays do not return it twice. */
static semel_status return_to_outbox(const struct semel_dead_replayer *replayer,
				     const char *entry_id, struct semel_arena *arena,
				     semel_error *error)
{
	semel_store *store = replayer->store;
	const struct semel_store_driver *driver = store->driver;
	semel_status status = driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;

	semel_tx tx = driver->tx(store);
	int64_t now_ms = semel_now_ms(replayer->env);
	struct semel_dead_letter_row entry = { 0 };
	status = read_entry(store, entry_id, arena, &entry, error);
	if (status != SEMEL_OK)
		goto finish;
	status = check_replayable(&entry, error);
	if (status != SEMEL_OK)
		goto finish;
	status = driver->dead_letters->move(tx, &entry, SEMEL_DEAD_REPLAYED, NULL, now_ms, error);
	if (status != SEMEL_OK)
		goto finish;
	status = driver->dead_letters->return_to_outbox(tx, &entry, false, error);

finish:
	return finish_transaction(store, status, error);
}

/* Connects before the transaction begins, so that no lock is held while waiting for the broker. */
static semel_status ensure_broker(struct semel_dead_replayer *replayer, semel_error *error)
{
	if (replayer->broker)
		return SEMEL_OK;
	return semel_broker_open(replayer->broker_url, replayer->env, 1, &replayer->broker, error);
}

/* Marks the entry REPLAYED; it stays locked until the end of the transaction. */
static semel_status mark_replayed(const struct semel_dead_replayer *replayer, const char *entry_id,
				  struct semel_arena *arena,
				  struct semel_dead_letter_row *entry_out, semel_error *error)
{
	semel_store *store = replayer->store;
	semel_status status = read_entry(store, entry_id, arena, entry_out, error);
	if (status != SEMEL_OK)
		return status;
	status = check_replayable(entry_out, error);
	if (status != SEMEL_OK)
		return status;
	return store->driver->dead_letters->move(store->driver->tx(store), entry_out,
						 SEMEL_DEAD_REPLAYED, NULL,
						 semel_now_ms(replayer->env), error);
}

static semel_status send_copy(const struct semel_dead_replayer *replayer,
			      const struct semel_dead_letter_row *entry, semel_error *error)
{
	struct semel_publish_metadata metadata = { .replay = entry->replay_count + 1 };
	semel_status status = semel_event_check_names(&entry->event, error);
	if (status != SEMEL_OK)
		return status;
	status =
		replayer->broker->driver->requeue(replayer->broker, semel_text_string(entry->scope),
						  &entry->event, &metadata, 0, error);
	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_DLQ_AFTER_PUBLISH, error);
}

/* Marks the entry and sends the copy in one transaction: of several concurrent replays one wins. */
static semel_status mark_and_send(struct semel_dead_replayer *replayer, const char *entry_id,
				  struct semel_arena *arena, semel_error *error)
{
	semel_store *store = replayer->store;
	struct semel_dead_letter_row entry = { 0 };
	semel_status status = ensure_broker(replayer, error);
	if (status != SEMEL_OK)
		return status;
	status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;
	status = mark_replayed(replayer, entry_id, arena, &entry, error);
	if (status != SEMEL_OK)
		return finish_transaction(store, status, error);
	status = send_copy(replayer, &entry, error);
	return finish_transaction(store, status, error);
}

/* A planted bug: every replayer that has read a PENDING entry sends it. */
static semel_status send_and_mark(struct semel_dead_replayer *replayer,
				  const struct semel_dead_letter_row *entry, semel_error *error)
{
	semel_store *store = replayer->store;
	semel_status status = ensure_broker(replayer, error);
	if (status != SEMEL_OK)
		return status;
	status = send_copy(replayer, entry, error);
	if (status != SEMEL_OK)
		return status;
	status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;
	(void)store->driver->dead_letters->move(store->driver->tx(store), entry,
						SEMEL_DEAD_REPLAYED, NULL,
						semel_now_ms(replayer->env), NULL);
	return finish_transaction(store, SEMEL_OK, error);
}

static semel_status replay_entry(struct semel_dead_replayer *replayer, const char *entry_id,
				 struct semel_arena *arena, semel_error *error)
{
	struct semel_dead_letter_row entry = { 0 };
	semel_status status = read_entry(replayer->store, entry_id, arena, &entry, error);
	if (status != SEMEL_OK)
		return status;
	status = check_replayable(&entry, error);
	if (status != SEMEL_OK)
		return status;
	if (is_of_relay(&entry))
		return return_to_outbox(replayer, entry_id, arena, error);
	if (SEMEL_PLANTED("two-replays-win"))
		return send_and_mark(replayer, &entry, error);
	return mark_and_send(replayer, entry_id, arena, error);
}

semel_status semel_dead_replayer_replay(struct semel_dead_replayer *replayer, const char *entry_id,
					semel_error *error)
{
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return no_memory(error);

	semel_status status = replay_entry(replayer, entry_id, arena, error);
	semel_arena_free(arena);
	if (status != SEMEL_OK)
		return status;
	semel_series_add(semel_series(SEMEL_METRIC_DLQ_REPLAYED, NULL, NULL), 1);
	return semel_failpoint(SEMEL_FP_DLQ_AFTER_MARK, error);
}

void semel_dead_replayer_close(struct semel_dead_replayer *replayer)
{
	semel_broker_close(replayer->broker);
	replayer->broker = NULL;
}

semel_status semel_dead_letter_replay(semel_store *store, const char *broker_url,
				      const char *entry_id, semel_error *error)
{
	struct semel_dead_replayer replayer = { .store = store,
						.broker_url = broker_url,
						.env = semel_store_env(store) };
	semel_status status = semel_dead_replayer_replay(&replayer, entry_id, error);
	semel_dead_replayer_close(&replayer);
	return status;
}

/* ---- discard --------------------------------------------------------------------------------- */

/* Finds the hold whose head is this event, if there is one. */
static semel_status find_hold(semel_tx tx, const struct semel_dead_letter_row *entry,
			      struct semel_arena *arena, struct semel_hold *hold_out,
			      semel_error *error)
{
	for (int i = 0; i < SEMEL_HOLD_BY_COUNT; i++) {
		struct semel_hold_key key = semel_hold_key_of(&entry->event, (enum semel_hold_by)i);
		*hold_out = (struct semel_hold){ .state = SEMEL_HOLD_NONE };
		if (!key.type.data || !key.id.data)
			continue; /* the event has no such key */
		semel_status status =
			tx.driver->holds->get(tx, entry->scope, &key, arena, hold_out, error);
		bool waits =
			hold_out->state == SEMEL_HOLD_DEAD || hold_out->state == SEMEL_HOLD_RETRY;
		if (status != SEMEL_OK ||
		    (waits && semel_text_equal(hold_out->head_id, entry->event.id)))
			return status;
	}
	hold_out->state = SEMEL_HOLD_NONE;
	return SEMEL_OK;
}

/* Releases the followers of a discarded head; without followers removes the hold. The hold may be
 * in RETRY: a replay was sent but not marked, and its run failed and will be retried. The delayed
 * copy of that run will find the entry discarded, and change nothing. */
static semel_status release_followers(semel_tx tx, const struct semel_dead_letter_row *entry,
				      struct semel_arena *arena, semel_error *error)
{
	struct semel_hold hold = { 0 };
	semel_status status = find_hold(tx, entry, arena, &hold, error);
	if (status != SEMEL_OK || hold.state == SEMEL_HOLD_NONE)
		return status;
	return semel_hold_release(tx, entry->scope, &hold, SEMEL_BY_DISCARD, arena, error);
}

/* Records the decision as a claim, so that a copy that is still at the broker is skipped (the relay
 * sent it twice, or a replay was sent but not marked). */
static semel_status forbid_copies(struct semel_guard *guard,
				  const struct semel_dead_letter_row *entry, int64_t now_ms,
				  semel_error *error)
{
	if (semel_text_is_blank(entry->event.id) || semel_text_is_blank(entry->event.topic))
		return SEMEL_OK;
	struct semel_inbox_claim claim = { .scope = entry->scope,
					   .event_id = entry->event.id,
					   .topic = entry->event.topic,
					   .event_time_ms = entry->event.time_ms,
					   .partition = entry->partition,
					   .offset = entry->offset,
					   .status = SEMEL_INBOX_FAILED };
	struct semel_inbox_change change = { .from = SEMEL_INBOX_FAILED,
					     .error_code = "discarded",
					     .now_ms = now_ms };
	struct semel_claim_result result = { 0 };
	bool changed = false;
	semel_status status = guard->driver->claim(guard, &claim, 1, now_ms, &result, error);
	if (status != SEMEL_OK)
		return status;
	claim.replay = entry->replay_count + 1;
	return guard->driver->change(guard, &claim, &change, &changed, error);
}

/* What the functions of one discard share. */
struct discard {
	semel_store *store;
	struct semel_guard *guard;
	const char *entry_id, *reason;
	struct semel_arena *arena;
};

static semel_status discard_of_relay(const struct discard *discard,
				     const struct semel_dead_letter_row *entry, int64_t now_ms,
				     semel_error *error)
{
	const struct semel_store_driver *driver = discard->store->driver;
	semel_tx tx = driver->tx(discard->store);
	semel_status status = driver->dead_letters->move(tx, entry, SEMEL_DEAD_DISCARDED,
							 discard->reason, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return driver->dead_letters->return_to_outbox(tx, entry, true, error);
}

/* Takes locks in the order in which a consumer takes them: the hold, the claim, the dead letter. */
static semel_status discard_of_scope(const struct discard *discard,
				     const struct semel_dead_letter_row *entry, int64_t now_ms,
				     semel_error *error)
{
	const struct semel_store_driver *driver = discard->store->driver;
	semel_tx tx = driver->tx(discard->store);
	struct semel_hold locked = { 0 };
	semel_status status = find_hold(tx, entry, discard->arena, &locked, error);
	if (status != SEMEL_OK)
		return status;
	status = forbid_copies(discard->guard, entry, now_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = driver->dead_letters->move(tx, entry, SEMEL_DEAD_DISCARDED, discard->reason,
					    now_ms, error);
	if (status != SEMEL_OK)
		return status;
	return release_followers(tx, entry, discard->arena, error);
}

/* Runs in the open transaction, so that the entry is neither replayed nor changed meanwhile. */
static semel_status discard_entry(const struct discard *discard, semel_error *error)
{
	struct semel_dead_letter_row entry = { 0 };
	semel_status status =
		read_entry(discard->store, discard->entry_id, discard->arena, &entry, error);
	if (status != SEMEL_OK)
		return status;
	status = check_pending(&entry, error);
	if (status != SEMEL_OK)
		return status;
	int64_t now_ms = semel_now_ms(semel_store_env(discard->store));
	return is_of_relay(&entry) ? discard_of_relay(discard, &entry, now_ms, error)
				   : discard_of_scope(discard, &entry, now_ms, error);
}

static semel_status discard_with_guard(struct discard *discard, semel_error *error)
{
	semel_store *store = discard->store;
	semel_status status = semel_guard_open_default(store, &discard->guard, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_guard_check_joins(discard->guard, "discarding a dead letter", error);
	if (status != SEMEL_OK)
		goto close_guard;
	status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		goto close_guard;
	status = discard_entry(discard, error);
	status = finish_transaction(store, status, error);

close_guard:
	semel_guard_close(discard->guard);
	return status;
}

semel_status semel_dead_letter_discard(semel_store *store, const char *entry_id, const char *reason,
				       semel_error *error)
{
	struct discard discard = { .store = store,
				   .entry_id = entry_id,
				   .reason = reason,
				   .arena = semel_arena_new(ARENA_BLOCK) };
	if (!discard.arena)
		return no_memory(error);
	semel_status status = discard_with_guard(&discard, error);
	semel_arena_free(discard.arena);
	if (status != SEMEL_OK)
		return status;
	semel_series_add(semel_series(SEMEL_METRIC_DLQ_DISCARDED, NULL, NULL), 1);
	return SEMEL_OK;
}

/* ---- dead letters of applications ------------------------------------------------------------ */

static semel_status check_scope(const char *scope, semel_error *error)
{
	if (semel_string_is_blank(scope))
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope of a dead letter is blank: name the subscription "
				       "or service that could not process the event");
	if (strcmp(scope, SEMEL_SCOPE_RELAY) == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope \"" SEMEL_SCOPE_RELAY
				       "\" is reserved (choose another name)");
	return SEMEL_OK;
}

static semel_status add_entry(semel_tx tx, struct semel_dead_letter_row *entry,
			      const semel_event_input *input, struct semel_arena *arena,
			      semel_error *error)
{
	const struct semel_env *env = semel_tx_env(tx);
	semel_status status = semel_event_from_input(input, env, arena, &entry->event, error);
	if (status != SEMEL_OK)
		return status;

	char entry_id[SEMEL_UUID_SIZE];
	semel_uuid_make(env, entry_id);
	entry->entry_id = semel_arena_text(arena, entry_id, strlen(entry_id));
	entry->saga_id = semel_event_header(&entry->event, "sagaId", arena);
	entry->correlation_id = semel_event_header(&entry->event, "correlationId", arena);
	entry->failed_at_ms = semel_now_ms(env);
	entry->status = SEMEL_DEAD_PENDING;
	if (!entry->entry_id.data)
		return no_memory(error);
	return tx.driver->dead_letters->add(tx, entry, arena, error);
}

semel_status semel_dead_letter_add(semel_tx tx, const char *scope, const semel_event_input *event,
				   const char *reason, char entry_id_out[SEMEL_ID_SIZE],
				   semel_error *error)
{
	semel_status status = check_scope(scope, error);
	if (status != SEMEL_OK)
		return status;
	if (!tx.driver->in_transaction(tx))
		return semel_error_set(error, SEMEL_NO_TRANSACTION,
				       "no transaction is open: a dead letter is written in your "
				       "transaction (run BEGIN on this connection first)");

	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return no_memory(error);
	struct semel_dead_letter_row entry = { .scope = semel_text_of(scope),
					       .reason = semel_text_of(reason) };
	status = add_entry(tx, &entry, event, arena, error);
	if (status != SEMEL_OK)
		goto free_arena;
	if (entry_id_out)
		snprintf(entry_id_out, SEMEL_ID_SIZE, "%s", semel_text_string(entry.entry_id));

free_arena:
	semel_arena_free(arena);
	return status;
}
