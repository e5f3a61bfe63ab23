/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a guard, in sentences. */
#include "contract/guard_suite.h"

#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>

static const struct guard_suite_factory *suite;
static struct semel_guard *guard;

static int make_guard(void **state)
{
	(void)state;
	guard = suite->make();
	return guard == NULL;
}

static int drop_guard(void **state)
{
	(void)state;
	guard->driver->close(guard);
	suite->drop();
	return 0;
}

static void begin(void)
{
	if (guard->driver->joins)
		store_begin(suite->store());
}

static void commit(void)
{
	if (guard->driver->joins)
		store_commit(suite->store());
}

static struct semel_claim_result claim_now(struct semel_inbox_claim claim)
{
	struct semel_claim_result answer = { 0 };
	begin();
	assert_ok(guard->driver->claim(guard, &claim, 1, STORE_NOW, &answer, NULL));
	commit();
	return answer;
}

static bool change_now(struct semel_inbox_claim claim, struct semel_inbox_change change)
{
	bool taken = false;
	change.now_ms = STORE_NOW;
	begin();
	assert_ok(guard->driver->change(guard, &claim, &change, &taken, NULL));
	commit();
	return taken;
}

static struct semel_inbox_claim at_work(const char *id, const char *owner)
{
	struct semel_inbox_claim claim = store_claim(id);
	claim.status = SEMEL_INBOX_CLAIMED;
	claim.owner = owner;
	claim.lease_until_ms = STORE_NOW + 30000;
	return claim;
}

static void the_first_claim_wins_and_the_second_is_a_duplicate(void **state)
{
	(void)state;
	assert_int_equal(claim_now(store_claim("e1")).found, SEMEL_FOUND_NEW);
	assert_int_equal(claim_now(store_claim("e1")).found, SEMEL_FOUND_PROCESSED);
}

static void a_batch_is_answered_in_order(void **state)
{
	(void)state;
	const struct semel_inbox_claim claims[] = { store_claim("e1"), store_claim("e2"),
						    store_claim("e1") };
	struct semel_claim_result answers[3];
	begin();
	assert_ok(guard->driver->claim(guard, claims, 3, STORE_NOW, answers, NULL));
	commit();
	assert_int_equal(answers[0].found, SEMEL_FOUND_NEW);
	assert_int_equal(answers[1].found, SEMEL_FOUND_NEW);
	assert_int_equal(answers[2].found, SEMEL_FOUND_PROCESSED);
}

static void a_claim_at_work_is_finished_by_a_change(void **state)
{
	(void)state;
	claim_now(at_work("e1", "worker-1"));
	struct semel_claim_result answer = claim_now(at_work("e1", "worker-2"));
	assert_int_equal(answer.found, SEMEL_FOUND_CLAIMED);
	assert_string_equal(answer.owner, "worker-1");
	assert_int_equal(answer.lease_until_ms, STORE_NOW + 30000);
	const struct semel_inbox_change finish = { .from = SEMEL_INBOX_CLAIMED,
						   .from_owner = "worker-1" };
	assert_true(change_now(store_claim("e1"), finish));
	assert_false(change_now(store_claim("e1"), finish));
	assert_int_equal(claim_now(store_claim("e1")).found, SEMEL_FOUND_PROCESSED);
}

static void leases_are_renewed_for_their_owner(void **state)
{
	(void)state;
	claim_now(at_work("e1", "worker-1"));
	assert_ok(guard->driver->renew(guard, "worker-1", STORE_NOW + 90000, NULL));
	assert_int_equal(claim_now(store_claim("e1")).lease_until_ms, STORE_NOW + 90000);
}

static void a_forgotten_claim_is_free_again(void **state)
{
	(void)state;
	struct semel_inbox_claim claim = store_claim("e1");
	claim_now(claim);
	begin();
	assert_ok(guard->driver->forget(guard, &claim, NULL));
	commit();
	assert_int_equal(claim_now(claim).found, SEMEL_FOUND_NEW);
}

static void a_guard_that_joins_forgets_what_is_rolled_back(void **state)
{
	(void)state;
	struct semel_inbox_claim claim = store_claim("e1");
	struct semel_claim_result answer;
	if (!guard->driver->joins)
		skip();
	begin();
	assert_ok(guard->driver->claim(guard, &claim, 1, STORE_NOW, &answer, NULL));
	suite->store()->driver->rollback(suite->store());
	assert_int_equal(claim_now(claim).found, SEMEL_FOUND_NEW);
	assert_int_equal(guard->driver->claim(guard, &claim, 1, STORE_NOW, &answer, NULL),
			 SEMEL_NO_TRANSACTION);
}

static bool is_settled(const char *id)
{
	bool settled = false;
	begin();
	assert_ok(guard->driver->is_settled(guard, SEMEL_TEXT("billing"), semel_text_of(id),
					    &settled, NULL));
	commit();
	return settled;
}

static void an_event_is_settled_once_its_claim_is_finished(void **state)
{
	(void)state;
	const struct semel_inbox_change fail = { .from = SEMEL_INBOX_CLAIMED,
						 .from_owner = "worker-1",
						 .error_code = "HANDLER_REJECT" };
	struct semel_inbox_claim failed = store_claim("e3");
	failed.status = SEMEL_INBOX_FAILED;
	assert_false(is_settled("e1"));
	claim_now(store_claim("e1"));
	claim_now(at_work("e2", "worker-1"));
	claim_now(at_work("e3", "worker-1"));
	assert_true(change_now(failed, fail));
	assert_true(is_settled("e1"));
	assert_false(is_settled("e2"));
	assert_true(is_settled("e3"));
}

static void a_claim_is_forgotten_for_its_owner_only(void **state)
{
	(void)state;
	struct semel_inbox_claim claim = at_work("e1", "worker-1"),
				 other = at_work("e1", "worker-2");
	claim_now(claim);
	begin();
	assert_ok(guard->driver->forget(guard, &other, NULL));
	commit();
	assert_int_equal(claim_now(other).found, SEMEL_FOUND_CLAIMED);
	begin();
	assert_ok(guard->driver->forget(guard, &claim, NULL));
	commit();
	assert_int_equal(claim_now(other).found, SEMEL_FOUND_NEW);
}

static void what_a_guard_knows_from_the_start_is_not_forgotten(void **state)
{
	(void)state;
	int64_t since_ms = -1;
	assert_ok(guard->driver->known_since(guard, &since_ms, NULL));
	assert_int_equal(since_ms, 0);
}

static void a_guard_is_opened_by_its_url(void **state)
{
	(void)state;
	char url[64];
	struct semel_guard *other = NULL;
	semel_error error = { .status = SEMEL_OK };
	snprintf(url, sizeof url, "%s:?unknown=1", guard->driver->scheme);
	assert_int_equal(
		semel_guard_open(url, suite->store ? suite->store() : NULL, &other, &error),
		SEMEL_CONFIG);
	assert_int_equal(semel_guard_open("inbax:", NULL, &other, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "did you mean inbox"));
	assert_null(other);
}

int guard_suite_run(const struct guard_suite_factory *factory)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_first_claim_wins_and_the_second_is_a_duplicate,
						make_guard, drop_guard),
		cmocka_unit_test_setup_teardown(a_batch_is_answered_in_order, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(a_claim_at_work_is_finished_by_a_change, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(leases_are_renewed_for_their_owner, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(a_forgotten_claim_is_free_again, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(an_event_is_settled_once_its_claim_is_finished,
						make_guard, drop_guard),
		cmocka_unit_test_setup_teardown(a_claim_is_forgotten_for_its_owner_only, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(what_a_guard_knows_from_the_start_is_not_forgotten,
						make_guard, drop_guard),
		cmocka_unit_test_setup_teardown(a_guard_is_opened_by_its_url, make_guard,
						drop_guard),
		cmocka_unit_test_setup_teardown(a_guard_that_joins_forgets_what_is_rolled_back,
						make_guard, drop_guard),
	};
	suite = factory;
	return cmocka_run_group_tests_name(factory->name, tests, NULL, NULL);
}
