/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: claims. */
#include "contract/store_steps.h"

#include <semel/inbox.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void the_first_claim_wins_and_the_second_finds_it(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_NEW);
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_PROCESSED);
	assert_int_equal(store_claim_now(store, store_claim("e2")).found, SEMEL_FOUND_NEW);
	struct semel_inbox_claim other_scope = store_claim("e1");
	other_scope.scope = SEMEL_TEXT("audit");
	assert_int_equal(store_claim_now(store, other_scope).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

static void two_claims_of_one_id_in_one_call_find_each_other(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const struct semel_inbox_claim claims[] = { store_claim("e1"), store_claim("e2"),
						    store_claim("e1") };
	struct semel_claim_result answers[3];
	store_begin(store);
	assert_ok(
		store->driver->inbox->claim(store_tx(store), claims, 3, STORE_NOW, answers, NULL));
	store_commit(store);
	assert_int_equal(answers[0].found, SEMEL_FOUND_NEW);
	assert_int_equal(answers[1].found, SEMEL_FOUND_NEW);
	assert_int_equal(answers[2].found, SEMEL_FOUND_PROCESSED);
	semel_store_close(store);
}

/* ---- batches: mostly new, sometimes not ------------------------------------------------------ */

#define BATCH 40

/* first, first + 1, …: one letter on each answer, N for new and P for processed before. */
static void claim_batch(semel_store *store, int first, char letters_out[static BATCH + 1])
{
	static char ids[BATCH][16];
	struct semel_inbox_claim claims[BATCH];
	struct semel_claim_result answers[BATCH];
	for (int i = 0; i < BATCH; i++) {
		snprintf(ids[i], sizeof(ids[i]), "e%d", first + i);
		claims[i] = store_claim(ids[i]);
	}
	assert_ok(store->driver->inbox->claim(store_tx(store), claims, BATCH, STORE_NOW, answers,
					      NULL));
	for (int i = 0; i < BATCH; i++)
		letters_out[i] = answers[i].found == SEMEL_FOUND_NEW         ? 'N'
				 : answers[i].found == SEMEL_FOUND_PROCESSED ? 'P'
									     : '?';
	letters_out[BATCH] = '\0';
}

/* So many claims that were there, and then new ones. */
static void assert_batch(semel_store *store, int first, int known)
{
	char letters[BATCH + 1], expected[BATCH + 1];
	memset(expected, 'N', BATCH);
	memset(expected, 'P', (size_t)known);
	expected[BATCH] = '\0';
	store_begin(store);
	claim_batch(store, first, letters);
	store_commit(store);
	assert_string_equal(letters, expected);
}

static void a_batch_that_overlaps_another_finds_what_was_there(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_batch(store, 0, 0);
	assert_batch(store, BATCH, 0);
	assert_batch(store, 2 * BATCH - 1, 1); /* one is enough */
	assert_batch(store, 2 * BATCH - 1, BATCH);
	assert_batch(store, 3 * BATCH - 11, 10);
	int first = 4 * BATCH - 11;
	for (int i = 0; i < 20;
	     i++, first += BATCH) /* new ones for a while: taken to be new again */
		assert_batch(store, first, 0);
	assert_batch(store, first - 5, 5);
	semel_store_close(store);
}

static void a_batch_after_a_rollback_is_new_again(void **state)
{
	(void)state;
	char letters[BATCH + 1];
	semel_store *store = store_open_one();
	assert_batch(store, BATCH / 2, 0);
	store_begin(store);
	claim_batch(store, 0, letters); /* its second half was there */
	store->driver->rollback(store);
	store_begin(store);
	claim_batch(store, 2 * BATCH, letters);
	store->driver->rollback(store);
	assert_batch(store, 2 * BATCH, 0);
	assert_batch(store, BATCH / 2, BATCH);
	semel_store_close(store);
}

static void a_claim_belongs_to_the_week_of_the_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim claim = store_claim("e1");
	store_claim_now(store, claim);
	claim.event_time_ms = STORE_NOW + 36 * INT64_C(3600000); /* still that Sunday */
	claim.event_time_ms -= 12 * INT64_C(3600000) + 1000;
	assert_int_equal(store_claim_now(store, claim).found, SEMEL_FOUND_PROCESSED);
	claim.event_time_ms = STORE_NOW + STORE_WEEK;
	assert_int_equal(store_claim_now(store, claim).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

static void a_rolled_back_claim_is_free_again(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim claim = store_claim("e1");
	struct semel_claim_result answer;
	claim.key = SEMEL_TEXT("k");
	store_begin(store);
	assert_ok(
		store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW, &answer, NULL));
	store->driver->rollback(store);
	assert_int_equal(store_claim_now(store, claim).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

static void a_claim_wants_a_transaction(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim claim = store_claim("e1");
	struct semel_claim_result answer;
	assert_int_equal(
		store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW, &answer, NULL),
		SEMEL_NO_TRANSACTION);
	assert_int_equal(store_claim_now(store, claim).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

#define CLAIMERS 6
static int wins[2];

static bool claim_in_process(int number)
{
	semel_store *store = NULL;
	semel_claim_outcome outcome = SEMEL_IN_PROGRESS;
	const semel_claim claim = { .scope = "billing",
				    .event_id = "contested",
				    .event_time_ms = STORE_NOW,
				    .topic = "order.events",
				    .offset = number };
	if (semel_store_open(store_url, &store, NULL) != SEMEL_OK)
		return false;
	bool claimed = semel_inbox_try_claim(store, &claim, &outcome, NULL) == SEMEL_OK;
	semel_store_close(store);
	return claimed && (outcome != SEMEL_CLAIMED ||
			   write(wins[1], &number, sizeof(number)) == sizeof(number));
}

static void exactly_one_of_many_processes_wins_a_claim(void **state)
{
	(void)state;
	int winners[CLAIMERS];
	semel_store_close(store_open_one());
	assert_int_equal(pipe(wins), 0);
	store_in_processes(CLAIMERS, claim_in_process);
	close(wins[1]);
	assert_int_equal(read(wins[0], winners, sizeof(winners)), sizeof(int));
	close(wins[0]);
}

/* ---- business keys --------------------------------------------------------------------------- */

static semel_status count_row(struct semel_text id, const char *status, struct semel_text topic,
			      int64_t time_ms, void *user)
{
	(void)topic;
	char *notes = user;
	char line[128];
	snprintf(line, sizeof(line), "%s %s %lld;", semel_text_shown(id), status,
		 (long long)(time_ms / 86400000));
	strcat(notes, line);
	return SEMEL_OK;
}

static void a_business_key_is_new_once_whatever_the_week(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim first = store_claim("e1"), second = store_claim("e2");
	char notes[256] = "";
	first.key = second.key = SEMEL_TEXT("payment-7");
	second.event_time_ms = STORE_NOW + 3 * STORE_WEEK;
	assert_int_equal(store_claim_now(store, first).found, SEMEL_FOUND_NEW);
	assert_int_equal(store_claim_now(store, second).found, SEMEL_FOUND_KEY);
	assert_int_equal(store_claim_now(store, second).found, SEMEL_FOUND_KEY);
	assert_int_equal(store_claim_now(store, first).found, SEMEL_FOUND_PROCESSED);
	/* The duplicate is accounted for: 2025-11-10 and three weeks later. */
	assert_ok(store->driver->inbox->each(store, SEMEL_TEXT("billing"), count_row, notes, NULL));
	assert_string_equal(notes, "e1 PROCESSED 20402;e2 PROCESSED 20423;");
	semel_store_close(store);
}

static void a_key_of_an_event_at_work_is_answered_with_its_owner(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim first = store_claim("e1"), second = store_claim("e2");
	first.key = second.key = SEMEL_TEXT("payment-7");
	first.status = SEMEL_INBOX_CLAIMED;
	first.owner = "worker-1";
	first.lease_until_ms = STORE_NOW + 30000;
	store_claim_now(store, first);
	struct semel_claim_result answer = store_claim_now(store, second);
	assert_int_equal(answer.found, SEMEL_FOUND_CLAIMED);
	assert_string_equal(answer.owner, "worker-1");
	semel_store_close(store);
}

static void business_keys_of_a_batch_are_answered_as_one_by_one(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim known = store_claim("e0");
	struct semel_inbox_claim batch[] = { store_claim("e1"), store_claim("e2"),
					     store_claim("e3"), store_claim("e4"),
					     store_claim("e1"), store_claim("e5") };
	static const enum semel_claim_found expected[] = {
		SEMEL_FOUND_NEW, SEMEL_FOUND_KEY,       SEMEL_FOUND_NEW,
		SEMEL_FOUND_KEY, SEMEL_FOUND_PROCESSED, SEMEL_FOUND_CLAIMED
	};
	struct semel_claim_result answers[6];
	char notes[512] = "";
	known.key = batch[3].key = SEMEL_TEXT("used before");
	batch[0].key = batch[1].key = batch[4].key = SEMEL_TEXT("used twice");
	assert_int_equal(store_claim_now(store, known).found, SEMEL_FOUND_NEW);
	struct semel_inbox_claim busy = store_claim("e6");
	busy.key = batch[5].key = SEMEL_TEXT("at work");
	busy.status = SEMEL_INBOX_CLAIMED;
	busy.owner = "worker-1";
	busy.lease_until_ms = STORE_NOW + 30000;
	store_claim_now(store, busy);
	store_begin(store);
	assert_ok(store->driver->inbox->claim(store_tx(store), batch, 6, STORE_NOW, answers, NULL));
	store_commit(store);
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(answers[i].found, expected[i]);
	assert_true(answers[5].key_conflict);
	assert_string_equal(answers[5].owner, "worker-1");
	assert_ok(store->driver->inbox->each(store, SEMEL_TEXT("billing"), count_row, notes, NULL));
	assert_string_equal(notes, "e0 PROCESSED 20402;e1 PROCESSED 20402;e2 PROCESSED 20402;"
				   "e3 PROCESSED 20402;e4 PROCESSED 20402;e6 CLAIMED 20402;");
	semel_store_close(store);
}

/* ---- claims at work -------------------------------------------------------------------------- */

static struct semel_inbox_claim claim_at_work(const char *id, const char *owner)
{
	struct semel_inbox_claim claim = store_claim(id);
	claim.status = SEMEL_INBOX_CLAIMED;
	claim.owner = owner;
	claim.lease_until_ms = STORE_NOW + 30000;
	return claim;
}

static void a_claim_at_work_shows_its_owner_and_lease(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim claim = claim_at_work("e1", "worker-1");
	assert_int_equal(store_claim_now(store, claim).found, SEMEL_FOUND_NEW);
	struct semel_claim_result answer = store_claim_now(store, store_claim("e1"));
	assert_int_equal(answer.found, SEMEL_FOUND_CLAIMED);
	assert_string_equal(answer.owner, "worker-1");
	assert_int_equal(answer.lease_until_ms, STORE_NOW + 30000);
	semel_store_close(store);
}

static void a_claim_is_finished_by_its_owner_only(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim done = store_claim("e1");
	store_claim_now(store, claim_at_work("e1", "worker-1"));
	assert_false(store_change_now(store, done,
				      (struct semel_inbox_change){ .from = SEMEL_INBOX_CLAIMED,
								   .from_owner = "worker-2" }));
	assert_true(store_change_now(store, done,
				     (struct semel_inbox_change){ .from = SEMEL_INBOX_CLAIMED,
								  .from_owner = "worker-1" }));
	assert_int_equal(store_claim_now(store, done).found, SEMEL_FOUND_PROCESSED);
	assert_false(store_change_now(store, done,
				      (struct semel_inbox_change){ .from = SEMEL_INBOX_CLAIMED }));
	semel_store_close(store);
}

static void a_dead_owners_claim_is_taken_over_once(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const struct semel_inbox_change takeover = { .from = SEMEL_INBOX_CLAIMED,
						     .from_owner = "dead" };
	store_claim_now(store, claim_at_work("e1", "dead"));
	assert_true(store_change_now(store, claim_at_work("e1", "worker-1"), takeover));
	assert_false(store_change_now(store, claim_at_work("e1", "worker-2"), takeover));
	assert_string_equal(store_claim_now(store, store_claim("e1")).owner, "worker-1");
	semel_store_close(store);
}

static void a_failed_claim_is_taken_over_once_per_replay(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim failed = store_claim("e1");
	struct semel_inbox_claim taker = claim_at_work("e1", "worker-1");
	const struct semel_inbox_change fail = { .from = SEMEL_INBOX_CLAIMED,
						 .error_code = "HANDLER_REJECT" };
	const struct semel_inbox_change takeover = { .from = SEMEL_INBOX_FAILED };
	failed.status = SEMEL_INBOX_FAILED;
	store_claim_now(store, claim_at_work("e1", "worker-0"));
	assert_true(store_change_now(store, failed, fail));
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_FAILED);
	assert_false(store_change_now(store, taker, takeover)); /* no replay at all */
	taker.replay = 1;
	assert_true(store_change_now(store, taker, takeover));
	assert_false(store_change_now(store, taker, takeover)); /* at work now */
	assert_true(store_change_now(store, failed, fail));
	assert_false(store_change_now(store, taker, takeover)); /* the same replay again */
	taker.replay = 2;
	assert_true(store_change_now(store, taker, takeover));
	semel_store_close(store);
}

static void a_claim_is_changed_whatever_week_the_caller_believes(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim done = store_claim("e1");
	store_claim_now(store, claim_at_work("e1", "worker-1"));
	done.event_time_ms = STORE_NOW + 5 * STORE_WEEK;
	assert_true(store_change_now(store, done,
				     (struct semel_inbox_change){ .from = SEMEL_INBOX_CLAIMED }));
	semel_store_close(store);
}

static void only_unfinished_claims_of_the_owner_are_renewed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const int64_t later = STORE_NOW + 60000;
	store_claim_now(store, claim_at_work("mine", "worker-1"));
	store_claim_now(store, claim_at_work("other", "worker-2"));
	assert_ok(store->driver->inbox->renew(store, "worker-1", later, NULL));
	assert_int_equal(store_claim_now(store, store_claim("mine")).lease_until_ms, later);
	assert_int_equal(store_claim_now(store, store_claim("other")).lease_until_ms,
			 STORE_NOW + 30000);
	semel_store_close(store);
}

static void a_forgotten_claim_and_its_key_are_free_again(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim claim = store_claim("e1"), other = store_claim("e2");
	claim.key = other.key = SEMEL_TEXT("k");
	store_claim_now(store, claim);
	store_begin(store);
	struct semel_inbox_claim by_id = store_claim("e1");
	assert_ok(store->driver->inbox->forget(store_tx(store), &by_id, NULL));
	store_commit(store);
	assert_int_equal(store_claim_now(store, other).found, SEMEL_FOUND_NEW);
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_NEW);
	semel_store_close(store);
}

static void forget_now(semel_store *store, struct semel_inbox_claim claim)
{
	store_begin(store);
	assert_ok(store->driver->inbox->forget(store_tx(store), &claim, NULL));
	store_commit(store);
}

static void a_claim_that_is_not_the_owners_any_more_is_not_forgotten_by_it(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim mine = claim_at_work("e1", "worker-1"),
				 conflicting = store_claim("e2");
	mine.key = conflicting.key = SEMEL_TEXT("k");
	store_claim_now(store, mine);
	forget_now(store, claim_at_work("e1", "worker-2"));
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_CLAIMED);
	assert_int_equal(store_claim_now(store, conflicting).found, SEMEL_FOUND_CLAIMED);
	struct semel_inbox_change finish = { .from = SEMEL_INBOX_CLAIMED };
	assert_true(store_change_now(store, store_claim("e1"), finish));
	forget_now(store, mine); /* finished meanwhile, by whomever */
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_PROCESSED);
	semel_store_close(store);
}

static bool is_settled(semel_store *store, const char *id)
{
	bool settled = false;
	assert_ok(store->driver->inbox->is_settled(store_tx(store), SEMEL_TEXT("billing"),
						   semel_text_of(id), &settled, NULL));
	return settled;
}

static void processed_failed_and_dead_events_are_settled(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("dead", "a");
	store_claim_now(store, store_claim("done"));
	store_claim_now(store, claim_at_work("busy", "worker-1"));
	store_add_dead_letter(store, store_dead("d1", &event));
	assert_true(is_settled(store, "done"));
	assert_true(is_settled(store, "dead"));
	assert_false(is_settled(store, "busy"));
	assert_false(is_settled(store, "unknown"));
	semel_store_close(store);
}

/* ---- for applications ------------------------------------------------------------------------ */

static void a_claim_without_what_identifies_it_is_an_error(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const semel_claim good = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	semel_claim bad[] = { good, good, good, good, good, good, good };
	semel_claim_outcome outcome;
	bad[0].scope = NULL;
	bad[1].scope = "  ";
	bad[2].event_id = "";
	bad[3].event_id = NULL;
	bad[4].topic = NULL;
	bad[5].event_time_ms = 0;
	bad[6].event_time_ms = INT64_MAX;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		semel_error error = { 0 };
		assert_int_equal(semel_inbox_try_claim(store, &bad[i], &outcome, &error),
				 SEMEL_INVALID);
		assert_true(strlen(error.text) > 0);
		store_begin(store);
		assert_int_equal(
			semel_inbox_try_claim_same_tx(store_tx(store), &bad[i], &outcome, NULL),
			SEMEL_INVALID);
		store->driver->rollback(store);
	}
	assert_int_equal(semel_inbox_try_claim(store, NULL, &outcome, NULL), SEMEL_INVALID);
	assert_int_equal(semel_inbox_try_claim(NULL, &good, &outcome, NULL), SEMEL_INVALID);
	assert_ok(semel_inbox_try_claim(store, &good, &outcome, NULL));
	assert_int_equal(outcome, SEMEL_CLAIMED);
	semel_store_close(store);
}

static void a_claim_without_a_scope_takes_the_stores_default(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const semel_claim claim = { NULL, "e1", STORE_NOW, "order.events", 0, 0, NULL };
	semel_claim_outcome outcome;
	assert_ok(semel_store_set_default_scope(store, "billing", NULL));
	assert_ok(semel_inbox_try_claim(store, &claim, &outcome, NULL));
	assert_int_equal(outcome, SEMEL_CLAIMED);
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_PROCESSED);
	assert_ok(semel_inbox_try_claim(store, &claim, &outcome, NULL));
	assert_int_equal(outcome, SEMEL_DUPLICATE);
	assert_ok(semel_store_set_default_scope(store, " ", NULL));
	assert_int_equal(semel_inbox_try_claim(store, &claim, &outcome, NULL), SEMEL_INVALID);
	semel_store_close(store);
}

static void a_same_tx_claim_without_a_transaction_fails_at_once(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	const semel_claim claim = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	semel_claim_outcome outcome;
	assert_int_equal(semel_inbox_try_claim_same_tx(store_tx(store), &claim, &outcome, NULL),
			 SEMEL_NO_TRANSACTION);
	store_begin(store);
	assert_ok(semel_inbox_try_claim_same_tx(store_tx(store), &claim, &outcome, NULL));
	assert_int_equal(outcome, SEMEL_CLAIMED);
	assert_int_equal(semel_inbox_try_claim(store, &claim, &outcome, NULL), SEMEL_INVALID);
	store->driver->rollback(store);
	store_claim_now(store, claim_at_work("e1", "worker-1"));
	assert_ok(semel_inbox_try_claim(store, &claim, &outcome, NULL));
	assert_int_equal(outcome, SEMEL_IN_PROGRESS);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(the_first_claim_wins_and_the_second_finds_it),
	cmocka_unit_test(two_claims_of_one_id_in_one_call_find_each_other),
	cmocka_unit_test(a_batch_that_overlaps_another_finds_what_was_there),
	cmocka_unit_test(a_batch_after_a_rollback_is_new_again),
	cmocka_unit_test(a_claim_belongs_to_the_week_of_the_event),
	cmocka_unit_test(a_rolled_back_claim_is_free_again),
	cmocka_unit_test(a_claim_wants_a_transaction),
	cmocka_unit_test(exactly_one_of_many_processes_wins_a_claim),
	cmocka_unit_test(a_business_key_is_new_once_whatever_the_week),
	cmocka_unit_test(a_key_of_an_event_at_work_is_answered_with_its_owner),
	cmocka_unit_test(business_keys_of_a_batch_are_answered_as_one_by_one),
	cmocka_unit_test(a_claim_at_work_shows_its_owner_and_lease),
	cmocka_unit_test(a_claim_is_finished_by_its_owner_only),
	cmocka_unit_test(a_dead_owners_claim_is_taken_over_once),
	cmocka_unit_test(a_failed_claim_is_taken_over_once_per_replay),
	cmocka_unit_test(a_claim_is_changed_whatever_week_the_caller_believes),
	cmocka_unit_test(only_unfinished_claims_of_the_owner_are_renewed),
	cmocka_unit_test(a_forgotten_claim_and_its_key_are_free_again),
	cmocka_unit_test(a_claim_that_is_not_the_owners_any_more_is_not_forgotten_by_it),
	cmocka_unit_test(processed_failed_and_dead_events_are_settled),
	cmocka_unit_test(a_claim_without_what_identifies_it_is_an_error),
	cmocka_unit_test(a_claim_without_a_scope_takes_the_stores_default),
	cmocka_unit_test(a_same_tx_claim_without_a_transaction_fails_at_once),
};
const struct store_tests store_inbox_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
