/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a store that are the same whatever the database. */
#include "store/rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void every_word_in_the_tables_is_read_back(void **state)
{
	(void)state;
	for (int i = SEMEL_DEAD_PENDING; i <= SEMEL_DEAD_DISCARDED; i++)
		assert_int_equal(
			semel_dead_status_of(semel_dead_status_name((enum semel_dead_status)i)), i);
	for (int i = SEMEL_HOLD_RETRY; i <= SEMEL_HOLD_RELEASED; i++)
		assert_int_equal(
			semel_hold_state_of(semel_hold_state_name((enum semel_hold_state)i)), i);
	assert_int_equal(semel_dead_status_of("pending"), SEMEL_DEAD_ANY);
	assert_int_equal(semel_hold_state_of("DEAD"), SEMEL_HOLD_NONE);
	assert_int_equal(semel_claim_found_of("CLAIMED"), SEMEL_FOUND_CLAIMED);
	assert_int_equal(semel_claim_found_of("PROCESSED"), SEMEL_FOUND_PROCESSED);
	assert_int_equal(semel_claim_found_of("FAILED"), SEMEL_FOUND_FAILED);
}

static semel_status check_move(enum semel_dead_status now, enum semel_dead_status status,
			       uint32_t count)
{
	struct semel_dead_letter_row entry = { .entry_id = SEMEL_TEXT("e-1"), .replay_count = 2 };
	return semel_dead_check_move(&entry, now, status, count, NULL);
}

static void only_a_pending_dead_letter_is_moved_and_replayed_up_to_the_limit(void **state)
{
	(void)state;
	assert_int_equal(check_move(SEMEL_DEAD_PENDING, SEMEL_DEAD_REPLAYED, 2), SEMEL_OK);
	assert_int_equal(check_move(SEMEL_DEAD_REPLAYED, SEMEL_DEAD_REPLAYED, 2),
			 SEMEL_NOT_PENDING);
	assert_int_equal(check_move(SEMEL_DEAD_DISCARDED, SEMEL_DEAD_DISCARDED, 2),
			 SEMEL_NOT_PENDING);
	assert_int_equal(check_move(SEMEL_DEAD_PENDING, SEMEL_DEAD_DISCARDED, 9), SEMEL_OK);

	struct semel_dead_letter_row worn = { .entry_id = SEMEL_TEXT("e-1"),
					      .replay_count = SEMEL_REPLAYS_MAX };
	assert_int_equal(semel_dead_check_move(&worn, SEMEL_DEAD_PENDING, SEMEL_DEAD_REPLAYED,
					       SEMEL_REPLAYS_MAX, NULL),
			 SEMEL_REPLAY_LIMIT);
}

static void a_dead_letter_that_came_back_meanwhile_is_not_replayed_unseen(void **state)
{
	(void)state;
	assert_int_equal(check_move(SEMEL_DEAD_PENDING, SEMEL_DEAD_REPLAYED, 3), SEMEL_NOT_PENDING);
}

static void what_waits_in_the_outbox_is_counted_by_its_reason(void **state)
{
	(void)state;
	struct semel_outbox_counts counts = { 0 };
	semel_outbox_counts_add_oldest(&counts, 0);
	semel_outbox_counts_add_oldest(&counts, 90);
	const struct semel_outbox_group summaries[] = {
		{ .state = "retry", .head = "retry", .count = 1, .due_ms = 500, .oldest_ms = 80 },
		{ .state = "parked", .head = "retry", .count = 2, .due_ms = 0, .oldest_ms = 85 },
		{ .state = NULL, .head = "retry", .count = 4, .due_ms = 400, .oldest_ms = 70 },
		{ .state = "due", .head = "due", .count = 8, .due_ms = 300, .oldest_ms = 75 },
		{ .state = "failed", .head = "failed", .count = 16, .oldest_ms = 1 },
		{ .state = "parked", .head = "failed", .count = 32, .oldest_ms = 1 },
		{ .state = NULL, .head = "failed", .blocks = true, .count = 64, .oldest_ms = 1 },
	};
	for (size_t i = 0; i < sizeof(summaries) / sizeof(summaries[0]); i++)
		semel_outbox_counts_add(&counts, summaries[i]);
	assert_int_equal(counts.retrying, 1 + 2 + 4);
	assert_int_equal(counts.waiting, 8);
	assert_int_equal(counts.parked, 32);
	assert_int_equal(counts.blocked, 64);
	assert_int_equal(counts.next_due_ms, 500);
	assert_int_equal(counts.oldest_ms, 75);
}

static void what_waits_behind_holds_is_counted_by_their_state(void **state)
{
	(void)state;
	struct semel_hold_counts counts = { 0 };
	const struct semel_hold_summary summaries[] = {
		{ .state = SEMEL_HOLD_RETRY, .due_ms = 10, .behind = 0 },
		{ .state = SEMEL_HOLD_RETRY, .due_ms = 10, .behind = 2 },
		{ .state = SEMEL_HOLD_GAP, .due_ms = 90, .behind = 0 },
		{ .state = SEMEL_HOLD_RELEASED, .due_ms = 80, .behind = 4 },
		{ .state = SEMEL_HOLD_DEAD, .due_ms = 10, .behind = 8 },
		{ .state = SEMEL_HOLD_DEAD, .blocks = true, .due_ms = 10, .behind = 16 },
	};
	for (size_t i = 0; i < sizeof(summaries) / sizeof(summaries[0]); i++)
		semel_hold_counts_add(&counts, summaries[i]);
	assert_int_equal(counts.waiting, 2 + 1 + 4);
	assert_int_equal(counts.parked, 8);
	assert_int_equal(counts.blocked, 16);
	assert_int_equal(counts.next_due_ms, 80);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_in_the_outbox_is_counted_by_its_reason),
		cmocka_unit_test(what_waits_behind_holds_is_counted_by_their_state),
		cmocka_unit_test(every_word_in_the_tables_is_read_back),
		cmocka_unit_test(only_a_pending_dead_letter_is_moved_and_replayed_up_to_the_limit),
		cmocka_unit_test(a_dead_letter_that_came_back_meanwhile_is_not_replayed_unseen),
	};
	return cmocka_run_group_tests_name("store: rules", tests, NULL, NULL);
}
