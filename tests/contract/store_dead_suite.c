/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: holds, dead letters, and the followers behind them. */
#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>

#define BILLING SEMEL_TEXT("billing")

/* ---- holds ----------------------------------------------------------------------------------- */

static struct semel_hold hold_of(const char *aggregate, enum semel_hold_state state)
{
	return (struct semel_hold){ .aggregate_type = SEMEL_TEXT("order"),
				    .aggregate_id = semel_text_of(aggregate),
				    .head_id = SEMEL_TEXT("head"),
				    .state = state };
}

static struct semel_hold_key key_of(const char *aggregate)
{
	return (struct semel_hold_key){ .type = SEMEL_TEXT("order"),
					.id = semel_text_of(aggregate) };
}

static void put_hold(semel_store *store, struct semel_hold hold)
{
	store_begin(store);
	assert_ok(store->driver->holds->put(store_tx(store), BILLING, &hold, NULL));
	store_commit(store);
}

static bool any_hold(semel_store *store)
{
	bool any = false;
	assert_ok(store->driver->holds->has_any(store_tx(store), BILLING, &any, NULL));
	return any;
}

static bool other_hold(semel_store *store, bool total)
{
	bool other = false;
	assert_ok(store->driver->holds->has_other_kind(store_tx(store), BILLING, total, &other,
						       NULL));
	return other;
}

static void holds_of_topics_are_distinguished_from_those_of_aggregates(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_hold topic = hold_of("order.events", SEMEL_HOLD_DEAD);
	assert_false(other_hold(store, false));
	assert_false(other_hold(store, true));
	put_hold(store, hold_of("a", SEMEL_HOLD_RETRY));
	assert_false(other_hold(store, false));
	assert_true(other_hold(store, true));
	topic.aggregate_type = SEMEL_TEXT("");
	put_hold(store, topic);
	assert_true(other_hold(store, false));
	semel_store_close(store);
}

static void a_hold_is_put_changed_and_removed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold_key key = key_of("a"), other = key_of("b");
	struct semel_hold hold = hold_of("a", SEMEL_HOLD_RETRY), found;
	assert_false(any_hold(store));
	hold.attempts = 3;
	hold.due_ms = STORE_NOW + 1000;
	put_hold(store, hold);
	assert_true(any_hold(store));
	assert_ok(store->driver->holds->get(store_tx(store), BILLING, &key, arena, &found, NULL));
	assert_int_equal(found.state, SEMEL_HOLD_RETRY);
	assert_string_equal(found.head_id.data, "head");
	assert_int_equal(found.attempts, 3);
	assert_int_equal(found.due_ms, STORE_NOW + 1000);
	assert_ok(store->driver->holds->get(store_tx(store), BILLING, &other, arena, &found, NULL));
	assert_int_equal(found.state, SEMEL_HOLD_NONE);
	assert_ok(store->driver->holds->get(store_tx(store), SEMEL_TEXT("audit"), &key, arena,
					    &found, NULL));
	assert_int_equal(found.state, SEMEL_HOLD_NONE);
	hold.state = SEMEL_HOLD_DEAD;
	hold.blocks = true;
	put_hold(store, hold);
	assert_ok(store->driver->holds->get(store_tx(store), BILLING, &key, arena, &found, NULL));
	assert_int_equal(found.state, SEMEL_HOLD_DEAD);
	assert_true(found.blocks);
	store_begin(store);
	assert_ok(store->driver->holds->remove(store_tx(store), BILLING, &hold, NULL));
	store_commit(store);
	assert_false(any_hold(store));
	semel_arena_free(arena);
	semel_store_close(store);
}

static void released_holds_and_gaps_that_waited_enough_are_ready(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold found[8], gap = hold_of("gap", SEMEL_HOLD_GAP);
	struct semel_holds holds = { .arena = arena, .holds = found, .capacity = 8 };
	put_hold(store, hold_of("retry", SEMEL_HOLD_RETRY));
	put_hold(store, hold_of("dead", SEMEL_HOLD_DEAD));
	put_hold(store, hold_of("released", SEMEL_HOLD_RELEASED));
	gap.due_ms = STORE_NOW + 1000;
	put_hold(store, gap);
	store_begin(store);
	assert_ok(store->driver->holds->list_ready(store_tx(store), BILLING, STORE_NOW, &holds,
						   NULL));
	assert_int_equal(holds.count, 1);
	assert_string_equal(found[0].aggregate_id.data, "released");
	assert_ok(store->driver->holds->list_ready(store_tx(store), BILLING, STORE_NOW + 1000,
						   &holds, NULL));
	assert_int_equal(holds.count, 2);
	holds.capacity = 1;
	assert_ok(store->driver->holds->list_ready(store_tx(store), BILLING, STORE_NOW + 1000,
						   &holds, NULL));
	assert_int_equal(holds.count, 1);
	store_commit(store);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void park_behind(semel_store *store, const char *id, const char *aggregate, const char *head)
{
	struct semel_event event = store_event(id, aggregate);
	char entry_id[32];
	snprintf(entry_id, sizeof(entry_id), "entry-%s", id);
	struct semel_dead_letter_row entry = store_dead(entry_id, &event);
	entry.parked_behind = semel_text_of(head);
	store_begin(store);
	assert_ok(store->driver->dead_letters->parked_add(store_tx(store), &entry, NULL));
	store_commit(store);
}

static void park(semel_store *store, const char *id, const char *aggregate)
{
	park_behind(store, id, aggregate, "head");
}

static void what_is_held_is_counted_by_its_reason(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_hold blocking = hold_of("c", SEMEL_HOLD_DEAD),
			  gap = hold_of("d", SEMEL_HOLD_GAP);
	struct semel_hold_counts counts;
	int64_t due_ms = 0;
	put_hold(store, hold_of("a", SEMEL_HOLD_RETRY));
	put_hold(store, hold_of("b", SEMEL_HOLD_DEAD));
	blocking.blocks = true;
	put_hold(store, blocking);
	gap.due_ms = STORE_NOW + 1000;
	put_hold(store, gap);
	park(store, "a2", "a");
	park(store, "b2", "b");
	park(store, "b3", "b");
	park(store, "c2", "c");
	park(store, "d2", "d");
	assert_ok(store->driver->holds->count(store, BILLING, &counts, NULL));
	assert_int_equal(counts.waiting, 2);
	assert_int_equal(counts.parked, 2);
	assert_int_equal(counts.blocked, 1);
	assert_int_equal(counts.next_due_ms, STORE_NOW + 1000);
	assert_ok(store->driver->holds->next_due(store, BILLING, &due_ms, NULL));
	assert_int_equal(due_ms, STORE_NOW + 1000);
	assert_ok(store->driver->holds->next_due(store, SEMEL_TEXT("audit"), &due_ms, NULL));
	assert_int_equal(due_ms, 0);
	semel_store_close(store);
}

/* ---- followers ------------------------------------------------------------------------------- */

static void assert_parked(semel_store *store, struct semel_text entry_id, bool expected)
{
	bool parked = !expected;
	assert_ok(store->driver->dead_letters->parked_exists(store_tx(store), entry_id, &parked,
							     NULL));
	assert_int_equal(parked, expected);
}

static void followers_come_in_the_order_they_were_parked(void **state)
{
	(void)state;
	static const char *const expected[] = { "e2", "e1", "e3" };
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold hold = hold_of("a", SEMEL_HOLD_RELEASED);
	struct semel_dead_letter_row first;
	park(store, "e2", "a");
	park(store, "x1", "b");
	park(store, "e1", "a");
	park(store, "e2", "a"); /* delivered twice, kept once */
	park(store, "e3", "a");
	store_begin(store);
	for (int i = 0; i < 3; i++) {
		assert_ok(store->driver->dead_letters->parked_first(store_tx(store), BILLING, &hold,
								    arena, &first, NULL));
		assert_string_equal(first.event.id.data, expected[i]);
		assert_string_equal(first.parked_behind.data, "head");
		assert_parked(store, first.entry_id, true);
		assert_ok(store->driver->dead_letters->parked_remove(store_tx(store),
								     first.entry_id, NULL));
		assert_parked(store, first.entry_id, false);
	}
	assert_ok(store->driver->dead_letters->parked_first(store_tx(store), BILLING, &hold, arena,
							    &first, NULL));
	assert_null(first.entry_id.data);
	store_commit(store);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void assert_next(semel_store *store, const char *head, const char *expected)
{
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold hold = hold_of("a", SEMEL_HOLD_RELEASED);
	struct semel_dead_letter_row next;
	hold.head_id = semel_text_of(head);
	assert_ok(store->driver->dead_letters->parked_next(store_tx(store), BILLING, &hold, arena,
							   &next, NULL));
	assert_string_equal(next.event.id.data, expected);
	semel_arena_free(arena);
}

static void followers_behind_their_own_predecessors_are_chosen_by_them(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	park_behind(store, "e5", "a", "e4");
	park_behind(store, "e3", "a", "e2");
	park_behind(store, "e2", "a", "e1");
	assert_next(store, "head", "e5"); /* e4 is not parked, and e5 was first */
	assert_next(store, "e2", "e2");   /* the head itself */
	store_claim_now(store, store_claim("e1"));
	assert_next(store, "head", "e2");
	store_claim_now(store, store_claim("e2"));
	assert_next(store, "head", "e2"); /* its own follower e3 comes after it */
	semel_store_close(store);
}

static void a_hold_without_an_aggregate_type_holds_the_whole_topic(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_hold hold = hold_of("order.events", SEMEL_HOLD_DEAD);
	struct semel_event event = store_event("head", "a");
	struct semel_hold_counts counts;
	struct semel_dead_letter_row first, entry;
	hold.aggregate_type = SEMEL_TEXT("");
	put_hold(store, hold);
	store_add_dead_letter(store, store_dead("d1", &event));
	park(store, "e1", "b");
	park(store, "e2", "a");
	assert_ok(store->driver->holds->count(store, BILLING, &counts, NULL));
	assert_int_equal(counts.parked, 2);
	assert_ok(store->driver->dead_letters->get(store, "d1", arena, &entry, NULL));
	assert_int_equal(entry.parked, 2);
	store_begin(store);
	assert_ok(store->driver->dead_letters->parked_first(store_tx(store), BILLING, &hold, arena,
							    &first, NULL));
	assert_string_equal(first.event.id.data, "e1");
	assert_ok(
		store->driver->dead_letters->parked_remove(store_tx(store), first.entry_id, NULL));
	assert_ok(store->driver->dead_letters->parked_first(store_tx(store), BILLING, &hold, arena,
							    &first, NULL));
	assert_string_equal(first.event.id.data, "e2");
	hold.aggregate_id = SEMEL_TEXT("payment.events");
	assert_ok(store->driver->dead_letters->parked_first(store_tx(store), BILLING, &hold, arena,
							    &first, NULL));
	assert_null(first.entry_id.data);
	store_commit(store);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void followers_are_no_dead_letters(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_dead_letter_row entry;
	uint64_t count = 1;
	uint32_t listed = 1;
	park(store, "e2", "a");
	assert_ok(store->driver->dead_letters->count(store, NULL, &count, NULL));
	assert_int_equal(count, 0);
	assert_ok(store->driver->dead_letters->list(
		store, &(semel_dead_letter_filter){ .limit = 1 }, arena, &entry, &listed, NULL));
	assert_int_equal(listed, 0);
	assert_int_equal(store->driver->dead_letters->get(store, "entry-e2", arena, &entry, NULL),
			 SEMEL_NOT_FOUND);
	semel_arena_free(arena);
	semel_store_close(store);
}

/* ---- dead letters ---------------------------------------------------------------------------- */

static struct semel_dead_letter_row get(semel_store *store, const char *entry_id,
					struct semel_arena *arena)
{
	struct semel_dead_letter_row entry;
	assert_ok(store->driver->dead_letters->get(store, entry_id, arena, &entry, NULL));
	return entry;
}

static semel_status move(semel_store *store, const struct semel_dead_letter_row *entry,
			 enum semel_dead_status to)
{
	store_begin(store);
	semel_status status = store->driver->dead_letters->move(store_tx(store), entry, to,
								"of no use", STORE_NOW, NULL);
	store_commit(store);
	return status;
}

static void a_dead_letter_keeps_the_whole_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	const char bytes[] = "\xff\0broken";
	event.payload = semel_text_from(bytes, sizeof(bytes) - 1);
	struct semel_dead_letter_row entry = store_dead("d1", &event);
	entry.saga_id = SEMEL_TEXT("saga");
	entry.correlation_id = SEMEL_TEXT("correlation");
	entry.partition = 3;
	entry.offset = 42;
	assert_string_equal(store_add_dead_letter(store, entry), "d1");
	struct semel_dead_letter_row found = get(store, "d1", arena);
	assert_true(semel_text_equal(found.event.payload, event.payload));
	assert_string_equal(found.event.aggregate_id.data, "a");
	assert_string_equal(found.event.topic.data, "order.events");
	assert_int_equal(found.event.time_ms, STORE_NOW);
	assert_string_equal(found.scope.data, "billing");
	assert_string_equal(found.reason.data, "no such customer");
	assert_string_equal(found.saga_id.data, "saga");
	assert_string_equal(found.correlation_id.data, "correlation");
	assert_int_equal(found.partition, 3);
	assert_int_equal(found.offset, 42);
	assert_int_equal(found.attempts, 3);
	assert_int_equal(found.failed_at_ms, STORE_NOW);
	assert_int_equal(found.status, SEMEL_DEAD_PENDING);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void a_broken_delivery_without_an_id_is_always_a_new_entry(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event broken = { .headers = SEMEL_TEXT("\xfe no json"),
				      .payload = SEMEL_TEXT("?") };
	uint64_t count = 0;
	assert_string_equal(store_add_dead_letter(store, store_dead("d1", &broken)), "d1");
	broken.id = SEMEL_TEXT(" ");
	assert_string_equal(store_add_dead_letter(store, store_dead("d2", &broken)), "d2");
	assert_string_equal(store_add_dead_letter(store, store_dead("d3", &broken)), "d3");
	assert_ok(store->driver->dead_letters->count(store, "billing", &count, NULL));
	assert_int_equal(count, 3);
	struct semel_dead_letter_row found = get(store, "d1", arena);
	assert_null(found.event.id.data);
	assert_string_equal(found.event.headers.data, "\xfe no json");
	semel_arena_free(arena);
	semel_store_close(store);
}

static void a_replay_that_fails_returns_to_the_same_entry_with_its_count(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_dead_letter_row entry = get(store, "d1", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_REPLAYED));
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(entry.replay_count, 1);
	struct semel_dead_letter_row again = store_dead("d2", &event);
	again.reason = SEMEL_TEXT("still no such customer");
	again.attempts = 5;
	assert_string_equal(store_add_dead_letter(store, again), "d1");
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_PENDING);
	assert_int_equal(entry.replay_count, 1);
	assert_int_equal(entry.attempts, 5);
	assert_string_equal(entry.reason.data, "still no such customer");
	semel_arena_free(arena);
	semel_store_close(store);
}

static void a_dead_letter_is_replayed_three_times_at_most(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	for (int i = 0; i < SEMEL_REPLAYS_MAX; i++) {
		struct semel_dead_letter_row entry =
			get(store, store_add_dead_letter(store, store_dead("d1", &event)), arena);
		assert_ok(move(store, &entry, SEMEL_DEAD_REPLAYED));
	}
	struct semel_dead_letter_row entry =
		get(store, store_add_dead_letter(store, store_dead("d1", &event)), arena);
	assert_int_equal(move(store, &entry, SEMEL_DEAD_REPLAYED), SEMEL_REPLAY_LIMIT);
	assert_ok(move(store, &entry, SEMEL_DEAD_DISCARDED));
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_DISCARDED);
	assert_string_equal(entry.discard_reason.data, "of no use");
	semel_arena_free(arena);
	semel_store_close(store);
}

static void only_a_pending_dead_letter_is_moved(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_dead_letter_row entry = get(store, "d1", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_DISCARDED));
	assert_int_equal(move(store, &entry, SEMEL_DEAD_REPLAYED), SEMEL_NOT_PENDING);
	assert_int_equal(move(store, &entry, SEMEL_DEAD_DISCARDED), SEMEL_NOT_PENDING);
	entry.entry_id = SEMEL_TEXT("unknown");
	assert_int_equal(move(store, &entry, SEMEL_DEAD_REPLAYED), SEMEL_NOT_FOUND);
	assert_int_equal(store->driver->dead_letters->move(store_tx(store), &entry,
							   SEMEL_DEAD_REPLAYED, NULL, STORE_NOW,
							   NULL),
			 SEMEL_NO_TRANSACTION);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void an_entry_that_came_back_since_it_was_read_is_not_replayed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_dead_letter_row seen = get(store, "d1", arena);
	struct semel_dead_letter_row back = store_dead("d2", &event);
	back.replay_count = 1; /* another replay, which failed again */
	store_add_dead_letter(store, back);
	assert_int_equal(move(store, &seen, SEMEL_DEAD_REPLAYED), SEMEL_NOT_PENDING);
	struct semel_dead_letter_row entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_PENDING);
	assert_int_equal(entry.replay_count, 1);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void settle(semel_store *store, const char *scope, struct semel_text id, uint32_t replay)
{
	store_begin(store);
	assert_ok(store->driver->dead_letters->settle(store_tx(store), semel_text_of(scope), id,
						      replay, STORE_NOW + 7, NULL));
	store_commit(store);
}

static void a_processed_replay_settles_an_entry_that_was_not_marked(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_dead_letter_row seen = get(store, "d1", arena);
	settle(store, "billing", event.id, 0);
	settle(store, "audit", event.id, 1);
	assert_int_equal(get(store, "d1", arena).status, SEMEL_DEAD_PENDING);
	settle(store, "billing", event.id, 1);
	struct semel_dead_letter_row settled = get(store, "d1", arena);
	assert_int_equal(settled.status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(settled.settled_at_ms, STORE_NOW + 7);
	assert_int_equal(move(store, &seen, SEMEL_DEAD_REPLAYED), SEMEL_NOT_PENDING);
	assert_int_equal(get(store, "d1", arena).replay_count, 1);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void a_replayed_entry_is_settled_when_any_copy_was_processed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_dead_letter_row entry = get(store, "d1", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_REPLAYED));
	assert_int_equal(get(store, "d1", arena).settled_at_ms, 0);
	settle(store, "audit", event.id, 0);
	assert_int_equal(get(store, "d1", arena).settled_at_ms, 0);
	settle(store, "billing", event.id, 0);
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(entry.settled_at_ms, STORE_NOW + 7);
	assert_int_equal(entry.replay_count, 1);
	store_add_dead_letter(store, store_dead("d2", &event)); /* it failed once more */
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_PENDING);
	assert_int_equal(entry.settled_at_ms, 0);
	assert_ok(move(store, &entry, SEMEL_DEAD_DISCARDED));
	settle(store, "billing", event.id, 0);
	assert_int_equal(get(store, "d1", arena).status, SEMEL_DEAD_DISCARDED);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void an_entry_of_the_relay_is_settled_when_it_goes_back_to_the_outbox(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	struct semel_dead_letter_row entry = store_dead("d1", &event);
	entry.scope = SEMEL_TEXT("relay");
	store_add_dead_letter(store, entry);
	entry = get(store, "d1", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_REPLAYED));
	assert_int_not_equal(get(store, "d1", arena).settled_at_ms, 0);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void authorize(semel_store *store, const char *scope, struct semel_text id)
{
	store_begin(store);
	assert_ok(store->driver->dead_letters->authorize(store_tx(store), semel_text_of(scope), id,
							 STORE_NOW, NULL));
	store_commit(store);
}

static void an_entry_of_any_status_can_be_authorized_to_run_again(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	struct semel_dead_letter_row entry = store_dead("d1", &event);
	entry.replay_count = 2;
	store_add_dead_letter(store, entry);
	park_behind(store, "e2", "a", "e1");
	authorize(store, "audit", event.id);
	assert_int_equal(get(store, "d1", arena).status, SEMEL_DEAD_PENDING);
	authorize(store, "billing", event.id); /* PENDING */
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(entry.replay_count, 2);
	settle(store, "billing", event.id, 0);
	authorize(store, "billing", event.id); /* REPLAYED and settled */
	assert_int_equal(get(store, "d1", arena).settled_at_ms, 0);
	store_add_dead_letter(store, store_dead("d2", &event));
	entry = get(store, "d1", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_DISCARDED));
	authorize(store, "billing", event.id); /* DISCARDED */
	entry = get(store, "d1", arena);
	assert_int_equal(entry.status, SEMEL_DEAD_REPLAYED);
	assert_null(entry.discard_reason.data);
	authorize(store, "billing", SEMEL_TEXT("e2")); /* a follower has no letter */
	assert_parked(store, SEMEL_TEXT("entry-e2"), true);
	assert_int_equal(store->driver->dead_letters->authorize(store_tx(store), BILLING, event.id,
								STORE_NOW, NULL),
			 SEMEL_NO_TRANSACTION);
	semel_arena_free(arena);
	semel_store_close(store);
}

/* ---- what is known of an event --------------------------------------------------------------- */

static bool any_state(semel_store *store, const char *scope)
{
	bool any = false;
	assert_ok(store->driver->holds->states_exist(store_tx(store), semel_text_of(scope), &any,
						     NULL));
	return any;
}

static void a_scope_has_states_when_it_has_a_hold_or_a_dead_letter(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	struct semel_hold hold = hold_of("a", SEMEL_HOLD_RETRY);
	assert_false(any_state(store, "billing"));
	park(store, "e2", "a");
	assert_false(any_state(store, "billing"));
	put_hold(store, hold);
	assert_true(any_state(store, "billing"));
	assert_false(any_state(store, "audit"));
	hold.state = SEMEL_HOLD_NONE;
	put_hold(store, hold);
	assert_false(any_state(store, "billing"));
	store_add_dead_letter(store, store_dead("d1", &event));
	assert_true(any_state(store, "billing"));
	semel_store_close(store);
}

static void one_query_returns_the_hold_and_the_dead_letter_of_every_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event one = store_event("e1", "a"), two = store_event("e2", "b");
	struct semel_dead_letter_row letter = store_dead("d2", &two);
	const struct semel_text none = { NULL, 0 };
	struct semel_state_query queries[] = {
		{ SEMEL_TEXT("e0"), key_of("a") }, { one.id, key_of("a") },
		{ two.id, key_of("c") },           { SEMEL_TEXT("e9"), key_of("c") },
		{ none, { none, none } },          { two.id, key_of("b") },
		{ SEMEL_TEXT("e3"), key_of("b") },
	};
	struct semel_state_result answers[7];
	struct semel_state_batch batch = { arena, queries, answers, 7 };
	struct semel_hold hold = hold_of("a", SEMEL_HOLD_DEAD);
	hold.attempts = 4;
	hold.due_ms = STORE_NOW + 5;
	hold.blocks = true;
	put_hold(store, hold);
	store_add_dead_letter(store, store_dead("d1", &one));
	letter.replay_count = 2;
	store_add_dead_letter(store, letter);
	authorize(store, "billing", two.id);
	park(store, "e3", "b"); /* is no letter */
	assert_int_equal(store->driver->holds->states_read(store_tx(store), BILLING, &batch, NULL),
			 SEMEL_NO_TRANSACTION);
	store_begin(store);
	assert_ok(store->driver->holds->states_read(store_tx(store), BILLING, &batch, NULL));
	assert_int_equal(answers[0].hold.state, SEMEL_HOLD_DEAD);
	assert_int_equal(answers[0].letter, SEMEL_DEAD_ANY);
	assert_int_equal(answers[1].hold.state, SEMEL_HOLD_DEAD);
	assert_string_equal(answers[1].hold.head_id.data, "head");
	assert_string_equal(answers[1].hold.aggregate_id.data, "a");
	assert_int_equal(answers[1].hold.attempts, 4);
	assert_int_equal(answers[1].hold.due_ms, STORE_NOW + 5);
	assert_true(answers[1].hold.blocks);
	assert_int_equal(answers[1].letter, SEMEL_DEAD_PENDING);
	assert_int_equal(answers[1].replay_count, 0);
	for (int i = 2; i < 7; i++)
		assert_int_equal(answers[i].hold.state, SEMEL_HOLD_NONE);
	assert_string_equal(answers[2].hold.aggregate_id.data, "c");
	assert_int_equal(answers[2].letter, SEMEL_DEAD_REPLAYED);
	assert_int_equal(answers[2].replay_count, 2);
	assert_false(answers[2].settled);
	assert_int_equal(answers[3].letter, SEMEL_DEAD_ANY);
	assert_int_equal(answers[4].letter, SEMEL_DEAD_ANY);
	assert_int_equal(answers[5].letter, SEMEL_DEAD_REPLAYED);
	assert_int_equal(answers[6].letter, SEMEL_DEAD_ANY);
	store_commit(store);
	settle(store, "billing", two.id, 0);
	store_begin(store);
	assert_ok(store->driver->holds->states_read(store_tx(store), BILLING, &batch, NULL));
	assert_true(answers[2].settled);
	assert_true(answers[5].settled);
	batch.count = 0;
	assert_ok(store->driver->holds->states_read(store_tx(store), BILLING, &batch, NULL));
	batch.count = 2;
	assert_ok(store->driver->holds->states_read(store_tx(store), SEMEL_TEXT("audit"), &batch,
						    NULL));
	assert_int_equal(answers[1].hold.state, SEMEL_HOLD_NONE);
	assert_int_equal(answers[1].letter, SEMEL_DEAD_ANY);
	store_commit(store);
	semel_arena_free(arena);
	semel_store_close(store);
}

static const char *list_ids(semel_store *store, semel_dead_letter_filter filter)
{
	static char ids[256];
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_dead_letter_row entries[STORE_MAX];
	uint32_t count = 0;
	ids[0] = '\0';
	if (filter.limit == 0)
		filter.limit = STORE_MAX;
	assert_ok(store->driver->dead_letters->list(store, &filter, arena, entries, &count, NULL));
	for (uint32_t i = 0; i < count; i++)
		strcat(ids, semel_text_string(entries[i].entry_id));
	semel_arena_free(arena);
	return ids;
}

static void the_list_begins_with_the_oldest_failure(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event one = store_event("e1", "a"), two = store_event("e2", "b");
	struct semel_event three = store_event("e3", "c");
	struct semel_dead_letter_row late = store_dead("d1", &one),
				     other = store_dead("d3", &three);
	late.failed_at_ms = STORE_NOW + 5;
	other.scope = SEMEL_TEXT("audit");
	store_add_dead_letter(store, late);
	store_add_dead_letter(store, other);
	store_add_dead_letter(store, store_dead("d2", &two));
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ 0 }), "d2d3d1");
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ .limit = 1 }), "d2");
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ .scope = "audit" }), "d3");
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ .after = "d2" }), "d3d1");
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ .after = "d1" }), "");
	assert_string_equal(
		list_ids(store, (semel_dead_letter_filter){ .since_ms = STORE_NOW + 5 }), "d1");
	assert_string_equal(
		list_ids(store, (semel_dead_letter_filter){ .until_ms = STORE_NOW + 5 }), "d2d3");
	assert_string_equal(
		list_ids(store, (semel_dead_letter_filter){ .type = semel_text_string(one.type) }),
		"d2d3d1");
	assert_string_equal(list_ids(store, (semel_dead_letter_filter){ .type = "other.v1" }), "");
	struct semel_dead_letter_row entry = get(store, "d2", arena);
	assert_ok(move(store, &entry, SEMEL_DEAD_DISCARDED));
	assert_string_equal(
		list_ids(store, (semel_dead_letter_filter){ .status = SEMEL_DEAD_PENDING }),
		"d3d1");
	assert_string_equal(
		list_ids(store, (semel_dead_letter_filter){ .status = SEMEL_DEAD_DISCARDED }),
		"d2");
	semel_arena_free(arena);
	semel_store_close(store);
}

static void an_entry_has_the_number_of_events_behind_it(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("head", "a");
	store_add_dead_letter(store, store_dead("d1", &event));
	park(store, "e2", "a");
	park(store, "e3", "a");
	park(store, "x1", "b");
	assert_int_equal(get(store, "d1", arena).parked, 2);
	semel_arena_free(arena);
	semel_store_close(store);
}

static semel_status note(struct semel_text id, const char *status, struct semel_text topic,
			 int64_t time_ms, void *user)
{
	(void)topic;
	char *notes = user, line[64];
	assert_int_equal(time_ms, STORE_NOW);
	snprintf(line, sizeof(line), "%s %s;", semel_text_shown(id), status);
	strcat(notes, line);
	return SEMEL_OK;
}

static void every_entry_and_follower_is_visited_in_the_order_of_ids(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("head", "a"), nameless = store_event(NULL, "a");
	char notes[128] = "";
	store_add_dead_letter(store, store_dead("d1", &event));
	store_add_dead_letter(store, store_dead("d2", &nameless));
	park(store, "e2", "a");
	assert_ok(store->driver->dead_letters->each(store, BILLING, note, notes, NULL));
	assert_string_equal(notes, "e2 PARKED;head PENDING;");
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_hold_is_put_changed_and_removed),
	cmocka_unit_test(holds_of_topics_are_distinguished_from_those_of_aggregates),
	cmocka_unit_test(released_holds_and_gaps_that_waited_enough_are_ready),
	cmocka_unit_test(what_is_held_is_counted_by_its_reason),
	cmocka_unit_test(followers_come_in_the_order_they_were_parked),
	cmocka_unit_test(followers_behind_their_own_predecessors_are_chosen_by_them),
	cmocka_unit_test(a_hold_without_an_aggregate_type_holds_the_whole_topic),
	cmocka_unit_test(followers_are_no_dead_letters),
	cmocka_unit_test(a_dead_letter_keeps_the_whole_event),
	cmocka_unit_test(a_broken_delivery_without_an_id_is_always_a_new_entry),
	cmocka_unit_test(a_replay_that_fails_returns_to_the_same_entry_with_its_count),
	cmocka_unit_test(a_dead_letter_is_replayed_three_times_at_most),
	cmocka_unit_test(only_a_pending_dead_letter_is_moved),
	cmocka_unit_test(an_entry_that_came_back_since_it_was_read_is_not_replayed),
	cmocka_unit_test(a_processed_replay_settles_an_entry_that_was_not_marked),
	cmocka_unit_test(a_replayed_entry_is_settled_when_any_copy_was_processed),
	cmocka_unit_test(an_entry_of_the_relay_is_settled_when_it_goes_back_to_the_outbox),
	cmocka_unit_test(an_entry_of_any_status_can_be_authorized_to_run_again),
	cmocka_unit_test(a_scope_has_states_when_it_has_a_hold_or_a_dead_letter),
	cmocka_unit_test(one_query_returns_the_hold_and_the_dead_letter_of_every_event),
	cmocka_unit_test(the_list_begins_with_the_oldest_failure),
	cmocka_unit_test(an_entry_has_the_number_of_events_behind_it),
	cmocka_unit_test(every_entry_and_follower_is_visited_in_the_order_of_ids),
};
const struct store_tests store_dead_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
