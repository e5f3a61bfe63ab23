/* SPDX-License-Identifier: Apache-2.0 */
/* A constraint that is checked at the end only: the commit of a C handler's effect fails because of
 * one event, which becomes a dead letter; the others are not affected. */
#include "unit/fixture.h"

static int begin(void **state)
{
	if (fixture_begin(state) != 0)
		return -1;
	fixture_sql(
		fixture_of(state),
		"DROP TABLE effect; CREATE TABLE word (payload TEXT PRIMARY KEY);"
		" INSERT INTO word VALUES ('\"one\"'), ('\"two\"'), ('\"three\"'), ('\"four\"');"
		" CREATE TABLE effect (number INTEGER PRIMARY KEY, scope TEXT, id TEXT, payload "
		"TEXT"
		" REFERENCES word DEFERRABLE INITIALLY DEFERRED)");
	return 0;
}

static void publish(struct fixture *fixture, const char *aggregate, const char *word)
{
	char id[SEMEL_ID_SIZE];
	fixture_publish(fixture, aggregate, word, id);
}

static void expect_one_letter(struct fixture *fixture, const char *payload)
{
	struct fixture_letter letter = fixture_letter(fixture);

	assert_int_equal(letter.count, 1);
	assert_string_equal(letter.reason, "commit failed: FOREIGN KEY constraint failed");
	assert_int_equal(letter.attempts, 1);
	fixture_expect(fixture,
		       "SELECT o.payload FROM semel_outbox o JOIN semel_dead_letter d"
		       " ON d.event_id = o.id",
		       payload);
	fixture_expect(fixture,
		       "SELECT count(*) FROM effect WHERE payload NOT IN"
		       " (SELECT payload FROM word)",
		       "0");
}

static void consume_a_batch_with(struct fixture *fixture, semel_consumer_options options)
{
	options.scope = "billing";
	publish(fixture, "1", "one");
	publish(fixture, "2", "unknown");
	publish(fixture, "3", "two");
	publish(fixture, "1", "three");
	fixture_relay(fixture);
	fixture_consume_with(fixture, options);
	fixture_expect(fixture, "SELECT count(DISTINCT payload) || ' of ' || count(*) FROM effect",
		       "3 of 3");
	expect_one_letter(fixture, "\"unknown\"");
}

static void only_the_failing_event_of_a_batch_is_given_up(void **state)
{
	consume_a_batch_with(fixture_of(state), (semel_consumer_options){ 0 });
}

static void so_it_is_with_a_separate_claim(void **state)
{
	consume_a_batch_with(fixture_of(state),
			     (semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
}

static void so_it_is_at_most_once(void **state)
{
	consume_a_batch_with(fixture_of(state),
			     (semel_consumer_options){ .guarantee = SEMEL_AT_MOST_ONCE });
}

static void so_it_is_at_least_once(void **state)
{
	consume_a_batch_with(fixture_of(state),
			     (semel_consumer_options){ .guarantee = SEMEL_AT_LEAST_ONCE });
}

static void a_follower_is_judged_alone_too(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "poison";
	publish(fixture, "1", "poison");
	publish(fixture, "1", "one");
	publish(fixture, "1", "unknown");
	publish(fixture, "1", "two");
	publish(fixture, "2", "three");
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT group_concat(payload) FROM effect", "\"three\"");
	struct fixture_letter head = fixture_letter(fixture);
	fixture_ok(fixture, semel_dead_letter_discard(fixture->store, head.entry_id, "a test",
						      &fixture->error));
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT group_concat(payload) FROM effect", "\"three\",\"one\"");
	fixture_expect(fixture,
		       "SELECT failure_reason FROM semel_dead_letter WHERE status = 'PENDING' AND"
		       " parked_behind IS NULL",
		       "commit failed: FOREIGN KEY constraint failed");
	fixture_expect(fixture,
		       "SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NOT NULL",
		       "1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(only_the_failing_event_of_a_batch_is_given_up,
						begin, fixture_end),
		cmocka_unit_test_setup_teardown(so_it_is_with_a_separate_claim, begin, fixture_end),
		cmocka_unit_test_setup_teardown(so_it_is_at_most_once, begin, fixture_end),
		cmocka_unit_test_setup_teardown(so_it_is_at_least_once, begin, fixture_end),
		cmocka_unit_test_setup_teardown(a_follower_is_judged_alone_too, begin, fixture_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
