/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: subscriptions, retention, and the life of one event. */
#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>

#define BILLING SEMEL_TEXT("billing")

static void a_subscription_is_noted_once_and_kept_up_to_date(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_subscription_row row = { .scope = BILLING,
					      .topics = SEMEL_TEXT("[\"order.events\"]"),
					      .guarantee = SEMEL_TEXT("effectively-once"),
					      .from_latest = true };
	struct semel_subscription_row found[4];
	uint32_t count = 0;
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW, NULL));
	row.topics = SEMEL_TEXT("[\"order.events\",\"payment.events\"]");
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW + 1000, NULL));
	row.scope = SEMEL_TEXT("audit");
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW + 2000, NULL));
	assert_ok(store->driver->upkeep->subscription_list(store, arena, found, 4, &count, NULL));
	assert_int_equal(count, 2);
	assert_string_equal(found[0].scope.data, "audit");
	assert_string_equal(found[1].topics.data, "[\"order.events\",\"payment.events\"]");
	assert_string_equal(found[1].guarantee.data, "effectively-once");
	assert_null(found[1].handler.data);
	assert_true(found[1].from_latest);
	assert_int_equal(found[1].since_ms, STORE_NOW);
	assert_ok(store->driver->upkeep->subscription_list(store, arena, found, 1, &count, NULL));
	assert_int_equal(count, 1);
	semel_arena_free(arena);
	semel_store_close(store);
}

static void a_subscription_is_paused_by_an_operator_and_not_by_its_consumer(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_subscription_row row = { .scope = BILLING, .topics = SEMEL_TEXT("[]") };
	bool paused = true;
	assert_ok(store->driver->upkeep->subscription_is_paused(store, BILLING, &paused, NULL));
	assert_false(paused);
	assert_int_equal(store->driver->upkeep->subscription_pause(store, BILLING, true, NULL),
			 SEMEL_NOT_FOUND);
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW, NULL));
	assert_ok(store->driver->upkeep->subscription_pause(store, BILLING, true, NULL));
	assert_ok(store->driver->upkeep->subscription_put(store, &row, STORE_NOW, NULL));
	assert_ok(store->driver->upkeep->subscription_is_paused(store, BILLING, &paused, NULL));
	assert_true(paused);
	assert_ok(store->driver->upkeep->subscription_pause(store, BILLING, false, NULL));
	assert_ok(store->driver->upkeep->subscription_is_paused(store, BILLING, &paused, NULL));
	assert_false(paused);
	semel_store_close(store);
}

static void what_people_did_is_listed_the_newest_first(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_audit_row row = { .at_ms = STORE_NOW,
				       .who = SEMEL_TEXT("ann"),
				       .what = SEMEL_TEXT("discard") };
	struct semel_audit_row found[4];
	int64_t number = 0;
	uint32_t count = 9;
	assert_ok(store->driver->upkeep->audit_list(store, arena, found, 4, &count, NULL));
	assert_int_equal(count, 0);
	row.outcome = SEMEL_TEXT(SEMEL_AUDIT_BEGUN);
	assert_ok(store->driver->upkeep->audit_add(store, &row, &number, NULL));
	row.at_ms += 1000;
	row.target = SEMEL_TEXT("an entry");
	row.detail = SEMEL_TEXT("it was \"wrong\"");
	assert_ok(store->driver->upkeep->audit_add(store, &row, NULL, NULL));
	assert_ok(store->driver->upkeep->audit_finish(store, number, "refused: not-pending", NULL));
	assert_ok(store->driver->upkeep->audit_list(store, arena, found, 4, &count, NULL));
	assert_int_equal(count, 2);
	assert_int_equal(found[0].at_ms, STORE_NOW + 1000);
	assert_string_equal(found[0].target.data, "an entry");
	assert_string_equal(found[0].detail.data, "it was \"wrong\"");
	assert_string_equal(found[1].who.data, "ann");
	assert_null(found[1].target.data);
	assert_string_equal(found[0].outcome.data, SEMEL_AUDIT_BEGUN);
	assert_string_equal(found[1].outcome.data, "refused: not-pending");
	assert_ok(store->driver->upkeep->audit_list(store, arena, found, 1, &count, NULL));
	assert_int_equal(count, 1);
	char large[10001] = "";
	for (size_t i = 0; i < 5000; i++)
		memcpy(large + 2 * i, "ä", 2);
	row.detail = row.target = semel_text_of(large);
	assert_ok(store->driver->upkeep->audit_add(store, &row, NULL, NULL));
	assert_ok(store->driver->upkeep->audit_list(store, arena, found, 1, &count, NULL));
	assert_int_equal(found[0].detail.length, 2 * 4096 + strlen("…"));
	assert_true(semel_text_is_utf8(found[0].target));
	semel_arena_free(arena);
	semel_store_close(store);
}

/* ---- lists of dead letters --------------------------------------------------------------------
 */

static struct semel_text repeated(struct semel_arena *arena, char byte, size_t length)
{
	char *text = semel_arena_alloc(arena, length + 1);
	memset(text, byte, length);
	text[length] = '\0';
	return semel_arena_text(arena, text, length);
}

static struct semel_dead_letter_row whole_entry(semel_store *store, const char *entry_id,
						struct semel_arena *arena)
{
	struct semel_dead_letter_row entry;
	assert_ok(store->driver->dead_letters->get(store, entry_id, arena, &entry, NULL));
	return entry;
}

static void the_list_has_sizes_instead_of_payloads_and_long_texts_cut(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event large = store_event("e1", "a"), small = store_event("e2", "b");
	struct semel_dead_letter_row entries[STORE_MAX];
	uint32_t count = 0;
	large.payload = repeated(arena, 'x', 100000);
	large.headers = repeated(arena, 'h', 5000);
	small.payload = semel_text_from("\xff\x00\x01", 3);
	struct semel_dead_letter_row first = store_dead("d1", &large),
				     second = store_dead("d2", &small);
	first.reason = repeated(arena, 'r', 5000);
	store_add_dead_letter(store, first);
	store_add_dead_letter(store, second);
	assert_ok(store->driver->dead_letters->list(
		store, &(semel_dead_letter_filter){ .limit = STORE_MAX }, arena, entries, &count,
		NULL));
	assert_int_equal(count, 2);
	assert_null(entries[0].event.payload.data);
	assert_int_equal(entries[0].payload_size, 100000);
	assert_true(semel_text_equal(entries[0].event.headers, SEMEL_TEXT("null")));
	assert_int_equal(entries[0].reason.length, 4096 + strlen("…"));
	assert_null(entries[1].event.payload.data);
	assert_int_equal(entries[1].payload_size, 3);
	assert_true(semel_text_equal(entries[1].event.headers, small.headers));
	struct semel_dead_letter_row whole = whole_entry(store, "d1", arena);
	assert_true(semel_text_equal(whole.event.payload, large.payload));
	assert_true(semel_text_equal(whole.event.headers, large.headers));
	assert_int_equal(whole.payload_size, 100000);
	assert_int_equal(whole.reason.length, 5000);
	semel_arena_free(arena);
	semel_store_close(store);
}

/* ---- retention ------------------------------------------------------------------------------- */

static struct semel_prune_counts prune(semel_store *store, struct semel_retention_cutoffs cutoffs,
				       bool dry_run)
{
	struct semel_prune_counts all = { 0 }, step;
	semel_error error = { 0 };
	bool more = true;
	while (more) {
		if (store->driver->upkeep->prune(store, &cutoffs, dry_run, &step, &more, &error) !=
		    SEMEL_OK)
			fail_msg("%s", error.text);
		all.outbox += step.outbox;
		all.inbox += step.inbox;
		all.dead += step.dead;
	}
	return all;
}

/* As if the rows of the outbox had been committed when their events happened. */
static void commit_in_the_past(semel_store *store)
{
	store_execute(store, "UPDATE semel_outbox SET committed_at = created_at");
}

static void prune_forgets_published_rows_and_keeps_the_others(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	const struct semel_retention_cutoffs now = { .outbox_ms = STORE_NOW },
					     later = { .outbox_ms = STORE_NOW + 1 };
	int64_t until = -1;
	store_publish(store, "e1", "a", "e2", "b", "e3", "c", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_published(&relay, "e1");
	store_relay_failed(&relay, "e3", true);
	assert_ok(store->driver->outbox->pruned_until(store, &until, NULL));
	assert_int_equal(until, 0);
	assert_int_equal(prune(store, later, false).outbox, 0); /* it was committed just now */
	commit_in_the_past(store);
	assert_int_equal(prune(store, now, false).outbox, 0);
	assert_int_equal(prune(store, later, true).outbox, 1);
	assert_int_equal(prune(store, later, false).outbox, 1);
	assert_int_equal(prune(store, later, false).outbox, 0);
	assert_string_equal(store_relay_fetch(&relay, 0), "e2");
	assert_ok(store->driver->outbox->pruned_until(store, &until, NULL));
	assert_int_equal(until, STORE_NOW);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void prune_forgets_whole_weeks_of_finished_claims(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim busy = store_claim("busy");
	const int64_t monday = STORE_NOW - 5 * INT64_C(86400000) - 12 * INT64_C(3600000);
	const struct semel_retention_cutoffs same_week = { .inbox_ms = monday + STORE_WEEK - 1 },
					     next_week = { .inbox_ms = monday + STORE_WEEK };
	int64_t since = -1;
	busy.status = SEMEL_INBOX_CLAIMED;
	busy.owner = "worker";
	busy.lease_until_ms = STORE_NOW;
	store_claim_now(store, busy);
	store_claim_now(store, store_claim("e1"));
	struct semel_inbox_claim newer = store_claim("e2");
	newer.event_time_ms = STORE_NOW + STORE_WEEK;
	store_claim_now(store, newer);
	assert_int_equal(prune(store, same_week, false).inbox, 0);
	assert_ok(store->driver->inbox->known_since(store, &since, NULL));
	assert_int_equal(since, 0);
	assert_int_equal(prune(store, next_week, true).inbox, 1);
	assert_int_equal(prune(store, next_week, false).inbox, 1);
	assert_ok(store->driver->inbox->known_since(store, &since, NULL));
	assert_int_equal(since, monday + STORE_WEEK);
	assert_int_equal(store_claim_now(store, store_claim("busy")).found, SEMEL_FOUND_CLAIMED);
	assert_int_equal(store_claim_now(store, newer).found, SEMEL_FOUND_PROCESSED);
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

/* It may come again tomorrow, however long ago it happened; and one without a time too. */
static void prune_keeps_a_claim_of_late_of_an_old_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim old = store_claim("old"), timeless = store_claim("timeless");
	const struct semel_retention_cutoffs month_ago = { .inbox_ms = STORE_NOW - 4 * STORE_WEEK },
					     later = { .inbox_ms = STORE_NOW + 2 * STORE_WEEK };
	old.event_time_ms = STORE_NOW - 10 * STORE_WEEK;
	timeless.event_time_ms = 0;
	store_claim_now(store, old);
	store_claim_now(store, timeless);
	assert_int_equal(prune(store, month_ago, true).inbox, 0);
	assert_int_equal(prune(store, month_ago, false).inbox, 0);
	assert_int_equal(store_claim_now(store, old).found, SEMEL_FOUND_PROCESSED);
	assert_int_equal(store_claim_now(store, timeless).found, SEMEL_FOUND_PROCESSED);
	assert_int_equal(prune(store, later, false).inbox, 2);
	semel_store_close(store);
}

static void prune_goes_on_where_it_stopped(void **state)
{
	(void)state;
	enum { MANY = 12000 };
	semel_store *store = store_open_one();
	const struct semel_retention_cutoffs cutoffs = { .outbox_ms = STORE_NOW + 1,
							 .inbox_ms = STORE_NOW + STORE_WEEK };
	struct semel_claim_result answer;
	char id[32];
	store_begin(store);
	for (int i = 0; i < MANY; i++) {
		snprintf(id, sizeof(id), "e%d", i);
		struct semel_event event = store_event(id, id);
		struct semel_inbox_claim claim = store_claim(id);
		claim.scope = i % 2 == 0 ? BILLING : SEMEL_TEXT("audit");
		assert_ok(store->driver->outbox->insert(store_tx(store), &event, 1, NULL));
		assert_ok(store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW,
						      &answer, NULL));
	}
	assert_ok(store->driver->execute(store,
					 "UPDATE semel_outbox SET status = 'PUBLISHED'"
					 " WHERE aggregate_id <> 'e7'",
					 NULL));
	store_commit(store);
	commit_in_the_past(store);
	struct semel_prune_counts counts = prune(store, cutoffs, false);
	assert_int_equal(counts.outbox, MANY - 1);
	assert_int_equal(counts.inbox, MANY);
	semel_store_close(store);
}

static void prune_keeps_dead_letters_with_followers(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event head = store_event("e1", "a"), lonely = store_event("e2", "b");
	struct semel_event follower = store_event("e3", "a");
	struct semel_dead_letter_row parked = store_dead("d3", &follower);
	const struct semel_retention_cutoffs later = { .dead_ms = STORE_NOW + 1 };
	uint64_t count = 0;
	store_add_dead_letter(store, store_dead("d1", &head));
	store_add_dead_letter(store, store_dead("d2", &lonely));
	parked.parked_behind = head.id;
	store_begin(store);
	assert_ok(store->driver->dead_letters->parked_add(store_tx(store), &parked, NULL));
	store_commit(store);
	assert_int_equal(
		prune(store, (struct semel_retention_cutoffs){ .dead_ms = STORE_NOW }, false).dead,
		0);
	assert_int_equal(prune(store, later, true).dead, 1);
	assert_int_equal(prune(store, later, false).dead, 1);
	assert_ok(store->driver->dead_letters->count(store, NULL, &count, NULL));
	assert_int_equal(count, 1);
	semel_store_close(store);
}

static void prune_keeps_a_dead_letter_whose_replay_was_not_processed_yet(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	const struct semel_retention_cutoffs later = { .dead_ms = STORE_NOW + 1 };
	store_add_dead_letter(store, store_dead("d1", &event));
	store_begin(store);
	assert_ok(store->driver->dead_letters->authorize(store_tx(store), BILLING, event.id,
							 STORE_NOW, NULL));
	store_commit(store);
	assert_int_equal(prune(store, later, true).dead, 0);
	assert_int_equal(prune(store, later, false).dead, 0);
	store_begin(store);
	assert_ok(store->driver->dead_letters->settle(store_tx(store), BILLING, event.id, 0,
						      STORE_NOW, NULL));
	store_commit(store);
	assert_int_equal(prune(store, later, false).dead, 1);
	semel_store_close(store);
}

static void an_aggregate_is_not_held_by_a_dead_letter_that_is_gone(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event head = store_event("e1", "a");
	const struct semel_hold hold = { .aggregate_type = SEMEL_TEXT("order"),
					 .aggregate_id = SEMEL_TEXT("a"),
					 .head_id = SEMEL_TEXT("e1"),
					 .state = SEMEL_HOLD_DEAD };
	bool any = true;
	store_add_dead_letter(store, store_dead("d1", &head));
	store_begin(store);
	assert_ok(store->driver->holds->put(store_tx(store), BILLING, &hold, NULL));
	store_commit(store);
	prune(store, (struct semel_retention_cutoffs){ .dead_ms = STORE_NOW + 1 }, false);
	assert_ok(store->driver->holds->has_any(store_tx(store), BILLING, &any, NULL));
	assert_false(any);
	semel_store_close(store);
}

static void without_cutoffs_nothing_is_removed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	store_claim_now(store, store_claim("e1"));
	store_add_dead_letter(store, store_dead("d1", &event));
	struct semel_prune_counts counts =
		prune(store, (struct semel_retention_cutoffs){ 0 }, false);
	assert_int_equal(counts.outbox + counts.inbox + counts.dead, 0);
	semel_store_close(store);
}

/* ---- trace ----------------------------------------------------------------------------------- */

static void note_fact(const struct semel_trace_entry *fact, void *user)
{
	char *notes = user;
	strcat(notes, fact->what);
	if (fact->scope != NULL)
		strcat(strcat(notes, "@"), fact->scope);
	if (fact->quoted != NULL)
		strcat(strcat(notes, ":"), fact->quoted);
	strcat(notes, " ");
}

static void the_trace_of_an_event_is_in_the_order_of_time(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct semel_event event = store_event("e1", "a");
	char notes[512] = "";
	store_publish(store, "e1", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_published(&relay, "e1");
	store_claim_now(store, store_claim("e1"));
	struct semel_dead_letter_row letter = store_dead("d1", &event);
	letter.scope = SEMEL_TEXT("audit");
	letter.reason = SEMEL_TEXT("broken");
	letter.failed_at_ms = STORE_NOW + 1;
	store_add_dead_letter(store, letter);
	assert_ok(store->driver->upkeep->trace(store, "e1", relay.arena, note_fact, notes, NULL));
	assert_string_equal(notes, "committed published claimed@billing processed@billing "
				   "dead-lettered@audit:broken ");
	assert_int_equal(
		store->driver->upkeep->trace(store, "e2", relay.arena, note_fact, notes, NULL),
		SEMEL_NOT_FOUND);
	store_relay_close(&relay);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_subscription_is_noted_once_and_kept_up_to_date),
	cmocka_unit_test(a_subscription_is_paused_by_an_operator_and_not_by_its_consumer),
	cmocka_unit_test(what_people_did_is_listed_the_newest_first),
	cmocka_unit_test(the_list_has_sizes_instead_of_payloads_and_long_texts_cut),
	cmocka_unit_test(prune_forgets_published_rows_and_keeps_the_others),
	cmocka_unit_test(prune_forgets_whole_weeks_of_finished_claims),
	cmocka_unit_test(prune_keeps_a_claim_of_late_of_an_old_event),
	cmocka_unit_test(prune_goes_on_where_it_stopped),
	cmocka_unit_test(prune_keeps_dead_letters_with_followers),
	cmocka_unit_test(prune_keeps_a_dead_letter_whose_replay_was_not_processed_yet),
	cmocka_unit_test(an_aggregate_is_not_held_by_a_dead_letter_that_is_gone),
	cmocka_unit_test(without_cutoffs_nothing_is_removed),
	cmocka_unit_test(the_trace_of_an_event_is_in_the_order_of_time),
};
const struct store_tests store_keep_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
