/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: the lane's fence, marks, and events that the run passes by. */
#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>

#define SOON (STORE_NOW + 1000)

static struct semel_outbox_counts counts_of(semel_store *store)
{
	struct semel_outbox_counts counts;
	assert_ok(store->driver->outbox->count(store, &counts, NULL));
	return counts;
}

/* The relay's only dead letter. */
static struct semel_dead_letter_row relay_letter(struct store_relay *relay)
{
	struct semel_dead_letter_row entry;
	uint32_t count = 0;
	const semel_dead_letter_filter filter = { .limit = 1, .scope = "relay" };
	assert_ok(relay->store->driver->dead_letters->list(relay->store, &filter, relay->arena,
							   &entry, &count, NULL));
	assert_int_equal(count, 1);
	assert_ok(relay->store->driver->dead_letters->get(
		relay->store, semel_text_string(entry.entry_id), relay->arena, &entry, NULL));
	return entry;
}

static void decide(semel_store *store, const struct semel_dead_letter_row *entry, bool discard)
{
	enum semel_dead_status status = discard ? SEMEL_DEAD_DISCARDED : SEMEL_DEAD_REPLAYED;
	store_begin(store);
	assert_ok(store->driver->dead_letters->move(store_tx(store), entry, status, "by hand",
						    STORE_NOW, NULL));
	assert_ok(store->driver->dead_letters->return_to_outbox(store_tx(store), entry, discard,
								NULL));
	store_commit(store);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void a_lane_has_one_owner_and_every_new_one_a_higher_epoch(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_lease first = store_leases(store).all[0], second, found;
	assert_string_equal(first.owner, "");
	second = first;
	assert_ok(
		store->driver->outbox->lease_acquire(store, &first, "one", STORE_NOW + 5000, NULL));
	assert_string_equal(first.owner, "one");
	assert_int_equal(
		store->driver->outbox->lease_acquire(store, &second, "two", STORE_NOW, NULL),
		SEMEL_LEASE_LOST);
	assert_ok(store->driver->outbox->lease_renew(store, &first, STORE_NOW + 9000, NULL));
	found = store_leases(store).all[0];
	assert_int_equal(found.expires_at_ms, STORE_NOW + 9000);
	second = found;
	assert_ok(store->driver->outbox->lease_acquire(store, &second, "two", STORE_NOW + 5000,
						       NULL));
	assert_true(second.epoch > first.epoch);
	assert_int_equal(store->driver->outbox->lease_renew(store, &first, STORE_NOW, NULL),
			 SEMEL_LEASE_LOST);
	semel_store_close(store);
}

static void a_lane_is_held_until_its_lease_ends_whatever_this_machine_knows_of_the_owner(
	void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_lease lease = store_leases(store).all[0];
	struct semel_lanes_state lanes = { 0 };
	char owner[SEMEL_OWNER_SIZE];
	semel_owner_make(semel_env_system(), owner);
	assert_ok(
		store->driver->outbox->lease_acquire(store, &lease, owner, STORE_NOW + 5000, NULL));
	assert_ok(semel_store_lanes(store, STORE_NOW, &lanes, NULL));
	int32_t others = lanes.count - 1;
	assert_int_equal(lanes.unheld, others);
	assert_ok(semel_store_lanes(store, STORE_NOW + 5000, &lanes, NULL));
	assert_int_equal(lanes.unheld, others + 1);

	store->driver->outbox->lease_release(store, &lease);
	lease = store_leases(store).all[0];
	strcpy(strchr(strchr(owner, ':') + 1, ':') + 1, "1:abc"); /* of an earlier process */
	assert_ok(
		store->driver->outbox->lease_acquire(store, &lease, owner, STORE_NOW + 5000, NULL));
	assert_ok(semel_store_lanes(store, STORE_NOW, &lanes, NULL));
	assert_true(semel_owner_is_dead(owner));
	assert_int_equal(lanes.unheld, others);
	semel_store_close(store);
}

static void a_relay_that_joins_has_its_rank_in_the_group(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_relay_group group = { 0 };
	assert_ok(store->driver->outbox->relay_join(store, "one", STORE_NOW, STORE_NOW + 5000,
						    &group, NULL));
	assert_true(group.members >= 1);
	assert_true(group.rank < group.members);
	store->driver->outbox->relay_leave(store, "one");
	semel_store_close(store);
}

static void a_commit_wakes_a_sleeping_relay(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *writer = store_open_one();
	struct semel_wake *wake = NULL;
	struct store_relay relay;
	assert_ok(semel_wake_new(&wake, NULL));
	store->driver->watch(store, wake);
	store_relay_open(&relay, store, "one");
	(void)store->driver->outbox->arm_wakeup(store, false);
	while (semel_wake_sleep(wake, 50))
		store->driver->outbox->check_wakeup(store); /* reads what was notified before */
	store_publish(writer, "e1", "a", NULL);
	assert_true(semel_wake_sleep(wake, 60000));
	assert_true(store->driver->outbox->check_wakeup(store));
	assert_string_equal(store_relay_fetch(&relay, 0), "e1");
	store_relay_close(&relay);
	semel_store_close(writer);
	semel_store_close(store);
	semel_wake_free(wake);
}

static void only_its_owner_releases_a_lane(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_lease lease = store_leases(store).all[0], found;
	assert_ok(store->driver->outbox->lease_acquire(store, &lease, "one", STORE_NOW, NULL));
	struct semel_lease stale = lease;
	stale.epoch--;
	store->driver->outbox->lease_release(store, &stale);
	found = store_leases(store).all[0];
	assert_string_equal(found.owner, "one");
	store->driver->outbox->lease_release(store, &lease);
	found = store_leases(store).all[0];
	assert_string_equal(found.owner, "");
	semel_store_close(store);
}

static void a_relay_that_lost_its_lane_cannot_mark(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct store_relay stale, owner;
	store_publish(store, "e1", "a", NULL);
	store_relay_open(&stale, store, "one");
	store_relay_fetch(&stale, 0);
	store_relay_open(&owner, other, "two");
	assert_int_equal(
		store_relay_mark(&stale, "e1", (struct semel_mark){ .kind = SEMEL_MARK_PUBLISHED }),
		SEMEL_LEASE_LOST);
	assert_string_equal(store_relay_fetch(&owner, 0), "e1");
	store_relay_close(&stale);
	store_relay_close(&owner);
	semel_store_close(other);
	semel_store_close(store);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static void a_published_event_does_not_come_again(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct semel_lease *lease, found;
	store_publish(store, "e1", "a", "e2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	lease = store_relay_lease(&relay, 0);
	const struct semel_mark marks[] = { { .row = &relay.rows[0], .kind = SEMEL_MARK_PUBLISHED },
					    { .row = &relay.rows[1],
					      .kind = SEMEL_MARK_PUBLISHED } };
	const struct semel_mark_batch batch = { .marks = marks,
						.count = 2,
						.low_seq = relay.rows[1].seq,
						.now_ms = STORE_NOW,
						.expires_at_ms = STORE_NOW + 7000 };
	assert_ok(store->driver->outbox->mark(store, lease, &batch, NULL));
	assert_int_equal(lease->low_seq, relay.rows[1].seq);
	assert_int_equal(lease->expires_at_ms, STORE_NOW + 7000);
	found = store_leases(store).all[lease->lane];
	assert_int_equal(found.low_seq, relay.rows[1].seq);
	assert_int_equal(found.expires_at_ms, STORE_NOW + 7000);
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

/* As rows that were written by hand with numbers of their own, or after the numbers began anew. */
static void rows_below_the_low_mark_that_were_never_sent_are_found(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct store_relay relay, heir;
	store_publish(store, "e1", "a", "e2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	struct semel_lease *lease = store_relay_lease(&relay, 0);
	int32_t lane = lease->lane;
	int64_t first = relay.rows[0].seq, low = relay.rows[1].seq;
	lease->low_seq = low;
	assert_ok(store->driver->outbox->lease_renew(store, lease, STORE_NOW + 7000, NULL));
	assert_int_equal(lease->low_seq, low);
	assert_int_equal(store_leases(store).all[lane].low_seq, low);
	store_relay_open(&heir, other, "heir");
	assert_int_equal(heir.leases.all[lane].low_seq, first - 1);
	assert_true(heir.leases.all[lane].epoch > lease->epoch);
	assert_string_equal(store_relay_fetch(&heir, first - 1), "e1 e2");
	store_relay_close(&heir);
	store_relay_close(&relay);
	semel_store_close(other);
	semel_store_close(store);
}

static void rows_below_the_low_mark_are_not_searched_for_when_they_come_through_a_stream(
	void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", "e2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	struct semel_lease *lease = store_relay_lease(&relay, 0);
	int64_t low = relay.rows[1].seq;
	lease->low_seq = low;
	assert_ok(store->driver->outbox->lease_renew(store, lease, STORE_NOW + 7000, NULL));
	struct semel_lease heir = store_leases(other).all[lease->lane];
	heir.streamed = true;
	assert_ok(
		other->driver->outbox->lease_acquire(other, &heir, "heir", STORE_NOW + 7000, NULL));
	assert_int_equal(heir.low_seq, low);
	assert_int_equal(heir.epoch, lease->epoch + 1);
	store_relay_close(&relay);
	semel_store_close(other);
	semel_store_close(store);
}

static void a_low_mark_above_every_number_drawn_is_not_believed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	struct semel_lease *lease = store_relay_lease(&relay, 0);
	int64_t epoch = lease->epoch;
	lease->low_seq = relay.rows[0].seq + 1000;
	assert_ok(store->driver->outbox->lease_renew(store, lease, STORE_NOW + 7000, NULL));
	assert_int_equal(lease->low_seq, 0);
	assert_true(lease->epoch > epoch);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void marks_touch_the_rows_they_name_and_no_other(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", "e2", "a", "e3", "a", "e4", "a", "e5", "a", "e6", "a",
		      NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	const struct semel_mark marks[] = {
		{ .row = &relay.rows[0], .kind = SEMEL_MARK_PUBLISHED },
		{ .row = &relay.rows[1], .kind = SEMEL_MARK_PUBLISHED },
		{ .row = &relay.rows[3], .kind = SEMEL_MARK_RETRY, .attempts = 1, .reason = "no" },
		{ .row = &relay.rows[4], .kind = SEMEL_MARK_PUBLISHED },
	};
	const struct semel_mark_batch batch = {
		.marks = marks, .count = 4, .now_ms = STORE_NOW, .expires_at_ms = STORE_NOW + 5000
	};
	assert_ok(store->driver->outbox->mark(store, store_relay_lease(&relay, 0), &batch, NULL));
	assert_string_equal(store_relay_fetch(&relay, 0), "e3 [e6]");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_refused_event_holds_its_aggregate_and_no_other(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "b1", "b", "a2", "a", "b2", "b", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_retry(&relay, "a1", SOON);
	assert_string_equal(store_relay_fetch(&relay, 0), "b1 [a2] b2");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void exceptions_of_an_aggregate_come_back_one_by_one_in_order(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", "b1", "b", "a3", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_retry(&relay, "a1", SOON);
	store_relay_parked(&relay, "a2");
	store_relay_published(&relay, "b1");
	store_relay_parked(&relay, "a3");
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	assert_string_equal(store_relay_due(&relay, SOON - 1), "");
	assert_string_equal(store_relay_due(&relay, SOON), "a1");
	assert_int_equal(relay.rows[0].attempts, 1);
	store_relay_published(&relay, "a1");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a2");
	store_relay_published(&relay, "a2");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a3");
	store_publish(store, "a4", "a", NULL);
	assert_string_equal(store_relay_fetch(&relay, 0), "[a4]");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a3");
	store_relay_published(&relay, "a3");
	assert_string_equal(store_relay_fetch(&relay, 0), "a4");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_parked_event_without_a_predecessor_is_due_at_once(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_parked(&relay, "a1");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a1");
	store_relay_close(&relay);
	semel_store_close(store);
}

/* ---- given up -------------------------------------------------------------------------------- */

static void a_failed_event_is_a_dead_letter_and_its_followers_wait(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_failed(&relay, "a1", true);
	store_relay_parked(&relay, "a2");
	assert_string_equal(store_relay_due(&relay, STORE_NOW + STORE_WEEK), "");
	struct semel_dead_letter_row entry = relay_letter(&relay);
	assert_string_equal(entry.event.id.data, "a1");
	assert_string_equal(entry.event.payload.data, "{\"total\":5}");
	assert_string_equal(entry.reason.data, "too large");
	assert_int_equal(entry.attempts, 10);
	assert_int_equal(entry.status, SEMEL_DEAD_PENDING);
	assert_int_equal(entry.parked, 1);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_replayed_failure_goes_first_and_its_followers_after_it(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_failed(&relay, "a1", true);
	store_relay_parked(&relay, "a2");
	struct semel_dead_letter_row entry = relay_letter(&relay);
	decide(store, &entry, false);
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a1");
	assert_int_equal(relay.rows[0].replay, 1);
	assert_int_equal(relay.rows[0].attempts, 0);
	store_relay_published(&relay, "a1");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a2");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_replay_that_fails_again_returns_to_its_entry(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	char first[64];
	store_publish(store, "a1", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_failed(&relay, "a1", true);
	struct semel_dead_letter_row entry = relay_letter(&relay);
	snprintf(first, sizeof(first), "%s", semel_text_shown(entry.entry_id));
	decide(store, &entry, false);
	store_relay_due(&relay, STORE_NOW);
	store_relay_failed(&relay, "a1", true);
	entry = relay_letter(&relay);
	assert_string_equal(entry.entry_id.data, first);
	assert_int_equal(entry.replay_count, 1);
	assert_int_equal(entry.status, SEMEL_DEAD_PENDING);
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_discarded_failure_releases_its_followers(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_failed(&relay, "a1", true);
	store_relay_parked(&relay, "a2");
	struct semel_dead_letter_row entry = relay_letter(&relay);
	decide(store, &entry, true);
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a2");
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_skipped_failure_holds_no_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", "a3", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_retry(&relay, "a1", STORE_NOW);
	store_relay_parked(&relay, "a2");
	store_relay_due(&relay, STORE_NOW);
	store_relay_failed(&relay, "a1", false);
	assert_string_equal(store_relay_fetch(&relay, 0), "[a3]");
	assert_string_equal(store_relay_due(&relay, STORE_NOW), "a2");
	store_relay_published(&relay, "a2");
	assert_string_equal(store_relay_fetch(&relay, 0), "a3");
	store_relay_close(&relay);
	semel_store_close(store);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void counts_show_what_waits_and_why(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "b1", "b", "b2", "b", "c1", "c", "c2", "c", "d1", "d",
		      NULL);
	assert_int_equal(counts_of(store).waiting, 6);
	assert_true(counts_of(store).oldest_ms > STORE_NOW); /* committed, not happened */
	store_execute(store, "UPDATE semel_outbox SET committed_at = created_at");
	assert_int_equal(counts_of(store).oldest_ms, STORE_NOW);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_published(&relay, "a1");
	store_relay_retry(&relay, "b1", SOON);
	store_relay_parked(&relay, "b2");
	store_relay_failed(&relay, "c1", true);
	store_relay_parked(&relay, "c2");
	struct semel_outbox_counts counts = counts_of(store);
	assert_int_equal(counts.waiting, 1);
	assert_int_equal(counts.retrying, 2);
	assert_int_equal(counts.parked, 1);
	assert_int_equal(counts.blocked, 0);
	assert_int_equal(counts.failed, 1);
	assert_int_equal(counts.next_due_ms, SOON);
	assert_true(strlen(counts.last_error) > 0);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void events_behind_a_blocking_failure_are_counted_apart(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "a1", "a", "a2", "a", "a3", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	assert_ok(store_relay_mark(&relay, "a1",
				   (struct semel_mark){ .kind = SEMEL_MARK_FAILED,
							.attempts = 10,
							.reason = "too large",
							.holds = true,
							.blocks = true }));
	store_relay_parked(&relay, "a2");
	struct semel_outbox_counts counts = counts_of(store);
	assert_int_equal(counts.blocked, 2);
	assert_int_equal(counts.parked + counts.waiting + counts.retrying, 0);
	store_relay_close(&relay);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_lane_has_one_owner_and_every_new_one_a_higher_epoch),
	cmocka_unit_test(
		a_lane_is_held_until_its_lease_ends_whatever_this_machine_knows_of_the_owner),
	cmocka_unit_test(a_relay_that_joins_has_its_rank_in_the_group),
	cmocka_unit_test(a_commit_wakes_a_sleeping_relay),
	cmocka_unit_test(only_its_owner_releases_a_lane),
	cmocka_unit_test(a_relay_that_lost_its_lane_cannot_mark),
	cmocka_unit_test(a_published_event_does_not_come_again),
	cmocka_unit_test(rows_below_the_low_mark_that_were_never_sent_are_found),
	cmocka_unit_test(
		rows_below_the_low_mark_are_not_searched_for_when_they_come_through_a_stream),
	cmocka_unit_test(a_low_mark_above_every_number_drawn_is_not_believed),
	cmocka_unit_test(marks_touch_the_rows_they_name_and_no_other),
	cmocka_unit_test(a_refused_event_holds_its_aggregate_and_no_other),
	cmocka_unit_test(exceptions_of_an_aggregate_come_back_one_by_one_in_order),
	cmocka_unit_test(a_parked_event_without_a_predecessor_is_due_at_once),
	cmocka_unit_test(a_failed_event_is_a_dead_letter_and_its_followers_wait),
	cmocka_unit_test(a_replayed_failure_goes_first_and_its_followers_after_it),
	cmocka_unit_test(a_replay_that_fails_again_returns_to_its_entry),
	cmocka_unit_test(a_discarded_failure_releases_its_followers),
	cmocka_unit_test(a_skipped_failure_holds_no_event),
	cmocka_unit_test(counts_show_what_waits_and_why),
	cmocka_unit_test(events_behind_a_blocking_failure_are_counted_apart),
};
const struct store_tests store_relay_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
